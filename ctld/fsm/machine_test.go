package fsm_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// TestRandomCommands drives two machines with the same random entries, one of them restored from a
// snapshot now and then: they must stay equal, and every invariant must hold after every entry.
func TestRandomCommands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &generator{t: t, a: fsm.New(state.New()), b: fsm.New(state.New()), now: 1_000_000}
		g.apply(config(), register("n1", "b0"), register("n2", "b0"))
		for range rapid.IntRange(1, 60).Draw(t, "entries") {
			g.now += int64(rapid.IntRange(-5, 200_000).Draw(t, "dt"))
			var cmds []*logpb.Command
			for range rapid.IntRange(1, 3).Draw(t, "commands") {
				cmds = append(cmds, g.command())
			}
			g.apply(cmds...)
			if rapid.IntRange(0, 9).Draw(t, "restore") == 0 {
				g.restore()
			}
		}
		g.restore()
	})
}

type generator struct {
	t     *rapid.T
	a, b  *fsm.FSM
	now   int64
	index uint64
	stale *logpb.Command // a plan of an earlier state, proposed again
	// runs that were alive, by job id: two at once would be the worst of bugs
	ids map[uint32]bool
}

func (g *generator) apply(cmds ...*logpb.Command) {
	g.index++
	data := entry(g.t, g.now, cmds...)
	ra, err := g.a.ApplyEntry(g.index, data)
	if err != nil {
		g.t.Fatal(err)
	}
	rb, err := g.b.ApplyEntry(g.index, data)
	if err != nil {
		g.t.Fatal(err)
	}
	if a, b := fmt.Sprintf("%+v", describe(ra)), fmt.Sprintf("%+v", describe(rb)); a != b {
		g.t.Fatalf("results differ:\n%s\n%s\nof %v", a, b, cmds)
	}
	if err := g.a.Store().Check(); err != nil {
		g.t.Fatalf("after %v:\n%v", cmds, err)
	}
	if a, b := g.hash(g.a), g.hash(g.b); a != b {
		g.t.Fatalf("states differ after %v", cmds)
	}
	for _, r := range ra {
		if r.JobID != 0 && !r.Duplicate {
			if g.ids[r.JobID] {
				g.t.Fatalf("id %d was given twice", r.JobID)
			}
			if g.ids == nil {
				g.ids = map[uint32]bool{}
			}
			g.ids[r.JobID] = true
		}
	}
}

func describe(list []fsm.Result) (out []string) {
	for _, r := range list {
		out = append(out, fmt.Sprint(r.JobID, r.Duplicate, r.Taken, r.Refused != nil))
		for _, j := range r.Jobs {
			out = append(out, fmt.Sprint(j.Job, j.Refused))
		}
	}
	return out
}

func (g *generator) hash(f *fsm.FSM) [32]byte {
	sum, err := fsm.Hash(f.Store().View())
	if err != nil {
		g.t.Fatal(err)
	}
	return sum
}

// restore puts the second machine aside for one that is made from the first one's snapshot.
func (g *generator) restore() {
	var buf bytes.Buffer
	if err := g.a.Snapshot().Write(&buf); err != nil {
		g.t.Fatal(err)
	}
	g.b = fsm.New(state.New())
	if err := g.b.Restore(&buf); err != nil {
		g.t.Fatal(err)
	}
	if g.hash(g.a) != g.hash(g.b) {
		g.t.Fatal("a restored state differs")
	}
}

