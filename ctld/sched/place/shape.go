package place

import (
	"fmt"
	"slices"

	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

const mib = 1 << 20

// Limits is what a partition says about the jobs in it. Zero means not given; memory in bytes.
type Limits struct {
	MinNodes       uint32
	MaxNodes       uint32
	DefMemPerNode  int64
	DefMemPerCPU   int64 // less than 0: all of the node's
	MaxMemPerNode  int64
	MaxMemPerCPU   int64
	WholeNodes     bool // OverSubscribe=EXCLUSIVE: every run gets whole nodes
	ExclusiveUser  bool // nodes are shared only by runs of one user
	LLN            bool // the least loaded nodes first
	MaxCPUsPerNode uint32
}

// Shape is a request in one partition, worked out once and used for many decisions. It is immutable.
type Shape struct {
	uid       uint32
	minNodes  int
	maxNodes  int
	tasks     uint32 // 0 = perNode on each node
	perNode   uint32 // most tasks on one node; 0 = no limit
	cpus      uint32 // of a task
	minCPUs   uint32 // on each node
	memNode   int64  // on each node; job.WholeNode = all
	memCPU    int64  // for each CPU
	maxMem    int64  // most on a node; 0 = no limit
	maxMemCPU int64  // most a CPU where all memory is asked; 0 = no limit
	maxCPUs   uint32 // most on a node; 0 = no limit
	exclusive bool
	ownNodes  bool // exclusive=user
	over      bool // tasks do not count CPUs
	gres      []gres.Item
	tmp       int64
	sockets   uint32
	cores     uint32
	threads   uint32
	features  *partitions.Feature // nil = none asked
	prefer    *partitions.Feature
	required  []int // nodes that must be among those chosen, ascending
	within    []int // the only nodes that may be chosen, ascending; nil = all
	excluded  map[int]bool
	avoided   map[int]bool

	contiguous bool
	spread     bool
	fewNodes   bool
	lln        bool
	switches   int // most leaf switches; 0 = any
	segment    int // nodes that share a block; 0 = any
}

// Compile works out what a request needs in a partition with these limits. at gives a node's
// position by its name. avoid names nodes to use last. The text says what is wrong with a request
// that can never be met, whatever the nodes are; it is "" when the Shape is good.
func Compile(spec *job.Spec, x *job.Extra, lim Limits, avoid []string, at func(name string) (int, bool)) (*Shape, string) {
	r := spec.Request()
	s := &Shape{
		uid: spec.UID, minNodes: int(max(r.MinNodes, lim.MinNodes)), maxNodes: int(r.MaxNodes),
		tasks: spec.NTasks, perNode: r.TasksPerNode, cpus: r.CPUsPerTask, minCPUs: r.MinCPUsPerNode,
		tmp: r.MinTmpDisk, exclusive: r.Exclusive || lim.WholeNodes, ownNodes: lim.ExclusiveUser,
		memNode: r.MemPerNode, memCPU: r.MemPerCPU, maxMem: lim.MaxMemPerNode, maxCPUs: lim.MaxCPUsPerNode,
		lln: lim.LLN, gres: r.Gres,
	}
	s.maxNodes = max(s.maxNodes, s.minNodes)
	if lim.MaxNodes > 0 {
		s.maxNodes = min(s.maxNodes, int(lim.MaxNodes))
	}
	s.memory(lim)
	// The exact types first: an untyped request takes what they leave.
	s.gres = slices.Clone(s.gres)
	slices.SortStableFunc(s.gres, func(a, b gres.Item) int { return boolOrder(a.Type == "", b.Type == "") })
	if x != nil {
		if wrong := s.extra(x); wrong != "" {
			return nil, wrong
		}
	}
	if wrong := s.nameNodes(spec, avoid, lim, at); wrong != "" {
		return nil, wrong
	}
	if wrong := s.constrain(spec); wrong != "" {
		return nil, wrong
	}
	if len(s.required) > 0 && len(s.required) >= s.maxNodes {
		s.within = s.required // no other node is of use
	}
	return s, s.segments()
}

// memory settles what memory is asked, as the partition's defaults and limits have it. More than
// MaxMemPerCPU a CPU is met by more CPUs: a task that asks 4 GiB where 2 GiB a CPU are allowed gets two.
func (s *Shape) memory(lim Limits) {
	if s.memNode == 0 && s.memCPU == 0 {
		s.memNode, s.memCPU = lim.DefMemPerNode, lim.DefMemPerCPU
		if s.memNode != 0 {
			s.memCPU = 0
		}
	}
	if s.memCPU < 0 {
		s.memNode, s.memCPU = job.WholeNode, 0
	}
	most := lim.MaxMemPerCPU
	switch {
	case most <= 0:
	case s.memCPU > most:
		times := (s.memCPU-1)/most + 1
		s.cpus = uint32(min(int64(s.cpus)*times, 1<<31))
		s.memCPU = (s.memCPU-1)/times + 1
	case s.memNode > 0:
		s.minCPUs = max(s.minCPUs, uint32(min((s.memNode-1)/most+1, 1<<31)))
	case s.memNode == job.WholeNode:
		s.maxMemCPU = most
	}
}

// extra takes the rare options.
func (s *Shape) extra(x *job.Extra) string {
	s.sockets, s.cores, s.threads = x.Sockets, x.Cores, x.Threads
	s.contiguous, s.spread, s.fewNodes, s.over = x.Contiguous, x.Spread, x.FewNodes, x.Overcommit
	s.switches, s.segment = int(x.Switches), int(x.Segment)
	switch x.Exclusive {
	case "user":
		s.ownNodes = true
	case "topo":
		return "--exclusive=topo: whole switches or blocks for one job are not given here; ask --exclusive or --exclusive=user"
	}
	var err error
	if x.Prefer != "" {
		if s.prefer, err = partitions.ParseFeatures(x.Prefer); err != nil {
			return "--prefer: " + err.Error()
		}
		if len(s.prefer.Counts()) > 0 {
			return "--prefer: counts of nodes are for --constraint; a preference is for all nodes"
		}
	}
	return ""
}

// nameNodes turns node lists into positions. A named node that does not exist is told.
func (s *Shape) nameNodes(spec *job.Spec, avoid []string, lim Limits, at func(string) (int, bool)) string {
	if spec.NodeList != "" {
		names, err := hostlist.Expand(spec.NodeList)
		if err != nil {
			return "--nodelist: " + err.Error()
		}
		var named []int
		for _, name := range names {
			n, ok := at(name)
			if !ok {
				return fmt.Sprintf("node %q does not exist", name)
			}
			named = append(named, n)
		}
		slices.Sort(named)
		named = slices.Compact(named)
		free := spec.MaxNodes == 0 && spec.MinNodes == 0 && spec.NTasks == 0 // the names say how many
		if free {
			s.maxNodes = max(s.maxNodes, len(named))
			if lim.MaxNodes > 0 && len(named) > int(lim.MaxNodes) {
				return fmt.Sprintf("--nodelist names %d nodes, MaxNodes of the partition is %d", len(named), lim.MaxNodes)
			}
		}
		if len(named) > s.maxNodes {
			s.within = named // more names than nodes: any of them
		} else {
			s.required, s.minNodes = named, max(s.minNodes, len(named))
		}
	}
	if spec.Exclude != "" {
		names, err := hostlist.Expand(spec.Exclude)
		if err != nil {
			return "--exclude: " + err.Error()
		}
		s.excluded = positions(names, at)
	}
	s.avoided = positions(avoid, at)
	for _, n := range s.required {
		if s.excluded[n] {
			return "--nodelist and --exclude name the same node"
		}
	}
	return ""
}

func positions(names []string, at func(string) (int, bool)) map[int]bool {
	var set map[int]bool
	for _, name := range names {
		if n, ok := at(name); ok {
			if set == nil {
				set = make(map[int]bool, len(names))
			}
			set[n] = true
		}
	}
	return set
}

// constrain reads the features and makes the job as many nodes as their counts need.
func (s *Shape) constrain(spec *job.Spec) string {
	if spec.Constraint == "" {
		return ""
	}
	var err error
	if s.features, err = partitions.ParseFeatures(spec.Constraint); err != nil {
		return err.Error()
	}
	sum := 0
	for _, c := range s.features.Counts() {
		sum += int(c.Nodes)
	}
	if sum <= s.minNodes {
		return ""
	}
	if spec.MinNodes == 0 && spec.MaxNodes == 0 && spec.NTasks == 0 {
		s.maxNodes = max(s.maxNodes, sum)
	}
	if sum > s.maxNodes {
		return fmt.Sprintf("--constraint=%s counts %d nodes, the job has at most %d", spec.Constraint, sum, s.maxNodes)
	}
	s.minNodes = sum
	return ""
}

// segments checks --segment.
func (s *Shape) segments() string {
	switch {
	case s.segment == 0:
		return ""
	case s.minNodes%s.segment != 0:
		return fmt.Sprintf("--segment=%d does not divide the %d nodes of the job", s.segment, s.minNodes)
	case s.features != nil && len(s.features.Counts()) > 0:
		return "--segment and counts of nodes in --constraint exclude each other"
	case s.contiguous:
		return "--segment and --contiguous exclude each other"
	}
	return ""
}

// Tenant is how the shape's runs take a node.
func (s *Shape) Tenant() Tenant { return Tenant{UID: s.uid, Exclusive: s.exclusive, User: s.ownNodes} }

// Single tells that one node decides: the job runs on one node.
func (s *Shape) Single() bool { return s.maxNodes == 1 && s.minNodes <= 1 }

// Nodes gives how few and how many nodes the shape may have. When the first is larger than the
// second the partition's MaxNodes is too small for it.
func (s *Shape) Nodes() (least, most int) { return s.minNodes, s.maxNodes }

// Required gives the positions of the nodes that must be among those chosen, ascending. It is not to be changed.
func (s *Shape) Required() []int { return s.required }

// Named tells that it matters which nodes are meant: some were named, or may not be used.
func (s *Shape) Named() bool { return s.within != nil || len(s.required) > 0 || len(s.excluded) > 0 }

// Exclusive tells that the shape takes whole nodes.
func (s *Shape) Exclusive() bool { return s.exclusive }

// Without is the shape without its constraint: it tells whether features are what is missing.
func (s *Shape) Without() *Shape {
	c := *s
	c.features = nil
	return &c
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
