package sched

import (
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Ranks of verdicts: where a class may run in several partitions the most hopeful one is shown.
const (
	rankNone = iota
	rankNever
	rankShut
	rankDown
	rankPriority
	rankResources
)

// verdict is why the best job of a class waits.
type verdict struct {
	rank   int
	reason job.Reason
	detail string
	start  int64
}

// verdict notes v for the class of l.
func (p *planner) verdict(l *lane, v verdict) { p.better(l.class, v) }

// better keeps v unless the class has as hopeful a verdict already.
func (p *planner) better(class int, v verdict) {
	if v.rank > p.verdicts[class].rank {
		p.verdicts[class] = v
	}
}

// explain puts the verdicts into the plan, in the classes' order.
func (p *planner) explain() {
	for i, v := range p.verdicts {
		if v.rank != rankNone {
			p.out.Classes = append(p.out.Classes, ClassReason{
				Class: p.s.Classes[i].Key, Reason: v.reason, Detail: v.detail, Start: v.start})
		}
	}
}

// impossible tells why the lane's shape would not fit even if nothing ran; it is false when it would.
func (p *planner) impossible(l *lane) (verdict, bool) {
	if p.fitsEmpty(l.shape, l.candidates) {
		return verdict{}, false
	}
	if all := p.suitable(l, false); p.fitsEmpty(l.shape, all) {
		return p.unavailable(l, all), true
	}
	if l.shape.features != nil {
		free := *l.shape
		free.features = nil
		other := *l
		other.shape = &free
		if p.fitsEmpty(&free, p.suitable(&other, false)) {
			return verdict{rank: rankNever, reason: job.ReasonBadConstraints, detail: "too few nodes of partition " +
				p.s.Partitions[l.part].Name + " have the features " + quoted(p.s.Classes[l.class].Spec.Constraint)}, true
		}
	}
	if v, ok := p.outside(l); ok {
		return v, true
	}
	return verdict{rank: rankNever, reason: job.ReasonPartitionConfig, detail: "needs " + p.needs(l) +
		"; partition " + p.s.Partitions[l.part].Name + " has no such nodes"}, true
}

// fitsEmpty tells whether the shape fits on the candidates when they are empty.
func (p *planner) fitsEmpty(s *shape, candidates []int) bool {
	return s.choose(candidates, func(n int) uint32 {
		whole := wholeRoom(p.s.Nodes[n])
		return s.fit(p.s.Nodes[n], &whole)
	}) != nil
}

// unavailable says which nodes the lane's shape waits for to come back.
func (p *planner) unavailable(l *lane, all []int) verdict {
	var down []string
	required := false
	for _, n := range all {
		if !p.s.Nodes[n].Up {
			down = append(down, p.s.Nodes[n].Name)
		}
	}
	for _, n := range l.shape.required {
		required = required || !p.s.Nodes[n].Up
	}
	if required {
		var names []string
		for _, n := range l.shape.required {
			if !p.s.Nodes[n].Up {
				names = append(names, p.s.Nodes[n].Name)
			}
		}
		return verdict{rank: rankDown, reason: job.ReasonReqNodeNotAvail, detail: "UnavailableNodes:" + few(names)}
	}
	return verdict{rank: rankDown, reason: job.ReasonNodesDown, detail: "needs " + p.needs(l) +
		"; these are down, drained or silent: " + few(down)}
}

// outside tells that a node was named which is not in the partition.
func (p *planner) outside(l *lane) (verdict, bool) {
	for _, n := range l.shape.required {
		found := false
		for _, m := range p.s.Partitions[l.part].Nodes {
			found = found || m == n
		}
		if !found {
			return verdict{rank: rankNever, reason: job.ReasonPartitionConfig, detail: "node " + p.s.Nodes[n].Name +
				" is not in partition " + p.s.Partitions[l.part].Name}, true
		}
	}
	return verdict{}, false
}

// behind says for which job the lane's best one stands back.
func (p *planner) behind(l *lane) string {
	if b := p.parts[l.part].blocked; b != 0 {
		return "job " + strconv.FormatUint(uint64(b), 10) + " comes first in partition " + p.s.Partitions[l.part].Name
	}
	for _, n := range l.candidates {
		for _, h := range p.holds[n] {
			return "nodes are kept for job " + strconv.FormatUint(uint64(h.job), 10)
		}
	}
	return ""
}

// needs says in words what the lane's shape takes on one node.
func (p *planner) needs(l *lane) string {
	s := l.shape
	tasks := max(s.perNode, 1)
	if s.tasks > 0 {
		tasks = max(s.tasks/uint32(max(s.minNodes, 1)), 1)
		if s.perNode > 0 {
			tasks = min(tasks, s.perNode)
		}
	}
	parts := []string{plural(int(max(tasks*s.cpus, s.minCPUs)), "CPU")}
	switch {
	case s.exclusive:
		parts = []string{"all CPUs"}
	case s.tasks > 1 && s.maxNodes != 1 && s.perNode == 0:
		parts = []string{plural(int(s.tasks*s.cpus), "CPU")}
	}
	switch {
	case s.memNode == job.WholeNode:
		parts = append(parts, "all memory")
	case s.memNode > 0:
		parts = append(parts, memory(s.memNode)+" of memory")
	case s.memCPU > 0:
		parts = append(parts, memory(s.memCPU)+" of memory a CPU")
	}
	for _, g := range s.gres {
		name := g.Name
		if g.Type != "" {
			name += ":" + g.Type
		}
		parts = append(parts, strconv.FormatUint(g.Count, 10)+" "+name)
	}
	text := strings.Join(parts[:len(parts)-1], ", ")
	if text != "" {
		text += " and "
	}
	text += parts[len(parts)-1]
	switch {
	case s.minNodes > 1:
		return text + " on each of " + plural(s.minNodes, "node")
	case s.tasks > 1 && s.maxNodes != 1 && s.perNode == 0:
		return text
	}
	return text + " on one node"
}

// shortage says what is missing now: how many nodes have the CPUs, and what those lack.
func (p *planner) shortage(l *lane) string {
	s := l.shape
	bare := shape{tasks: s.tasks, perNode: s.perNode, cpus: s.cpus, minCPUs: s.minCPUs, exclusive: s.exclusive,
		memNode: 1}
	withMem := *s
	withMem.gres = nil
	var cpus, mem, all int
	for _, n := range l.candidates {
		node := p.s.Nodes[n]
		if bare.fit(node, &p.rooms[n]) == 0 {
			continue
		}
		cpus++
		if withMem.fit(node, &p.rooms[n]) == 0 {
			continue
		}
		mem++
		if s.fit(node, &p.rooms[n]) > 0 {
			all++
		}
	}
	text := "needs " + p.needs(l) + "; "
	have := "have the CPUs"
	if s.exclusive {
		have = "are empty"
	}
	text += count(cpus, have)
	switch {
	case cpus == 0 || cpus == all:
	case mem == 0:
		text += ", none has the memory free"
	case len(s.gres) > 0 && all == 0:
		text += ", none has a free " + s.gres[0].Name
	default:
		text += ", " + number(all) + " of them all of it"
	}
	return text
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
func memory(b int64) string   { return job.FormatMem(b) }
func minutes(ms int64) string { return job.FormatDuration(ms) }
