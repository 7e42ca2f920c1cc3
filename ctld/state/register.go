package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// systemUser is who is named for what the system itself did to a node.
const systemUser = "slurm"

// reasonSilent is why a node is DOWN that was not heard of; ReturnToService=1 goes by it.
const reasonSilent = "Not responding"

// Registration is what an agent says when it comes.
type Registration struct {
	Node       string
	BootID     string
	Version    string
	Inventory  node.Inventory
	Hostname   string
	AgentStart int64
	Boot       int64
	Driver     string
	Addr       string
	Held       []RunKey // runs alive there, or waiting to report
}

// RunKey names one run of a job.
type RunKey struct{ JobID, Run uint32 }

// RegisterNode takes a registration: runs of an earlier boot, and confirmed runs that the node
// does not hold, are dead. Drain and its reason stay; a DOWN that an operator set stays unless
// ReturnToService=2 lifts every DOWN.
func (t *Tx) RegisterNode(r *Registration) *Refusal {
	old := t.Node(r.Node)
	if old == nil {
		return noNode(r.Node)
	}
	n := *old
	rebooted := old.BootID != "" && old.BootID != r.BootID
	n.Registered, n.BootID, n.Version, n.Driver = r.Inventory, r.BootID, r.Version, r.Driver
	n.Boot, n.AgentStart = r.Boot, r.AgentStart
	if r.Addr != "" {
		n.Addr = r.Addr
	}
	if r.Hostname != "" {
		n.Hostname = r.Hostname
	}
	n.Flags &^= node.NotResponding
	n.returnToService(t.cfg.ReturnToService)
	n.judgeInventory(t.now)
	t.setNode(old, &n)
	t.reconcile(r, rebooted)
	return nil
}

func noNode(name string) *Refusal {
	return refuse("ESLURM_INVALID_NODE_NAME", "Invalid node name specified",
		fmt.Sprintf("the configuration has no node %q", name))
}

// setNode stores a node's new record; something that waits may be able to start after any change.
func (t *Tx) setNode(old, n *Node) {
	at, ok := t.nodeAt[n.Name]
	if !ok {
		return // it was not configured any more, and left with its last run
	}
	t.nodes.Set(at, n)
	t.usage++
	if n.Usable() || old.Usable() { // what was kept there for one job may be free for others
		t.capacity++
	}
}

// returnToService brings a node that has come back into use as ReturnToService says.
func (n *Node) returnToService(mode uint32) {
	switch {
	case n.State == node.Unknown:
		n.State = node.Idle
	case n.State != node.Down:
		return
	case mode == 2, mode == 1 && n.ReasonUser == systemUser && n.Reason == reasonSilent:
		n.State = node.Idle
		if n.Flags&node.Drain == 0 {
			n.clearReason()
		}
	}
}

func (n *Node) clearReason() { n.Reason, n.ReasonTime, n.ReasonUID, n.ReasonUser = "", 0, 0, "" }

// setReason keeps the first reason of a node that is out of use already.
func (n *Node) setReason(reason string, now int64) {
	if n.Reason == "" || n.Flags&node.Drain == 0 && n.State != node.Down {
		n.Reason, n.ReasonTime, n.ReasonUID, n.ReasonUser = cut(reason), now, 0, systemUser
	}
}

// judgeInventory drains a node that has less than it is configured with.
func (n *Node) judgeInventory(now int64) {
	want := n.Config
	if n.oldGres {
		want.Gres = "" // judged when the list of the file is taken
	}
	why := shortfall(&want, &n.Registered)
	if why == "" {
		n.Flags &^= node.InvalidReg
		return
	}
	n.setReason(why, now)
	n.Flags |= node.InvalidReg | node.Drain
}

// shortfall says what has is short of; "" when it has all of want.
func shortfall(want, has *node.Inventory) string {
	switch {
	case has.CPUs < want.CPUs:
		return fmt.Sprintf("Low CPUs (%d < %d)", has.CPUs, want.CPUs)
	case has.Mem < want.Mem:
		return fmt.Sprintf("Low RealMemory (reported:%d < 100.00%% of configured:%d)", has.Mem>>20, want.Mem>>20)
	case has.TmpDisk < want.TmpDisk:
		return "Low TmpDisk"
	}
	have := capacities(has.Gres)
	for _, c := range capacities(want.Gres) {
		var count uint64
		for _, h := range have {
			if h.name == c.name && (h.typ == c.typ || c.typ == "" || h.typ == "") {
				count += h.total
			}
		}
		if count < c.total {
			return fmt.Sprintf("gres/%s count reported lower than configured (%d < %d)", c.name, count, c.total)
		}
	}
	return ""
}

