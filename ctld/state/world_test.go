package state_test

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

const gib = int64(1) << 30

// world is a store with a clock, that checks every invariant after every entry.
type world struct {
	testing.TB
	s     *state.Store
	now   int64
	index uint64
}

func newWorld(t testing.TB, change ...func(*state.Config)) *world {
	w := &world{TB: t, s: state.New(), now: 1_000_000}
	w.configure(change...)
	w.register("n1", "boot")
	w.register("n2", "boot")
	return w
}

func nodesOf(names ...string) (list []state.NodeConfig) {
	for _, name := range names {
		list = append(list, state.NodeConfig{Name: name, Weight: 1, Inventory: node.Inventory{CPUs: 4, Mem: 8 * gib, Gres: "gpu:a100:2,shard:8"}})
	}
	return list
}

func partsOf(nodes ...string) []state.Partition {
	return []state.Partition{
		{Name: "p", Default: true, Nodes: nodes, State: "UP", MaxTime: job.Unlimited, DefaultTime: 3_600_000},
		{Name: "q", Nodes: nodes, State: "UP", MaxTime: 60_000, OverSubscribe: "EXCLUSIVE"},
	}
}

func (w *world) configure(change ...func(*state.Config)) {
	w.Helper()
	cfg := state.Config{Cluster: "c", FirstJobID: 1, JobRequeue: true, MaxBatchRequeue: 5, ReturnToService: 1, RequeueDelay: 120_000, MaxArraySize: 1001}
	for _, f := range change {
		f(&cfg)
	}
	w.reload(cfg, nodesOf("n1", "n2"), partsOf("n1", "n2"))
}

func (w *world) reload(cfg state.Config, nodes []state.NodeConfig, parts []state.Partition) {
	w.Helper()
	w.do(func(t *state.Tx) {
		if r := t.SetConfig(cfg, nodes, parts); r != nil {
			w.Fatalf("configuration refused: %+v", r)
		}
	})
}

// do applies one entry, a second after the one before.
func (w *world) do(f func(*state.Tx)) {
	w.Helper()
	w.now += 1000
	w.index++
	w.s.Apply(w.index, w.now, f)
	if err := w.s.Check(); err != nil {
		w.Fatal(err)
	}
}

func (w *world) registration(name, boot string) *state.Registration {
	return &state.Registration{Node: name, BootID: boot, Inventory: node.Inventory{CPUs: 4, Mem: 8 * gib, Gres: "gpu:a100:2,shard:8"}}
}

func (w *world) register(name, boot string, held ...state.RunKey) {
	w.Helper()
	r := w.registration(name, boot)
	r.Held = held
	w.do(func(t *state.Tx) {
		if r := t.RegisterNode(r); r != nil {
			w.Fatalf("registration refused: %+v", r)
		}
	})
}

func (w *world) trySubmit(key string, s job.Spec) (id uint32, dup bool, r *state.Refusal) {
	w.Helper()
	digest := sha256.Sum256([]byte(s.Name + s.Gres))
	w.do(func(t *state.Tx) { id, dup, r = t.Submit(key, digest[:], &s) })
	return id, dup, r
}

func (w *world) submit(s job.Spec) uint32 {
	w.Helper()
	id, _, r := w.trySubmit("", s)
	if r != nil {
		w.Fatalf("submission refused: %+v", r)
	}
	return id
}

func alloc(name string, cpus uint32) job.NodeAlloc {
	return job.NodeAlloc{Node: name, CPUs: cpus, Mem: gib, Tasks: cpus}
}

// begin builds a start of the record's present run.
func (w *world) begin(id uint32, task int64, allocs ...job.NodeAlloc) sched.Start {
	return sched.Start{JobID: id, Task: task, Run: w.s.View().Job(id).Run, Partition: "p", TimeLimit: 60_000, Nodes: allocs}
}

