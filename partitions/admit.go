package partitions

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Who is the submitting user: Groups are names.
type Who struct {
	UID      uint32
	Groups   []string
	Operator bool
}

// Capacity is one node of a partition as it is configured; what is free now plays no part. Memory in bytes.
type Capacity struct {
	Name     string
	CPUs     uint32
	Mem      int64
	TmpDisk  int64
	Sockets  uint32 // 0 = not known: any number
	Cores    uint32 // of a socket
	Threads  uint32 // of a core
	Features []string
	Gres     string
	Usable   bool // false for nodes that are not there yet (FUTURE)
}

// Admit tells whether a job may ever run in p: nil, or the clause that refuses it. nodes are p's nodes.
// s has passed Validate. A job that only has to wait is admitted.
func Admit(p *Partition, s *job.Spec, who Who, nodes []Capacity) *Refusal {
	if r := admitUser(p, s, who); r != nil {
		return r
	}
	if r := admitTime(p, s); r != nil {
		return r
	}
	extra, err := s.Extra()
	if err != nil {
		return refuse("ESLURM_INVALID_VALUE", "Invalid job specification", "%v", err)
	}
	if p.ReqResv && len(extra.Reservations) == 0 {
		return refuse("ESLURM_RESERVATION_INVALID", "Requested reservation is invalid", "partition %s takes only jobs with a reservation (ReqResv); name one with --reservation", p.Name)
	}
	req := s.Request()
	if r := admitSize(p, &req); r != nil {
		return r
	}
	if r := admitMemory(p, &req); r != nil {
		return r
	}
	return admitNodes(p, s, &req, &extra, nodes)
}

func refuse(code, text, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Text: text, Why: fmt.Sprintf(format, args...)}
}

const textPartition = "Required partition not available (inactive or drain)"

func admitUser(p *Partition, s *job.Spec, who Who) *Refusal {
	const denied = "User's group not permitted to use this partition"
	root := who.UID == 0
	switch {
	case p.State == "DRAIN" || p.State == "INACTIVE":
		return refuse("ESLURM_PARTITION_NOT_AVAIL", textPartition, "partition %s is %s and takes no new jobs", p.Name, p.State)
	case p.RootOnly && !root:
		return refuse("ESLURM_ACCESS_DENIED", "Access/permission denied", "only root may submit to partition %s", p.Name)
	case p.NoRoot && root:
		return refuse("ESLURM_ACCESS_DENIED", "Access/permission denied", "root may not submit to partition %s (DisableRootJobs)", p.Name)
	case len(p.AllowGroups) > 0 && !root && !overlap(p.AllowGroups, who.Groups):
		return refuse("ESLURM_USER_ID_MISSING", denied, "partition %s is for the groups %s", p.Name, strings.Join(p.AllowGroups, ", "))
	}
	const account = "Invalid account or account/partition combination specified"
	if len(p.AllowAccounts) > 0 && !contains(p.AllowAccounts, s.Account) {
		return refuse("ESLURM_INVALID_ACCOUNT", account, "partition %s is for the accounts %s, not %q", p.Name, strings.Join(p.AllowAccounts, ", "), s.Account)
	}
	if contains(p.DenyAccounts, s.Account) && s.Account != "" {
		return refuse("ESLURM_INVALID_ACCOUNT", account, "partition %s denies account %q", p.Name, s.Account)
	}
	if len(p.AllowQOS) > 0 && !contains(p.AllowQOS, s.QOS) {
		return refuse("ESLURM_INVALID_QOS", "Invalid qos specification", "partition %s is for the QOS %s, not %q", p.Name, strings.Join(p.AllowQOS, ", "), s.QOS)
	}
	if s.QOS != "" && contains(p.DenyQOS, s.QOS) {
		return refuse("ESLURM_INVALID_QOS", "Invalid qos specification", "partition %s denies QOS %q", p.Name, s.QOS)
	}
	return nil
}

// contains tells whether an account or QOS is in a list of the configuration: their names have no case.
func contains(list []string, name string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, name) })
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

func admitTime(p *Partition, s *job.Spec) *Refusal {
	const text = "Requested time limit is invalid (missing or exceeds some limit)"
	ask := s.TimeLimit
	if s.TimeMin > 0 {
		ask = s.TimeMin // it may be shortened to that
	}
	if p.MaxTime == job.Unlimited || p.MaxTime == 0 || ask == 0 {
		return nil
	}
	if ask == job.Unlimited || ask > p.MaxTime {
		return refuse("ESLURM_INVALID_TIME_LIMIT", text, "%s was asked, MaxTime of partition %s is %s",
			job.FormatDuration(ask), p.Name, job.FormatDuration(p.MaxTime))
	}
	return nil
}

