package robust

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// What a user asks of one job.
type kind int

const (
	doSubmit kind = iota
	doComment
	doHold
	doRelease
	doCancel
	doRequeue
	doRead
)

func (k kind) String() string {
	return [...]string{"submit", "comment", "hold", "release", "cancel", "requeue", "read"}[k]
}

// How a call ended. One whose outcome is unknown may take effect at any later time.
type outcome int

const (
	done outcome = iota
	refused
	unknown
)

func (o outcome) String() string { return [...]string{"ok", "refused", "unknown"}[o] }

// seen is what a reader was told of one job.
type seen struct {
	there   bool
	id      uint32
	comment string
	held    bool
	state   string
	run     uint32
}

// op is one call as its caller saw it. Times are ns since begin.
type op struct {
	client    int
	kind      kind
	name      string // of the job: its key
	value     string // of a comment
	at        string // controller that was asked
	call, ret int64
	outcome   outcome
	held      bool   // a submission asks for a held job
	text      string // why it was refused
	id        uint32 // that a submission gave
	seen      seen
	index     uint64 // that a read was answered at
	stale     bool
}

// history takes what all clients saw.
type history struct {
	mu  sync.Mutex
	ops []op
}

func (h *history) add(o op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

func (h *history) all() []op {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.ops)
}

// count counts by kind and outcome.
func (h *history) count() map[string]int {
	out := map[string]int{}
	for _, o := range h.all() {
		out[o.kind.String()+" "+o.outcome.String()]++
	}
	return out
}

// nothingDone are refusals that promise that the call had no effect.
var nothingDone = map[string]bool{"NOT_LEADER": true, "NO_LEADER": true, "BUSY": true}

// classify says how a call ended.
func classify(err error) outcome {
	switch {
	case err == nil:
		return done
	case code(err) == "OUTCOME_UNKNOWN":
		return unknown
	case code(err) != "":
		return refused
	case unavailable(err):
		return unknown
	}
	return refused
}

// client is one caller that records what it saw.
type client struct {
	number int
	user   *user
	h      *history
	try    time.Duration // that one call may take
}

func (cl *client) call(o op, f func(context.Context, ctldpb.ControllerClient, *op) error) op {
	ctx, cancel := context.WithTimeout(context.Background(), cl.try)
	defer cancel()
	o.client = cl.number
	o.call = since()
	err := f(ctx, cl.user.at(o.at), &o)
	o.ret, o.outcome = since(), classify(err)
	if err != nil {
		o.text = err.Error()
	}
	cl.h.add(o)
	return o
}

func (cl *client) submit(at string, spec *ctldpb.JobSpec) op {
	return cl.call(op{kind: doSubmit, name: spec.Name, value: spec.Comment, held: spec.Hold, at: at}, func(ctx context.Context, cc ctldpb.ControllerClient, o *op) error {
		res, err := cc.Submit(ctx, &ctldpb.SubmitRequest{Key: spec.Name, Spec: spec})
		o.id = res.GetJobId()
		return err
	})
}

// one takes the result of a call about one job.
func one(res *ctldpb.JobResults, err error) error {
	if err != nil {
		return err
	}
	if len(res.Results) != 1 {
		return fmt.Errorf("%d results for one job", len(res.Results))
	}
	if r := res.Results[0]; r.Code != "" {
		return fmt.Errorf("%s: %s", r.Code, r.Text)
	}
	return nil
}

func (cl *client) comment(at, name string, id uint32, text string) op {
	return cl.call(op{kind: doComment, name: name, value: text, at: at}, func(ctx context.Context, cc ctldpb.ControllerClient, _ *op) error {
		return one(cc.UpdateJob(ctx, &ctldpb.UpdateJobRequest{JobIds: []string{num(id)}, Set: map[string]string{"Comment": text}}))
	})
}

func (cl *client) control(at, name string, id uint32, k kind) op {
	what := map[kind]ctldpb.ControlRequest_Op{doHold: ctldpb.ControlRequest_HOLD, doRelease: ctldpb.ControlRequest_RELEASE, doRequeue: ctldpb.ControlRequest_REQUEUE}[k]
	return cl.call(op{kind: k, name: name, at: at}, func(ctx context.Context, cc ctldpb.ControllerClient, _ *op) error {
		return one(cc.Control(ctx, &ctldpb.ControlRequest{Op: what, JobIds: []string{num(id)}}))
	})
}