func (w *world) plan(starts ...sched.Start) (taken int) {
	w.Helper()
	w.do(func(t *state.Tx) { taken = t.Plan(&sched.Decision{Starts: starts}) })
	return taken
}

// run submits a job and brings it to RUNNING, confirmed, on n1.
func (w *world) run(s job.Spec) uint32 {
	w.Helper()
	id := w.submit(s)
	if w.plan(w.begin(id, -1, alloc("n1", 1))) != 1 {
		w.Fatal("start not taken")
	}
	w.launched(id, job.CauseNone, true)
	return id
}

func (w *world) launched(id uint32, cause job.Cause, ok bool) {
	w.Helper()
	j := w.job(id)
	w.do(func(t *state.Tx) {
		t.Launched(&state.Launched{JobID: id, Run: j.Run, Node: j.Allocs[0].Node, OK: ok, Cause: cause, Error: "why"})
	})
}

func (w *world) report(id uint32, change ...func(*state.Reported)) {
	w.Helper()
	j := w.job(id)
	r := &state.Reported{JobID: id, Run: j.Run, Step: job.BatchStep, Node: "n1", End: w.now, UserUS: 7, SysUS: 3, MaxRSS: 100}
	for _, f := range change {
		f(r)
	}
	w.do(func(t *state.Tx) { t.Reported(r) })
}

func (w *world) job(id uint32) *state.Job {
	w.Helper()
	j := w.s.View().Job(id)
	if j == nil {
		w.Fatalf("job %d is not known", id)
	}
	return j
}

func (w *world) is(id uint32, s job.State, flags ...string) *state.Job {
	w.Helper()
	j := w.job(id)
	if j.State != s || strings.Join(j.Flags.Names(), " ") != strings.Join(flags, " ") {
		w.Fatalf("job %d is %s with %v, want %s with %v", id, j.State, j.Flags.Names(), s, flags)
	}
	return j
}

var (
	root  = state.Caller{User: "root", Operator: true}
	alice = state.Caller{UID: 1, User: "alice"}
)

func (w *world) cancel(c state.Caller, refs ...job.Ref) []state.JobResult {
	w.Helper()
	var out []state.JobResult
	w.do(func(t *state.Tx) { out = t.Cancel(&state.Cancel{Jobs: refs, Caller: c}) })
	return out
}

func (w *world) control(op state.Op, c state.Caller, id uint32, tasks ...uint32) *state.Refusal {
	w.Helper()
	ref := job.Ref{ID: id}
	if tasks != nil {
		ref.Tasks = job.NewSet(tasks...)
	}
	var out []state.JobResult
	w.do(func(t *state.Tx) { out = t.Control(&state.Control{Op: op, Jobs: []job.Ref{ref}, Caller: c}) })
	return out[0].Refused
}

func (w *world) update(c state.Caller, id uint32, set ...string) *state.Refusal {
	w.Helper()
	m := map[string]string{}
	for i := 0; i < len(set); i += 2 {
		m[set[i]] = set[i+1]
	}
	var out []state.JobResult
	w.do(func(t *state.Tx) { out = t.UpdateJob(&state.JobUpdate{Job: job.Ref{ID: id}, Set: m, Caller: c}) })
	return out[0].Refused
}

func (w *world) timer(id uint32, what string) {
	w.Helper()
	j := w.job(id)
	w.do(func(t *state.Tx) { t.JobTimer(&state.JobTimer{JobID: id, Run: j.Run, What: what}) })
}

func wantRefusal(t testing.TB, r *state.Refusal, code, word string) {
	t.Helper()
	if r == nil || r.Code != code || !strings.Contains(r.Text+" "+r.Why, word) {
		t.Fatalf("got %+v, want %s with %q", r, code, word)
	}
}

func wantReason(w *world, id uint32, want job.Reason) {
	w.Helper()
	v := w.s.View()
	if got, _ := v.Reason(v.Job(id)); got != want {
		w.Fatalf("job %d: reason %s, want %s", id, got, want)
	}
}
