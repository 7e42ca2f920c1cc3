package sched

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Ranks of verdicts: where a class may run in several partitions the most hopeful one is shown.
const (
	rankNone = iota
	rankNever
	rankShut
	rankDown
	rankLimit
	rankPriority
	rankResources
)

// verdict is why the best job of a class waits.
type verdict struct {
	rank     int
	reason   job.Reason
	detail   string
	start    int64
	promised bool
	stops    bool // a limit that may block the jobs behind
}

// note keeps v for the class of l: of its best job only, those behind it wait for that one.
func (r *round) note(l *lane, v verdict) { r.better(l.class, v) }

// better keeps v unless the class has as hopeful a verdict already.
func (r *round) better(class int, v verdict) {
	if v.rank > r.verdict[class].rank {
		r.verdict[class] = v
	}
}

// explain puts the verdicts into the plan, in the classes' order.
func (r *round) explain() {
	for i, v := range r.verdict {
		if v.rank != rankNone {
			r.out.Classes = append(r.out.Classes, ClassReason{
				Class: r.s.Classes[i].Key, Reason: v.reason, Detail: v.detail, Start: v.start, Promised: v.promised})
		}
	}
}

// empty tells whether the shape fits on the nodes listed when they are empty.
func (r *round) empty(l *lane, s *place.Shape, list []int) bool {
	waits := l.extra.Switches > 0 && l.extra.SwitchWait > 0 // then any switches will do one day
	return s.FitsEmpty(&place.Candidates{List: list, Nodes: r.s.Nodes, Topology: r.s.Topology, AnySwitches: waits})
}

// impossible tells why the lane's shape would not fit even if nothing ran; it is false when it would.
func (r *round) impossible(l *lane) (verdict, bool) {
	if !l.fit.settled {
		l.fit.settled, l.fit.verdict = true, r.whyNever(l)
	}
	return l.fit.verdict, l.fit.verdict.rank != rankNone
}

// whyNever is the verdict on a shape that does not fit when nothing runs; its rank is rankNone when it does.
func (r *round) whyNever(l *lane) verdict {
	up := l.fit.order
	if r.p.down > 0 {
		up = slices.DeleteFunc(slices.Clone(up), func(n int) bool { return !r.s.Nodes[n].Up })
	}
	if r.empty(l, l.fit.shape, up) {
		return verdict{}
	}
	part := r.s.Partitions[l.part]
	if len(up) < len(l.fit.order) && r.empty(l, l.fit.shape, l.fit.order) {
		return r.unavailable(l)
	}
	if free := l.fit.shape.Without(); l.c.Spec.Constraint != "" && r.empty(l, free, free.Order(r.s.Nodes, part.Nodes)) {
		return verdict{rank: rankNever, reason: job.ReasonBadConstraints, detail: "too few nodes of partition " +
			part.Name + " have the features " + quoted(l.c.Spec.Constraint)}
	}
	for _, n := range l.fit.shape.Required() {
		if r.p.places[l.part][n] < 0 {
			return verdict{rank: rankNever, reason: job.ReasonPartitionConfig, detail: "node " + r.s.Nodes[n].Name +
				" is not in partition " + part.Name}
		}
	}
	return verdict{rank: rankNever, reason: job.ReasonPartitionConfig, detail: "needs " + l.fit.shape.Needs() +
		"; partition " + part.Name + " has no such nodes"}
}

// unavailable says which nodes the lane's shape waits for to come back.
func (r *round) unavailable(l *lane) verdict {
	var down, named []string
	for _, n := range l.fit.order {
		if !r.s.Nodes[n].Up {
			down = append(down, r.s.Nodes[n].Name)
		}
	}
	for _, n := range l.fit.shape.Required() {
		if !r.s.Nodes[n].Up {
			named = append(named, r.s.Nodes[n].Name)
		}
	}
	if len(named) > 0 {
		return verdict{rank: rankDown, reason: job.ReasonReqNodeNotAvail, detail: "UnavailableNodes:" + few(named)}
	}
	return verdict{rank: rankDown, reason: job.ReasonNodesDown, detail: "needs " + l.fit.shape.Needs() +
		"; these are down, drained or silent: " + few(down)}
}

