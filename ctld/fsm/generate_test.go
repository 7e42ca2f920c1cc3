package fsm_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// generator makes commands that mostly fit the present state of a.
type generator struct {
	t    fataler
	draw func(label string, n int) int // a number below n
	a    *fsm.FSM
	now  int64

	stale    *logpb.Command                     // a plan of an earlier state, proposed again
	later    func(*generator) *logpb.Command    // commands of later feature levels
	inConfig func(*generator, *logpb.SetConfig) // fields of later feature levels
}

// pass lets time go by, now and then so much of it that keys and blobs are forgotten.
func (g *generator) pass() {
	switch g.pick("long", 30) {
	case 0:
		g.now += 25 * 3600_000
	case 1:
		g.now -= 5
	default:
		g.now += int64(g.pick("dt", 200_000))
	}
}

// commands makes those of one entry.
func (g *generator) commands() []*logpb.Command {
	list := make([]*logpb.Command, g.pick("commands", 3)+1)
	for i := range list {
		list[i] = g.command()
	}
	return list
}

// entryOf encodes an entry of some version, always alike.
func entryOf(t fataler, version uint32, at int64, cmds []*logpb.Command) []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(&logpb.Entry{Version: version, TimeMs: at, Commands: cmds})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// pick draws a number below n.
func (g *generator) pick(label string, n int) int { return g.draw(label, n) }

// one draws one of a list.
func one[T any](g *generator, label string, list ...T) T { return list[g.pick(label, len(list))] }

// someJob draws a record, mostly one that exists.
func (g *generator) someJob() *state.Job {
	v := g.a.Store().View()
	var list []*state.Job
	for j := range v.Jobs() {
		list = append(list, j)
	}
	if len(list) == 0 || g.pick("unknown", 10) == 0 {
		return &state.Job{ID: uint32(g.pick("id", 5)) + 1, Spec: &job.Spec{}, ArrayTask: -1}
	}
	return list[g.pick("job", len(list))]
}

func (g *generator) caller() *logpb.Caller {
	return &logpb.Caller{Uid: uint32(g.pick("uid", 2)), User: "u", Operator: g.pick("operator", 2) == 0}
}

func (g *generator) ref() *logpb.JobRef {
	j := g.someJob()
	r := &logpb.JobRef{JobId: j.ID}
	if j.ArrayID != 0 {
		r.JobId = j.ArrayID
		if g.pick("tasks", 2) == 0 {
			r.HasTasks = true
			for range g.pick("n", 3) + 1 {
				r.Tasks = append(r.Tasks, uint32(g.pick("task", 6)))
			}
		}
	}
	return r
}

func (g *generator) command() *logpb.Command {
	if g.later != nil && g.pick("later level", 8) == 0 {
		return g.later(g)
	}
	switch g.pick("command", 18) {
	case 0, 1, 2:
		return g.submission()
	case 3, 4, 5:
		return g.plan()
	case 6:
		j := g.someJob()
		return &logpb.Command{Of: &logpb.Command_Launched{Launched: &logpb.Launched{JobId: j.ID, Run: g.run(j), Node: g.node(j), StartMs: g.now,
			Ok: g.pick("ok", 3) > 0, Cause: uint32(g.pick("cause", 6)), Error: "why"}}}
	case 7, 8:
		return g.report()
	case 9:
		return g.registration()
	case 10:
		return &logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: []*logpb.JobRef{g.ref(), g.ref()},
			Signal: int32([]int{0, 0, 9, 10}[g.pick("signal", 4)]), BatchOnly: g.pick("batch", 3) == 0, Full: g.pick("full", 3) == 0, Caller: g.caller(), States: [][]uint32{nil, nil, {uint32(job.Pending)}}[g.pick("states", 3)]}}}
	case 11:
		return &logpb.Command{Of: &logpb.Command_Control{Control: &logpb.Control{Op: uint32(g.pick("op", 9)), Jobs: []*logpb.JobRef{g.ref()}, Caller: g.caller(), DelayMs: int64(g.pick("delay", 2)) * 5000}}}
	case 12:
		return g.update()
	case 13:
		return g.nodes()
	case 14:
		j := g.someJob()
		return &logpb.Command{Of: &logpb.Command_JobTimer{JobTimer: &logpb.JobTimer{JobId: j.ID, Run: g.run(j), Seq: uint32(g.pick("seq", 3)),
			What: []string{"time_limit", "lease_over", "signals_sent", "else"}[g.pick("what", 4)]}}}
	}
	switch g.pick("what", 8) {
	case 0, 1, 2:
		return g.blob()
	case 3:
		return &logpb.Command{Of: &logpb.Command_Noop{Noop: &logpb.Noop{}}}
	case 4, 5, 6:
		return g.reconfigure()
	}
	return &logpb.Command{Of: &logpb.Command_Purge{Purge: &logpb.Purge{
		EndedBeforeMs: g.now - int64(g.pick("age", 400_000)), Keep: uint32(g.pick("keep", 5)), Max: uint32(g.pick("max", 3))}}}
}