// capacities reads a node's generic resources. A list that cannot be read counts as nothing; the
// configuration and the agent were checked before.
func capacities(list string) []gresCap {
	inventory, err := gres.ParseInventory(list)
	if err != nil {
		return nil
	}
	var caps []gresCap
	for _, i := range gres.Items(inventory) {
		devices := strings.EqualFold(i.Name, "gpu") || strings.EqualFold(i.Name, "nic")
		caps = append(caps, gresCap{name: i.Name, typ: i.Type, total: i.Count, devices: devices && i.Count <= gres.MaxIndex})
	}
	return caps
}

// reconcile compares the runs that the state has on a node with those that the node has.
func (t *Tx) reconcile(r *Registration, rebooted bool) {
	held := make(map[RunKey]bool, len(r.Held))
	for _, k := range r.Held {
		held[k] = true
	}
	for _, id := range t.Node(r.Node).Jobs { // a copy in effect: node records do not change
		j := t.Job(id)
		i := slices.IndexFunc(j.Allocs, func(a job.NodeAlloc) bool { return a.Node == r.Node })
		if i < 0 || !holds(j, i) {
			continue // it has ended with another component of its job
		}
		has := held[RunKey{j.ID, j.Run}]
		switch {
		case rebooted:
			t.nodeFailed(j, i)
		case i != 0 || isComponent(j): // only the batch host has processes
		case has && !j.Confirmed[0]:
			t.confirm(j, 0)
			t.clearFencing(t.Job(id))
		case !has && j.Confirmed[0]:
			t.nodeFailed(j, 0)
		default:
			t.clearFencing(j)
		}
	}
}

// clearFencing: the node is back and holds the run, so nothing waits for its end any more.
func (t *Tx) clearFencing(old *Job) {
	if old.Reason == job.ReasonFencing {
		j := edit(old)
		j.Reason, j.FailedNode = "", ""
		t.put(old, j)
	}
}

// Silence says that a node has not been heard of for a window, or is heard of again.
type Silence struct {
	Node   string
	Silent bool
	Down   bool
	Reason string
}

// NodeSilent takes what the leader found. Runs on a node that goes DOWN wait for a proof that they
// are dead: a new boot, the end of their lease, or an operator's word. Runs of which the node is
// not the batch host are ended there.
func (t *Tx) NodeSilent(s *Silence) *Refusal {
	old := t.Node(s.Node)
	if old == nil {
		return noNode(s.Node)
	}
	n := *old
	if s.Silent {
		n.Flags |= node.NotResponding
	} else {
		n.Flags &^= node.NotResponding
	}
	if s.Down && n.State != node.Down && n.State != node.Future {
		reason := s.Reason
		if reason == "" {
			reason = reasonSilent
		}
		n.setReason(reason, t.now)
		n.State = node.Down
	}
	t.setNode(old, &n)
	if s.Down {
		t.awaitFence(&n)
	}
	return nil
}

func (t *Tx) awaitFence(n *Node) {
	for _, id := range n.Jobs {
		old := t.Job(id)
		i := slices.IndexFunc(old.Allocs, func(a job.NodeAlloc) bool { return a.Node == n.Name })
		if i < 0 || !holds(old, i) {
			continue // it has ended with another component of its job
		}
		if i != 0 || isComponent(old) { // no process of the run is there; the batch host can be told to end it
			t.nodeFailed(old, i)
			continue
		}
		if isRunning(old) && old.Reason != job.ReasonFencing {
			j := edit(old)
			j.Reason, j.FailedNode = job.ReasonFencing, n.Name
			t.put(old, j)
		}
	}
}

// drain takes a node out of use for the system's own reason.
func (t *Tx) drain(name, reason string) {
	old := t.Node(name)
	if old == nil {
		return
	}
	n := *old
	n.setReason(reason, t.now)
	n.Flags |= node.Drain
	t.setNode(old, &n)
}
