package authn

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// ErrNobody says that the transport does not vouch for the peer.
var ErrNobody = errors.New("the connection does not say who is calling")

// Authenticator turns transports into callers and holds the table against each call.
type Authenticator struct {
	accounts *Accounts
	policy   atomic.Pointer[Policy]
	// Deny makes the error of a refused call, and may write it down: ctx is the call's. nil gives a plain
	// PermissionDenied status.
	Deny func(ctx context.Context, method string, c Caller) error
}

// NewAuthenticator makes one; SetPolicy replaces the policy on reload.
func NewAuthenticator(accounts *Accounts, policy *Policy) *Authenticator {
	a := &Authenticator{accounts: accounts}
	a.SetPolicy(policy)
	return a
}

// SetPolicy takes effect with the next call, on open connections too.
func (a *Authenticator) SetPolicy(p *Policy) {
	if p == nil {
		p = &Policy{}
	}
	a.policy.Store(p)
}

// Policy gives the rules in force.
func (a *Authenticator) Policy() *Policy { return a.policy.Load() }

// Accounts gives the account table.
func (a *Authenticator) Accounts() *Accounts { return a.accounts }

// Caller says who is at the other end of ctx's transport.
func (a *Authenticator) Caller(ctx context.Context) (Caller, error) {
	p, ok := peer.FromContext(ctx)
	if !ok || p.AuthInfo == nil {
		return Caller{Role: RoleNobody}, ErrNobody
	}
	switch info := p.AuthInfo.(type) {
	case PeerInfo:
		return a.Person(info.UID, info.GID, info.PID), nil
	case credentials.TLSInfo:
		if len(info.State.VerifiedChains) == 0 {
			return Caller{Role: RoleNobody}, ErrNobody
		}
		_, role, name, err := IdentityOf(info.State.VerifiedChains[0][0])
		if err != nil {
			return Caller{Role: RoleNobody}, err
		}
		return Caller{Role: role, UID: noID, GID: noID, Name: name}, nil
	}
	return Caller{Role: RoleNobody}, ErrNobody
}

// Person makes the caller for a uid that the kernel, or a controller that asked its kernel, vouches for.
func (a *Authenticator) Person(uid, gid uint32, pid int32) Caller {
	c := Caller{UID: uid, GID: gid, PID: pid, Via: ViaLocal}
	if acc, err := a.accounts.ByUID(uid); err == nil {
		c.User = acc.User
	}
	c.Role = a.Policy().Role(uid, c.User)
	return c
}

// WhyNot says why a caller may not call a method, by the table and the class of a token; "" when it may.
func WhyNot(method string, c Caller) string {
	if !Allowed(method, c.Role) {
		return fmt.Sprintf("%s is not open to role %s", method, c.Role)
	}
	if least, _ := ClassOf(method); c.Via == ViaToken && !c.Class.covers(least) {
		return fmt.Sprintf("a token of class %s is not good for %s, which needs class %s", c.Class, method, least)
	}
	return ""
}

// Authorise holds the table against one call, and the class of a token.
func (a *Authenticator) Authorise(ctx context.Context, method string, c Caller) error {
	why := WhyNot(method, c)
	switch {
	case why == "":
		return nil
	case a.Deny != nil:
		return a.Deny(ctx, method, c)
	}
	return status.Error(codes.PermissionDenied, why)
}

func (a *Authenticator) admit(ctx context.Context, method string) (context.Context, error) {
	c, err := a.Caller(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if err := a.Authorise(ctx, method, c); err != nil {
		return nil, err
	}
	return NewContext(ctx, c), nil
}

// Unary authenticates and authorises unary calls.
func (a *Authenticator) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		ctx, err := a.admit(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// Stream authenticates and authorises streams.
func (a *Authenticator) Stream() grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		ctx, err := a.admit(ss.Context(), info.FullMethod)
		if err != nil {
			return err
		}
		return next(srv, &callerStream{ServerStream: ss, ctx: ctx})
	}
}

type callerStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *callerStream) Context() context.Context { return s.ctx }
