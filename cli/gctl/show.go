package gctl

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// kinds of things to show, with the shortest form that is clear.
func kinds() []verb {
	return []verb{
		{name: "job", short: 1, run: (*call).showJobs},
		{name: "jobs", short: 4, run: (*call).showJobs},
		{name: "jobid", short: 4, run: (*call).showJobs},
		{name: "node", short: 1, run: (*call).showNodes},
		{name: "nodes", short: 5, run: (*call).showNodes},
		{name: "partition", short: 1, run: (*call).showPartitions},
		{name: "partitions", short: 10, run: (*call).showPartitions},
		{name: "config", short: 1, run: (*call).showConfig},
		{name: "controllers", short: 4, run: (*call).controllerStatus},
		{name: "step", short: 2, run: (*call).showSteps},
		{name: "steps", short: 5, run: (*call).showSteps},
		{name: "hostnames", short: 5, run: (*call).showHostnames},
		{name: "hostlist", short: 5, run: func(c *call, a []string) int { return c.showHostlist(a, hostlist.Compress) }},
		{name: "hostlistsorted", short: 9, run: func(c *call, a []string) int { return c.showHostlist(a, hostlist.CompressSorted) }},
		{name: "reservation", short: 1, run: (*call).showReservations},
		{name: "reservations", short: 12, run: (*call).showReservations},
		{name: "reservationname", short: 12, run: (*call).showReservations},
		{name: "licenses", short: 1, run: (*call).showLicenses},
		{name: "assoc_mgr", short: 2, run: (*call).showAssociations},
		{name: "topology", short: 1, run: empty("No topology information available")},
	}
}

func empty(text string) func(*call, []string) int {
	return func(c *call, _ []string) int {
		fmt.Fprintln(c.env.Stdout, text)
		return 0
	}
}

// show takes "job 12" and also "job=12".
func (c *call) show(args []string) int {
	if len(args) == 0 {
		c.env.Errorf("too few arguments for keyword:show")
		return 1
	}
	word, value, has := strings.Cut(args[0], "=")
	rest := args[1:]
	if has {
		rest = append([]string{value}, rest...)
	}
	word = strings.ToLower(word)
	list := kinds()
	for i := range list {
		if list[i].name == word {
			return list[i].run(c, rest)
		}
	}
	for i := range list {
		if len(word) >= list[i].short && strings.HasPrefix(list[i].name, word) {
			return list[i].run(c, rest)
		}
	}
	c.env.Errorf("invalid entity:%s for keyword:show", args[0])
	var names []string
	for i := range list {
		names = append(names, list[i].name)
	}
	c.env.Errorf("known are %s", strings.Join(names, ", "))
	return 1
}

func (c *call) showHostnames(args []string) int {
	list := strings.Join(args, ",")
	if list == "" {
		list = c.env.Getenv("SLURM_JOB_NODELIST")
	}
	if list == "" {
		c.env.Errorf("host list is empty")
		return 1
	}
	names, err := hostlist.Expand(list)
	if err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	for _, n := range names {
		fmt.Fprintln(out, n)
	}
	return 0
}

func (c *call) showHostlist(args []string, fold func([]string) string) int {
	if len(args) == 0 {
		c.env.Errorf("host list is empty")
		return 1
	}
	names, err := hostlist.Expand(strings.Join(args, ","))
	if err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	fmt.Fprintln(c.env.Stdout, fold(names))
	return 0
}

func (c *call) showNodes(args []string) int {
	if !c.connect() {
		return 1
	}
	var names []string
	if len(args) > 0 {
		list, err := hostlist.Expand(strings.Join(args, ","))
		if err != nil {
			c.env.Errorf("%v", err)
			return 1
		}
		names = list
	}
	var res *ctldpb.ListNodesResponse
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ListNodes(ctx, &ctldpb.ListNodesRequest{Read: &ctldpb.ReadOptions{Stale: c.stale}, Names: names})
		return err
	})
	if err != nil {
		return c.failed("slurm_load_node", err)
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	for _, n := range res.Nodes {
		c.nodeRecord(n).write(out, c.oneLine)
	}
	for _, n := range res.Unknown {
		c.env.Errorf("Node %s not found", n)
	}
	if len(res.Unknown) > 0 {
		return 1
	}
	if len(res.Nodes) == 0 {
		fmt.Fprintln(out, "No nodes in the system")
	}
	return 0
}