const textNodeCount = "Node count specification invalid"

func admitSize(p *Partition, r *job.Request) *Refusal {
	if p.MaxNodes > 0 && r.MinNodes > p.MaxNodes {
		return refuse("ESLURM_INVALID_NODE_COUNT", textNodeCount, "%d nodes were asked, MaxNodes of partition %s is %d", r.MinNodes, p.Name, p.MaxNodes)
	}
	if r.MaxNodes > 0 && r.MaxNodes < p.MinNodes {
		return refuse("ESLURM_INVALID_NODE_COUNT", textNodeCount, "at most %d nodes were asked, MinNodes of partition %s is %d", r.MaxNodes, p.Name, p.MinNodes)
	}
	return nil
}

const textMemory = "Memory required by task is not available"

// admitMemory refuses more than MaxMemPerNode. More than MaxMemPerCPU is met by more CPUs, as in Slurm: a task that asks
// 4 GiB where 2 GiB a CPU are allowed gets two.
func admitMemory(p *Partition, r *job.Request) *Refusal {
	if p.MaxMemPerNode > 0 && r.MemPerNode > p.MaxMemPerNode {
		return refuse("ESLURM_INVALID_TASK_MEMORY", textMemory, "%s a node was asked, MaxMemPerNode of partition %s is %s",
			job.FormatMem(r.MemPerNode), p.Name, job.FormatMem(p.MaxMemPerNode))
	}
	switch most := p.MaxMemPerCPU; {
	case most <= 0:
	case r.MemPerCPU > most:
		times := (r.MemPerCPU-1)/most + 1
		r.CPUsPerTask = uint32(min(int64(r.CPUsPerTask)*times, 1<<31))
		r.MemPerCPU = (r.MemPerCPU-1)/times + 1
	case r.MemPerNode > 0:
		r.MinCPUsPerNode = max(r.MinCPUsPerNode, uint32(min((r.MemPerNode-1)/most+1, 1<<31)))
	}
	return nil
}

const textConfig = "Requested node configuration is not available"

// fitter holds one job's demand against nodes.
type fitter struct {
	p        *Partition
	s        *job.Spec
	r        *job.Request
	x        *job.Extra
	feature  *Feature
	excluded []string
	required []string
	within   bool   // the job takes some of the required nodes: it named more than it may have
	gresText string // parsed last, most nodes of a cluster are alike
	gresHas  []gres.Stock
	alike    []uint32 // nodes that fit, by alternative
	counted  []uint32 // nodes that fit, by count
	failed   string   // why the node that came furthest does not fit
	depth    int
}

// admitNodes finds whether enough nodes could ever hold the job together.
func admitNodes(p *Partition, s *job.Spec, r *job.Request, x *job.Extra, nodes []Capacity) *Refusal {
	f := &fitter{p: p, s: s, r: r, x: x}
	if refusal := f.parse(nodes); refusal != nil {
		return refusal
	}
	named := uint32(len(f.required))
	need, tasks, most := max(r.MinNodes, p.MinNodes), r.Tasks, r.MaxNodes
	if s.MinNodes == 0 && s.MaxNodes == 0 && s.NTasks == 0 {
		most = max(most, named) // the names say how many
	}
	if p.MaxNodes > 0 && named > p.MaxNodes && s.MinNodes == 0 && s.MaxNodes == 0 {
		return refuse("ESLURM_INVALID_NODE_COUNT", textNodeCount, "--nodelist names %d nodes, MaxNodes of partition %s is %d", named, p.Name, p.MaxNodes)
	}
	if p.MaxNodes > 0 && (most == 0 || p.MaxNodes < most) {
		most = p.MaxNodes
	}
	if f.within = most > 0 && named > most; !f.within {
		need = max(need, named)
		if refusal := f.eachNamed(nodes); refusal != nil {
			return refusal
		}
	}
	if s.NTasks == 0 {
		tasks = 0 // they grow with the nodes
	}
	var holds, own []uint32 // own: of the named nodes, which the job takes in any case
	count, sum := uint32(0), uint64(0)
	for i := range nodes {
		if f.within && !slices.Contains(f.required, nodes[i].Name) {
			continue
		}
		n := f.tasksOn(&nodes[i])
		if n == 0 {
			continue
		}
		f.note(nodes[i].Features)
		if !f.within && slices.Contains(f.required, nodes[i].Name) {
			own = append(own, n)
		} else {
			holds = append(holds, n)
		}
		count++
		sum += uint64(n)
		if named == 0 && f.feature.Plain() && count >= need && sum >= uint64(tasks) && (most == 0 || count <= most) {
			return nil
		}
	}
	if count < need {
		return f.tooFew(need, count, nodes)
	}
	if refusal := f.counts(need); refusal != nil {
		return refusal
	}
	slices.SortFunc(holds, func(a, b uint32) int { return int(b) - int(a) })
	holds = append(own, holds...)
	if most > 0 && int(most) < len(holds) {
		holds = holds[:most]
	}
	sum = 0
	for _, n := range holds {
		sum += uint64(n)
	}
	if sum >= uint64(tasks) {
		return nil
	}
	return refuse("ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE", textConfig,
		"%d tasks of %d CPUs were asked; %d nodes of partition %s hold %d of them at most", tasks, r.CPUsPerTask, len(holds), p.Name, sum)
}

