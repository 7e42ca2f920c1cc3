package place

import (
	"cmp"
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// Switch is one line of the topology: a switch with the nodes or the switches below it, or a block
// with its nodes. Lists are host lists.
type Switch struct {
	Name     string
	Switches string
	Nodes    string
}

// noLeaf is the leaf of a node that no line names.
const noLeaf = -1

// Topology tells which nodes are near each other. Its leaves are leaf switches or base blocks. It is immutable.
type Topology struct {
	block  bool
	count  int     // of leaves
	leaf   []int32 // by node
	first  int     // nodes of a base block, by BlockSizes; 0 = not told
	groups []group // sets of leaves, the nearest first
}

// group is some leaves that are nearer to each other than to others: all below one switch, or the
// base blocks of one larger block.
type group struct {
	height int
	nodes  int // sizes: base blocks of it times the nodes of one, for blocks
	leaves []int32
}

// NewTopology builds a topology of kind "tree" or "block" from its lines, in order. blockSizes are
// the sizes that blocks may be joined to, ascending, in nodes: the first is a base block's. at gives
// a node's position by name; names that are not known are left out. Another kind gives nil: no topology.
func NewTopology(kind string, switches []Switch, blockSizes []uint32, at func(name string) (int, bool)) *Topology {
	if kind != "tree" && kind != "block" || len(switches) == 0 {
		return nil
	}
	t := &Topology{block: kind == "block"}
	leafOf := map[string]int32{}
	for i := range switches {
		if switches[i].Nodes == "" {
			continue
		}
		names, err := hostlist.Expand(switches[i].Nodes)
		if err != nil {
			continue // the configuration has refused it
		}
		id := int32(t.count)
		t.count++
		leafOf[switches[i].Name] = id
		for _, name := range names {
			if n, ok := at(name); ok {
				t.put(n, id)
			}
		}
	}
	if t.block {
		t.blocks(blockSizes)
	} else {
		t.tree(switches, leafOf)
	}
	return t
}

func (t *Topology) put(node int, id int32) {
	for len(t.leaf) <= node {
		t.leaf = append(t.leaf, noLeaf)
	}
	if t.leaf[node] == noLeaf {
		t.leaf[node] = id
	}
}

// Leaves is how many leaf switches or base blocks there are.
func (t *Topology) Leaves() int { return t.count }

// Leaf gives the number of the leaf switch or base block that a node is at; -1 when it is at none.
func (t *Topology) Leaf(node int) int {
	if t == nil || node >= len(t.leaf) {
		return noLeaf
	}
	return int(t.leaf[node])
}

// tree finds the leaves below each switch, the lowest switches first.
func (t *Topology) tree(switches []Switch, leafOf map[string]int32) {
	below := map[string][]string{}
	for i := range switches {
		if subs, err := hostlist.Expand(switches[i].Switches); err == nil && switches[i].Switches != "" {
			below[switches[i].Name] = subs
		}
	}
	var walk func(name string, deep int) ([]int32, int)
	walk = func(name string, deep int) ([]int32, int) {
		if id, ok := leafOf[name]; ok {
			return []int32{id}, 0
		}
		var all []int32
		high := 0
		if deep < len(switches) {
			for _, sub := range below[name] {
				more, h := walk(sub, deep+1)
				all, high = append(all, more...), max(high, h+1)
			}
		}
		return all, high
	}
	for i := range switches {
		if _, upper := below[switches[i].Name]; !upper {
			continue
		}
		if leaves, height := walk(switches[i].Name, 0); len(leaves) > 1 {
			t.groups = append(t.groups, group{height: height, leaves: leaves})
		}
	}
	t.sortGroups()
}

// blocks joins base blocks to the larger sizes, in the order of the lines.
func (t *Topology) blocks(sizes []uint32) {
	if len(sizes) == 0 || sizes[0] == 0 {
		return
	}
	t.first = int(sizes[0])
	for h := 1; h < len(sizes); h++ {
		each := int(sizes[h]) / t.first
		if each < 2 {
			continue
		}
		for from := 0; from < t.count; from += each {
			g := group{height: h, nodes: each * t.first}
			for id := from; id < min(from+each, t.count); id++ {
				g.leaves = append(g.leaves, int32(id))
			}
			t.groups = append(t.groups, g)
		}
	}
	t.sortGroups()
}

// sortGroups puts the nearest first; of equal height the earlier line.
func (t *Topology) sortGroups() {
	slices.SortStableFunc(t.groups, func(a, b group) int { return cmp.Compare(a.height, b.height) })
}