func (c *call) nodeRecord(n *ctldpb.Node) *record {
	r, clock := &record{}, c.clock()
	r.line(kv("NodeName", n.Name), kv("Arch", render.Or(n.Arch, "N/A")), kv("CoresPerSocket", max(1, n.Cores)))
	load := "N/A"
	if n.LastSeenMs != 0 {
		load = fmt.Sprintf("%.2f", n.Load)
	}
	r.line(kv("CPUAlloc", n.CpusAlloc), kv("CPUEfctv", n.Cpus), kv("CPUTot", n.Cpus), kv("CPULoad", load))
	r.line(kv("AvailableFeatures", render.Null(n.Features)))
	r.line(kv("ActiveFeatures", render.Null(render.Or(n.ActiveFeatures, n.Features))))
	r.line(kv("Gres", render.Null(n.Gres)))
	if c.detail {
		r.line(kv("GresUsed", render.Or(n.GresUsed, "(null)")))
	}
	r.line(kv("NodeAddr", render.Or(n.Addr, n.Name)), kv("NodeHostName", render.Or(n.Hostname, n.Name)), kv("Version", render.Or(n.Version, "N/A")))
	r.line(kv("OS", render.Or(n.Os, "N/A")))
	free := "N/A"
	if n.LastSeenMs != 0 {
		free = render.MiB(n.FreeMem)
	}
	r.line(kv("RealMemory", render.MiB(n.Mem)), kv("AllocMem", render.MiB(n.MemAlloc)), kv("FreeMem", free), kv("Sockets", max(1, n.Sockets)), kv("Boards", max(1, n.Boards)))
	r.line(kv("State", render.NodeStateFull(n)), kv("ThreadsPerCore", max(1, n.Threads)), kv("TmpDisk", render.MiB(n.TmpDisk)), kv("Weight", n.Weight), "Owner=N/A", "MCS_label=N/A")
	if len(n.Partitions) > 0 {
		r.line(kv("Partitions", strings.Join(n.Partitions, ",")))
	}
	r.line(kv("BootTime", clock.Time(n.BootMs, "None")), kv("SlurmdStartTime", clock.Time(n.StartMs, "None")))
	r.line(kv("LastBusyTime", clock.Time(n.LastBusyMs, "Unknown")))
	cfg := fmt.Sprintf("cpu=%d,mem=%dM,billing=%d", n.Cpus, n.Mem>>20, n.Cpus)
	alloc := ""
	if n.CpusAlloc > 0 || n.MemAlloc > 0 {
		alloc = fmt.Sprintf("cpu=%d,mem=%dM", n.CpusAlloc, n.MemAlloc>>20)
	}
	r.line(kv("CfgTRES", cfg+gresTRES(n.Gres)))
	if used := gresTRES(n.GresUsed); used != "" {
		alloc = strings.TrimPrefix(alloc+used, ",")
	}
	r.line(kv("AllocTRES", alloc))
	r.line("CapWatts=n/a")
	r.line("CurrentWatts=0", "AveWatts=0")
	r.line("ExtSensorsJoules=n/s", "ExtSensorsWatts=0", "ExtSensorsTemp=n/s")
	if n.Comment != "" {
		r.line(kv("Comment", n.Comment))
	}
	if n.CgroupDriver != "" {
		r.line(kv("CgroupPlugin", n.CgroupDriver))
	}
	if n.Reason != "" {
		r.line(fmt.Sprintf("Reason=%s [%s@%s]", render.Clean(n.Reason), render.Or(n.ReasonUser, fmt.Sprint(n.ReasonUid)), clock.Time(n.ReasonMs, "Unknown")))
	}
	return r
}

// gresTRES turns "gpu:a100:4" and "gpu:2(IDX:0-1)" into ",gres/gpu=4".
func gresTRES(s string) string {
	var order []string
	sum := map[string]uint64{}
	depth := 0
	for part := range strings.FieldsFuncSeq(s, func(r rune) bool {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		}
		return r == ',' && depth == 0
	}) {
		part, _, _ = strings.Cut(part, "(")
		words := strings.Split(part, ":")
		var n uint64
		if _, err := fmt.Sscan(words[len(words)-1], &n); err != nil {
			n = 1
		}
		if !slices.Contains(order, words[0]) {
			order = append(order, words[0])
		}
		sum[words[0]] += n
	}
	out := ""
	for _, name := range order {
		if sum[name] > 0 {
			out += fmt.Sprintf(",gres/%s=%d", name, sum[name])
		}
	}
	return out
}

func (c *call) showPartitions(args []string) int {
	if !c.connect() {
		return 1
	}
	var names []string
	for _, a := range args {
		names = append(names, strings.Split(a, ",")...)
	}
	var res *ctldpb.ListPartitionsResponse
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ListPartitions(ctx, &ctldpb.ListPartitionsRequest{Read: &ctldpb.ReadOptions{Stale: c.stale}, Names: names})
		return err
	})
	if err != nil {
		return c.failed("slurm_load_partitions", err)
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	for _, p := range res.Partitions {
		if !p.Hidden || c.all || len(names) > 0 {
			partitionRecord(p).write(out, c.oneLine)
		}
	}
	for _, n := range res.Unknown {
		c.env.Errorf("Partition %s not found", n)
	}
	if len(res.Unknown) > 0 {
		return 1
	}
	return 0
}

func upper(b bool) string {
	if b {
		return "YES"
	}
	return "NO"
}

func memory(bytes int64) string {
	if bytes == 0 {
		return "UNLIMITED"
	}
	return render.MiB(bytes)
}