// parse reads node lists and features once.
func (f *fitter) parse(nodes []Capacity) *Refusal {
	var err error
	if f.s.Constraint != "" {
		if f.feature, err = ParseFeatures(f.s.Constraint); err != nil {
			return refuse("ESLURM_INVALID_FEATURE", textFeature, "%v", err)
		}
	}
	if f.s.Exclude != "" {
		if f.excluded, err = hostlist.Expand(f.s.Exclude); err != nil {
			return refuse("ESLURM_INVALID_NODE_NAME", "Invalid node name specified", "--exclude: %v", err)
		}
	}
	if f.s.NodeList == "" {
		return nil
	}
	if f.required, err = hostlist.Expand(f.s.NodeList); err != nil {
		return refuse("ESLURM_INVALID_NODE_NAME", "Invalid node name specified", "--nodelist: %v", err)
	}
	slices.Sort(f.required)
	f.required = slices.Compact(f.required)
	for _, name := range f.required {
		i := slices.IndexFunc(nodes, func(c Capacity) bool { return c.Name == name })
		if i < 0 {
			return refuse("ESLURM_REQUESTED_NODES_NOT_IN_PARTITION", "Requested nodes not in this partition",
				"node %s is not in partition %s (%s)", name, f.p.Name, hostlist.Compress(names(nodes)))
		}
	}
	return nil
}

// eachNamed refuses a named node that could not be one of the job's.
func (f *fitter) eachNamed(nodes []Capacity) *Refusal {
	for _, name := range f.required {
		i := slices.IndexFunc(nodes, func(c Capacity) bool { return c.Name == name })
		if f.tasksOn(&nodes[i]) == 0 {
			return refuse("ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE", textConfig, "node %s cannot hold the job: %s", name, f.failed)
		}
	}
	return nil
}

// note counts a node that fits for the alternatives and counts of the constraint.
func (f *fitter) note(features []string) {
	if f.feature.Plain() {
		return
	}
	if f.alike == nil {
		f.alike, f.counted = make([]uint32, f.feature.Choices()), make([]uint32, len(f.feature.Counts()))
	}
	choices, counts := f.feature.Mask(features), f.feature.CountMask(features)
	for i := range f.alike {
		f.alike[i] += uint32(choices >> i & 1)
	}
	for i := range f.counted {
		f.counted[i] += uint32(counts >> i & 1)
	}
}

// counts refuses a constraint whose counts, or all of whose alternatives, too few nodes can meet.
func (f *fitter) counts(need uint32) *Refusal {
	for i, n := range f.counted {
		if c := f.feature.Counts()[i]; n < c.Nodes {
			return refuse("ESLURM_INVALID_FEATURE", textFeature, "--constraint asks for %d nodes with %q, %d that could hold the job have it in partition %s", c.Nodes, c.Text, n, f.p.Name)
		}
	}
	if len(f.alike) > 0 && slices.Max(f.alike) < need {
		return refuse("ESLURM_INVALID_FEATURE", textFeature, "%d nodes with the same one of the alternatives in %q were asked, at most %d of partition %s are alike", need, f.s.Constraint, slices.Max(f.alike), f.p.Name)
	}
	return nil
}

const textFeature = "Invalid feature specification"

func names(nodes []Capacity) []string {
	out := make([]string, len(nodes))
	for i := range nodes {
		out[i] = nodes[i].Name
	}
	return out
}