func (cl *client) cancel(at, name string, id uint32) op {
	return cl.call(op{kind: doCancel, name: name, at: at}, func(ctx context.Context, cc ctldpb.ControllerClient, _ *op) error {
		return one(cc.Cancel(ctx, &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{num(id)}}}))
	})
}

// read asks for jobs by name; each name is an operation of its own, all with the times of the one call.
func (cl *client) read(at string, stale bool, names ...string) outcome {
	var list *ctldpb.ListJobsResponse
	o := op{client: cl.number, kind: doRead, at: at, stale: stale, call: since()}
	ctx, cancel := context.WithTimeout(context.Background(), cl.try)
	defer cancel()
	list, err := cl.user.jobs(ctx, at, &ctldpb.ListJobsRequest{Read: &ctldpb.ReadOptions{Stale: stale}, Names: names, States: []string{"all"}})
	o.ret, o.outcome = since(), classify(err)
	if err != nil {
		return o.outcome // a read that failed has no effect
	}
	by := map[string]*ctldpb.Job{}
	for _, j := range list.Jobs {
		by[j.Spec.Name] = j
	}
	for _, name := range names {
		o.name, o.index, o.seen = name, list.Info.GetIndex(), seen{}
		if j := by[name]; j != nil {
			o.seen = seen{there: true, id: j.JobId, comment: j.Spec.Comment, held: j.State == "PENDING" && j.Priority == 0, state: j.State, run: j.Run}
		}
		cl.h.add(o)
	}
	return done
}

func num(id uint32) string { return strconv.FormatUint(uint64(id), 10) }

// job is the model's state of one job. The cluster itself starts and ends jobs between calls, so a read may
// find one further than the calls have brought it, never back: (run, phase) only grows, a comment is the
// last one written, a job that was held and waited has not started, a cancelled one does not begin again.
type job struct {
	there     bool
	id        uint32 // 0 = not told yet
	comment   string
	held      bool
	kept      bool // was seen held and waiting since
	run       uint32
	phase     int
	cancelled bool
}

// Phases of one run.
const (
	waits = iota
	runs
	ended
)

func phaseOf(state string) int {
	switch state {
	case "PENDING":
		return waits
	case "RUNNING", "SUSPENDED":
		return runs
	}
	return ended
}

// step is the model: what one operation may find and leave.
func step(s job, o op) (bool, job) {
	if o.kind != doRead && o.outcome == refused {
		// It had no effect. Whether it was right to refuse depends on what the cluster did meanwhile.
		return true, s
	}
	if o.kind == doRead {
		return s.read(o.seen)
	}
	if o.kind == doSubmit {
		if !s.there {
			return true, job{there: true, id: o.id, comment: o.value, held: o.held}
		}
		if o.id != 0 && s.id != 0 && o.id != s.id {
			return false, s
		}
		s.id = max(s.id, o.id)
		return true, s
	}
	if !s.there {
		return o.outcome == unknown, s
	}
	switch o.kind {
	case doComment:
		s.comment = o.value
	case doHold:
		s.held, s.kept = true, false
	case doRelease:
		s.held, s.kept = false, false
	case doCancel:
		s.cancelled = true
	case doRequeue:
		s.held, s.kept = false, false
	}
	return true, s
}

func (s job) read(v seen) (bool, job) {
	if !v.there || !s.there {
		return v.there == s.there, s
	}
	phase := phaseOf(v.state)
	switch {
	case s.id != 0 && v.id != s.id,
		v.comment != s.comment,
		v.run < s.run || v.run == s.run && phase < s.phase,
		s.held && phase == waits && !v.held,
		s.kept && phase == runs,
		s.cancelled && v.run > s.run:
		return false, s
	}
	s.id, s.run, s.phase = v.id, v.run, phase
	s.kept = s.held && phase == waits
	return true, s
}

