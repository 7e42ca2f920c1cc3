// Package ginfo shows partitions and nodes: sinfo's options, columns and way of putting lines together.
package ginfo

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// Main runs the command and gives its exit code.
func Main(env *program.Env) int {
	m := Manual()
	given, operands, err := getopt.Parse(m.Options, env.Args, getopt.Permute)
	if err != nil {
		env.BadUsage(err)
		return 1
	}
	if env.Common(m, given) {
		return 0
	}
	if err := program.CheckText(given, operands); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	q := query{format: env.Getenv("SINFO_FORMAT"), partitions: commas(env.Getenv("SINFO_PARTITION")), sort: env.Getenv("SINFO_SORT")}
	for _, g := range given {
		if err := q.apply(g); err != nil {
			env.Errorf("%v", err)
			return 1
		}
	}
	if len(operands) > 0 {
		env.Errorf("Unrecognized option: %s", operands[0])
		return 1
	}
	if err := q.view(); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	c, err := env.Connect()
	if err != nil {
		env.Refused("", err)
		return 1
	}
	defer c.Close()
	for {
		show := q.show
		if q.reservations {
			show = q.showReservations
		}
		code := show(env, c)
		if q.iterate == 0 || code != 0 || env.OutputError() != nil {
			return code
		}
		env.Sleep(q.iterate)
	}
}

// load asks for nodes and partitions. Both are asked for in full: a partition or node that is not known
// gives an empty list, not an error, as with Slurm.
func (q *query) load(c *client.Client) (nodes []*ctldpb.Node, parts []*ctldpb.Partition, err error) {
	err = c.Do(context.Background(), func(ctx context.Context, cc ctldpb.ControllerClient) error {
		n, err := cc.ListNodes(ctx, &ctldpb.ListNodesRequest{Read: &ctldpb.ReadOptions{Stale: q.stale}})
		if err != nil {
			return err
		}
		p, err := cc.ListPartitions(ctx, &ctldpb.ListPartitionsRequest{Read: &ctldpb.ReadOptions{Stale: q.stale}})
		if err != nil {
			return err
		}
		nodes, parts = n.Nodes, p.Partitions
		return nil
	})
	return nodes, parts, err
}

func (q *query) show(env *program.Env, c *client.Client) int {
	nodes, parts, err := q.load(c)
	if err != nil {
		env.Refused("", err)
		return 1
	}
	nodes, err = q.filter(nodes)
	if err != nil {
		env.Errorf("%v", err)
		return 1
	}
	parts = slices.DeleteFunc(parts, func(p *ctldpb.Partition) bool {
		if len(q.partitions) > 0 {
			return !slices.Contains(q.partitions, p.Name)
		}
		return p.Hidden && !q.all && env.Getenv("SINFO_ALL") == ""
	})
	out := bufio.NewWriter(env.Stdout)
	defer out.Flush()
	if q.json {
		return q.writeJSON(env, out, c, nodes, parts)
	}
	clock := render.Clock{Now: env.Now(), Format: env.Getenv("SLURM_TIME_FORMAT")}
	if (q.long || q.iterate > 0) && !q.noHeader {
		fmt.Fprintln(out, clock.Now.Format("Mon Jan _2 15:04:05 2006"))
	}
	if slices.ContainsFunc(q.shown, func(c *column) bool { return c.letter == 'i' }) {
		q.nameReservations(c)
	}
	groups := q.group(nodes, parts, clock)
	q.order(groups)
	people := env.ByGName() && env.StdoutTerminal
	if err := q.table(out, groups, people); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	if n := unlimited(nodes); n > 0 && people {
		fmt.Fprintln(out, render.Dim(fmt.Sprintf("%d of %d nodes have no control groups: the memory and processors of their jobs are not limited", n, len(nodes))))
	}
	return 0
}

