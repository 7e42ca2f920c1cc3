package replay

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/ctld/gsim/trace"
)

// drawTrace is a small workload on a machine of 8 processors.
func drawTrace(t *rapid.T) *trace.Trace {
	tr := &trace.Trace{Name: "drawn", Nodes: []trace.Node{{Name: "machine", CPUs: 8, Mem: 8 << 30}}}
	at := int64(0)
	for i := range rapid.IntRange(1, 25).Draw(t, "jobs") {
		at += 1000 * rapid.Int64Range(0, 40).Draw(t, "gap")
		limit := 1000 * rapid.Int64Range(1, 100).Draw(t, "limit")
		tr.Jobs = append(tr.Jobs, trace.Job{ID: uint32(i + 1), Submit: at, Limit: limit, Run: 1000 * rapid.Int64Range(1, limit/1000).Draw(t, "run"),
			Tasks: rapid.Uint32Range(1, 8).Draw(t, "tasks"), CPUs: 1, User: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "user")})
	}
	return tr
}

func drawPolicy(t *rapid.T, modes ...string) *Policy {
	text := "order=" + rapid.SampledFrom([]string{"fcfs", "expansion", "sjf", "area", "wfp3"}).Draw(t, "order") +
		"\nbackfill=" + rapid.SampledFrom([]string{"priority", "shortest"}).Draw(t, "backfill") +
		"\nstarvation=" + rapid.SampledFrom([]string{"1", "20:00:00"}).Draw(t, "starvation") +
		"\nestimates=" + rapid.SampledFrom([]string{"user", "corrected", "perfect"}).Draw(t, "estimates") +
		"\nevents=" + rapid.SampledFrom([]string{"batched", "single"}).Draw(t, "events") +
		"\npromises=" + rapid.SampledFrom(modes).Draw(t, "promises") + "\n"
	p, err := ReadPolicy("drawn", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestOpenAsReference: in open mode the planner starts every job when the textbook does.
func TestOpenAsReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr, pol := drawTrace(t), drawPolicy(t, "0")
		got, err := Run(tr, pol, Controller())
		if err != nil {
			t.Fatal(err)
		}
		want, err := Run(tr, pol, reference{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Outcomes {
			if got.Outcomes[i].Start != want.Outcomes[i].Start {
				t.Fatalf("job %d starts at %d, by the textbook at %d", i+1, got.Outcomes[i].Start, want.Outcomes[i].Start)
			}
		}
	})
}

// TestPromisesHold: whatever comes, no job starts after the first start that it was promised.
func TestPromisesHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, err := Run(drawTrace(t), drawPolicy(t, "1", "3", "100"), Controller())
		if err != nil {
			t.Fatal(err)
		}
		if r.Summary.Late > 0 {
			t.Fatalf("%d promises were broken", r.Summary.Late)
		}
	})
}

// TestSameBytes: the same trace and policy give the same report.
func TestSameBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr, pol := drawTrace(t), drawPolicy(t, "0", "5")
		var text [2]bytes.Buffer
		for i := range text {
			r, err := Run(tr, pol, Controller())
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Summary.Text(&text[i]); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(text[0].Bytes(), text[1].Bytes()) {
			t.Fatalf("%s\n%s", &text[0], &text[1])
		}
	})
}

// TestHandReplay is a replay that can be followed on paper: 4 processors; job 2 waits for all of them, job 3 is short
// enough to go ahead, job 4 is not.
func TestHandReplay(t *testing.T) {
	tr := &trace.Trace{Name: "hand", Nodes: []trace.Node{{Name: "machine", CPUs: 4, Mem: 4 << 30}}, Jobs: []trace.Job{
		{ID: 1, Submit: 0, Run: 100000, Limit: 100000, Tasks: 2, CPUs: 1},
		{ID: 2, Submit: 1000, Run: 50000, Limit: 50000, Tasks: 4, CPUs: 1},
		{ID: 3, Submit: 2000, Run: 98000, Limit: 98000, Tasks: 1, CPUs: 1},
		{ID: 4, Submit: 2000, Run: 10000, Limit: 99000, Tasks: 1, CPUs: 1},
	}}
	r, err := Run(tr, policy(t, "hand", "order=fcfs\nbackfill=priority\n"), Controller())
	if err != nil {
		t.Fatal(err)
	}
	var starts []int64
	for _, o := range r.Outcomes {
		starts = append(starts, o.Start/1000)
	}
	if want := []int64{0, 100, 2, 150}; !slices.Equal(starts, want) {
		t.Errorf("starts %v, want %v", starts, want)
	}
	s := r.Summary
	if want := (1 + 149.0/50 + 1 + 158.0/10) / 4; s.Slowdown != want || s.LongestWait != 148 || s.MeanWait != (99+148)/4.0 || s.Backfilled != 1 {
		t.Errorf("%+v, want a slowdown of %v", s, want)
	}
	if want := (200 + 200 + 98 + 10) / (4 * 160.0); s.Utilisation != want {
		t.Errorf("utilisation %v, want %v", s.Utilisation, want)
	}
}

func TestReadPolicyErrors(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"order", "p:1: \"order\" is not KEY=VALUE"},
		{"# x\nspeed=9", "p:2: \"speed\" is none of"},
		{"order=fcfs\norder=sjf", "p:2: order is set twice"},
		{"order=magic", `"magic"`},
		{"events=all", `"all" is neither batched nor single`},
		{"promises=-1", "promises=-1"},
		{"PriorityWeightAge=x", `"x" is no weight`},
	} {
		if _, err := ReadPolicy("p", strings.NewReader(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.in, err, c.want)
		}
	}
}

func FuzzReadPolicy(f *testing.F) {
	f.Add("order=fcfs\npromises=3 # x\n")
	f.Fuzz(func(t *testing.T, in string) {
		if p, err := ReadPolicy("p", strings.NewReader(in)); err == nil && p.Priority == nil {
			t.Fatal("a policy without an order")
		}
	})
}
