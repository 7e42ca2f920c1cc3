package replay

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/gsim/trace"
)

const traces = "../../../../shared/traces/"

// load reads a published trace, or skips.
func load(t *testing.T, file string) *trace.Trace {
	t.Helper()
	data, err := os.ReadFile(traces + file)
	if err != nil {
		t.Skipf("skipped: %s is not in ../shared/traces", file)
	}
	tr, err := trace.ReadSWF(strings.TrimSuffix(file, ".swf"), bytes.NewReader(data), 0)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func policy(t testing.TB, name, text string) *Policy {
	t.Helper()
	p, err := ReadPolicy(name, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// figure prints a measured value beside its target, as every "make sim-*" does.
func figure(t *testing.T, name string, value float64, unit, sense string, target float64) {
	t.Helper()
	word := "ok"
	if sense == "<=" && value > target || sense == ">=" && value < target {
		word = "short"
		t.Errorf("%s is %v %s, wanted %s %v", name, value, unit, sense, target)
	}
	fmt.Printf("figure %s %.4f %s (target %s %.4f) %s\n", name, value, unit, sense, target, word)
}

// shown prints a measured value without a target.
func shown(name string, value float64, unit string) {
	fmt.Printf("figure %s %.4f %s\n", name, value, unit)
}

const (
	easy     = "order=fcfs\npromises=0\nbackfill=priority\nevents=single\nexpired=free\n"
	easySJBF = "order=fcfs\npromises=0\nbackfill=shortest\nevents=single\nexpired=free\n"
)

// planners are the controller's and the reference. Both must give the published answers.
var planners = []struct {
	name string
	make func() Planner
}{{"planner", Controller}, {"reference", func() Planner { return reference{} }}}

// TestPublishedKTH: EASY and EASY-SJBF on KTH-SP2, with the users' estimates and with perfect ones, to the last digit.
func TestPublishedKTH(t *testing.T) {
	tr := load(t, "KTH-SP2-1996-2.swf")
	if len(tr.Jobs) != 28481 {
		t.Fatalf("%d jobs; the published filter leaves 28481", len(tr.Jobs))
	}
	for _, p := range planners {
		if p.name == "reference" && !*simTraces {
			continue // make sim
		}
		t.Run(p.name, func(t *testing.T) { publishedKTH(t, tr, p.name == "planner", p.make) })
	}
}

func publishedKTH(t *testing.T, tr *trace.Trace, figures bool, p func() Planner) {
	for _, c := range []struct {
		name, policy string
		want         float64
	}{
		{"easy-user", easy, 92.57653973362949},
		{"easy-sjbf-user", easySJBF, 69.4054005803034},
		{"easy-perfect", easy + "estimates=perfect", 71.7223851124418},
		{"easy-sjbf-perfect", easySJBF + "estimates=perfect", 49.8477189313406},
	} {
		r, err := Run(tr, policy(t, c.name, c.policy), p())
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		got := r.Summary.Slowdown
		if math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: average bounded slowdown %.13f, published %.13f", c.name, got, c.want)
		}
		if figures {
			figure(t, "kth-"+c.name+"-slowdown-off-published", math.Abs(got-c.want), "", "<=", 1e-9)
			fmt.Printf("  %.13f, published %.13f, longest wait %.1f h\n", got, c.want, r.Summary.LongestWait/3600)
		}
	}
}

// lublinStarts are the published sequences: 1,024 jobs each from these on.
var lublinStarts = []int{1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085}

// lublin is the mean of the published sequences.
func lublin(t *testing.T, tr *trace.Trace, pol *Policy, p func() Planner) (slowdown, longest float64, late int) {
	t.Helper()
	for _, first := range lublinStarts {
		w, err := tr.Window(first, 1024)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(w, pol, p())
		if err != nil {
			t.Fatalf("%s from %d: %v", pol.Name, first, err)
		}
		slowdown += r.Summary.Slowdown / float64(len(lublinStarts))
		longest = max(longest, r.Summary.LongestWait/3600)
		late += r.Summary.Late
	}
	return slowdown, longest, late
}

// TestPublishedLublin: RLScheduler's table for FCFS, SJF and F1, each with and without backfill, to two decimals.
func TestPublishedLublin(t *testing.T) {
	tr := load(t, "lublin_256.swf")
	for _, p := range planners {
		if p.name == "reference" && !*simTraces {
			continue // make sim
		}
		t.Run(p.name, func(t *testing.T) { publishedLublin(t, tr, p.name == "planner", p.make) })
	}
}

func publishedLublin(t *testing.T, tr *trace.Trace, figures bool, p func() Planner) {
	for _, c := range []struct {
		order, backfill string
		want            float64
	}{
		{"fcfs", "off", 7273.77}, {"sjf", "off", 277.35}, {"f1", "off", 258.37},
		{"fcfs", "submission", 235.82}, {"sjf", "submission", 73.31}, {"f1", "submission", 75.07},
	} {
		text := "order=" + c.order + "\nstarvation=UNLIMITED\npromises=0\nbackfill=" + c.backfill + "\nevents=single\nhead=sticky\nend=before\nspare=no\n"
		got, _, _ := lublin(t, tr, policy(t, c.order+"-"+c.backfill, text), p)
		if math.Abs(got-c.want) > 0.005 {
			t.Errorf("%s, backfill %s: %.4f, published %.2f", c.order, c.backfill, got, c.want)
		}
		if figures {
			figure(t, "lublin1-"+c.order+"-backfill-"+c.backfill+"-off-published", math.Abs(got-c.want), "", "<=", 0.005)
		}
	}
}
