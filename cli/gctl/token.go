package gctl

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// Bounds of a join token: the controller's own.
const (
	defaultTTL    = time.Hour
	minTTL        = time.Minute
	maxTTL        = 30 * 24 * time.Hour
	maxTokenNames = 4096
)

func tokenOptions() []getopt.Option {
	return []getopt.Option{
		{Long: "out", Arg: getopt.RequiredArg, Value: "FILE", Help: "token: write it to a new file of mode 0600, not to standard output"},
		{Long: "role", Arg: getopt.RequiredArg, Value: "node|login", Help: "token: what it makes its bearer: an agent or a login host (node)"},
		{Long: "ttl", Arg: getopt.RequiredArg, Value: "TIME", Help: "token: how long it is good, as 30m, 1h or 2d (1h; at most 30d)"},
		{Long: "uses", Arg: getopt.RequiredArg, Value: "N", Help: "token: how often in all (once for each name, which is the most)"},
	}
}

func nodeWords() []subword {
	return []subword{
		{name: "fenced", min: 1, max: 1, write: "fenced NODE",
			run: func(c *call, _ given, args []string) int {
				return c.updateNode(args[0], map[string]string{"Fenced": "yes"})
			}},
		{name: "token", min: 1, max: -1, options: []string{"out", "role", "ttl", "uses"}, run: (*call).nodeToken,
			write: "token NAMES [--role=node|login] [--ttl=TIME] [--uses=N] [--out=FILE]"},
		{name: "tokens", run: (*call).nodeTokens, write: "tokens"},
		{name: "revoke", min: 1, max: 1, run: (*call).nodeRevoke, write: "revoke ID"},
	}
}

// nodeWord is "node fenced NODE" and the words about join tokens.
func (c *call) nodeWord(g []getopt.Given, args []string) int {
	return c.choose("node", nodeWords(), g, args)
}

// tokenRequest reads what a token is for.
func tokenRequest(g given, args []string) (*ctldpb.CreateJoinTokenRequest, error) {
	names, err := hostlist.Expand(strings.Join(args, ","))
	if err != nil {
		return nil, err
	}
	names = once(names)
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("%q names no host", strings.Join(args, ","))
	case len(names) > maxTokenNames:
		return nil, fmt.Errorf("%d names are more than the %d that one token takes", len(names), maxTokenNames)
	}
	for _, n := range names {
		if err := controllerName(n); err != nil {
			return nil, fmt.Errorf("%q is no name for a certificate: 1 to 40 letters, digits, '.', '-' and '_'", n)
		}
	}
	req := &ctldpb.CreateJoinTokenRequest{Role: "node", Names: hostlist.Compress(names), TtlMs: defaultTTL.Milliseconds()}
	if role, has := g.value("role"); has {
		if role != "node" && role != "login" {
			return nil, fmt.Errorf("--role=%s: node or login was expected; certificates of controllers are made with: gctl pki issue", role)
		}
		req.Role = role
	}
	if text, has := g.value("ttl"); has {
		ttl, err := lifetime(text)
		if err != nil {
			return nil, err
		}
		req.TtlMs = ttl.Milliseconds()
	}
	if text, has := g.value("uses"); has {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n == 0 || n > uint64(len(names)) {
			return nil, fmt.Errorf("--uses=%s: a number from 1 to %d was expected, as many names there are: each can use it once", text, len(names))
		}
		req.Uses = uint32(n)
	}
	return req, nil
}

// once drops names that were there before: a token counts its uses by them.
func once(names []string) []string {
	seen := make(map[string]bool, len(names))
	return slices.DeleteFunc(names, func(n string) bool {
		was := seen[n]
		seen[n] = true
		return was
	})
}

