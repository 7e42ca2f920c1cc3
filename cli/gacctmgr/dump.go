package gacctmgr

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

// maxDumpLine bounds a line of a dump.
const maxDumpLine = 1 << 20

// dumpKeys are what a dump says of an association, in this order.
var dumpKeys = []string{
	"Fairshare", "Priority", "GrpJobs", "GrpJobsAccrue", "GrpSubmitJobs", "GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "GrpWall", "MaxJobs",
	"MaxJobsAccrue", "MaxSubmitJobs", "MaxTRESPerJob", "MaxTRESPerNode", "MaxTRESMinsPerJob", "MaxWallDurationPerJob", "QOS", "DefaultQOS", "Partition",
}

// operand gives the file of dump and load: file=NAME or a bare word.
func (c *call) operand(args []string) (string, error) {
	name := ""
	for _, a := range args {
		key, value, has := strings.Cut(a, "=")
		switch {
		case has && strings.EqualFold(key, "file"):
			name = unquote(value)
		case has && strings.HasPrefix("cluster", strings.ToLower(key)):
		case has:
			return "", fmt.Errorf("Unknown option: %s", a)
		default:
			name = a
		}
	}
	return name, nil
}

// dump writes QOS, accounts, users and associations as a flat file that load reads.
func (c *call) dump(args []string) int {
	name, err := c.operand(args)
	if err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	if !c.connect() {
		return 1
	}
	if name == "" || name == c.client.Cluster() {
		name = "./" + c.client.Cluster() + ".cfg"
	}
	var parts [4][]*ctldpb.AccountingRow
	for i, e := range []string{"qos", "account", "user", "association"} {
		if parts[i], err = c.rows(e, nil); err != nil {
			return c.failed(err)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Accounts of cluster %s: each Parent line says below what the following lines stand.\n", c.client.Cluster())
	for _, q := range parts[0] {
		b.WriteString("QOS - " + quoted(q.Fields["name"]))
		for _, k := range qosKeys[2:] {
			dumpValue(&b, k, q.Fields[strings.ToLower(k)])
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "Cluster - %s\n", quoted(c.client.Cluster()))
	d := dumper{accounts: byName("account", parts[1]), users: byName("user", parts[2]), all: parts[3]}
	d.below(&b, "root", 0)
	if !filepath.IsAbs(name) {
		name = filepath.Join(c.env.Dir, name)
	}
	if err := os.WriteFile(name, []byte(b.String()), 0o600); err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	if !c.quiet {
		fmt.Fprintf(c.env.Stdout, "sacctmgr: %d associations written to %s\n", len(parts[3]), name)
	}
	return 0
}

type dumper struct {
	accounts, users map[string]map[string]string
	all             []*ctldpb.AccountingRow
}

func byName(key string, rows []*ctldpb.AccountingRow) map[string]map[string]string {
	m := map[string]map[string]string{}
	for _, r := range rows {
		m[render.Or(r.Fields[key], r.Fields["name"])] = r.Fields
	}
	return m
}

// below writes what stands in one account, then in each account below it.
func (d *dumper) below(b *strings.Builder, parent string, depth int) {
	var under []string
	fmt.Fprintf(b, "Parent - %s\n", quoted(parent))
	for _, r := range d.all {
		f := r.Fields
		switch {
		case f["user"] != "" && f["account"] == parent:
			b.WriteString("User - " + quoted(f["user"]))
			u := d.users[f["user"]]
			dumpValue(b, "DefaultAccount", u["defaultaccount"])
			if u["adminlevel"] != "None" {
				dumpValue(b, "AdminLevel", u["adminlevel"])
			}
		case f["user"] == "" && render.Or(f["parentname"], f["parent"]) == parent && f["account"] != parent:
			under = append(under, f["account"])
			b.WriteString("Account - " + quoted(f["account"]))
			a := d.accounts[f["account"]]
			dumpValue(b, "Description", a["description"])
			dumpValue(b, "Organization", a["organization"])
		default:
			continue
		}
		for _, k := range dumpKeys {
			dumpValue(b, k, f[strings.ToLower(k)])
		}
		b.WriteByte('\n')
	}
	for _, a := range under {
		if depth < maxDepth {
			d.below(b, a, depth+1)
		}
	}
}

// maxDepth bounds the tree that is walked.
const maxDepth = 200

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "") + "'" }

func dumpValue(b *strings.Builder, key, value string) {
	if value != "" && value != "N/A" {
		fmt.Fprintf(b, ":%s=%s", key, quoted(value))
	}
}

// load adds what a dump says: what is there already stays as it is.
func (c *call) load(args []string) int {
	name, err := c.operand(args)
	if err == nil && name == "" {
		err = errors.New("load needs a file: load file=NAME")
	}
	if err == nil && c.readOnly {
		err = errors.New("Can't run this command in readonly mode.")
	}
	if err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(c.env.Dir, name)
	}
	f, err := os.Open(name)
	if err != nil {
		c.env.Errorf("Unable to open %s: %v", name, err)
		return 1
	}
	defer f.Close()
	list, err := parseDump(f)
	if err != nil {
		c.env.Errorf("%s: %v", name, err)
		return 1
	}
	if !c.connect() {
		return 1
	}
	if !c.immediate && !c.ask(fmt.Sprintf("%d lines: what is not there yet will be added.\nWould you like to commit changes?", len(list))) {
		fmt.Fprintln(c.env.Stdout, " Changes Discarded")
		return 1
	}
	added := 0
	for _, req := range list {
		req.Key = client.NewKey()
		res, err := c.send(req)
		if err != nil {
			c.env.Errorf("%d of %d lines were done", added, len(list))
			return c.failed(err)
		}
		added++
		if len(res.Changed) > 0 && !c.quiet {
			c.tell(req, res)
		}
	}
	return 0
}

