package gctl

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

// Bounds of "controller add".
const (
	catchUpLag     = 512 // log entries; the leader's own bound for a promotion
	catchUpPause   = 500 * time.Millisecond
	catchUpDefault = 10 * time.Minute
	promoteTimeout = 60 * time.Second // a promotion or removal is a log entry, but a leader may have to be found
)

func controllerOptions() []getopt.Option {
	return []getopt.Option{
		{Long: "force", Help: "remove: also when the rest would have no majority that answers"},
		{Long: "no-wait", Help: "add: do not wait until it has caught up"},
		{Long: "promote", Help: "add: make it a voter when it has caught up"},
		{Long: "timeout", Arg: getopt.RequiredArg, Value: "TIME", Help: "add: how long to wait, as 90s or 10m (10m)"},
	}
}

func controllerWords() []subword {
	return []subword{
		{name: "status", run: func(c *call, _ given, args []string) int { return c.controllerStatus(args) }, write: "status"},
		{name: "add", min: 1, max: 5, options: []string{"no-wait", "promote", "timeout"}, run: (*call).controllerAdd,
			write: "add NAME [Address=HOST] [Port=N] [RaftPort=N] [UserPort=N] [--promote] [--no-wait] [--timeout=TIME]"},
		{name: "promote", min: 1, max: 1, run: (*call).controllerPromote, write: "promote NAME"},
		{name: "remove", min: 1, max: 1, options: []string{"force"}, run: (*call).controllerRemove, write: "remove NAME [--force]"},
		{name: "transfer", max: 1, run: (*call).controllerTransfer, write: "transfer [NAME]"},
	}
}

func (c *call) controllerWord(g []getopt.Given, args []string) int {
	return c.choose("controller", controllerWords(), g, args)
}

// addRequest reads NAME KEY=VALUE...
func addRequest(args []string) (*ctldpb.ChangeControllerRequest, error) {
	req := &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_ADD, Name: args[0]}
	if err := controllerName(req.Name); err != nil {
		return nil, err
	}
	ports := map[string]*uint32{"port": &req.Port, "raftport": &req.RaftPort, "userport": &req.UserPort}
	for _, a := range args[1:] {
		key, value, has := strings.Cut(a, "=")
		port := ports[strings.ToLower(key)]
		switch {
		case !has:
			return nil, fmt.Errorf("%s: write KEY=VALUE, one of Address, Port, RaftPort, UserPort", a)
		case strings.EqualFold(key, "address"):
			if value == "" || strings.ContainsAny(value, " \t/,=") || len(value) > 255 {
				return nil, fmt.Errorf("Address=%s: a host name or an IP address was expected", value)
			}
			req.Address = value
		case port == nil:
			return nil, fmt.Errorf("%s: unknown key; known are Address, Port, RaftPort, UserPort", key)
		default:
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("%s=%s: a port from 1 to 65535 was expected", key, value)
			}
			*port = uint32(n)
		}
	}
	return req, nil
}

// controllerName catches what no replica can be called, such as an address.
func controllerName(name string) error {
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.' {
			return fmt.Errorf("%q is no controller's name: it has letters, digits, '.', '-' and '_', as on its ControllerName line and in its certificate", name)
		}
	}
	if name == "" || len(name) > 40 {
		return fmt.Errorf("%q is no controller's name: it has 1 to 40 characters", name)
	}
	return nil
}

// change asks for one change. The first answer may be lost: done tells, from the list of controllers, whether a
// refused repetition only finds the work done.
func (c *call) change(what string, req *ctldpb.ChangeControllerRequest, done func([]*ctldpb.ControllerInfo) bool) (text string, code int) {
	var res *ctldpb.ChangeControllerResponse
	tries := 0
	err := c.client.Wait(background(), promoteTimeout, func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		tries++
		res, err = cc.ChangeController(ctx, req)
		return err
	})
	if err != nil && tries > 1 {
		if list, lerr := c.controllers(); lerr == nil && done(list.Controllers) {
			return "", 0
		}
	}
	if err != nil {
		return "", c.refused(what, err)
	}
	return res.Text, 0
}

func (c *call) tellDone(text, instead string) {
	if c.quiet {
		return
	}
	if text == "" {
		text = instead
	}
	fmt.Fprintln(c.env.Stdout, render.Clean(text))
}

func (c *call) controllerPromote(_ given, args []string) int {
	if err := controllerName(args[0]); err != nil {
		c.env.Errorf("controller promote: %v", err)
		return 1
	}
	text, code := c.promote(args[0])
	if code == 0 {
		c.tellDone(text, args[0]+" is a voter")
	}
	return code
}