func (g *generator) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(g.t, label) }

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
	switch g.pick("command", 17) {
	case 0, 1, 2:
		return g.submission()
	case 3, 4, 5:
		return g.plan()
	case 6:
		j := g.someJob()
		return &logpb.Command{Of: &logpb.Command_Launched{Launched: &logpb.Launched{JobId: j.ID, Run: g.run(j), Node: g.node(j),
			Ok: g.pick("ok", 3) > 0, Cause: uint32(g.pick("cause", 6)), Error: "why"}}}
	case 7, 8:
		return g.report()
	case 9:
		return g.registration()
	case 10:
		return &logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: []*logpb.JobRef{g.ref(), g.ref()},
			Signal: int32([]int{0, 0, 9, 10}[g.pick("signal", 4)]), Caller: g.caller(), States: [][]uint32{nil, nil, {uint32(job.Pending)}}[g.pick("states", 3)]}}}
	case 11:
		return &logpb.Command{Of: &logpb.Command_Control{Control: &logpb.Control{Op: uint32(g.pick("op", 9)), Jobs: []*logpb.JobRef{g.ref()}, Caller: g.caller()}}}
	case 12:
		return g.update()
	case 13:
		return g.nodes()
	case 14:
		j := g.someJob()
		return &logpb.Command{Of: &logpb.Command_JobTimer{JobTimer: &logpb.JobTimer{JobId: j.ID, Run: g.run(j), Seq: uint32(g.pick("seq", 3)),
			What: []string{"time_limit", "lease_over", "signals_sent", "else"}[g.pick("what", 4)]}}}
	}
	if g.pick("blob", 4) == 0 {
		data := []byte(fmt.Sprint("blob ", g.pick("data", 4)))
		hash, half := sha256.Sum256(data), len(data)/2
		p := &logpb.PutBlob{Hash: hash[:], Total: uint64(len(data)), Data: data[:half], Uid: uint32(g.pick("uid", 3))}
		if g.pick("rest", 2) == 0 {
			p.Offset, p.Data = uint64(half), data[half:]
		}
		return &logpb.Command{Of: &logpb.Command_PutBlob{PutBlob: p}}
	}
	if g.pick("purge", 2) == 0 {
		return &logpb.Command{Of: &logpb.Command_Purge{Purge: &logpb.Purge{EndedBeforeMs: g.now - int64(g.pick("age", 400_000)), Keep: uint32(g.pick("keep", 5)), Max: uint32(g.pick("max", 3))}}}
	}
	return g.reconfigure()
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
	}
	return c
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
				for _, i := range rapid.SampledFrom([][]int{{0}, {1}, {0, 1}}).Draw(g.t, "on") {
					if i < len(s.Nodes) {
						st.Nodes = append(st.Nodes, g.share(&s.Nodes[i]))
					}
				}
				d.Starts = append(d.Starts, st)
			}
			d.Reasons = append(d.Reasons, sched.Reason{JobID: w.JobID, Reason: job.ReasonPartitionTimeLimit})
		}
		d.Classes = append(d.Classes, sched.ClassReason{Class: c.Key, Reason: job.ReasonResources, Start: g.now})
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
		ExitCode: int32(g.pick("code", 3)), Oom: g.pick("oom", 6) == 0, Lost: g.pick("lost", 6) == 0, UserUs: 5}
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
	if g.pick("short", 6) == 0 {
		r.Gres = "gpu:a100:1"
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
	}
	keys := []string{"TimeLimit", "Priority", "Nice", "JobName", "Partition", "StartTime", "ArrayTaskThrottle", "NumNodes", "Dependency", "Gres", "Requeue", "Bad"}
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
		return &logpb.Command{Of: &logpb.Command_NodeSilent{NodeSilent: &logpb.NodeSilent{Node: name, Silent: g.pick("yes", 3) > 0, Down: g.pick("down", 2) == 0}}}
	}
	names := []string{name}
	for range g.pick("more", 3) {
		names = append(names, []string{"n1", "n2"}[g.pick("node", 2)])
	}
	u := &logpb.NodeUpdate{Nodes: names, State: []string{"DOWN", "DRAIN", "RESUME", "UNDRAIN", "IDLE", ""}[g.pick("state", 6)], Reason: "r", Caller: g.caller()}
	if g.pick("set", 4) == 0 {
		u.Set = map[string]string{"Weight": "3", "Fenced": "yes"}
	}
	return &logpb.Command{Of: &logpb.Command_NodeUpdate{NodeUpdate: u}}
}

func (g *generator) reconfigure() *logpb.Command {
	if g.pick("partition", 2) == 0 {
		set := map[string]string{"State": []string{"UP", "DOWN", "DRAIN", "INACTIVE"}[g.pick("state", 4)], "OverSubscribe": []string{"NO", "EXCLUSIVE"}[g.pick("over", 2)]}
		return &logpb.Command{Of: &logpb.Command_PartitionUpdate{PartitionUpdate: &logpb.PartitionUpdate{Name: "p", Set: set, Caller: g.caller()}}}
	}
	c := config()
	s := c.GetSetConfig()
	s.MaxSubmitPerUser = uint32(g.pick("max", 2)) * 6
	s.MaxBatchRequeue = uint32(g.pick("requeues", 2))
	switch g.pick("nodes", 4) {
	case 0:
		s.Nodes, s.Partitions[0].Nodes = s.Nodes[1:], []string{"n2"}
		s.Nodes[0].Gres = []string{"gpu:a100:2,shard:8", "gpu:2", "gpu:h100:1,gpu:a100:2"}[g.pick("gres", 3)]
	case 1:
		s.Nodes = append([]*logpb.ConfigNode{{Name: "n3", Cpus: 4, Mem: 8 << 30}}, s.Nodes...)
		s.Partitions[0].Nodes = []string{"n1", "n2", "n3"}
		s.Partitions = append(s.Partitions, &logpb.ConfigPartition{Name: "q", Nodes: []string{"n3"}, MaxTimeMs: -1})
	}
	return c
}