// blob sends one of few blobs: whole, the first half, or the rest.
func (g *generator) blob() *logpb.Command {
	data := []byte(fmt.Sprint("blob ", g.pick("data", 4)))
	hash, half := sha256.Sum256(data), len(data)/2
	p := &logpb.PutBlob{Hash: hash[:], Total: uint64(len(data)), Data: data, Uid: uint32(g.pick("uid", 3))}
	switch g.pick("part", 4) {
	case 0:
		p.Data = data[:half]
	case 1:
		p.Offset, p.Data = uint64(half), data[half:]
	}
	return &logpb.Command{Of: &logpb.Command_PutBlob{PutBlob: p}}
}

// run is mostly the record's own.
func (g *generator) run(j *state.Job) uint32 {
	if g.pick("other run", 8) == 0 {
		return j.Run + 1 - uint32(g.pick("older", 3))
	}
	return j.Run
}

func (g *generator) node(j *state.Job) string {
	if len(j.Allocs) > 0 && g.pick("own node", 6) > 0 {
		return j.Allocs[g.pick("alloc", len(j.Allocs))].Node
	}
	return []string{"n1", "n2", "n3", "nowhere"}[g.pick("node", 4)]
}

func (g *generator) submission() *logpb.Command {
	s := &logpb.JobSpec{Name: []string{"a", "b"}[g.pick("name", 2)], Uid: uint32(g.pick("uid", 2)), TimeLimitMs: 60_000, Nice: int32(g.pick("nice", 3)) - 1}
	s.Exclusive = g.pick("exclusive", 5) == 0
	s.Hold = g.pick("hold", 6) == 0
	s.Requeue = int32(g.pick("requeue", 3)) - 1
	if g.pick("gres", 3) == 0 {
		s.Gres = "gpu:1"
	}
	if g.pick("array", 3) == 0 {
		s.Array = []string{"0-3", "1,3,5", "0-5%2", "7"}[g.pick("spec", 4)]
	}
	if g.pick("rich", 4) == 0 {
		g.enrich(s)
	}
	if g.pick("partition", 4) == 0 {
		s.Partition = one(g, "which", "p", "q", "p,q", "q,p")
	}
	for b := range g.a.View().Blobs() {
		switch whole := uint64(len(b.Data)) == b.Total; {
		case whole && g.pick("script blob", 4) == 0:
			s.ScriptHash = []byte(b.Hash)
		case whole && g.pick("environment", 3) == 0:
			s.EnvHash = []byte(b.Hash)
		}
	}
	if g.pick("begin", 5) == 0 {
		s.BeginMs = g.now + int64(g.pick("later", 300_000))
	}
	if g.pick("dep", 3) == 0 {
		kind := []string{"after", "afterany", "afterok", "afternotok", "aftercorr"}[g.pick("kind", 5)]
		s.Dependency = g.dependency(kind)
		if g.pick("single", 3) == 0 {
			s.Dependency = "singleton"
		}
		if g.pick("kill", 2) == 0 {
			s.Rare = []string{"kill-on-invalid-dep", "yes"}
		}
	}
	c := submit(fmt.Sprint("k", g.pick("key", 40)), s)
	if g.pick("no key", 2) == 0 {
		c.GetSubmit().Key = ""
	} else if g.pick("another request", 10) == 0 {
		c.GetSubmit().Digest = make([]byte, 32)
	}
	return c
}