// lifetime reads 90s, 30m, 1h or 2d.
func lifetime(text string) (time.Duration, error) {
	bad := fmt.Errorf("--ttl=%s: a time such as 30m, 1h or 2d was expected, at least 1m and at most 30d", text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if d := time.Duration(n) * 24 * time.Hour; err == nil && d > 0 && d <= maxTTL {
			return d, nil
		}
		return 0, bad
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minTTL || d > maxTTL {
		return 0, bad
	}
	return d, nil
}

// nodeToken makes a token. It is a secret: it goes to standard output, which may be a pipe, or to a file that
// nobody else can read, and nowhere else.
func (c *call) nodeToken(g given, args []string) int {
	req, err := tokenRequest(g, args)
	if err != nil {
		c.env.Errorf("node token: %v", err)
		return 1
	}
	name, toFile := g.value("out")
	if toFile {
		if !filepath.IsAbs(name) {
			name = filepath.Join(c.env.Dir, name)
		}
		if err := mayReplace(name, false); err != nil {
			c.env.Errorf("node token: --out: %v", err)
			return 1
		}
	}
	var res *ctldpb.CreateJoinTokenResponse
	err = c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.CreateJoinToken(ctx, req)
		return err
	})
	if err != nil {
		return c.refused("node token", err)
	}
	if toFile {
		err = saveAs(name, false, func(f *os.File) error {
			_, err := io.WriteString(f, res.Token+"\n")
			return err
		})
	} else {
		_, err = fmt.Fprintln(c.env.Stdout, res.Token)
	}
	if err != nil {
		c.env.Errorf("node token: %v", err)
		c.env.Errorf("nobody has the token; take it back with: gctl node revoke %s", res.Id)
		return 1
	}
	if !c.quiet {
		c.env.Infof("token %s makes %s a %s, once each, until %s", res.Id, req.Names, map[string]string{"node": "node", "login": "login host"}[req.Role], c.clock().Time(res.ExpiresMs, ""))
		c.tellJoin()
	}
	return 0
}

// tellJoin shows how the token is used, with a controller that takes it.
func (c *call) tellJoin() {
	res, err := c.controllers()
	if err != nil {
		return
	}
	for _, i := range res.Controllers {
		if i.UserPort != 0 {
			c.env.Infof("there: gnoded join --controller %s --name NAME --token-file FILE", place(i.Address, i.UserPort))
			return
		}
	}
	c.env.Warnf("no controller has a UserPort, which gnoded join calls: write UserPort=N on the ControllerName lines and start them again")
}

func (c *call) nodeTokens(given, []string) int {
	var res *ctldpb.ListJoinTokensResponse
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ListJoinTokens(ctx, &ctldpb.ListJoinTokensRequest{})
		return err
	})
	if err != nil {
		return c.refused("node tokens", err)
	}
	if len(res.Tokens) == 0 {
		fmt.Fprintln(c.env.Stdout, "No join tokens in the system")
		return 0
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	t := table{head: []string{"ID", "ROLE", "NAMES", "USED", "STATE", "EXPIRES", "BY"}, right: []int{3}}
	for _, k := range res.Tokens {
		t.row(k.Id, k.Role, k.Names, fmt.Sprintf("%d/%d", len(k.UsedBy), tokenUses(k)), c.tokenState(k), c.clock().Time(k.ExpiresMs, ""), render.Or(k.CreatedBy, "-"))
	}
	t.write(out)
	return 0
}

// tokenUses is how often a token can be used in all.
func tokenUses(k *ctldpb.JoinToken) int {
	if k.Uses > 0 {
		return int(k.Uses)
	}
	names, err := hostlist.Expand(k.Names)
	if err != nil {
		return 0
	}
	return len(names)
}

func (c *call) tokenState(k *ctldpb.JoinToken) string {
	switch {
	case k.Revoked:
		return "revoked"
	case len(k.UsedBy) >= tokenUses(k):
		return "used"
	case k.ExpiresMs <= c.env.Now().UnixMilli():
		return "expired"
	}
	return "open"
}

func (c *call) nodeRevoke(_ given, args []string) int {
	id := args[0]
	if strings.HasPrefix(id, "tgj1.") || id == "" || len(id) > 64 {
		c.env.Errorf("node revoke: the ID of a token was expected, not the token itself; gctl node tokens shows them")
		return 1
	}
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) error {
		_, err := cc.RevokeJoinToken(ctx, &ctldpb.RevokeJoinTokenRequest{Id: id})
		return err
	})
	if err != nil {
		return c.refused("node revoke", err)
	}
	if !c.quiet {
		fmt.Fprintf(c.env.Stdout, "token %s is revoked; certificates that it has given stay good until they end\n", id)
	}
	return 0
}
