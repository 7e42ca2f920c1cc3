// Package authn says who is calling: peer credentials on local sockets, certificate roles between
// daemons, tokens of login hosts and wallets' signatures on the port for users; and holds the one
// table of which role may call which method.
package authn

import (
	"context"
	"math"
)

// Role is what a caller is, from the transport, never from what the caller says.
type Role string

// Roles. A person is RoleUser; configuration raises people to operator or admin.
const (
	RoleNobody   Role = "nobody"
	RoleUser     Role = "user"
	RoleOperator Role = "operator"
	RoleAdmin    Role = "admin"
	RoleNode     Role = "node"   // Name is the node's
	RoleCtld     Role = "ctld"   // Name is the controller's
	RoleLogin    Role = "login"  // Name is the login host's; it may vouch for users
	RoleWallet   Role = "wallet" // a wallet that stands for no user here
)

// noID is the uid and gid of callers that are no user of this machine: nothing belongs to it, and it
// is never root by accident.
const noID uint32 = math.MaxUint32

// Ways in which a person came.
const (
	ViaLocal  = "local"
	ViaToken  = "token"
	ViaWallet = "wallet"
)

// Caller is an authenticated peer.
type Caller struct {
	Role Role
	UID  uint32
	GID  uint32
	PID  int32  // local peers only; racy, for logs
	User string // name of UID, empty when it has none
	Name string // certificate name of a daemon

	// How a person came: ViaLocal (the kernel's word), ViaToken (a login host's) or ViaWallet (a signature).
	Via    string
	Login  string // token: the login host that minted it
	Wallet string // wallet: its address, 0x and 40 hex digits with EIP-55's capitals
	Class  Class  // token: the most that it is good for; "" = whatever the role may
}

// Class groups methods by what a token for them can do. A class holds those before it.
type Class string

// Classes. A token names one; a client asks for the least that it needs. A class takes methods away and
// gives none: what the caller may is decided by its role.
const (
	ClassRead  Class = "read"  // looks only
	ClassJobs  Class = "jobs"  // submits and steers jobs; looks too
	ClassAdmin Class = "admin" // everything that the caller's role may

	// classNone is the class of methods that no token is good for.
	classNone Class = "-"
)

// Valid tells whether tokens of this class exist.
func (c Class) Valid() bool { return c.rank() > 0 }

func (c Class) rank() int {
	switch c {
	case ClassRead:
		return 1
	case ClassJobs:
		return 2
	case ClassAdmin:
		return 3
	}
	return 0
}

// covers tells whether a token of class c is good for a method of class m.
func (c Class) covers(m Class) bool { return m.rank() > 0 && c.rank() >= m.rank() }

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
