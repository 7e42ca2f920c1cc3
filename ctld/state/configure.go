package state

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/tensorgrid/tensorgrid/internal/node"
)

// NodeConfig is one node as the configuration file has it. Memory and disk in bytes.
type NodeConfig struct {
	Name      string
	Hostname  string
	Addr      string
	Inventory node.Inventory
	Features  []string
	Weight    uint32
	State     string // "", DOWN, DRAIN, FUTURE
	Reason    string
}

// SetConfig takes a new configuration. What people did at run time to nodes and partitions that
// are still there (drain, reasons, updates) stays where the file did not change the same thing.
// Nodes that left while runs are on them stay, taking nothing new, until those are gone.
func (t *Tx) SetConfig(cfg Config, nodes []NodeConfig, parts []Partition) *Refusal {
	if r := checkConfig(nodes, parts); r != nil {
		return r
	}
	if t.feature < FeatureSched {
		parts, cfg.Sched = t.withoutLater(parts), SchedConfig{}
	}
	if t.feature >= FeatureSched && !t.restoring && resetNow(&t.cfg.Sched, &cfg.Sched) {
		t.forgetUsage()
	}
	t.cfg = &cfg
	t.nextID = max(t.nextID, cfg.FirstJobID, 1)
	t.setNodes(nodes)
	t.file = &fileConfig{nodes: nodes, parts: parts, set: t.updatesKept(parts)}
	t.buildPartitions()
	t.buildSched()
	t.usage++
	t.layout++
	t.capacity++
	t.endAllInvalid()
	return nil
}

// withoutLater gives partitions as a replica has them that knows the present level only, so that all
// have the same while not all know more.
func (t *Tx) withoutLater(parts []Partition) []Partition {
	parts = slices.Clone(parts)
	for i := range parts {
		if t.feature < FeatureMembers {
			parts[i].JobLease = 0
		}
		withoutSched(&parts[i])
	}
	return parts
}

func checkConfig(nodes []NodeConfig, parts []Partition) *Refusal {
	if len(nodes) > MaxNodes {
		return invalid("too many nodes", "the limit is MaxNodes=%d, the configuration has %d", MaxNodes, len(nodes))
	}
	if len(parts) > MaxPartitions {
		return invalid("too many partitions", "the limit is MaxPartitions=%d, the configuration has %d", MaxPartitions, len(parts))
	}
	seen := map[string]bool{}
	for i := range nodes {
		if name := nodes[i].Name; name == "" || seen[name] {
			return invalid("Invalid node name specified", "node %d of the configuration is %q, which is empty or a duplicate", i+1, name)
		}
		if n := nodes[i].Inventory.CPUs; n > MaxNodeCPUs {
			return invalid("Invalid node configuration", "node %q has %d CPUs, the limit is MaxNodeCPUs=%d", nodes[i].Name, n, MaxNodeCPUs)
		}
		seen[nodes[i].Name] = true
	}
	clear(seen)
	for i := range parts {
		if name := parts[i].Name; name == "" || seen[name] {
			return invalid("Invalid partition name specified", "partition %d of the configuration is %q, which is empty or a duplicate", i+1, name)
		}
		seen[parts[i].Name] = true
	}
	return nil
}

func invalid(text, why string, args ...any) *Refusal {
	return &Refusal{Code: "ESLURM_INVALID_CONFIG", Text: text, Why: fmt.Sprintf(why, args...)}
}

func (t *Tx) setNodes(list []NodeConfig) {
	before := map[string]*NodeConfig{}
	for i := range t.file.nodes {
		before[t.file.nodes[i].Name] = &t.file.nodes[i]
	}
	fresh, at := new(btree.Map[uint32, *Node]), make(map[string]uint32, len(list))
	for i := range list {
		c := &list[i]
		at[c.Name] = uint32(i)
		fresh.Set(uint32(i), t.configured(c, before[c.Name]))
	}
	next := uint32(len(list))
	for old := range t.Nodes() {
		if _, stays := at[old.Name]; !stays && len(old.Jobs) > 0 {
			n := *old
			n.Removed, n.oldGres = true, false // no list waits for it any more: a snapshot tells of none
			at[n.Name] = next
			fresh.Set(next, &n)
			next++
		}
	}
	t.nodes, t.nodeAt = fresh, at
}

// configured gives the record of a node after the file says c; was is what the file said before,
// nil when it did not name the node.
func (t *Tx) configured(c, was *NodeConfig) *Node {
	var n Node
	if old := t.Node(c.Name); old != nil {
		n = *old
	} else {
		n = Node{Name: c.Name, State: node.Unknown}
	}
	n.Removed = false
	n.Hostname = c.Hostname
	n.setInventory(c.Inventory)
	if was == nil || c.Addr != was.Addr {
		n.Addr = c.Addr
	}
	if was == nil || c.Weight != was.Weight {
		n.Weight = c.Weight
	}
	if was == nil || !slices.Equal(c.Features, was.Features) {
		n.Features = c.Features
	}
	if was == nil || c.State != was.State {
		n.applyFileState(c, t.now)
	}
	if n.BootID != "" {
		n.judgeInventory(t.now)
	}
	return &n
}