// unlimited counts the nodes that are there and cannot hold their jobs to what they asked for.
func unlimited(nodes []*ctldpb.Node) int {
	count := 0
	for _, n := range nodes {
		if n.CgroupDriver == "none" || n.CgroupDriver == "track" {
			count++
		}
	}
	return count
}

func (q *query) table(out io.Writer, groups []*group, terminal bool) error {
	var text [][]string
	if !q.noHeader {
		header := make([]string, len(q.shown))
		for i, c := range q.shown {
			header[i] = c.header
		}
		text = append(text, header)
	}
	for _, g := range groups {
		line := make([]string, len(q.shown))
		for i, c := range q.shown {
			line[i] = c.value(g)
		}
		text = append(text, line)
	}
	if !terminal {
		return render.Table(out, q.cols, text)
	}
	var b strings.Builder
	if err := render.Table(&b, q.cols, text); err != nil {
		return err
	}
	for i, line := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		k := i
		if !q.noHeader {
			k--
		}
		switch {
		case k < 0:
			line = render.Bold(line)
		case k < len(groups):
			line = render.Paint(groups[k].colour(), line)
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}

func (g *group) colour() render.Colour {
	if len(g.nodes) == 0 {
		return render.Plain
	}
	switch strings.TrimRight(shortState(g.nodes[0]), "+$") {
	case "idle":
		return render.Green
	case "mix", "alloc", "comp", "plnd":
		return render.Yellow
	}
	return render.Red
}

// filter applies -n, -t, -r, -d and -R.
func (q *query) filter(nodes []*ctldpb.Node) ([]*ctldpb.Node, error) {
	var names map[string]bool
	if q.nodes != "" {
		list, err := hostlist.Expand(q.nodes)
		if err != nil {
			return nil, err
		}
		names = make(map[string]bool, len(list))
		for _, n := range list {
			names[n] = true
		}
	}
	return slices.DeleteFunc(nodes, func(n *ctldpb.Node) bool {
		silent := slices.Contains(n.Flags, "NOT_RESPONDING")
		return names != nil && !names[n.Name] || q.dead && !silent || q.alive && silent ||
			q.reasons && n.Reason == "" || len(q.states) > 0 && !slices.ContainsFunc(q.states, func(all []string) bool { return inStates(n, all) })
	}), nil
}

func inStates(n *ctldpb.Node, all []string) bool {
	return !slices.ContainsFunc(all, func(s string) bool { return !inState(n, s) })
}

// inState: a base state, a shown state, or the flag of that name.
func inState(n *ctldpb.Node, want string) bool {
	long := strings.TrimRight(longState(n), "*+$")
	switch want {
	case long:
		return true
	case "drain":
		return slices.Contains(n.Flags, "DRAIN")
	case "maint":
		return slices.Contains(n.Flags, "MAINTENANCE")
	case "reserved":
		return slices.Contains(n.Flags, "RESERVED")
	case "no_respond":
		return slices.Contains(n.Flags, "NOT_RESPONDING")
	case "down", "idle", "allocated", "mixed":
		return strings.EqualFold(n.State, want) && (want == "down" || !slices.Contains(n.Flags, "DRAIN"))
	case "completing":
		return slices.Contains(n.Flags, "COMPLETING")
	}
	return false
}

// group puts the nodes into lines.
func (q *query) group(nodes []*ctldpb.Node, parts []*ctldpb.Partition, clock render.Clock) []*group {
	byPart := slices.ContainsFunc(q.shown, func(c *column) bool { return c.kind == partition })
	byName := map[string]*group{}
	var groups []*group
	add := func(p *ctldpb.Partition, order int, n *ctldpb.Node) {
		key := ""
		if byPart || q.byNode && len(q.partitions) > 0 {
			key = p.Name
		}
		if n != nil {
			key += "\x00" + q.key(n)
		}
		g := byName[key]
		if g == nil {
			g = &group{part: p, clock: clock, order: order, has: map[*ctldpb.Node]bool{}}
			if n != nil {
				g.resv = q.resv[n.Name]
			}
			byName[key] = g
			groups = append(groups, g)
		}
		if n != nil && !g.has[n] {
			g.nodes, g.has[n] = append(g.nodes, n), true
		}
	}
	for i, p := range parts {
		members := 0
		for _, n := range nodes {
			if slices.Contains(n.Partitions, p.Name) {
				add(p, i, n)
				members++
			}
		}
		if members == 0 && q.showsEmpty(byPart) {
			add(p, i, nil)
		}
	}
	return groups
}

// showsEmpty: a partition without nodes has a line of its own unless nodes were picked.
func (q *query) showsEmpty(byPart bool) bool {
	return byPart && !q.byNode && !q.reasons && !q.dead && !q.alive && q.nodes == "" && len(q.states) == 0
}

// key is what tells nodes apart.
func (q *query) key(n *ctldpb.Node) string {
	var b strings.Builder
	if q.byNode {
		b.WriteString(n.Name)
	}
	for _, c := range q.shown {
		if c.letter == 'i' {
			b.WriteString("\x00" + q.resv[n.Name])
		}
		if c.kind == node || c.kind == size && q.exact {
			b.WriteByte(0)
			b.WriteString(c.key(n))
		}
	}
	return b.String()
}

// order sorts the lines: by partition and then state, by name with -N, or as -S says.
func (q *query) order(groups []*group) {
	sorting := q.sort
	if sorting == "" {
		sorting = "#P,-t"
		if q.byNode {
			sorting = "N"
		} else if q.reasons {
			sorting = "E,H,N"
		}
	}
	slices.SortStableFunc(groups, func(a, b *group) int {
		for part := range strings.SplitSeq(sorting, ",") {
			part = strings.TrimSpace(part)
			down := strings.HasPrefix(part, "-")
			c := compare(strings.TrimLeft(part, "-+"), a, b)
			if down {
				c = -c
			}
			if c != 0 {
				return c
			}
		}
		return 0
	})
}

func compare(key string, a, b *group) int {
	switch strings.TrimPrefix(key, "#") {
	case "P", "R":
		if strings.HasPrefix(key, "#") {
			return cmp.Compare(a.order, b.order)
		}
	case "t", "T":
		return cmp.Compare(a.rank(), b.rank())
	case "N", "n":
		return cmp.Or(natural(a.first(), b.first()), cmp.Compare(a.order, b.order))
	case "D":
		return cmp.Compare(len(a.nodes), len(b.nodes))
	}
	c := find(strings.TrimPrefix(key, "#"), false)
	if c == nil {
		return 0
	}
	return natural(c.value(a), c.value(b))
}

func (g *group) rank() int {
	if len(g.nodes) == 0 {
		return -1
	}
	return render.NodeRank(g.nodes[0])
}

func (g *group) first() string {
	if len(g.nodes) == 0 {
		return ""
	}
	return g.nodes[0].Name
}

// natural compares so that n9 comes before n10.
func natural(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			x, y := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}

func (q *query) writeJSON(env *program.Env, out io.Writer, c *client.Client, nodes []*ctldpb.Node, parts []*ctldpb.Partition) int {
	for i := range columns { // sinfo's JSON groups by all that tells nodes apart
		if l := columns[i].letter; l != 0 && strings.ContainsRune("PTGfEn", rune(l)) {
			q.shown = append(q.shown, &columns[i])
		}
	}
	groups := q.group(nodes, parts, render.Clock{Now: env.Now()})
	q.order(groups)
	list := make([]groupJSON, 0, len(groups))
	for _, g := range groups {
		list = append(list, newGroupJSON(g, c.Cluster()))
	}
	meta := render.NewMeta(c.Cluster(), program.SlurmVersion, append([]string{env.Name}, env.Args...))
	if err := render.WriteJSON(out, "sinfo", list, env.Now(), meta, env.Getenv("SLURM_JSON") == "compact"); err != nil {
		return 1
	}
	return 0
}
