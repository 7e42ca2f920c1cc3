package authn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Metadata keys of the port for users. A call carries one of them, once.
const (
	tokenKey  = "grid-token-bin"
	walletKey = "grid-wallet-bin"
)

// Verifier checks tokens and wallets' signatures for one controller.
type Verifier struct {
	id    *Identity
	now   func() time.Time
	seen  seenTokens
	codec *rawCodec
}

// NewVerifier makes the verifier of a controller: id gives the cluster and the CAs that login hosts'
// certificates must be of. A server that uses it must be given its Codec.
func NewVerifier(id *Identity, now func() time.Time) *Verifier {
	return &Verifier{id: id, now: now, codec: newRawCodec()}
}

// Codec lets the server see requests' bytes as they came, which wallets sign. Without it no wallet is
// accepted.
func (v *Verifier) Codec() grpc.ServerOption { return grpc.ForceServerCodecV2(v.codec) }

// RemoteUnary authenticates and authorises unary calls on the port for users. It must be the first
// interceptor.
func (a *Authenticator) RemoteUnary(v *Verifier) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		digest, ok := v.codec.take(req)
		ctx, err := a.admitRemote(ctx, v, info.FullMethod, digest, ok)
		if err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// RemoteStream authenticates and authorises streams on the port for users. It reads the first request
// before anything else is done, since a wallet signs it. It must be the first interceptor.
func (a *Authenticator) RemoteStream(v *Verifier) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		s := &remoteStream{ServerStream: ss, v: v}
		var digest [32]byte
		_, signed, err := credential(ss.Context())
		if err != nil {
			return err
		}
		if signed {
			if info.IsClientStream {
				return status.Error(codes.Unauthenticated, "a wallet signs one request; "+info.FullMethod+" takes many: use a token")
			}
			s.first = &rawFrame{}
			if err := ss.RecvMsg(s.first); err != nil {
				return err
			}
			digest = s.first.digest()
		}
		if s.ctx, err = a.admitRemote(ss.Context(), v, info.FullMethod, digest, signed); err != nil {
			return err
		}
		return next(srv, s)
	}
}

// remoteStream gives the handler the request that was read before it.
type remoteStream struct {
	grpc.ServerStream
	ctx   context.Context
	v     *Verifier
	first *rawFrame
}

func (s *remoteStream) Context() context.Context { return s.ctx }

func (s *remoteStream) RecvMsg(m any) error {
	if f := s.first; f != nil {
		s.first = nil
		if err := f.into(m); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		return nil
	}
	err := s.ServerStream.RecvMsg(m)
	s.v.codec.take(m)
	return err
}

// credential gives the one credential of a call; wallet tells which it is. None is nil, two are an error.
func credential(ctx context.Context) (data []byte, wallet bool, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	tokens, wallets := md.Get(tokenKey), md.Get(walletKey)
	switch {
	case len(tokens)+len(wallets) == 0:
		return nil, false, nil
	case len(tokens)+len(wallets) > 1:
		return nil, false, status.Error(codes.Unauthenticated, "the call carries more than one token or wallet signature")
	case len(wallets) == 1:
		return []byte(wallets[0]), true, nil
	}
	return []byte(tokens[0]), false, nil
}

// admitRemote says who calls, holds the table against it and gives the context for the handler. digest
// is of the request's bytes, when they are known.
func (a *Authenticator) admitRemote(ctx context.Context, v *Verifier, method string, digest [32]byte, known bool) (context.Context, error) {
	c := Caller{Role: RoleNobody, UID: noID, GID: noID}
	data, wallet, err := credential(ctx)
	switch {
	case method == joinMethod: // its own token decides; others' credentials play no part
		err = nil
	case err != nil:
	case data == nil:
		err = errors.New("the call carries neither a token nor a wallet signature")
	case wallet && !known:
		err = errors.New("this controller cannot check wallet signatures of this call")
	case wallet:
		c, err = a.wallet(ctx, v, method, data, digest)
	default:
		c, err = a.tokenCaller(v, data)
	}
	if err != nil {
		if _, ok := status.FromError(err); ok {
			return nil, err
		}
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if err := a.Authorise(ctx, method, c); err != nil {
		return nil, err
	}
	return NewContext(ctx, c), nil
}

func (a *Authenticator) tokenCaller(v *Verifier, data []byte) (Caller, error) {
	t, err := v.token(data)
	if err != nil {
		return Caller{}, err
	}
	c, err := a.byToken(t.UID, t.GID, t.Login, Class(t.Class))
	if err != nil {
		return Caller{}, err
	}
	// The same number under two names means that the hosts have different users.
	if c.User != "" && t.User != "" && c.User != t.User {
		return Caller{}, fmt.Errorf("%w: uid %d is %s at login host %s and %s here", ErrToken, t.UID, t.User, t.Login, c.User)
	}
	return c, nil
}

// byToken makes the caller that a login host vouches for.
func (a *Authenticator) byToken(uid, gid uint32, login string, class Class) (Caller, error) {
	switch {
	case uid == 0 || uid == noID:
		return Caller{}, fmt.Errorf("%w: it is for uid %d, for whom no login host may vouch", ErrToken, uid)
	case !class.Valid():
		return Caller{}, fmt.Errorf("%w: its class is %q; want read, jobs or admin", ErrToken, class)
	case !a.Policy().MayVouch(login):
		return Caller{}, fmt.Errorf("%w: login host %q is not in LoginNodes", ErrToken, login)
	}
	c := a.Person(uid, gid, 0)
	c.Via, c.Login, c.Class = ViaToken, login, class
	return c, nil
}

// byWallet makes the caller that a wallet stands for here.
func (a *Authenticator) byWallet(address string) (Caller, error) {
	user, ok := a.Policy().Wallets[address]
	if !ok {
		return Caller{Role: RoleWallet, UID: noID, GID: noID, Via: ViaWallet, Wallet: address}, nil
	}
	acc, err := a.accounts.ByName(user)
	if err != nil {
		return Caller{}, fmt.Errorf("wallet %s stands for %s: %w", address, user, err)
	}
	if acc.UID == 0 {
		return Caller{}, fmt.Errorf("wallet %s stands for %s, which is uid 0: no wallet is root", address, user)
	}
	c := a.Person(acc.UID, acc.GID, 0)
	c.Via, c.Wallet = ViaWallet, address
	return c, nil
}

// Forwarded makes the caller of a call that another controller passes on. It takes from that
// controller who it was and how it came; what that caller may is decided here again. A "" way is a
// controller's that knew only local callers. The class of a token still binds.
func (a *Authenticator) Forwarded(uid, gid uint32, via, login, wallet string, class Class) (Caller, error) {
	switch via {
	case "", ViaLocal:
		if login != "" || wallet != "" || class != "" {
			return Caller{}, errors.New("a forwarded local caller with a login host, wallet or class")
		}
		return a.Person(uid, gid, 0), nil
	case ViaToken:
		if wallet != "" {
			return Caller{}, errors.New("a forwarded token with a wallet")
		}
		return a.byToken(uid, gid, login, class)
	case ViaWallet:
		if login != "" || class != "" {
			return Caller{}, errors.New("a forwarded wallet with a login host or class")
		}
		address, err := ParseAddress(wallet)
		if err != nil {
			return Caller{}, err
		}
		return a.byWallet(address)
	}
	return Caller{}, fmt.Errorf("a forwarded caller that came by %q: want local, token or wallet", via)
}
