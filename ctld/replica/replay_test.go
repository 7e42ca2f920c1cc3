package replica

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
)

var replayMiB = flag.Int("replay", 0, "MiB of log that TestReplay writes and replays; 0 skips it")

// TestReplay measures what starting on a log without a snapshot costs: opening, and applying all of it.
func TestReplay(t *testing.T) {
	if *replayMiB == 0 {
		t.Skip("needs -replay MIB")
	}
	p := &product{t: t, dirs: []string{filepath.Join(t.TempDir(), "r")}, snapshotBytes: 1 << 40}
	r := p.open()
	must(t, r, configCommand())
	script := []byte("#!/bin/sh\n" + strings.Repeat("echo a line of a script of the usual length\n", 8))
	jobs := 0
	for size := 0; size < *replayMiB<<20; {
		var cmds []*logpb.Command
		for range MaxEntryCommands {
			c := jobCommand(fmt.Sprint("key of a job ", jobs))
			spec := c.GetSubmit().Spec
			spec.Name, spec.Script, spec.SubmitLine, spec.WorkDir = fmt.Sprint("job-", jobs), script, "gsub -N 1 job.sh", "/home/user/project"
			cmds = append(cmds, c)
			jobs++
		}
		first, more, err := r.batch.encode(cmds)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range append(more, first) {
			size += len(p.fields)
		}
		must(t, r, cmds...)
	}
	want := r.View().Index()
	p.close()
	begin := time.Now()
	r = p.open()
	opened := time.Since(begin)
	defer p.close()
	t.Logf("%d MiB of log, %d jobs: open and all of it applied in %v (index %d of %d)", *replayMiB, jobs, opened, r.View().Index(), want)
	if r.View().Index() < want {
		t.Error("a leader without all of its log")
	}
}