func (c *call) promote(name string) (string, int) {
	return c.change("controller promote", &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_PROMOTE, Name: name},
		func(list []*ctldpb.ControllerInfo) bool { i := named(list, name); return i != nil && i.Voter })
}

func (c *call) controllerRemove(g given, args []string) int {
	if err := controllerName(args[0]); err != nil {
		c.env.Errorf("controller remove: %v", err)
		return 1
	}
	req := &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_REMOVE, Name: args[0], Force: g.has("force")}
	text, code := c.change("controller remove", req, func(list []*ctldpb.ControllerInfo) bool {
		i := named(list, args[0])
		return i == nil || i.Role == "" && !i.Voter && !i.Up
	})
	if code == 0 {
		c.tellDone(text, args[0]+" is not a member any more; its gctld ends by itself")
	}
	return code
}

func (c *call) controllerTransfer(_ given, args []string) int {
	req := &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_TRANSFER}
	if len(args) > 0 {
		req.Name = args[0]
		if err := controllerName(req.Name); err != nil {
			c.env.Errorf("controller transfer: %v", err)
			return 1
		}
	}
	text, code := c.change("controller transfer", req, func(list []*ctldpb.ControllerInfo) bool {
		i := named(list, req.Name)
		return i != nil && i.Role == "leader"
	})
	if code == 0 {
		c.tellDone(text, "leadership was handed over")
	}
	return code
}

func named(list []*ctldpb.ControllerInfo, name string) *ctldpb.ControllerInfo {
	for _, i := range list {
		if i.Name == name {
			return i
		}
	}
	return nil
}

// controllerAdd makes a replica a learner, waits until it has caught up, and with --promote makes it a voter.
func (c *call) controllerAdd(g given, args []string) int {
	req, err := addRequest(args)
	limit := catchUpDefault
	if text, has := g.value("timeout"); err == nil && has {
		if limit, err = time.ParseDuration(text); err != nil || limit <= 0 {
			err = fmt.Errorf("--timeout=%s: a time such as 90s or 10m was expected", text)
		}
	}
	if err == nil && g.has("promote") && g.has("no-wait") {
		err = fmt.Errorf("--promote needs the wait that --no-wait leaves out; promote it later with: gctl controller promote %s", req.Name)
	}
	if err != nil {
		c.env.Errorf("controller add: %v", err)
		return 1
	}
	text, code := c.change("controller add", req, func(list []*ctldpb.ControllerInfo) bool { return named(list, req.Name) != nil })
	if code != 0 {
		return code
	}
	c.tellDone(text, req.Name+" is a learner")
	if g.has("no-wait") {
		return 0
	}
	if code := c.awaitCaughtUp(req.Name, limit); code != 0 {
		return code
	}
	if !g.has("promote") {
		c.tellDone(fmt.Sprintf("%s has caught up; make it a voter with: gctl controller promote %s", req.Name, req.Name), "")
		return 0
	}
	text, code = c.promote(req.Name)
	if code == 0 {
		c.tellDone(text, req.Name+" is a voter")
	}
	return code
}

// awaitCaughtUp shows how a learner comes along: on a terminal in one line that is written over, else a line when
// the kind of the news changes.
func (c *call) awaitCaughtUp(name string, limit time.Duration) int {
	end := c.env.Now().Add(limit)
	kind, last := "", ""
	show := func(newKind, text string) {
		last = text
		switch {
		case c.quiet:
		case c.env.StdoutTerminal:
			fmt.Fprintf(c.env.Stderr, "\r\033[K%s", text)
		case newKind != kind:
			fmt.Fprintln(c.env.Stderr, text)
		}
		kind = newKind
	}
	finish := func() {
		if c.env.StdoutTerminal && kind != "" && !c.quiet {
			fmt.Fprint(c.env.Stderr, "\r\033[K")
		}
	}
	for {
		list, err := c.controllers()
		if err != nil {
			finish()
			return c.refused("controller add", err)
		}
		i := named(list.Controllers, name)
		switch {
		case i == nil:
			finish()
			c.env.Errorf("controller add: %s was removed again while it caught up", name)
			return 1
		case !i.Up:
			show("silent", fmt.Sprintf("waiting for %s at %s: start it there with: gctld --join --name %s", name, place(i.Address, i.Port), name))
		case i.Applied > 0 && i.Lag <= catchUpLag:
			finish()
			return 0
		default:
			show("behind", fmt.Sprintf("%s is %d log entries behind", name, i.Lag))
		}
		if !c.env.Now().Before(end) {
			finish()
			c.env.Errorf("controller add: after %s %s is a learner that has not caught up (%s)", limit, name, last)
			c.env.Errorf("look again with: gctl controller status; take it back with: gctl controller remove %s", name)
			return 1
		}
		c.env.Sleep(catchUpPause)
	}
}

