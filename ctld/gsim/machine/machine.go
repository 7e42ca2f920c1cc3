// Package machine keeps what is free on nodes in virtual time, and finds out when something is given twice.
package machine

import (
	"fmt"
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Machine is nodes and what is used of them. A node that changes is a new one: the planner may keep the old.
type Machine struct {
	Nodes []*place.Node // in the order of the configuration; a new list after each change
	CPUs  int64         // in use by what Take was asked for
	GPUs  int64
	at    map[string]int
}

// New is a machine of these nodes, as they are.
func New(nodes []*place.Node) *Machine {
	m := &Machine{Nodes: nodes, at: make(map[string]int, len(nodes))}
	for i, n := range nodes {
		m.at[n.Name] = i
	}
	return m
}

// Take takes an allocation. An error means that it is not free, and names the node.
func (m *Machine) Take(a *job.NodeAlloc) error { return m.change(a, true) }

// Give gives it back.
func (m *Machine) Give(a *job.NodeAlloc) error { return m.change(a, false) }

func (m *Machine) change(a *job.NodeAlloc, on bool) error {
	at, ok := m.at[a.Node]
	if !ok {
		return fmt.Errorf("there is no node %s", a.Node)
	}
	n := *m.Nodes[at]
	sign := int64(-1)
	if on {
		sign = 1
		if a.CPUs > n.FreeCPUs || a.Mem > n.FreeMem {
			return fmt.Errorf("%d CPUs and %d bytes on %s, of which %d and %d are free", a.CPUs, a.Mem, a.Node, n.FreeCPUs, n.FreeMem)
		}
	}
	n.FreeCPUs = uint32(int64(n.FreeCPUs) - sign*int64(a.CPUs))
	n.FreeMem -= sign * a.Mem
	n.CPUUsed = slices.Clone(n.CPUUsed)
	for _, c := range a.CPUIDs {
		if int(c) >= len(n.CPUUsed) || n.CPUUsed[c] == on {
			return fmt.Errorf("CPU %d of %s is given twice, or was not given", c, a.Node)
		}
		n.CPUUsed[c] = on
	}
	n.Gres = slices.Clone(n.Gres)
	gpus := int64(0)
	for _, g := range a.Gres {
		if err := takeGres(&n, &g, on); err != nil {
			return err
		}
		if g.Name == "gpu" {
			gpus += int64(g.Count)
		}
	}
	n.Busy = n.FreeCPUs < n.CPUs
	m.CPUs += sign * int64(a.CPUs)
	m.GPUs += sign * gpus
	m.Nodes = slices.Clone(m.Nodes)
	m.Nodes[at] = &n
	return nil
}

func takeGres(n *place.Node, a *job.GresAlloc, on bool) error {
	k := slices.IndexFunc(n.Gres, func(g place.Gres) bool { return g.Name == a.Name && g.Type == a.Type })
	if k < 0 {
		return fmt.Errorf("%s has no %s of type %q", n.Name, a.Name, a.Type)
	}
	g := &n.Gres[k]
	g.Used = slices.Clone(g.Used)
	for _, d := range a.Index {
		if int(d) >= len(g.Used) || g.Used[d] == on {
			return fmt.Errorf("%s %d of %s is given twice, or was not given", a.Name, d, n.Name)
		}
		g.Used[d] = on
	}
	switch {
	case !on:
		g.Taken -= min(g.Taken, a.Count)
	case a.Count > g.Total-min(g.Taken, g.Total):
		return fmt.Errorf("%d %s of %s, which has %d with %d taken", a.Count, a.Name, n.Name, g.Total, g.Taken)
	default:
		g.Taken += a.Count
	}
	return nil
}