// behindWhom says for which job the lane's best one stands back.
func (r *round) behindWhom(l *lane) string {
	if b := r.parts[l.part].blocked; b != 0 && b != l.head.JobID {
		return "job " + strconv.FormatUint(uint64(b), 10) + " comes first in partition " + r.s.Partitions[l.part].Name
	}
	if l.fit == nil {
		return ""
	}
	limit, _ := r.limit(l)
	for _, n := range l.fit.order {
		for _, h := range r.holds[n] {
			if h.job != l.head.JobID {
				return "nodes are kept for job " + strconv.FormatUint(uint64(h.job), 10)
			}
		}
		if name := r.blocker(l.access, n, endAfter(r.now, limit)); name != "" {
			return "nodes are reserved by " + name
		}
	}
	return ""
}

// shortage says what is missing now: how many nodes have the CPUs, and what those lack.
func (r *round) shortage(l *lane) string {
	limit, _ := r.limit(l)
	text := "needs " + l.fit.shape.Needs() + "; "
	t := r.tally(l, limit)
	if t.all >= max(l.fit.least, 1) && !l.fit.hopeless() {
		if why := r.behindWhom(l); why != "" {
			return text + why
		}
	}
	var parts []string
	have := "have the CPUs"
	switch {
	case l.fit.shape.Exclusive():
		have = "are empty"
	case t.cpus == 0 && t.users > 0:
		parts = append(parts, count(t.users, "have jobs of other users"))
	}
	if len(parts) == 0 && t.nodes > 0 {
		text := count(t.cpus, have) + t.rest()
		if t.reserved > 0 {
			text = strings.Replace(text, "no node", "no other node", 1)
		}
		parts = append(parts, text)
	}
	if t.reserved > 0 {
		parts = append(parts, plural(t.reserved, "node")+" reserved by "+few(t.by))
	}
	return text + strings.Join(parts, "; ")
}

// rest is what the nodes that have the CPUs lack besides.
func (t *tally) rest() string {
	switch {
	case t.cpus == 0 || t.cpus == t.all:
		return ""
	case t.mem == 0:
		return ", none has the memory free"
	case t.gres != "" && t.all == 0:
		return ", none has a free " + t.gres
	}
	return ", " + number(t.all) + " of them all of it"
}

// lacks is the verdict on a lane's best job that waits for what is in use.
func (r *round) lacks(l *lane) verdict {
	limit, _ := r.limit(l)
	if name := r.missingLicense(l, limit); name != "" {
		return verdict{rank: rankResources, reason: job.ReasonLicenses, detail: "license " + name + " is in use"}
	}
	return verdict{rank: rankResources, reason: job.ReasonResources, detail: r.shortage(l)}
}

// tally counts what nodes have for a lane.
type tally struct {
	cpus, mem, all, reserved int
	nodes, users             int // that come into question; of which somebody else's jobs keep it
	by                       []string
	gres                     string
}

// tally looks at each node that suits the lane's shape.
func (r *round) tally(l *lane, limit int64) tally {
	var t tally
	if g := l.fit.shape.Least().Gres; len(g) > 0 {
		t.gres = g[0].Name
	}
	to := endAfter(r.now, limit)
	r.p.ask()
	for _, n := range l.fit.named() {
		node := r.s.Nodes[n]
		if l.fit.places[n] < 0 {
			continue
		}
		if !node.Up {
			continue
		}
		if name := r.blocker(l.access, n, to); name != "" {
			if t.reserved++; !slices.Contains(t.by, name) {
				t.by = append(t.by, name)
			}
			continue
		}
		t.nodes++
		if l.fit.fits[n] > 0 {
			t.cpus, t.mem, t.all = t.cpus+1, t.mem+1, t.all+1
			continue
		}
		lack := r.p.lacking(l.fit, n)
		if lack&(place.LackCPUs|place.LackEmpty|place.LackUser) != 0 {
			t.users += boolInt(lack&place.LackUser != 0)
			continue
		}
		t.cpus++
		if lack&place.LackMem == 0 {
			t.mem++
		}
	}
	return t
}

// count is "no node has ..." or "3 nodes have ...".
func count(n int, have string) string {
	one := strings.NewReplacer("have ", "has ", "are ", "is ").Replace(have)
	switch n {
	case 0:
		return "no node " + strings.Replace(one, "the CPUs", "the CPUs free", 1)
	case 1:
		return "1 node " + one
	}
	return number(n) + " nodes " + have
}

// maxNames is how many node names a reason lists.
const maxNames = 8

func few(names []string) string {
	if len(names) > maxNames {
		return strings.Join(names[:maxNames], ",") + " and " + number(len(names)-maxNames) + " more"
	}
	return strings.Join(names, ",")
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return number(n) + " " + word + "s"
}

func number(n int) string     { return strconv.Itoa(n) }
func quoted(s string) string  { return strconv.Quote(s) }
func minutes(ms int64) string { return job.FormatDuration(ms) }
