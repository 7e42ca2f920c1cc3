package fsm_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// typical is a submission of about 512 bytes, as a batch script of few lines makes it.
func typical(i int) *logpb.Command {
	return submit(fmt.Sprintf("0123456789abcdef-%08d", i), &logpb.JobSpec{
		Name: fmt.Sprintf("train-%d", i%50), Partition: "p", WorkDir: "/home/alice/projects/net", StdOut: "out-%j.txt", Command: "/home/alice/projects/net/train.sh",
		SubmitLine: fmt.Sprintf("gsub train.sh --seed %d", i), SubmitHost: "login1", Args: []string{"--seed", fmt.Sprint(i)},
		Script: []byte("#!/bin/bash\n" + strings.Repeat("srun python train.py\n", 5)), MinNodes: 1, MaxNodes: 1, Ntasks: 1, CpusPerTask: 2,
		MemPerNode: 4 << 30, Gres: "gpu:1", TimeLimitMs: 3_600_000, Export: "ALL", Umask: 0o22,
		Uid: 1000 + uint32(i%20), Gid: 1000, Groups: []uint32{1000, 2000, 2001}, User: "alice", Group: "users", Home: "/home/alice", Shell: "/bin/bash",
	})
}

func batch(t fataler, from, n int) []byte {
	cmds := make([]*logpb.Command, n)
	for i := range cmds {
		cmds[i] = typical(from + i)
	}
	return entry(t, 5000, cmds...)
}

// configured is a machine at a feature level with a configuration.
func configured(t fataler, level uint32) *fsm.FSM {
	f := fsm.New(state.New())
	cmds := []*logpb.Command{config()}
	if level > 0 {
		cmds = append(cmds, &logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: level}}})
	}
	if _, err := f.ApplyEntry(1, entry(t, 1000, cmds...)); err != nil {
		t.Fatal(err)
	}
	return f
}

// benchLevels are the feature levels that are measured: that of the first release, and the scheduler's.
var benchLevels = []uint32{0, state.FeatureSched}

// BenchmarkApplySubmits applies entries of 256 submissions and asks for a view after each; ns/op is of one submission.
func BenchmarkApplySubmits(b *testing.B) {
	for _, level := range benchLevels {
		b.Run(fmt.Sprint("level=", level), func(b *testing.B) { benchSubmits(b, level) })
	}
}

func benchSubmits(b *testing.B, level uint32) {
	const size = 256
	f := configured(b, level)
	const prepared = 400
	entries := make([][]byte, prepared)
	for i := range entries {
		entries[i] = batch(b, i*size, size)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(entries[0]) / size))
	b.ResetTimer()
	for n := 0; n < b.N; n += size {
		i := n / size
		if i%prepared == 0 && i > 0 {
			b.StopTimer()
			f = configured(b, level)
			b.StartTimer()
		}
		if _, err := f.ApplyEntry(uint64(i+2), entries[i%prepared]); err != nil {
			b.Fatal(err)
		}
		f.View()
	}
}

// MaxPendingBytes is the target for the heap of one pending job beyond its script.
const maxPendingBytes = 2 << 10

func TestMemoryOfPendingJobs(t *testing.T) {
	for _, level := range benchLevels {
		t.Run(fmt.Sprint("level=", level), func(t *testing.T) { memoryOfPending(t, level) })
	}
}

func memoryOfPending(t *testing.T, level uint32) {
	const jobs, size = 100_000, 250
	f := configured(t, level)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	script := 0
	for i := 0; i < jobs; i += size {
		r, err := f.ApplyEntry(uint64(i+2), batch(t, i, size))
		if err != nil {
			t.Fatal(err)
		}
		if r[0].Refused != nil {
			t.Fatal(r[0].Refused)
		}
		f.View()
	}
	script = len(typical(0).GetSubmit().Spec.Script)
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := int(after.HeapAlloc-before.HeapAlloc)/jobs - script
	t.Logf("%d bytes of heap per pending job beyond its script of %d", each, script)
	if each > maxPendingBytes {
		t.Errorf("%d bytes of heap per pending job, the limit is %d", each, maxPendingBytes)
	}
	if _, pending, _ := f.View().Counts(); pending != jobs {
		t.Errorf("%d jobs wait, want %d", pending, jobs)
	}
}
