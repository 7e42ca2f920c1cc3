package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// leave writes a run's output, as old as said.
func (h *host) leave(k launch.Key, stderr bool, age time.Duration) string {
	h.t.Helper()
	path := launch.OutputFile(h.spool, k, stderr)
	if err := os.WriteFile(path, []byte("text"), 0o640); err != nil {
		h.t.Fatal(err)
	}
	when := time.Now().Add(-age)
	if err := os.Chtimes(path, when, when); err != nil {
		h.t.Fatal(err)
	}
	return path
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestOldOutputGoes(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		living := batch(9)
		s.launch(living)
		s.result()
		old, both, young := h.leave(batch(7), false, MaxOutputAge), h.leave(batch(8), false, 2*MaxOutputAge), h.leave(batch(5), false, MaxOutputAge-time.Hour)
		fresh, kept := h.leave(batch(8), true, 0), h.leave(living, false, 2*MaxOutputAge)
		other := filepath.Join(h.spool, launch.OutputDir, "notes.txt")
		if err := os.WriteFile(other, nil, 0o640); err != nil {
			t.Fatal(err)
		}
		time.Sleep(retainEvery + time.Second)
		for path, want := range map[string]bool{old: false, young: true, both: true, fresh: true, kept: true, other: true} {
			if there(path) != want {
				t.Errorf("%s: there %v, want %v", filepath.Base(path), !want, want)
			}
		}
		h.step(living).end(shepherd.Record{})
		s.ack(s.report())
		time.Sleep(retainEvery + time.Second)
		if there(kept) {
			t.Error("the output of a run that has ended stays for ever")
		}
	})
}

func TestRetire(t *testing.T) {
	now := time.Unix(1e9, 0)
	many := func(n int, bytes int64) (list []output) {
		for i := range n {
			list = append(list, output{key: batch(uint32(n - i)), bytes: bytes, last: now.Add(-time.Duration(i) * time.Second)})
		}
		return list
	}
	for _, tc := range []struct {
		name string
		list []output
		want int
	}{
		{"bytes at the limit", many(4, MaxOutputBytes/4), 0},
		{"bytes over the limit", many(5, MaxOutputBytes/4), 1},
		{"one that is too large alone", many(1, MaxOutputBytes+1), 1},
		{"runs at the limit", many(MaxOutputs, 1), 0},
		{"runs at limit + 1", many(MaxOutputs+1, 1), 1},
		{"age at the limit", []output{{last: now.Add(-MaxOutputAge)}}, 0},
		{"age over the limit", []output{{last: now.Add(-MaxOutputAge - 1)}, {last: now}}, 1},
		{"no more than a round's worth", many(maxRetire+10, MaxOutputBytes), maxRetire},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := &Agent{}
			got := a.retire(tc.list, now)
			if len(got) != tc.want {
				t.Fatalf("%d go, want %d", len(got), tc.want)
			}
			for i := 1; i < len(got); i++ {
				if got[i].last.Before(got[i-1].last) {
					t.Error("not the oldest first")
				}
			}
		})
	}
}

func TestOutputKey(t *testing.T) {
	for name, ok := range map[string]bool{"7.0.4294967291.out": true, "7.0.0.err": true, "7.0.0": false, "7.0.out": false, "07.0.0.out": false, ".out": false, "x": false} {
		if _, got := outputKey(name); got != ok {
			t.Errorf("%q: %v", name, got)
		}
	}
}
