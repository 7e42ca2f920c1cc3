package server

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// BenchmarkSubmission is what a submission costs before and after the log: the request checked,
// and written for it.
func BenchmarkSubmission(b *testing.B) {
	f := newFixture(b, "")
	ctx := f.as(ann)
	c, _ := authn.FromContext(ctx)
	view := f.log.View()
	req := &ctldpb.SubmitRequest{Key: "0123456789abcdef-00000001", Spec: &ctldpb.JobSpec{
		Name: "train", WorkDir: "/home/ann/project", StdOut: "logs/%x-%j.out", Command: "/home/ann/project/train.sh",
		SubmitLine: "sbatch --ntasks=2 --mem=1G -t 0:30:00 train.sh", SubmitHost: "login1",
		Script: []byte("#!/bin/bash\n#SBATCH --ntasks=2\nmodule load cuda\nsrun python train.py --epochs 10\n"),
		Ntasks: 2, MemPerNode: 1 << 30, TimeLimitMs: 1800000, Umask: 0o22, Export: "ALL",
	}}
	var text []byte
	b.ReportAllocs()
	for b.Loop() {
		d := newDraft()
		if ref, err := f.srv.submission(ctx, view, c, req, d); err != nil || ref != nil {
			b.Fatal(ref, err)
		}
		var err error
		if text, err = fsm.AppendCommand(text[:0], &d.cmd); err != nil {
			b.Fatal(err)
		}
		d.release()
	}
}