// model checks each job for itself: they share nothing but the counter of ids, which checkIDs looks at.
var model = porcupine.NondeterministicModel{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		for _, o := range ops {
			name := o.Input.(op).name
			by[name] = append(by[name], o)
		}
		var out [][]porcupine.Operation
		for _, list := range by {
			out = append(out, list)
		}
		return out
	},
	Init: func() []any { return []any{job{}} },
	Step: func(state, input, _ any) []any {
		o := input.(op)
		ok, next := step(state.(job), o)
		if !ok {
			return nil
		}
		if o.outcome == unknown && o.kind != doRead {
			return []any{next, state} // it happened, or it never does
		}
		return []any{next}
	},
	DescribeOperation: func(input, _ any) string {
		o := input.(op)
		if o.kind == doRead {
			return fmt.Sprintf("read at %s: %+v", o.at, o.seen)
		}
		return fmt.Sprintf("%s %s %s at %s: %s %d", o.kind, o.name, o.value, o.at, o.outcome, o.id)
	},
	DescribeState: func(s any) string { return fmt.Sprintf("%+v", s) },
}

// forever is the return time of a call whose outcome is unknown.
const forever = int64(1) << 62

// checkHistory holds all that users saw against the model; a picture of what cannot be goes to the folder.
func (c *cluster) checkHistory(h *history) (checked int) {
	c.t.Helper()
	var ops []porcupine.Operation
	for _, o := range h.all() {
		switch {
		case o.kind == doRead && (o.stale || o.outcome != done), o.kind != doRead && o.outcome == refused:
			continue // stale ones have a check of their own; what had no effect says nothing
		case o.outcome == unknown:
			o.ret = forever
		}
		ops = append(ops, porcupine.Operation{ClientId: o.client, Input: o, Call: o.call, Return: o.ret})
	}
	m := model.ToModel()
	result, info := porcupine.CheckOperationsVerbose(m, ops, 2*time.Minute)
	switch result {
	case porcupine.Illegal:
		path := filepath.Join(c.dir, "history.html")
		if f, err := os.Create(path); err == nil {
			porcupine.Visualize(m, info, f)
			f.Close()
		}
		c.t.Errorf("what users saw cannot be explained by any order of their calls; a picture is in %s", path)
		c.tellIllegal(ops, m)
	case porcupine.Unknown:
		c.t.Errorf("the history of %d operations was not checked within the time", len(ops))
	}
	c.checkIDs(h)
	return len(ops)
}

// tellIllegal names the first jobs whose histories cannot be.
func (c *cluster) tellIllegal(ops []porcupine.Operation, m porcupine.Model) {
	told := 0
	for _, part := range model.Partition(ops) {
		if porcupine.CheckOperations(m, part) || told >= 3 {
			continue
		}
		told++
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		for _, o := range part {
			c.t.Logf("  client %d %8.3f..%8.3f %s", o.ClientId, float64(o.Call)/1e9, float64(min(o.Return, since()))/1e9, model.DescribeOperation(o.Input, nil))
		}
	}
}

// checkIDs: an id is given once, and one that was told before another was asked for is the smaller.
func (c *cluster) checkIDs(h *history) {
	c.t.Helper()
	owner := map[uint32]string{}
	first := map[string]op{}
	for _, o := range h.all() {
		id := o.id
		if o.kind == doRead {
			id = o.seen.id
		}
		if id == 0 || o.outcome != done {
			continue
		}
		if old, ok := owner[id]; ok && old != o.name {
			c.t.Errorf("id %d was given to %s and to %s", id, old, o.name)
		}
		owner[id] = o.name
		if o.kind == doSubmit {
			if f, ok := first[o.name]; !ok || o.ret < f.ret {
				first[o.name] = o
			}
		}
	}
	// The first call for a key is what orders ids: later ones repeat the answer.
	asked := map[string]int64{}
	for _, o := range h.all() {
		if at, ok := asked[o.name]; o.kind == doSubmit && (!ok || o.call < at) {
			asked[o.name] = o.call
		}
	}
	acks := make([]op, 0, len(first))
	for _, o := range first {
		acks = append(acks, o)
	}
	slices.SortFunc(acks, func(a, b op) int { return cmp.Compare(a.ret, b.ret) })
	calls := slices.Clone(acks)
	slices.SortFunc(calls, func(a, b op) int { return cmp.Compare(asked[a.name], asked[b.name]) })
	k, highest := 0, uint32(0)
	for _, o := range calls {
		for k < len(acks) && acks[k].ret < asked[o.name] {
			highest = max(highest, acks[k].id)
			k++
		}
		if o.id <= highest {
			c.t.Errorf("%s was asked for after %d had been told, and got %d", o.name, highest, o.id)
		}
	}
}

