package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/steppb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// WalletVar names the file with a wallet's key. Whoever sets it is that wallet, on a controller's host too.
const WalletVar = "GRID_WALLET"

// loginTimeout bounds one question to the login host's daemon.
const loginTimeout = 5 * time.Second

// FromConfig gives the client of the configuration that conf.Find names: by local sockets on a controller's host;
// elsewhere by the port for users, with a token of this login host, or with the wallet that WalletVar names.
func FromConfig() (*Client, error) {
	front, err := conf.LoadFront(conf.Find())
	if err != nil {
		return nil, err
	}
	return fromFront(front, os.Getenv(WalletVar))
}

func fromFront(front *conf.Front, wallet string) (*Client, error) {
	var local, remotely []Target
	here := false
	for _, k := range front.Controllers {
		_, err := os.Stat(k.Socket)
		here = here || !errors.Is(err, fs.ErrNotExist)
		local = append(local, Target{Name: k.Name, Socket: k.Socket})
		if k.UserPort != 0 {
			remotely = append(remotely, Target{Name: k.Name, Address: net.JoinHostPort(k.Address, strconv.FormatUint(uint64(k.UserPort), 10))})
		}
	}
	if here && wallet == "" {
		return New(front.Cluster, local), nil
	}
	if len(remotely) == 0 {
		why := "no controller has its socket on this host"
		if wallet != "" {
			why = WalletVar + " is set, and a wallet calls by the port for users"
		} else if len(front.Controllers) > 0 {
			why += fmt.Sprintf(" (%s is not there)", front.Controllers[0].Socket)
		}
		return nil, &Refusal{Code: "CONNECT", Text: TextConnect,
			Why: why + "; grid.conf opens no port for users: write UserPort=N on the ControllerName lines, or use a controller's host"}
	}
	c := New(front.Cluster, remotely)
	r, err := newRemote(front, wallet)
	if err != nil {
		return nil, err
	}
	c.remote = r
	return c, nil
}

// remote is the way from another host.
type remote struct {
	tls   *tls.Config
	calls []grpc.DialOption // what each call carries

	mu     sync.Mutex
	failed error // of the last handshake; nil when it went well
}

func newRemote(front *conf.Front, wallet string) (*remote, error) {
	caFile := filepath.Join(front.TLSDir, authn.CAFile)
	conf, err := authn.UserClientTLS(caFile, front.Cluster)
	if err != nil {
		why := "commands on this host know the controllers by " + caFile + ": copy ca.pem there from a controller; it is no secret"
		if !errors.Is(err, fs.ErrNotExist) {
			why = "commands on this host know the controllers by that file; it is a copy of a controller's ca.pem, readable by all"
		}
		return nil, &Refusal{Code: "CA", Text: err.Error(), Why: why, err: err}
	}
	r := &remote{tls: conf}
	if wallet != "" {
		key, err := authn.LoadWalletKey(wallet)
		if err != nil {
			return nil, &Refusal{Code: "WALLET", Text: fmt.Sprintf("%s=%s: %v", WalletVar, wallet, err),
				Why: "it is a file of mode 0600 with the 64 hexadecimal digits of a secp256k1 key", err: err}
		}
		r.calls = authn.WalletDialOptions(key, front.Cluster, time.Now)
		return r, nil
	}
	r.calls = authn.TokenDialOptions(loginHost{front.LoginSocket, front.Cluster}.mint)
	return r, nil
}

func (r *remote) options() []grpc.DialOption {
	return append([]grpc.DialOption{grpc.WithTransportCredentials(&watched{credentials.NewTLS(r.tls), r})}, r.calls...)
}

// watched remembers how the handshake went, which grpc tells in a text only.
type watched struct {
	credentials.TransportCredentials
	r *remote
}

// ClientHandshake notes its error.
func (w *watched) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, c)
	w.r.mu.Lock()
	w.r.failed = err
	w.r.mu.Unlock()
	return conn, info, err
}

// Clone keeps watching.
func (w *watched) Clone() credentials.TransportCredentials {
	return &watched{w.TransportCredentials.Clone(), w.r}
}

// unavailable says why a controller was not to be had when it was the handshake: asking it again soon is of no use.
func (r *remote) unavailable(t Target, err error) error {
	r.mu.Lock()
	failed := r.failed
	r.mu.Unlock()
	if failed == nil {
		return err
	}
	hint := ""
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(failed, authn.ErrPeer):
		hint = "; is the address right, and is grid.conf of the same cluster?"
	case errors.As(failed, &authority):
		hint = "; ca.pem on this host is not of the authority that signed its certificate: copy it from a controller"
	case errors.As(failed, &invalid) && invalid.Reason == x509.Expired:
		hint = fmt.Sprintf("; it is %s on this host: if that is right, the controller's certificate has to be renewed", time.Now().Format(time.RFC3339))
	}
	return fmt.Errorf("%w: %s at %s: %w%s", errConnect, t.Name, t.Address, failed, hint)
}

// loginHost is the daemon on this host that vouches for its users.
type loginHost struct{ socket, cluster string }

// mint asks for a token. Its errors are statuses with a refusal in them: only these come through grpc whole.
func (h loginHost) mint(ctx context.Context, class authn.Class) ([]byte, time.Time, error) {
	conn, err := grpc.NewClient("passthrough:///login", grpc.WithTransportCredentials(authn.PeerCred()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", h.socket)
		}))
	if err != nil {
		return nil, time.Time{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	res, err := steppb.NewLoginClient(conn).Mint(ctx, &steppb.MintRequest{Cluster: h.cluster, Class: string(class)})
	if err == nil {
		return res.Token, time.UnixMilli(res.ExpiresMs), nil
	}
	r := &ctldpb.Refusal{Code: "LOGIN", Text: TextDenied, Why: status.Convert(err).Message()}
	switch status.Code(err) {
	case codes.Unavailable:
		r.Text = TextConnect
		r.Why = "no controller has its socket on this host, and nobody on it vouches for you: " + h.whyNot(r.Why) + " (" + WalletVar + "=FILE calls as a wallet)"
	case codes.DeadlineExceeded, codes.Canceled:
		r.Text, r.Why = TextTimeout, fmt.Sprintf("%s gave no answer in %s", h.socket, loginTimeout)
	}
	st, derr := status.New(codes.Unauthenticated, r.Text).WithDetails(r)
	if derr != nil {
		return nil, time.Time{}, err
	}
	return nil, time.Time{}, st.Err()
}

func (h loginHost) whyNot(text string) string {
	_, err := os.Lstat(h.socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return h.socket + " is not there; an administrator starts gnoded --login on login hosts"
	case strings.Contains(text, "connection refused"):
		return "nobody answers at " + h.socket + "; gnoded --login is not running"
	}
	return text
}
