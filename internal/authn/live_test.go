package authn

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// everyMethod gives services that have all methods of api and answer each call that is let through.
func everyMethod(t *testing.T) (services []*grpc.ServiceDesc, names []string) {
	t.Helper()
	byName := map[string]*grpc.ServiceDesc{}
	eachMethod(t, func(full string) {
		names = append(names, full)
		service, method, _ := strings.Cut(full[1:], "/")
		d := byName[service]
		if d == nil {
			d = &grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil)}
			byName[service] = d
			services = append(services, d)
		}
		d.Methods = append(d.Methods, grpc.MethodDesc{MethodName: method, Handler: func(srv any, ctx context.Context, dec func(any) error, wrap grpc.UnaryServerInterceptor) (any, error) {
			in := new(emptypb.Empty)
			if err := dec(in); err != nil {
				return nil, err
			}
			return wrap(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, func(ctx context.Context, _ any) (any, error) {
				if _, ok := FromContext(ctx); !ok {
					return nil, status.Error(codes.Internal, "no caller in the context")
				}
				return new(emptypb.Empty), nil
			})
		}})
	})
	return services, names
}

// TestEveryMethodByEveryRole calls each method of each service over a real connection as each kind of
// caller, on the port for users and on the port between daemons.
func TestEveryMethodByEveryRole(t *testing.T) {
	r := newRemote(t)
	services, names := everyMethod(t)
	id := r.pki.open(t, "c1", r.now)
	serve := func(opts ...grpc.ServerOption) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv := grpc.NewServer(opts...)
		for _, d := range services {
			srv.RegisterService(d, nil)
		}
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		t.Cleanup(func() { srv.Stop(); <-served })
		return l.Addr().String()
	}
	r.addr = serve(grpc.Creds(credentials.NewTLS(id.UserServer())), r.v.Codec(), grpc.UnaryInterceptor(r.auth.RemoteUnary(r.v)))
	daemons := serve(grpc.Creds(credentials.NewTLS(id.Server(RoleCtld, RoleNode, RoleLogin))), grpc.UnaryInterceptor(r.auth.Unary()))

	plain := r.dial(t)
	byWallet := r.dial(t, WalletDialOptions(walletOf(t, exampleKey), "blue", r.now)...)
	byCert := func(name string) *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///"+daemons, grpc.WithTransportCredentials(credentials.NewTLS(r.pki.open(t, name, r.now).Client())))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	type kind struct {
		name   string
		conn   *grpc.ClientConn
		role   Role
		class  Class
		header []string
	}
	kinds := []kind{
		{"nobody", plain, RoleNobody, "", nil}, {"wallet", byWallet, RoleWallet, "", nil},
		{"node", byCert("n1"), RoleNode, "", nil}, {"login", byCert("login1"), RoleLogin, "", nil}, {"ctld", byCert("c1"), RoleCtld, "", nil},
		// A daemon that brings a token of an admin besides is the daemon that it is.
		{"node with a token", byCert("n1"), RoleNode, "", []string{tokenKey, string(r.mint(t, "login1", 1002, "zoe", ClassAdmin))}},
	}
	for _, class := range []Class{ClassRead, ClassJobs, ClassAdmin} {
		for _, who := range []struct {
			user string
			uid  uint32
			role Role
		}{{"ada", 1000, RoleUser}, {"bob", 1001, RoleOperator}, {"zoe", 1002, RoleAdmin}} {
			kinds = append(kinds, kind{fmt.Sprintf("%s with class %s", who.user, class), plain, who.role, class,
				[]string{tokenKey, string(r.mint(t, "login1", who.uid, who.user, class))}})
		}
	}
	calls := 0
	for _, k := range kinds {
		ctx := metadata.AppendToOutgoingContext(t.Context(), k.header...)
		for _, full := range names {
			want := codes.PermissionDenied
			least, _ := ClassOf(full)
			switch ok := Allowed(full, k.role) && (k.class == "" || k.class.covers(least)); {
			case full == joinMethod && (k.conn == plain || k.conn == byWallet): // its own token decides
				want = codes.OK
			case ok:
				want = codes.OK
			case k.role == RoleNobody:
				want = codes.Unauthenticated
			}
			if err := k.conn.Invoke(ctx, full, new(emptypb.Empty), new(emptypb.Empty)); status.Code(err) != want {
				t.Errorf("%s calls %s: %v, want %v", k.name, full, err, want)
			}
			calls++
		}
	}
	if calls < 400 {
		t.Errorf("only %d calls were made", calls)
	}
	if n := r.v.codec.count.Load(); n != 0 {
		t.Errorf("%d digests were left", n)
	}
}
