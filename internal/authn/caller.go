// Package authn says who is calling: peer credentials on local sockets, certificate roles between
// daemons; and holds the one table of which role may call which method.
package authn

import "context"

// Role is what a caller is, from the transport, never from what the caller says.
type Role string

// Roles. A person is RoleUser; configuration raises people to operator or admin.
const (
	RoleNobody   Role = "nobody"
	RoleUser     Role = "user"
	RoleOperator Role = "operator"
	RoleAdmin    Role = "admin"
	RoleNode     Role = "node" // Name is the node's
	RoleCtld     Role = "ctld" // Name is the controller's
)

// Caller is an authenticated peer.
type Caller struct {
	Role Role
	UID  uint32
	GID  uint32
	PID  int32  // local peers only; racy, for logs
	User string // name of UID, empty when it has none
	Name string // certificate name of a daemon
}

type callerKey struct{}

// NewContext gives a context that carries c.
func NewContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// FromContext gives the caller; ok is false when nobody was authenticated.
func FromContext(ctx context.Context) (c Caller, ok bool) {
	c, ok = ctx.Value(callerKey{}).(Caller)
	return c, ok
}
