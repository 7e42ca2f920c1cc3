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
	RoleNode     Role = "node"  // Name is the node's
	RoleCtld     Role = "ctld"  // Name is the controller's
	RoleLogin    Role = "login" // Name is the login host's; it may vouch for users
)

// Caller is an authenticated peer.
type Caller struct {
	Role Role
	UID  uint32
	GID  uint32
	PID  int32  // local peers only; racy, for logs
	User string // name of UID, empty when it has none
	Name string // certificate name of a daemon

	// How a person came: "local" (the kernel's word), "token" (a login host's) or "wallet" (a signature).
	Via    string
	Login  string // token: the login host that minted it
	Wallet string // wallet: its address, 0x and 40 hex digits with EIP-55's capitals
	Class  Class  // token: the only class of methods that it is good for; "" = any
}

// Class groups methods by what a token for them can do.
type Class string

// Classes. A token names one; a client asks for the least that it needs.
const (
	ClassRead  Class = "read"  // looks only
	ClassJobs  Class = "jobs"  // submits and steers the caller's jobs; looks too
	ClassAdmin Class = "admin" // everything that the caller's role may
)

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