// version is the number in a comment "vN" that its one writer counts up.
func version(s seen) int {
	if !s.there {
		return -1
	}
	if len(s.comment) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(s.comment[1:])
	return n
}

// checkStale: all reads, stale ones too, show prefixes of one sequence: what is seen at a higher index is
// never older than what was seen at a lower one, wherever it was asked.
func (c *cluster) checkStale(h *history) (checked int) {
	c.t.Helper()
	by := map[string][]op{}
	late := map[string]bool{} // writes that may have come after those that followed them
	for _, o := range h.all() {
		if o.kind == doComment && o.outcome == unknown {
			late[o.name+" "+o.value] = true
		}
		if o.kind == doRead && o.outcome == done {
			by[o.name] = append(by[o.name], o)
			checked++
		}
	}
	for name, list := range by {
		slices.SortStableFunc(list, func(a, b op) int { return cmp.Compare(a.index, b.index) })
		for i, o := range list[1:] {
			before := list[i]
			if late[o.name+" "+o.seen.comment] && o.index > before.index {
				continue
			}
			if o.index == before.index && version(o.seen) != version(before.seen) ||
				o.index > before.index && version(o.seen) < version(before.seen) {
				c.t.Errorf("%s: at index %d %s showed %+v, at index %d %s shows %+v", name, before.index, before.at, before.seen, o.index, o.at, o.seen)
			}
		}
	}
	return checked
}

// TestModel: what the model takes and what it finds.
func TestModel(t *testing.T) {
	ok := func(k kind, client int, call, ret int64, more func(*op)) op {
		o := op{client: client, kind: k, name: "j", call: call, ret: ret}
		if more != nil {
			more(&o)
		}
		return o
	}
	id := func(n uint32) func(*op) { return func(o *op) { o.id = n } }
	maybe := func(o *op) { o.outcome, o.ret = unknown, forever }
	text := func(s string) func(*op) { return func(o *op) { o.value = s } }
	sees := func(s seen) func(*op) { s.there = true; return func(o *op) { o.seen = s } }
	for name, c := range map[string]struct {
		ops  []op
		want bool
	}{
		"same id twice":             {[]op{ok(doSubmit, 1, 1, 2, id(5)), ok(doSubmit, 1, 3, 4, id(5))}, true},
		"two ids for a key":         {[]op{ok(doSubmit, 1, 1, 2, id(5)), ok(doSubmit, 1, 3, 4, id(6))}, false},
		"unknown, then there":       {[]op{ok(doSubmit, 1, 1, 2, maybe), ok(doRead, 2, 3, 4, sees(seen{id: 5, state: "PENDING"}))}, true},
		"unknown, then not there":   {[]op{ok(doSubmit, 1, 1, 2, maybe), ok(doRead, 2, 3, 4, nil)}, true},
		"there, then not":           {[]op{ok(doSubmit, 1, 1, 2, id(5)), ok(doRead, 2, 3, 4, nil)}, false},
		"comment is lost":           {[]op{ok(doSubmit, 1, 1, 2, id(5)), ok(doComment, 1, 3, 4, text("v1")), ok(doRead, 2, 5, 6, sees(seen{id: 5}))}, false},
		"comment late":              {[]op{ok(doSubmit, 1, 1, 2, id(5)), ok(doComment, 1, 3, 9, text("v1")), ok(doRead, 2, 5, 6, sees(seen{id: 5, state: "PENDING"}))}, true},
		"back to an earlier phase":  {[]op{ok(doSubmit, 1, 1, 2, id(5)), ok(doRead, 2, 3, 4, sees(seen{id: 5, state: "RUNNING"})), ok(doRead, 2, 5, 6, sees(seen{id: 5, state: "PENDING"}))}, false},
		"cancelled, and runs again": {[]op{ok(doSubmit, 1, 1, 2, id(5)), ok(doCancel, 1, 3, 4, nil), ok(doRead, 2, 5, 6, sees(seen{id: 5, state: "RUNNING", run: 1}))}, false},
	} {
		var ops []porcupine.Operation
		for _, o := range c.ops {
			ops = append(ops, porcupine.Operation{ClientId: o.client, Input: o, Call: o.call, Return: o.ret})
		}
		if got := porcupine.CheckOperations(model.ToModel(), ops); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