// enrich gives a submission a value in each field that the rest leaves alone.
func (g *generator) enrich(s *logpb.JobSpec) {
	s.Account, s.Qos, s.WorkDir = one(g, "account", "lab", "class"), "normal", "/home/u"
	s.StdIn, s.StdOut, s.StdErr, s.OpenMode = "/dev/null", "out-%j", "err-%j", "append"
	s.Command, s.SubmitLine, s.SubmitHost, s.Args = "/home/u/a.sh", "gsub a.sh x", "login", []string{"x", "", "y z"}
	s.Script = []byte("#!/bin/sh\nexit 0\n")
	s.MinNodes, s.MaxNodes, s.Ntasks, s.NtasksPerNode, s.CpusPerTask, s.MinCpusPerNode = 1, 2, 2, 1, 1, 1
	if s.MemPerNode = 1 << 20; g.pick("memory", 2) == 0 {
		s.MemPerNode, s.MemPerCpu = 0, 1<<19
	}
	s.NodeList, s.Exclude, s.Constraint = "n[1-2]", "n3", one(g, "features", "big", "big&fast")
	s.TimeMinMs, s.Comment, s.Signal, s.Umask, s.Export, s.GetUserEnv, s.MinTmpDisk = 30_000, "a comment", "B:USR1@60", 0o27, "ALL", true, 1
	s.Gid, s.Groups, s.User, s.Group, s.Home, s.Shell = 100, []uint32{100, 4000000000}, "u", "users", "/home/u", "/bin/bash"
	s.Rare = []string{"mail-type", one(g, "mail", "ALL", "END"), "mail-user", "u@example.org"}
}

// dependency names one job or two, arrays and tasks among them, by one condition or two.
func (g *generator) dependency(kind string) string {
	name := func() string {
		j := g.someJob()
		switch {
		case j.ArrayID == 0:
			return fmt.Sprint(j.ID)
		case g.pick("of a task", 2) == 0:
			return fmt.Sprintf("%d_%d", j.ArrayID, g.pick("task", 6))
		}
		return fmt.Sprint(j.ArrayID)
	}
	text := fmt.Sprintf("%s:%s", kind, name())
	if kind == "after" && g.pick("delay", 2) == 0 {
		return text + "+1"
	}
	switch g.pick("terms", 4) {
	case 0:
		return fmt.Sprintf("%s,%s:%s", text, []string{"afterok", "aftercorr", "afternotok"}[g.pick("second", 3)], name())
	case 1:
		return text + ":" + name()
	case 2:
		return text + "?afterok:" + name()
	}
	return text
}

