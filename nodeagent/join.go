package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/fault"
	"github.com/tensorgrid/tensorgrid/nodeagent/enroll"
)

const joinUsage = `Usage: gnoded join --controller HOST:PORT [--name NAME] --token-file FILE|- [--tls-dir DIR]

Gets this host its first certificate with a one-time token, and puts ca.pem, NAME.pem and NAME.key into the TLS
folder. The token is made by an administrator with: gctl node token NAME

      --controller H:P   address and UserPort of a controller
      --name NAME        the daemon's name, as in the token (default: the host's short name)
      --token-file FILE  the token; a file that nobody else can read, or - for standard input
      --tls-dir DIR      where it goes (default: TLSDir of grid.conf)
  -f, --conf FILE        grid.conf, for TLSDir and AgentUser
      --user ACCOUNT     whose the key will be, when root calls (default: AgentUser)
      --allow-root       the key stays root's
      --force            replace a certificate that is good, or an authority that is another one
  -h, --help             print this and end

Example: gnoded join --controller c1:6819 --name gpu01 --token-file /root/gpu01.token
`

// joinOptions is the command line of gnoded join.
type joinOptions struct {
	controller, name, tokenFile, tlsDir, conf, user string
	allowRoot, force, helped                        bool
}

func parseJoin(args []string) (joinOptions, error) {
	var o joinOptions
	f := flag.NewFlagSet("gnoded join", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.controller, "controller", "", "")
	f.StringVar(&o.name, "name", "", "")
	f.StringVar(&o.tokenFile, "token-file", "", "")
	f.StringVar(&o.tlsDir, "tls-dir", "", "")
	f.StringVar(&o.conf, "conf", conf.Find(), "")
	f.StringVar(&o.conf, "f", conf.Find(), "")
	f.StringVar(&o.user, "user", "", "")
	f.BoolVar(&o.allowRoot, "allow-root", false, "")
	f.BoolVar(&o.force, "force", false, "")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return joinOptions{helped: true}, nil
	}
	switch {
	case err != nil:
	case f.NArg() > 0 && strings.HasPrefix(f.Arg(0), "tgj1."):
		err = errors.New("a token does not go on the command line, where every user of this host can read it: revoke it " +
			"(gctl node revoke), make another, and give it with --token-file")
	case f.NArg() > 0:
		err = fmt.Errorf("%q is not an option; join takes options only", f.Arg(0))
	case o.tokenFile == "":
		err = errors.New("--token-file is missing: the file with the token, or - for standard input")
	default:
		err = checkController(o.controller)
	}
	return o, err
}

func checkController(address string) error {
	if address == "" {
		return errors.New("--controller is missing: the address and UserPort of a ControllerName line, as c1:6819")
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		if n, perr := strconv.ParseUint(port, 10, 16); perr != nil || n == 0 || host == "" {
			err = errors.New("a host and a port from 1 to 65535 were expected")
		}
	}
	if err != nil {
		return fmt.Errorf("--controller %s: %w; write HOST:PORT", address, err)
	}
	return nil
}

// runJoin is gnoded join.
func runJoin(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o, err := parseJoin(args)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "gnoded join: %v\nTry 'gnoded join --help'.\n", err)
		return 2
	case o.helped:
		fmt.Fprint(stdout, joinUsage)
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	res, dir, err := join(ctx, &o, stdin)
	if err != nil {
		fmt.Fprintln(stderr, "gnoded join:", err)
		return 1
	}
	how, what := "", "node"
	if res.Role == authn.RoleLogin {
		what = "login host"
	}
	if res.Resumed {
		how = " (an earlier run had got it; the token given now was not used)"
	}
	fmt.Fprintf(stdout, "%s is a %s of cluster %s until %s%s; its certificate and key are in %s\n", o.name, what, res.Cluster,
		res.Until.Local().Format(time.DateTime), how, dir)
	return 0
}

func join(ctx context.Context, o *joinOptions, stdin io.Reader) (*enroll.Result, string, error) {
	dir, account := o.tlsDir, o.user
	if dir == "" || account == "" {
		c, err := conf.Load(o.conf)
		switch {
		case err == nil:
			if dir == "" {
				dir = c.TLSDir
			}
			if account == "" {
				account = c.AgentUser
			}
		case dir == "" || !errors.Is(err, os.ErrNotExist):
			return nil, "", fmt.Errorf("%w (or say where with --tls-dir and whose with --user)", err)
		case account == "":
			account = "gnoded"
		}
	}
	if o.name == "" {
		_, short, err := hostNames()
		if err != nil {
			return nil, "", err
		}
		o.name = short
	}
	to, err := whoToBe(o.allowRoot, account)
	if err != nil {
		return nil, "", err
	}
	token, err := readToken(o.tokenFile, stdin)
	if err != nil {
		return nil, "", err
	}
	q := enroll.Request{Controller: o.controller, Name: o.name, Token: token, Dir: dir, Force: o.force, Now: fault.Now, Rand: rand.Reader}
	if to != nil {
		q.Owner = &enroll.Owner{UID: to.uid, GID: to.gid}
	}
	res, err := enroll.Join(ctx, q)
	return res, dir, err
}

// readToken reads the secret from a file that is its owner's alone, or from standard input.
func readToken(path string, stdin io.Reader) (authn.JoinToken, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return authn.JoinToken{}, err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return authn.JoinToken{}, err
		}
		if st.Mode().IsRegular() && st.Mode().Perm()&0o077 != 0 {
			return authn.JoinToken{}, fmt.Errorf("%s can be read by others (mode %04o), who can join in this host's place: "+
				"chmod 600 it, or better make another token, as gctl node token --out does", path, st.Mode().Perm())
		}
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, enroll.MaxTokenFile+1))
	if err != nil {
		return authn.JoinToken{}, err
	}
	if len(data) > enroll.MaxTokenFile {
		return authn.JoinToken{}, fmt.Errorf("%s is longer than a token", path)
	}
	return authn.ParseJoinToken(strings.TrimSpace(string(data)))
}
