package authn

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/tensorgrid/tensorgrid/internal/cred"
)

// tokenMargin is how long before its end a token is not used any more.
const tokenMargin = 30 * time.Second

// errClass says that a method cannot be called from another host.
var errClass = errors.New("it is for daemons, or for this host alone")

// TokenDialOptions make each call carry a token of the least class that its method needs. mint gets
// one from the login host's daemon; it is kept until 30 s before its end, and minted once however
// many calls wait for it. Connections must be of UserClientTLS.
func TokenDialOptions(mint func(context.Context, Class) ([]byte, time.Time, error)) []grpc.DialOption {
	return tokenDialOptions(mint, time.Now)
}

func tokenDialOptions(mint func(context.Context, Class) ([]byte, time.Time, error), now func() time.Time) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithPerRPCCredentials(&tokenCreds{mint: mint, now: now, kept: map[Class]*keptToken{}})}
}

type tokenCreds struct {
	mint func(context.Context, Class) ([]byte, time.Time, error)
	now  func() time.Time

	mu   sync.Mutex
	kept map[Class]*keptToken
}

type keptToken struct {
	turn chan struct{} // one minter at a time; holds a value while nobody mints
	data []byte
	ends time.Time
}

func (c *tokenCreds) RequireTransportSecurity() bool { return true }

func (c *tokenCreds) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	info, _ := credentials.RequestInfoFromContext(ctx)
	if info.Method == joinMethod {
		return nil, nil
	}
	class, ok := ClassOf(info.Method)
	if !ok {
		return nil, fmt.Errorf("%s: %w", info.Method, errClass)
	}
	data, err := c.token(ctx, class)
	if err != nil {
		return nil, err
	}
	return map[string]string{tokenKey: string(data)}, nil
}

func (c *tokenCreds) token(ctx context.Context, class Class) ([]byte, error) {
	c.mu.Lock()
	k := c.kept[class]
	if k == nil {
		k = &keptToken{turn: make(chan struct{}, 1)}
		k.turn <- struct{}{}
		c.kept[class] = k
	}
	c.mu.Unlock()
	select {
	case <-k.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { k.turn <- struct{}{} }()
	// A clock that was set back leaves a token that seems to live longer than any does.
	if left := k.ends.Sub(c.now()); k.data != nil && left > tokenMargin && left <= TokenLife+TokenSkew {
		return k.data, nil
	}
	data, ends, err := c.mint(ctx, class)
	if err != nil {
		return nil, err
	}
	k.data, k.ends = data, ends
	return data, nil
}

// WalletDialOptions make each call carry the wallet's signature over the request's bytes and the
// connection. Calls that stream requests are refused. Connections must be of UserClientTLS.
func WalletDialOptions(key *WalletKey, cluster string, now func() time.Time) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithPerRPCCredentials(&walletCreds{key: key, cluster: cluster, now: now}),
		grpc.WithChainUnaryInterceptor(walletUnary),
		grpc.WithChainStreamInterceptor(walletStream),
	}
}

type digestKey struct{}

type walletCreds struct {
	key     *WalletKey
	cluster string
	now     func() time.Time
}

func (c *walletCreds) RequireTransportSecurity() bool { return true }

// GetRequestMetadata is called for each try of a call, when its connection is known.
func (c *walletCreds) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	info, _ := credentials.RequestInfoFromContext(ctx)
	if info.Method == joinMethod {
		return nil, nil
	}
	digest, ok := ctx.Value(digestKey{}).([32]byte)
	if !ok {
		return nil, fmt.Errorf("%s: the request was not signed", info.Method)
	}
	exporter, err := exportFrom(info.AuthInfo)
	if err != nil {
		return nil, err
	}
	call := cred.WalletCall{Cluster: c.cluster, Method: info.Method, Request: digest, Expires: c.now().Add(WalletLife).UnixMilli(), Exporter: exporter}
	if _, err := rand.Read(call.Nonce[:]); err != nil {
		return nil, fmt.Errorf("sign the request: %w", err)
	}
	return map[string]string{walletKey: string(c.key.proof(call).Marshal())}, nil
}

// walletUnary encodes the request once: these bytes are signed and sent.
func walletUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	f, err := encode(req)
	if err != nil {
		return err
	}
	ctx = context.WithValue(ctx, digestKey{}, f.digest())
	return invoke(ctx, method, f, reply, cc, append(opts[:len(opts):len(opts)], grpc.ForceCodecV2(protoCodec()))...)
}

func walletStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if desc.ClientStreams {
		return nil, fmt.Errorf("%s: a wallet signs one request, this call takes many: use a token", method)
	}
	return &walletCall{ctx: ctx, open: func(digest [32]byte) (grpc.ClientStream, error) {
		ctx := context.WithValue(ctx, digestKey{}, digest)
		return open(ctx, desc, cc, method, append(opts[:len(opts):len(opts)], grpc.ForceCodecV2(protoCodec()))...)
	}}, nil
}

// walletCall opens its stream with the request, since the signature travels before it.
type walletCall struct {
	grpc.ClientStream
	ctx  context.Context
	open func(digest [32]byte) (grpc.ClientStream, error)
}

var errNoRequest = errors.New("no request was sent yet")

func (s *walletCall) SendMsg(m any) error {
	if s.ClientStream != nil {
		return errors.New("a wallet signs one request")
	}
	f, err := encode(m)
	if err != nil {
		return err
	}
	if s.ClientStream, err = s.open(f.digest()); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(f)
}

func (s *walletCall) RecvMsg(m any) error {
	if s.ClientStream == nil {
		return errNoRequest
	}
	return s.ClientStream.RecvMsg(m)
}

func (s *walletCall) CloseSend() error {
	if s.ClientStream == nil {
		return errNoRequest
	}
	return s.ClientStream.CloseSend()
}

func (s *walletCall) Header() (metadata.MD, error) {
	if s.ClientStream == nil {
		return nil, errNoRequest
	}
	return s.ClientStream.Header()
}

func (s *walletCall) Trailer() metadata.MD {
	if s.ClientStream == nil {
		return nil
	}
	return s.ClientStream.Trailer()
}

func (s *walletCall) Context() context.Context {
	if s.ClientStream == nil {
		return s.ctx
	}
	return s.ClientStream.Context()
}