// setInventory gives a node what it is configured with. Devices go by their place in that list: while
// runs hold some whose numbers would mean other devices, the list stays and no device is given.
func (n *Node) setInventory(i node.Inventory) {
	caps := capacities(i.Gres)
	if n.oldGres = !sameDevices(n.gres, caps, n.GresUsed); n.oldGres {
		i.Gres = n.Config.Gres
	} else {
		n.gres = caps
	}
	n.Config = i
}

// sameDevices tells whether the devices in use have the same numbers among all of their name by both
// lists.
func sameDevices(old, fresh []gresCap, used map[string][]bool) bool {
	for key, set := range used {
		was, _ := devicesAt(old, key)
		is, total := devicesAt(fresh, key)
		if was != is || uint64(len(set)) > total {
			return false
		}
	}
	return true
}

// devicesAt gives how many devices of the same name come before those of a resource, and how many it
// has; -1 and none when it has no devices.
func devicesAt(caps []gresCap, key string) (before int64, total uint64) {
	for _, c := range caps {
		if gresKey(c.name, c.typ) == key && c.devices {
			for _, o := range caps {
				if o.name == c.name && o.typ == c.typ {
					return before, c.total
				}
				if o.name == c.name {
					before += int64(o.total)
				}
			}
		}
	}
	return -1, 0
}

// adoptGres takes the list of the file for a node once no device of the one before is in use.
func (t *Tx) adoptGres(n *Node, at uint32) {
	if !n.oldGres || len(n.GresUsed) > 0 || int(at) >= len(t.file.nodes) {
		return
	}
	i := n.Config
	i.Gres = t.file.nodes[at].Inventory.Gres
	n.setInventory(i)
	if n.BootID != "" {
		n.judgeInventory(t.now)
	}
}

// applyFileState takes State and Reason of a NodeName line.
func (n *Node) applyFileState(c *NodeConfig, now int64) {
	switch strings.ToUpper(c.State) {
	case "DOWN":
		n.State = node.Down
	case "DRAIN":
		n.Flags |= node.Drain
	case "FUTURE":
		n.State = node.Future
	default:
		if n.State == node.Future {
			n.State = node.Unknown
		}
		return
	}
	if c.Reason != "" || n.Reason == "" {
		n.Reason, n.ReasonTime, n.ReasonUID, n.ReasonUser = c.Reason, now, 0, "root"
	}
}

// forgetRemoved drops a node that is no longer configured once nothing runs there.
func (t *Tx) forgetRemoved(n *Node) {
	if !n.Removed || len(n.Jobs) > 0 {
		return
	}
	t.nodes.Delete(t.nodeAt[n.Name])
	t.layout++
	at := maps.Clone(t.nodeAt)
	delete(at, n.Name)
	t.nodeAt = at
}

// updatesKept gives the updates of partitions that a new file does not change. JobLease, and what came with
// FeatureSched, counts for itself: when the feature level rises the file's comes into a state that could not take it
// before, and that must not undo a State=DOWN.
func (t *Tx) updatesKept(list []Partition) map[string]map[string]string {
	before := map[string]*Partition{}
	for i := range t.file.parts {
		before[t.file.parts[i].Name] = &t.file.parts[i]
	}
	keep := map[string]map[string]string{}
	for i := range list {
		name := list[i].Name
		set, was := t.file.set[name], before[name]
		if set == nil || was == nil {
			continue
		}
		same := *was
		same.JobLease = list[i].JobLease
		copySched(&same, &list[i])
		if !reflect.DeepEqual(same, list[i]) {
			continue
		}
		set = maps.Clone(set)
		if was.JobLease != list[i].JobLease {
			delete(set, "joblease")
		}
		dropChanged(set, was, &list[i])
		if len(set) > 0 {
			keep[name] = set
		}
	}
	return keep
}

// buildPartitions makes the partitions in force from the file and the updates over it.
func (t *Tx) buildPartitions() {
	table := &partTable{byName: make(map[string]*Partition, len(t.file.parts))}
	def := ""
	for i := range t.file.parts {
		p := t.file.parts[i]
		set := t.file.set[p.Name]
		for _, key := range slices.Sorted(maps.Keys(set)) {
			// Checked when it was accepted; a file that changed the partition dropped it.
			_ = setPartition(&p, key, set[key])
		}
		if set["default"] != "" && p.Default {
			def = p.Name
		}
		table.list = append(table.list, &p)
		table.byName[p.Name] = &p
		table.nodes = append(table.nodes, t.positions(p.Nodes))
	}
	for _, p := range table.list {
		p.Default = p.Default && (def == "" || p.Name == def)
	}
	t.parts = table
}

func (t *Tx) positions(names []string) []int {
	list := make([]int, 0, len(names))
	for _, name := range names {
		if at, ok := t.nodeAt[name]; ok {
			if n, _ := t.nodes.Get(at); !n.Removed {
				list = append(list, int(at))
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
