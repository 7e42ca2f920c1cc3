package state

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// Caller is who asked for a command, as the controller authenticated it.
type Caller struct {
	UID      uint32
	User     string
	Operator bool
}

// NodeUpdate is an operator's change of nodes.
type NodeUpdate struct {
	Nodes  []string
	State  string // "", DOWN, DRAIN, RESUME, UNDRAIN, FAIL, IDLE
	Reason string
	Caller Caller
	Set    map[string]string // Weight, Features, Comment, Fenced
}

func denied(why string) *Refusal {
	return refuse("ESLURM_ACCESS_DENIED", "Access/permission denied", why)
}

// UpdateNode changes nodes, all of them or none.
func (t *Tx) UpdateNode(u *NodeUpdate) *Refusal {
	if !u.Caller.Operator {
		return denied("changing nodes is for operators")
	}
	names := make([]string, 0, len(u.Nodes))
	named := make(map[string]bool, len(u.Nodes))
	for _, name := range u.Nodes {
		old := t.Node(name)
		if old == nil {
			return noNode(name)
		}
		n := *old
		if r := n.update(u, t.now); r != nil {
			return r
		}
		if !named[name] {
			named[name], names = true, append(names, name)
		}
	}
	for _, name := range names {
		old := t.Node(name)
		n := *old
		if r := n.update(u, t.now); r != nil {
			return r
		}
		t.setNode(old, &n)
	}
	for _, name := range names {
		t.endRuns(name, u)
	}
	return nil
}

// endRuns ends what cannot go on after an update of a node. What it ends may hold the update's other
// nodes too, and one that is no longer configured leaves with its last run: so each is looked up when
// its turn comes.
func (t *Tx) endRuns(name string, u *NodeUpdate) {
	n := t.Node(name)
	if n == nil {
		return
	}
	for key, value := range u.Set {
		if strings.EqualFold(key, "fenced") && yes(value) {
			t.fenceNode(n)
			return
		}
	}
	if strings.EqualFold(u.State, "DOWN") {
		t.endRunsOf(n)
	}
}

func yes(s string) bool {
	s = strings.ToLower(s)
	return s == "yes" || s == "1" || s == "true"
}

// update changes one copy of a record.
func (n *Node) update(u *NodeUpdate, now int64) *Refusal {
	for _, key := range slices.Sorted(maps.Keys(u.Set)) {
		value := u.Set[key]
		switch strings.ToLower(key) {
		case "weight":
			w, err := strconv.ParseUint(value, 10, 32)
			if err != nil {
				return badValue(key, value, "a number")
			}
			n.Weight = uint32(w)
		case "features", "availablefeatures", "activefeatures":
			n.Features = splitList(value)
		case "comment":
			if len(value) > job.MaxString {
				return badValue(key, "of "+strconv.Itoa(len(value))+" bytes", fmt.Sprintf("at most MaxString=%d bytes", job.MaxString))
			}
			n.Comment = value
		case "fenced":
		default:
			return unknownKey(key, "Weight, Features, Comment, Fenced")
		}
	}
	if u.State == "" && u.Reason != "" {
		n.Reason, n.ReasonTime, n.ReasonUID, n.ReasonUser = cut(u.Reason), now, u.Caller.UID, u.Caller.User
		return nil
	}
	return n.setState(u, now)
}

func (n *Node) setState(u *NodeUpdate, now int64) *Refusal {
	state := strings.ToUpper(u.State)
	if state == "DRAIN" && u.Reason == "" && n.Reason == "" {
		return refuse("ESLURM_INVALID_NODE_STATE", "Invalid node state specified", "draining a node needs a Reason")
	}
	switch state {
	case "":
		return nil
	case "DOWN":
		n.State = node.Down
	case "DRAIN":
		n.Flags |= node.Drain
	case "FAIL":
		n.Flags |= node.Fail
	case "RESUME", "IDLE":
		if n.State == node.Down {
			if n.State = node.Idle; n.BootID == "" {
				n.State = node.Unknown // until it registers
			}
		}
		n.Flags &^= node.Drain | node.Fail
		n.clearReason()
		return nil
	case "UNDRAIN":
		n.Flags &^= node.Drain
		if n.State != node.Down {
			n.clearReason()
		}
		return nil
	default:
		return refuse("ESLURM_INVALID_NODE_STATE", "Invalid node state specified",
			fmt.Sprintf("%q is none of DOWN, DRAIN, RESUME, UNDRAIN, FAIL, IDLE", u.State))
	}
	if u.Reason != "" {
		n.Reason, n.ReasonTime, n.ReasonUID, n.ReasonUser = cut(u.Reason), now, u.Caller.UID, u.Caller.User
	}
	return nil
}

// endRunsOf ends what runs on a node that an operator set DOWN. The runs are over when the node
// says so, or when they are fenced.
func (t *Tx) endRunsOf(n *Node) {
	for _, id := range n.Jobs {
		old := t.Job(id)
		if !isRunning(old) {
			continue
		}
		j := edit(old)
		j.Kill, j.KillAt = job.WhyNodeFail, t.now
		t.conclude(j, ending{state: job.NodeFail, reason: job.ReasonNodeDown, exit: old.Exit, node: n.Name})
		t.settle(old, j)
	}
}

// fenceNode takes an operator's word that nothing is alive on a node.
func (t *Tx) fenceNode(n *Node) {
	for _, id := range n.Jobs {
		old := t.Job(id)
		if i := slices.IndexFunc(old.Allocs, func(a job.NodeAlloc) bool { return a.Node == n.Name }); i >= 0 && holds(old, i) {
			t.nodeFailed(old, i)
		}
	}
}

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func badValue(key, value, want string) *Refusal {
	return refuse("ESLURM_INVALID_VALUE", "Invalid "+key+" specification", fmt.Sprintf("%s=%s is not %s", key, value, want))
}

func unknownKey(key, known string) *Refusal {
	return refuse("ESLURM_NOT_SUPPORTED", "Update of this parameter is not supported: "+key, "known are "+known)
}
