package ginfo

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// group is one line: nodes of a partition that look the same in the columns shown.
type group struct {
	part  *ctldpb.Partition // nil = several partitions, none of whose columns are shown
	nodes []*ctldpb.Node
	clock render.Clock
	order int // of the partition in the configuration
	has   map[*ctldpb.Node]bool
	resv  string // active reservations that its nodes are in
}

// column is one thing that can be shown. Nodes share a line when all their node keys and, unless
// they are sizes, values are the same.
type column struct {
	letter byte
	names  string
	header string
	kind   kind
	value  func(*group) string
	key    func(*ctldpb.Node) string // of nodes that this column tells apart
}

// kind says what a column does to grouping.
type kind uint8

const (
	sums      kind = iota // adds nodes up
	partition             // tells partitions apart
	node                  // tells nodes apart
	size                  // tells nodes apart only with --exact; else shown as the smallest with a plus sign
)

// smallest prints the smallest of the nodes' numbers, with a plus sign when others are larger.
func smallest(f func(*ctldpb.Node) int64) func(*group) string {
	return func(g *group) string {
		if len(g.nodes) == 0 {
			return "0"
		}
		low, high := f(g.nodes[0]), f(g.nodes[0])
		for _, n := range g.nodes {
			low, high = min(low, f(n)), max(high, f(n))
		}
		if low != high {
			return fmt.Sprint(low) + "+"
		}
		return fmt.Sprint(low)
	}
}

func sizeColumn(letter byte, names, header string, f func(*ctldpb.Node) int64) column {
	return column{letter, names, header, size, smallest(f), func(n *ctldpb.Node) string { return fmt.Sprint(f(n)) }}
}

func nodeColumn(letter byte, names, header string, f func(*ctldpb.Node) string) column {
	return column{letter, names, header, node, func(g *group) string {
		if len(g.nodes) == 0 {
			return ""
		}
		return f(g.nodes[0])
	}, f}
}

func partColumn(letter byte, names, header string, f func(*ctldpb.Partition) string) column {
	return column{letter, names, header, partition, func(g *group) string {
		if g.part == nil {
			return ""
		}
		return f(g.part)
	}, nil}
}

func sumColumn(letter byte, names, header string, f func(*group) string) column {
	return column{letter, names, header, sums, f, nil}
}