// plan starts what fits by a simple rule on the present state, or proposes an old plan again.
func (g *generator) plan() *logpb.Command {
	if g.stale != nil && g.pick("stale", 3) == 0 {
		return g.stale
	}
	s := g.a.Store().View().Sched()
	d := &sched.Decision{Base: s.Version}
	for _, c := range s.Classes {
		for w := range c.Waiting {
			st := sched.Start{JobID: w.JobID, Task: -1, Run: w.Run, Revision: w.Revision, Lease: int64(g.pick("lease", 2)) * 60_000, Partition: "p", TimeLimit: 60_000}
			if w.Tasks != nil {
				st.Task = int64(w.Tasks.Min())
			}
			if g.pick("skip", 3) > 0 {
				for _, i := range one(g, "on", []int{0}, []int{1}, []int{0, 1}) {
					if i < len(s.Nodes) {
						st.Nodes = append(st.Nodes, g.share(s.Nodes[i]))
					}
				}
				d.Starts = append(d.Starts, st)
			}
			if g.pick("reason", 3) > 0 {
				d.Reasons = append(d.Reasons, sched.Reason{JobID: w.JobID, Reason: one(g, "why", job.ReasonPartitionTimeLimit, job.ReasonNone), Detail: one(g, "detail", "", "too long"), Start: g.now})
			}
		}
		d.Classes = append(d.Classes, sched.ClassReason{Class: c.Key, Reason: one(g, "verdict", job.ReasonResources, job.ReasonNone, ""),
			Detail: one(g, "words", "", "nodes are busy"), Start: int64(g.pick("known", 2)) * g.now})
	}
	c := &logpb.Command{Of: &logpb.Command_Plan{Plan: planToLog(d)}}
	if g.pick("keep", 2) == 0 {
		g.stale = c
	}
	return c
}

// planToLog is the command that proposes a decision of the planner.
func planToLog(d *sched.Decision) *logpb.Plan {
	m := &logpb.Plan{Base: d.Base}
	for i := range d.Starts {
		m.Starts = append(m.Starts, fsm.StartToLog(&d.Starts[i]))
	}
	for _, r := range d.Reasons {
		m.Reasons = append(m.Reasons, &logpb.ReasonChange{JobId: r.JobID, Reason: string(r.Reason), Detail: r.Detail, StartMs: r.Start})
	}
	for _, c := range d.Classes {
		m.Classes = append(m.Classes, &logpb.ClassReason{Class: c.Class, Reason: string(c.Reason), Detail: c.Detail, StartMs: c.Start})
	}
	return m
}

func (g *generator) share(n *sched.Node) job.NodeAlloc {
	a := job.NodeAlloc{Node: n.Name, CPUs: 1, Mem: int64(g.pick("mem", 4)) << 30, Tasks: 1}
	if g.pick("cpu ids", 2) == 0 {
		a.CPUIDs = []uint32{uint32(g.pick("cpu", 5))}
	}
	if g.pick("gpu", 3) == 0 {
		a.Gres = []job.GresAlloc{{Name: "gpu", Type: "a100", Count: 1, Index: []uint32{uint32(g.pick("index", 3))}}}
	}
	return a
}

func (g *generator) report() *logpb.Command {
	j := g.someJob()
	r := &logpb.Reported{JobId: j.ID, Run: g.run(j), Step: job.BatchStep, Node: g.node(j), EndMs: g.now - int64(g.pick("end", 3000)),
		ExitCode: int32(g.pick("code", 3)), Oom: g.pick("oom", 6) == 0, Lost: g.pick("lost", 6) == 0,
		UserUs: 5, SysUs: 6, MaxRss: 7, Signal: int32(g.pick("signal", 2)) * 9, StartMs: g.now - 5000}
	switch g.pick("how", 8) {
	case 0:
		r.StdoutError = "no such directory"
	case 1:
		r.EpilogError = "exit 1"
	case 2:
		r.Error, r.Cause = "cannot", uint32(g.pick("cause", 6))
	case 3:
		r.Step = uint32(g.pick("step", 2))
	case 4:
		r.KilledFor = uint32(g.pick("why", 8))
	}
	return &logpb.Command{Of: &logpb.Command_Reported{Reported: r}}
}

func (g *generator) registration() *logpb.Command {
	c := register([]string{"n1", "n2", "n3", "nowhere"}[g.pick("node", 4)], []string{"b0", "b0", "b1"}[g.pick("boot", 3)])
	r := c.GetRegisterNode()
	if g.pick("all", 3) == 0 {
		r.Version, r.Boards, r.Sockets, r.CoresPerSocket, r.ThreadsPerCore, r.TmpDisk = "1.0", 1, 1, 2, 2, 1<<30
		r.Os, r.Arch, r.Hostname, r.Addr, r.AgentStartMs, r.BootMs, r.CgroupDriver = "linux", "amd64", "host", "10.0.0.1", g.now, g.now-1000, "v2"
	}
	switch g.pick("short", 6) {
	case 0:
		r.Gres = "gpu:a100:1"
	case 1:
		r.Gres = "gpu:a100:2,gpu:h100:1,shard:8"
	}
	for j := range g.a.Store().View().Active() {
		if g.pick("held", 3) > 0 {
			r.HeldJob, r.HeldRun = append(r.HeldJob, j.ID), append(r.HeldRun, j.Run)
		}
	}
	return c
}