// tasksOn is how many tasks the node could hold when it is empty; 0 when it can not serve the job at all.
func (f *fitter) tasksOn(n *Capacity) uint32 {
	r := f.r
	if !n.Usable {
		return f.no(0, "%s is not in service", n.Name)
	}
	if slices.Contains(f.excluded, n.Name) {
		return f.no(0, "%s is excluded", n.Name)
	}
	if f.feature != nil && !f.feature.Match(n.Features) {
		return f.no(1, "no node has the features %q", f.s.Constraint)
	}
	if short := f.layout(n); short != "" {
		return f.no(2, "%s was asked", short)
	}
	cpus := n.CPUs
	if f.p.MaxCPUsPerNode > 0 {
		cpus = min(cpus, f.p.MaxCPUsPerNode)
	}
	per := cpus / r.CPUsPerTask
	if f.x.Overcommit {
		per = min(cpus, 1) * job.MaxTasks
	}
	if r.TasksPerNode > 0 {
		per = min(per, r.TasksPerNode)
	}
	least := uint32(1)
	if f.s.NTasks == 0 && f.s.NTasksPerNode > 0 {
		least = f.s.NTasksPerNode
	}
	if per < least || cpus < r.MinCPUsPerNode {
		return f.no(2, "%d CPUs on one node were asked, %s has %d", max(least*r.CPUsPerTask, r.MinCPUsPerNode), n.Name, cpus)
	}
	if r.MemPerNode > n.Mem {
		return f.no(3, "%s of memory on one node was asked, %s has %s", job.FormatMem(r.MemPerNode), n.Name, job.FormatMem(n.Mem))
	}
	if r.MemPerCPU > 0 && !f.x.Overcommit {
		fit := uint32(min(n.Mem/r.MemPerCPU, int64(n.CPUs))) / r.CPUsPerTask
		if per = min(per, fit); per < least {
			return f.no(3, "%s for each of %d CPUs was asked, %s has %s in all", job.FormatMem(r.MemPerCPU), least*r.CPUsPerTask, n.Name, job.FormatMem(n.Mem))
		}
	}
	if r.MinTmpDisk > n.TmpDisk {
		return f.no(3, "%s of local disk was asked, %s has %s", job.FormatMem(r.MinTmpDisk), n.Name, job.FormatMem(n.TmpDisk))
	}
	if len(r.Gres) > 0 && !gres.Fits(f.stock(n.Gres), r.Gres) {
		return f.no(4, "%s on one node was asked, %s has %s", gres.Format(r.Gres), n.Name, orNone(n.Gres))
	}
	return per
}

// layout tells which of sockets, cores and threads a node has too few of.
func (f *fitter) layout(n *Capacity) string {
	for _, part := range []struct {
		option     string
		asked, has uint32
	}{{"--sockets-per-node", f.x.Sockets, n.Sockets}, {"--cores-per-socket", f.x.Cores, n.Cores}, {"--threads-per-core", f.x.Threads, n.Threads}} {
		if part.has > 0 && part.asked > part.has {
			return fmt.Sprintf("%s=%d (%s has %d)", part.option, part.asked, n.Name, part.has)
		}
	}
	return ""
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// no remembers the reason of the node that came furthest.
func (f *fitter) no(depth int, format string, args ...any) uint32 {
	if f.failed == "" || depth > f.depth {
		f.failed, f.depth = fmt.Sprintf(format, args...), depth
	}
	return 0
}

// stock is a node's resources, all of them free.
func (f *fitter) stock(text string) []gres.Stock {
	if text == f.gresText {
		return f.gresHas
	}
	inv, _ := gres.ParseInventory(text) // the configuration was checked
	f.gresText, f.gresHas = text, nil
	for _, it := range gres.Items(inv) {
		f.gresHas = append(f.gresHas, gres.Stock{Name: it.Name, Type: it.Type, Total: it.Count})
	}
	return f.gresHas
}

// tooFew words the refusal for a job that too few nodes could hold.
func (f *fitter) tooFew(need, count uint32, nodes []Capacity) *Refusal {
	if int(need) > len(nodes) {
		return refuse("ESLURM_INVALID_NODE_COUNT", textNodeCount, "%d nodes were asked, partition %s has %d", need, f.p.Name, len(nodes))
	}
	why := fmt.Sprintf("%d nodes were asked, %d of the %d in partition %s could hold the job", need, count, len(nodes), f.p.Name)
	if need == 1 {
		why = fmt.Sprintf("none of the %d nodes in partition %s could hold the job", len(nodes), f.p.Name)
	}
	if f.failed != "" {
		why += ": " + f.failed
	}
	if count == 0 && f.depth == 1 {
		return refuse("ESLURM_INVALID_FEATURE", textFeature, "%s", why)
	}
	return refuse("ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE", textConfig, "%s", why)
}