func partitionRecord(p *ctldpb.Partition) *record {
	r := &record{}
	other := func(key, none string) string { return kv(key, render.Or(p.Other[key], none)) }
	r.line(kv("PartitionName", p.Name))
	allow := []string{kv("AllowGroups", render.Or(p.AllowGroups, "ALL")), kv("AllowAccounts", render.Or(p.AllowAccounts, "ALL")), kv("AllowQos", render.Or(p.AllowQos, "ALL"))}
	if p.Other["DenyAccounts"] != "" {
		allow[1] = other("DenyAccounts", "")
	}
	if p.Other["DenyQos"] != "" {
		allow[2] = other("DenyQos", "")
	}
	r.line(allow...)
	r.line("AllocNodes=ALL", kv("Default", upper(p.IsDefault)), other("QoS", "N/A"))
	r.line(kv("DefaultTime", duration(p.DefaultTimeMs, "NONE")), other("DisableRootJobs", "NO"), other("ExclusiveUser", "NO"), other("GraceTime", "0"), kv("Hidden", upper(p.Hidden)))
	r.line(kv("MaxNodes", count(p.MaxNodes, "UNLIMITED")), kv("MaxTime", duration(p.MaxTimeMs, "UNLIMITED")), kv("MinNodes", p.MinNodes), other("LLN", "NO"), other("MaxCPUsPerNode", "UNLIMITED"))
	r.line(kv("Nodes", render.Null(p.Nodes)))
	r.line(kv("PriorityJobFactor", p.PriorityJobFactor), kv("PriorityTier", p.PriorityTier), kv("RootOnly", upper(p.RootOnly)), other("ReqResv", "NO"), kv("OverSubscribe", render.Or(p.OverSubscribe, "NO")))
	r.line("OverTimeLimit=NONE", other("PreemptMode", "OFF"))
	r.line(kv("State", p.State), kv("TotalCPUs", p.TotalCpus), kv("TotalNodes", p.TotalNodes), "SelectTypeParameters=NONE")
	r.line("JobDefaults=(null)")
	def, most := kv("DefMemPerNode", memory(p.DefMemPerNode)), kv("MaxMemPerNode", memory(p.MaxMemPerNode))
	if p.DefMemPerCpu > 0 {
		def = kv("DefMemPerCPU", memory(p.DefMemPerCpu))
	}
	if p.MaxMemPerCpu > 0 {
		most = kv("MaxMemPerCPU", memory(p.MaxMemPerCpu))
	}
	r.line(def, most)
	if p.Tres != "" {
		r.line(kv("TRES", p.Tres))
	}
	if p.Other["TRESBillingWeights"] != "" {
		r.line(other("TRESBillingWeights", ""))
	}
	if !p.SharedFs {
		r.line("SharedFS=NO")
	}
	return r
}

func (c *call) showConfig([]string) int {
	if !c.connect() {
		return 1
	}
	var res *ctldpb.ShowConfigResponse
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ShowConfig(ctx, &ctldpb.ShowConfigRequest{})
		return err
	})
	if err != nil {
		return c.failed("slurm_load_ctl_conf", err)
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	fmt.Fprintf(out, "Configuration data as of %s\n", c.clock().Time(c.env.Now().UnixMilli(), ""))
	for _, l := range res.Lines {
		fmt.Fprintf(out, "%-23s = %s\n", l.Key, render.Null(l.Value))
	}
	for _, s := range res.Ignored {
		fmt.Fprintf(out, "# ignored: %s\n", s)
	}
	return 0
}

// showSteps prints the running steps of jobs.
func (c *call) showSteps(args []string) int {
	if !c.connect() {
		return 1
	}
	var ids []string
	for _, a := range args {
		base, _, _ := strings.Cut(a, ".")
		ids = append(ids, splitIDs(base)...)
	}
	res, err := c.client.ListJobs(background(), &ctldpb.ListJobsRequest{JobIds: ids, States: []string{"RUNNING"}, Detail: true})
	if err != nil {
		return c.failed("slurm_get_job_steps", err)
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	clock, shown := c.clock(), false
	for _, j := range res.Jobs {
		for _, s := range j.Steps {
			shown = true
			r := &record{}
			r.line(kv("StepId", render.JobID(j, 0)+"."+s.StepId), kv("UserId", j.Uid), kv("StartTime", clock.Time(s.StartMs, "Unknown")), "TimeLimit=UNLIMITED")
			r.line(kv("State", s.State), kv("Partition", j.Partition), kv("NodeList", render.Or(s.NodeList, j.NodeList)))
			r.line(kv("Nodes", j.NumNodes), kv("CPUs", j.NumCpus), kv("Tasks", s.Tasks), kv("Name", s.Name), "Network=(null)")
			r.write(out, c.oneLine)
		}
	}
	if !shown {
		fmt.Fprintln(out, "No job steps in the system")
	}
	return 0
}