func place(host string, port uint32) string {
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

func (c *call) controllers() (*ctldpb.ListControllersResponse, error) {
	var res *ctldpb.ListControllersResponse
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ListControllers(ctx, &ctldpb.ListControllersRequest{})
		return err
	})
	return res, err
}

// controllerStatus is the table of replicas, as the leader sees them.
func (c *call) controllerStatus(args []string) int {
	if len(args) > 0 {
		c.env.Errorf("controllers are shown all at once; %q is one word too many", args[0])
		return 1
	}
	if !c.connect() {
		return 1
	}
	res, err := c.controllers()
	if err != nil {
		return c.refused("controller status", err)
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	if c.oneLine {
		for _, i := range res.Controllers {
			controllerRecord(i).write(out, true)
		}
		return 0
	}
	t := table{head: []string{"NAME", "ROLE", "VOTER", "UP", "LAG", "CONTACT", "VERSION", "LEVEL", "STATE-FREE", "ADDRESS"}, right: []int{4, 5, 7, 8}}
	for _, i := range res.Controllers {
		t.row(controllerRow(i)...)
	}
	t.write(out)
	fmt.Fprintf(out, "\nfeature level %d, leader %s\nLAG: log entries behind the leader    CONTACT: since it heard the leader\nLEVEL: newest that its program knows  STATE-FREE: room where its log is\n",
		res.Feature, render.Or(res.Info.GetLeader(), "none"))
	for _, i := range res.Controllers {
		if i.Error != "" {
			fmt.Fprintf(out, "%s does not answer: %s\n", i.Name, render.Clean(i.Error))
		}
		if !i.Configured {
			fmt.Fprintf(out, "%s has no ControllerName line in the leader's grid.conf: write one for those that start later\n", i.Name)
		}
	}
	return 0
}

// controllerRow: what a replica that does not answer would say is a dash.
func controllerRow(i *ctldpb.ControllerInfo) []string {
	yes := func(b bool) string {
		if b {
			return "yes"
		}
		return "no"
	}
	row := []string{i.Name, render.Or(i.Role, "-"), yes(i.Voter), yes(i.Up), "-", "-", "-", "-", "-", place(i.Address, i.Port)}
	if !i.Up {
		return row
	}
	row[4] = strconv.FormatUint(i.Lag, 10)
	if i.Role != "leader" {
		row[5] = since(i.ContactMs)
	}
	row[6] = render.Or(i.Version, "-")
	row[7] = strconv.FormatUint(uint64(i.FeatureMax), 10)
	if i.StateFree > 0 {
		row[8] = room(i.StateFree)
	}
	return row
}

func controllerRecord(i *ctldpb.ControllerInfo) *record {
	r := &record{}
	r.line(kv("ControllerName", i.Name), kv("Role", render.Or(i.Role, "(null)")), kv("Voter", upper(i.Voter)), kv("Up", upper(i.Up)),
		kv("Applied", i.Applied), kv("LastIndex", i.LastIndex), kv("Lag", i.Lag), kv("ContactMs", i.ContactMs), kv("Version", render.Or(i.Version, "(null)")),
		kv("FeatureMax", i.FeatureMax), kv("StateFree", i.StateFree), kv("UptimeMs", i.UptimeMs), kv("Address", i.Address), kv("Port", i.Port),
		kv("RaftPort", i.RaftPort), kv("UserPort", i.UserPort), kv("Configured", upper(i.Configured)), kv("Error", render.Or(i.Error, "(null)")))
	return r
}

// since is a short duration: 12ms, 3.4s, 5m, 2h, 3d; a dash when it is not known.
func since(ms int64) string {
	switch {
	case ms < 0:
		return "-"
	case ms < 1000:
		return fmt.Sprintf("%dms", ms)
	case ms < 60_000:
		return fmt.Sprintf("%d.%ds", ms/1000, ms%1000/100)
	case ms < 3_600_000:
		return fmt.Sprintf("%dm", ms/60_000)
	case ms < 48*3_600_000:
		return fmt.Sprintf("%dh", ms/3_600_000)
	}
	return fmt.Sprintf("%dd", ms/(24*3_600_000))
}

// room is bytes for people: 512M, 37.2G.
func room(bytes int64) string {
	switch {
	case bytes < 1<<20:
		return fmt.Sprintf("%dK", bytes>>10)
	case bytes < 1<<30:
		return fmt.Sprintf("%dM", bytes>>20)
	case bytes < 1<<40:
		return fmt.Sprintf("%.1fG", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%.1fT", float64(bytes)/(1<<40))
}
