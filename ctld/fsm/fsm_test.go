package fsm_test

import (
	"crypto/sha256"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func entry(t fataler, at int64, cmds ...*logpb.Command) []byte {
	t.Helper()
	data, err := proto.Marshal(&logpb.Entry{Version: fsm.Version, TimeMs: at, Commands: cmds})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type fataler interface {
	Helper()
	Fatal(...any)
}

func submit(key string, spec *logpb.JobSpec) *logpb.Command {
	digest := sha256.Sum256([]byte(key))
	return &logpb.Command{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Key: key, Spec: spec, Digest: digest[:]}}}
}

func config() *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: &logpb.SetConfig{
		Cluster: "c", FirstJobId: 1, JobRequeue: true, MaxBatchRequeue: 5, ReturnToService: 1, RequeueDelayMs: 120_000,
		Nodes:      []*logpb.ConfigNode{{Name: "n1", Cpus: 4, Mem: 8 << 30, Gres: "gpu:a100:2"}, {Name: "n2", Cpus: 4, Mem: 8 << 30}},
		Partitions: []*logpb.ConfigPartition{{Name: "p", IsDefault: true, Nodes: []string{"n1", "n2"}, MaxTimeMs: -1}},
	}}}
}

func register(name, boot string) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_RegisterNode{RegisterNode: &logpb.RegisterNode{
		Node: name, BootId: boot, Cpus: 4, Mem: 8 << 30, Gres: "gpu:a100:2"}}}
}

func TestOneJobsLife(t *testing.T) {
	f := fsm.New(state.New())
	now := int64(1000)
	apply := func(cmds ...*logpb.Command) []fsm.Result {
		t.Helper()
		now += 1000
		r, err := f.ApplyEntry(uint64(now), entry(t, now, cmds...))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	apply(config(), register("n1", "b"), register("n2", "b"))
	if r := apply(submit("k", &logpb.JobSpec{Name: "a", Uid: 7})); r[0].JobID != 1 || r[0].Refused != nil {
		t.Fatalf("submit: %+v %+v", r[0], r[0].Refused)
	}
	v := f.Store().View()
	snap := v.Sched()
	if len(snap.Classes) != 1 || len(snap.Nodes) != 2 || !snap.Nodes[0].Up {
		t.Fatalf("snapshot %+v", snap)
	}
	start := &logpb.Command{Of: &logpb.Command_Plan{Plan: &logpb.Plan{Starts: []*logpb.Start{{
		JobId: 1, ArrayTask: -1, Partition: "p", TimeLimitMs: 60_000, Nodes: []*logpb.NodeAlloc{{Node: "n1", Cpus: 1, Mem: 1 << 20, CpuIds: []uint32{0}}},
	}}}}}
	if r := apply(start, start); r[0].Taken != 1 || r[1].Taken != 0 {
		t.Fatalf("taken %d, then %d", r[0].Taken, r[1].Taken)
	}
	apply(&logpb.Command{Of: &logpb.Command_Launched{Launched: &logpb.Launched{JobId: 1, Node: "n1", Ok: true}}})
	j := f.Store().View().Job(1)
	if j.State != job.Running || j.Flags != 0 || j.Launched != 1 {
		t.Fatalf("running: %+v", j)
	}
	apply(&logpb.Command{Of: &logpb.Command_Reported{Reported: &logpb.Reported{
		JobId: 1, Step: job.BatchStep, Node: "n1", ExitCode: 3, EndMs: now}}})
	j = f.Store().View().Job(1)
	if j.State != job.Failed || j.Flags != 0 || j.Exit.Code != 3 || j.Reason != job.ReasonNonZeroExit {
		t.Fatalf("ended: %+v", j)
	}
	if n := f.Store().View().Node("n1"); n.CPUsAlloc != 0 || len(n.Jobs) != 0 {
		t.Fatalf("node still holds %+v", n)
	}
}