func (g *generator) update() *logpb.Command {
	values := map[string][]string{
		"TimeLimit": {"5", "+1", "-1", "x", "UNLIMITED"}, "Priority": {"0", "10", "4294967295"}, "Nice": {"5", "-5"}, "JobName": {"a", "c"},
		"Partition": {"p", "q", "none"}, "StartTime": {"now+60", "never"}, "ArrayTaskThrottle": {"1", "0"}, "NumNodes": {"2", "1-2"},
		"Dependency": {"", "singleton", "afterany:1", "afterok:2,afterany:3", "aftercorr:1_1?after:2", "nonsense"}, "Gres": {"gpu:2", "gres:gpu:1", "::"}, "Requeue": {"0", "1"}, "Bad": {"x"},
		"Comment": {"c", ""}, "AdminComment": {"checked"}, "TimeMin": {"1"}, "Account": {"lab"}, "QOS": {"high"}, "NumCPUs": {"2"}, "MinMemoryNode": {"1G"},
		"MinMemoryCPU": {"100M"}, "MinTmpDiskNode": {"1"}, "ReqNodeList": {"n1"}, "ExcNodeList": {"n2"}, "Features": {"big"}, "WorkDir": {"/tmp"}, "StdOut": {"o"},
	}
	keys := slices.Sorted(maps.Keys(values))
	set := map[string]string{}
	for range g.pick("keys", 2) + 1 {
		k := keys[g.pick("key", len(keys))]
		set[k] = values[k][g.pick("value", len(values[k]))]
	}
	return &logpb.Command{Of: &logpb.Command_UpdateJob{UpdateJob: &logpb.UpdateJob{Job: g.ref(), Set: set, Caller: g.caller()}}}
}

func (g *generator) nodes() *logpb.Command {
	name := []string{"n1", "n2", "n3"}[g.pick("node", 3)]
	if g.pick("silent", 3) == 0 {
		return &logpb.Command{Of: &logpb.Command_NodeSilent{NodeSilent: &logpb.NodeSilent{Node: name, Silent: g.pick("yes", 3) > 0, Down: g.pick("down", 2) == 0, Reason: one(g, "reason", "", "no heartbeat")}}}
	}
	names := []string{name}
	for range g.pick("more", 3) {
		names = append(names, []string{"n1", "n2"}[g.pick("node", 2)])
	}
	u := &logpb.NodeUpdate{Nodes: names, State: []string{"DOWN", "DRAIN", "RESUME", "UNDRAIN", "IDLE", ""}[g.pick("state", 6)], Reason: "r", Caller: g.caller()}
	if g.pick("set", 4) == 0 {
		u.Set = one(g, "set", map[string]string{"Weight": "3", "Fenced": "yes"}, map[string]string{"Features": "big,fast", "Comment": "c"}, map[string]string{"Features": ""})
	}
	return &logpb.Command{Of: &logpb.Command_NodeUpdate{NodeUpdate: u}}
}

