package replay

import (
	"flag"
	"fmt"
	"testing"
)

var simTraces = flag.Bool("sim-traces", false, "replay the published traces under the policies with targets: some minutes")

// The policies whose figures are shown: nothing in them is of one trace.
const (
	open      = "order=expansion\npromises=0\nbackfill=shortest\n"
	promise   = "order=expansion\npromises=100\nbackfill=shortest\n"
	corrected = open + "estimates=corrected\n"
	usual     = "" // what a controller does that nobody has told anything
)

// TestTargets: expansion on KTH with the users' estimates, open and with 100 promises, at its bars; the default policy
// and the corrected estimates beside them; all of it on Lublin-1 too.
func TestTargets(t *testing.T) {
	if !*simTraces {
		t.Skip("skipped: make sim runs it (-sim-traces)")
	}
	kth, lub := load(t, "KTH-SP2-1996-2.swf"), load(t, "lublin_256.swf")
	for _, p := range planners {
		t.Run(p.name, func(t *testing.T) {
			for _, c := range []struct {
				name, policy      string
				slowdown, longest float64 // 0 = shown, not asked for
			}{
				{"expansion-open", open, 55, 91},
				{"expansion-promises", promise, 71, 76},
				{"expansion-open-corrected", corrected, 50, 91},
				{"default", usual, 0, 0},
				{"default-promises", "promises=100\n", 0, 0},
				{"fcfs-open", "order=fcfs\nbackfill=priority\n", 0, 0},
			} {
				pol := policy(t, c.name, c.policy)
				r, err := Run(kth, pol, p.make())
				if err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				s := &r.Summary
				if s.Late > 0 && c.policy != usual {
					t.Errorf("%s: %d promises were broken", c.name, s.Late)
				}
				slowdown, longest, late := lublin(t, lub, pol, p.make)
				if late > 0 {
					t.Errorf("%s on lublin-1: %d promises were broken", c.name, late)
				}
				if p.name != "planner" {
					t.Logf("%s: KTH %.2f, %.1f h; Lublin-1 %.2f, %.1f h", c.name, s.Slowdown, s.LongestWait/3600, slowdown, longest)
					continue
				}
				if c.slowdown > 0 {
					figure(t, "kth-"+c.name+"-slowdown", s.Slowdown, "", "<=", c.slowdown)
					figure(t, "kth-"+c.name+"-longest-wait", s.LongestWait/3600, "h", "<=", c.longest)
				} else {
					shown("kth-"+c.name+"-slowdown", s.Slowdown, "")
					shown("kth-"+c.name+"-longest-wait", s.LongestWait/3600, "h")
				}
				shown("lublin1-"+c.name+"-slowdown", slowdown, "")
				shown("lublin1-"+c.name+"-longest-wait", longest, "h")
				fmt.Printf("  %s: KTH mean wait %.0f s, CPUs in use %.1f %%, %d backfilled, %d promised\n", c.name, s.MeanWait, 100*s.Utilisation, s.Backfilled, s.Promised)
			}
		})
	}
}