// timeText prints a partition's limit.
func timeText(ms int64, none string) string {
	switch {
	case ms < 0:
		return "infinite"
	case ms == 0:
		return none
	}
	return job.FormatElapsed(ms)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// jobSize is "1-infinite", "1-4" or "2".
func jobSize(p *ctldpb.Partition) string {
	low := max(1, p.MinNodes)
	switch {
	case p.MaxNodes == 0:
		return fmt.Sprintf("%d-infinite", low)
	case p.MaxNodes == low:
		return fmt.Sprint(low)
	}
	return fmt.Sprintf("%d-%d", low, p.MaxNodes)
}

func (g *group) classes() (a, i, o int) {
	for _, n := range g.nodes {
		switch render.NodeClass(n) {
		case 'A':
			a++
		case 'I':
			i++
		default:
			o++
		}
	}
	return a, i, o
}

// cpuClasses splits CPUs: those of nodes that cannot be used are "other" unless a job has them.
func (g *group) cpuClasses() (a, i, o, t uint32) {
	for _, n := range g.nodes {
		free := n.Cpus - min(n.Cpus, n.CpusAlloc)
		a, t = a+n.CpusAlloc, t+n.Cpus
		short := strings.TrimRight(second(render.NodeState(n)), "*+$")
		if usable(short) {
			i += free
		} else {
			o += free
		}
	}
	return a, i, o, t
}

func second(_, b string) string { return b }

func usable(short string) bool {
	return short == "idle" || short == "mix" || short == "alloc" || short == "comp" || short == "plnd"
}

func (g *group) names() string {
	names := make([]string, 0, len(g.nodes))
	for _, n := range g.nodes {
		names = append(names, n.Name)
	}
	return hostlist.CompressSorted(names)
}

func (g *group) sameSCT() string {
	if len(g.nodes) == 0 {
		return "0:0:0"
	}
	f := func(get func(*ctldpb.Node) int64) string { return smallest(get)(g) }
	return f(sockets) + ":" + f(cores) + ":" + f(threads)
}

func sockets(n *ctldpb.Node) int64 { return int64(n.Sockets) }
func cores(n *ctldpb.Node) int64   { return int64(n.Cores) }
func threads(n *ctldpb.Node) int64 { return int64(n.Threads) }

func longState(n *ctldpb.Node) string  { l, _ := render.NodeState(n); return l }
func shortState(n *ctldpb.Node) string { _, s := render.NodeState(n); return s }

func state(get func(*ctldpb.Node) string) func(*group) string {
	return func(g *group) string {
		if len(g.nodes) == 0 {
			return "n/a"
		}
		return get(g.nodes[0])
	}
}

func load(n *ctldpb.Node) string {
	if n.LastSeenMs == 0 {
		return "N/A"
	}
	return fmt.Sprintf("%.2f", n.Load)
}

func starred(p *ctldpb.Partition) string {
	if p.IsDefault {
		return p.Name + "*"
	}
	return p.Name
}

var columns = []column{
	partColumn('a', "available", "AVAIL", func(p *ctldpb.Partition) string { return strings.ToLower(p.State) }),
	sumColumn('A', "nodeai", "NODES(A/I)", func(g *group) string { a, i, _ := g.classes(); return fmt.Sprintf("%d/%d", a, i) }),
	nodeColumn('b', "features_act", "ACTIVE_FEATURES", func(n *ctldpb.Node) string { return render.Null(cmp.Or(n.ActiveFeatures, n.Features)) }),
	partColumn('B', "maxcpuspernode", "MAX_CPUS_PER_NODE", func(p *ctldpb.Partition) string { return render.Or(p.Other["MaxCPUsPerNode"], "UNLIMITED") }),
	sizeColumn('c', "cpus", "CPUS", func(n *ctldpb.Node) int64 { return int64(n.Cpus) }),
	sumColumn('C', "cpusstate", "CPUS(A/I/O/T)", func(g *group) string {
		a, i, o, t := g.cpuClasses()
		return fmt.Sprintf("%d/%d/%d/%d", a, i, o, t)
	}),
	sizeColumn('d', "disk", "TMP_DISK", func(n *ctldpb.Node) int64 { return n.TmpDisk >> 20 }),
	sumColumn('D', "nodes", "NODES", func(g *group) string { return fmt.Sprint(len(g.nodes)) }),
	sizeColumn('e', "freemem", "FREE_MEM", func(n *ctldpb.Node) int64 { return n.FreeMem >> 20 }),
	nodeColumn('E', "reason", "REASON", func(n *ctldpb.Node) string { return render.Or(n.Reason, "none") }),
	nodeColumn('f', "features", "AVAIL_FEATURES", func(n *ctldpb.Node) string { return render.Null(n.Features) }),
	sumColumn('F', "nodeaiot", "NODES(A/I/O/T)", func(g *group) string {
		a, i, o := g.classes()
		return fmt.Sprintf("%d/%d/%d/%d", a, i, o, len(g.nodes))
	}),
	partColumn('g', "groups", "GROUPS", func(p *ctldpb.Partition) string { return strings.ToLower(render.Or(p.AllowGroups, "all")) }),
	nodeColumn('G', "gres", "GRES", func(n *ctldpb.Node) string { return render.Null(n.Gres) }),
	partColumn('h', "oversubscribe", "OVERSUBS", func(p *ctldpb.Partition) string { return render.Or(p.OverSubscribe, "NO") }),
	{'H', "timestamp", "TIMESTAMP", node, func(g *group) string {
		if len(g.nodes) == 0 {
			return "Unknown"
		}
		return g.clock.Time(g.nodes[0].ReasonMs, "Unknown")
	}, func(n *ctldpb.Node) string { return fmt.Sprint(n.ReasonMs) }},
	sumColumn('i', "reservation", "RESERVATION", func(g *group) string { return g.resv }),
	partColumn('I', "priorityjobfactor", "PRIO_JOB_FACTOR", func(p *ctldpb.Partition) string { return fmt.Sprint(p.PriorityJobFactor) }),
	partColumn('l', "time", "TIMELIMIT", func(p *ctldpb.Partition) string { return timeText(p.MaxTimeMs, "infinite") }),
	partColumn('L', "defaulttime", "DEFAULTTIME", func(p *ctldpb.Partition) string { return timeText(p.DefaultTimeMs, "n/a") }),
	sizeColumn('m', "memory", "MEMORY", func(n *ctldpb.Node) int64 { return n.Mem >> 20 }),
	partColumn('M', "preemptmode", "PREEMPT_MODE", func(p *ctldpb.Partition) string { return render.Or(p.Other["PreemptMode"], "OFF") }),
	nodeColumn('n', "nodehost", "HOSTNAMES", func(n *ctldpb.Node) string { return render.Or(n.Hostname, n.Name) }),
	sumColumn('N', "nodelist", "NODELIST", (*group).names),
	nodeColumn('o', "nodeaddr", "NODE_ADDR", func(n *ctldpb.Node) string { return render.Or(n.Addr, n.Name) }),
	nodeColumn('O', "cpusload", "CPU_LOAD", load),
	partColumn('p', "prioritytier", "PRIO_TIER", func(p *ctldpb.Partition) string { return fmt.Sprint(p.PriorityTier) }),
	partColumn('P', "partition", "PARTITION", starred),
	partColumn('r', "root", "ROOT", func(p *ctldpb.Partition) string { return yes(p.RootOnly) }),
	partColumn('R', "partitionname", "PARTITION", func(p *ctldpb.Partition) string { return p.Name }),
	partColumn('s', "size", "JOB_SIZE", jobSize),
	partColumn('S', "allocnodes", "ALLOCNODES", func(*ctldpb.Partition) string { return "all" }),
	{'t', "statecompact", "STATE", node, state(shortState), shortState},
	{'T', "statelong", "STATE", node, state(longState), longState},
	nodeColumn('u', "user", "USER", func(n *ctldpb.Node) string { return render.Or(n.ReasonUser, "Unknown") }),
	nodeColumn('U', "userlong", "USER", func(n *ctldpb.Node) string {
		if n.ReasonUser == "" {
			return "Unknown"
		}
		return fmt.Sprintf("%s(%d)", n.ReasonUser, n.ReasonUid)
	}),
	nodeColumn('v', "version", "VERSION", func(n *ctldpb.Node) string { return render.Or(n.Version, "N/A") }),
	sumColumn('V', "cluster", "CLUSTER", func(*group) string { return "N/A" }),
	sizeColumn('w', "weight", "WEIGHT", func(n *ctldpb.Node) int64 { return int64(n.Weight) }),
	sizeColumn('X', "sockets", "SOCKETS", sockets),
	sizeColumn('Y', "cores", "CORES", cores),
	sizeColumn('Z', "threads", "THREADS", threads),
	{'z', "socketcorethread", "S:C:T", size, (*group).sameSCT, func(n *ctldpb.Node) string {
		return fmt.Sprintf("%d:%d:%d", n.Sockets, n.Cores, n.Threads)
	}},
	sizeColumn(0, "allocmem", "ALLOCMEM", func(n *ctldpb.Node) int64 { return n.MemAlloc >> 20 }),
	nodeColumn(0, "gresused", "GRES_USED", func(n *ctldpb.Node) string { return render.Null(n.GresUsed) }),
	nodeColumn(0, "comment", "COMMENT", func(n *ctldpb.Node) string { return render.Null(n.Comment) }),
	nodeColumn(0, "extra", "EXTRA", func(*ctldpb.Node) string { return "(null)" }),
	nodeColumn(0, "port", "PORT", func(*ctldpb.Node) string { return "6818" }),
	nodeColumn(0, "statecomplete", "STATECOMPLETE", func(n *ctldpb.Node) string { return strings.ToLower(render.NodeStateFull(n)) }),
	nodeColumn(0, "cgroup", "CGROUP", func(n *ctldpb.Node) string { return render.Or(n.CgroupDriver, "N/A") }),
	sumColumn(0, "all", "ALL", func(*group) string { return "" }),
}

func find(key string, byName bool) *column {
	key2 := strings.ToLower(key)
	for i := range columns {
		if byName && columns[i].names == key2 || !byName && columns[i].letter != 0 && key == string(columns[i].letter) {
			return &columns[i]
		}
	}
	return nil
}