func (g *generator) reconfigure() *logpb.Command {
	if g.pick("partition", 2) == 0 {
		set := map[string]string{}
		for range g.pick("keys", 3) + 1 {
			key := one(g, "key", "State", "OverSubscribe", "Shared", "Default", "MaxTime", "DefaultTime", "MinNodes", "MaxNodes", "PriorityTier", "PriorityJobFactor", "Hidden", "RootOnly", "JobLease")
			switch key {
			case "State":
				set[key] = one(g, "state", "UP", "UP", "UP", "DOWN", "DRAIN", "INACTIVE")
			case "OverSubscribe", "Shared":
				set[key] = one(g, "over", "NO", "EXCLUSIVE")
			case "Default", "Hidden", "RootOnly":
				set[key] = one(g, "yes", "YES", "no")
			case "JobLease": // not known to the first level, which refuses all of the update then
				set[key] = one(g, "lease", "", "0", "5", "500ms", "x")
			default:
				set[key] = one(g, "number", "0", "1", "60", "x")
			}
		}
		return &logpb.Command{Of: &logpb.Command_PartitionUpdate{PartitionUpdate: &logpb.PartitionUpdate{Name: one(g, "name", "p", "p", "q"), Set: set, Caller: g.caller()}}}
	}
	c := config()
	s := c.GetSetConfig()
	s.MaxSubmitPerUser = uint32(g.pick("max", 2)) * 6
	s.MaxBatchRequeue = uint32(g.pick("requeues", 2))
	s.Digest = fmt.Sprint(g.pick("digest", 9))
	switch g.pick("nodes", 5) {
	case 0:
		s.Nodes, s.Partitions[0].Nodes = s.Nodes[1:], []string{"n2"}
		s.Nodes[0].Gres = one(g, "gres", "gpu:a100:2,shard:8", "gpu:2", "gpu:h100:1,gpu:a100:2")
	case 1:
		s.Nodes = append([]*logpb.ConfigNode{{Name: "n3", Cpus: 4, Mem: 8 << 30}}, s.Nodes...)
		s.Partitions[0].Nodes = []string{"n1", "n2", "n3"}
		s.Partitions = append(s.Partitions, &logpb.ConfigPartition{Name: "q", Nodes: []string{"n3"}, MaxTimeMs: -1})
	case 2:
		s.Nodes[0].Gres = one(g, "gres", "gpu:a100:2,shard:8", "gpu:2", "gpu:h100:1,gpu:a100:2", "")
	case 3:
		g.enrichConfig(s)
	}
	if g.inConfig != nil {
		g.inConfig(g, s)
	}
	return c
}

// enrichConfig gives a configuration a value in each field that the rest leaves alone.
func (g *generator) enrichConfig(s *logpb.SetConfig) {
	s.MaxJobCount, s.MaxArraySize, s.KillWaitMs, s.OverTimeLimitMs, s.JobFileAppend = 500, 100, 30_000, 60_000, true
	s.ReturnToService = uint32(g.pick("return", 3))
	*s.Nodes[0] = logpb.ConfigNode{Name: "n1", Hostname: "host1", Addr: "10.0.0.1", Cpus: 4, Boards: 1, Sockets: 1, CoresPerSocket: 2, ThreadsPerCore: 2,
		Mem: 8 << 30, TmpDisk: 1 << 20, Gres: "gpu:a100:2", Features: []string{"big", "fast"}, Weight: 2, State: one(g, "file", "", "DRAIN", "DOWN", "FUTURE"), Reason: "by file"}
	s.Partitions = append(s.Partitions, &logpb.ConfigPartition{
		Name: "q", Nodes: []string{"n2", "n1"}, State: one(g, "up", "UP", "DOWN"), MaxTimeMs: 7_200_000, DefaultTimeMs: 60_000, MinNodes: 1, MaxNodes: 2, PriorityTier: 2,
		PriorityJobFactor: 3, DefMemPerNode: 1 << 20, DefMemPerCpu: 1 << 19, MaxMemPerNode: 4 << 30, MaxMemPerCpu: 1 << 30, AllowGroups: []string{"users"},
		AllowAccounts: []string{"lab"}, DenyAccounts: []string{"class"}, AllowQos: []string{"normal", "high"}, OverSubscribe: "EXCLUSIVE", Hidden: true, RootOnly: true,
		SharedFs: true, DisableRootJobs: true})
}