// parseDump turns the lines into requests, all of them before the first is sent.
func parseDump(r io.Reader) ([]*ctldpb.ChangeAccountingRequest, error) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxDumpLine)
	var list []*ctldpb.ChangeAccountingRequest
	parent := "root"
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		kind, rest, ok := strings.Cut(line, " - ")
		if !ok {
			return nil, badLine(n, "%q is not KIND - 'NAME':KEY=VALUE...", line)
		}
		words := splitQuoted(rest)
		name := unquote(words[0])
		if name == "" {
			return nil, badLine(n, "no name")
		}
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case "cluster":
			continue
		case "parent":
			parent = name
			continue
		case "qos", "account", "user":
		default:
			return nil, badLine(n, "unknown kind %q", kind)
		}
		req, err := dumpLine(strings.ToLower(strings.TrimSpace(kind)), name, parent, words[1:])
		if err != nil {
			return nil, badLine(n, "%v", err)
		}
		list = append(list, req)
	}
	return list, in.Err()
}

func dumpLine(kind, name, parent string, words []string) (*ctldpb.ChangeAccountingRequest, error) {
	e, err := findEntity(kind)
	if err != nil {
		return nil, err
	}
	cmd, err := e.parse("add", words)
	if err != nil {
		return nil, err
	}
	set := []*ctldpb.Clause{{Name: "name", Op: "=", Value: name}}
	switch kind {
	case "account":
		set = append(set, &ctldpb.Clause{Name: "parent", Op: "=", Value: parent})
	case "user":
		set = append(set, &ctldpb.Clause{Name: "account", Op: "=", Value: parent})
	}
	cmd.set = slices.DeleteFunc(cmd.set, func(c *ctldpb.Clause) bool { return c.Name == "parent" || kind != "user" && c.Name == "account" })
	return &ctldpb.ChangeAccountingRequest{Verb: "add", Entity: kind, Set: append(set, cmd.set...)}, nil
}

// splitQuoted cuts at colons outside quotes.
func splitQuoted(s string) []string {
	var words []string
	from, quote := 0, byte(0)
	for i := range len(s) {
		switch c := s[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && c == ':':
			words = append(words, s[from:i])
			from = i + 1
		}
	}
	return append(words, s[from:])
}
