package fsm_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// pairOf applies entries to a machine that has the whole log and to one that is restored before the
// last of them, and wants equal states.
func pairOf(t *testing.T, entries ...[]*logpb.Command) *fsm.FSM {
	t.Helper()
	whole, cut := fsm.New(state.New()), fsm.New(state.New())
	for i, cmds := range entries {
		if i == len(entries)-1 {
			if err := cut.Restore(bytes.NewReader(snapshotOf(t, whole))); err != nil {
				t.Fatal(err)
			}
		}
		data := entry(t, int64(i+1)*1000, cmds...)
		for _, f := range []*fsm.FSM{whole, cut}[:1+i/(len(entries)-1)] {
			if _, err := f.ApplyEntry(uint64(i+1), data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if stateOf(t, whole) != stateOf(t, cut) {
		t.Fatalf("a restored replica differs:\n%s", firstDifference(whole, cut))
	}
	return whole
}

// TestRemovedNodeWithOldDevices: a node whose list of devices waits for those in use, and that then leaves
// the configuration, is judged alike by a replica that has the whole log and by one from a snapshot.
func TestRemovedNodeWithOldDevices(t *testing.T) {
	other, without := config(), config()
	other.GetSetConfig().Nodes[0].Gres = "gpu:h100:1,gpu:a100:2"
	s := without.GetSetConfig()
	s.Nodes, s.Partitions[0].Nodes = s.Nodes[1:], []string{"n2"}
	start := &logpb.Command{Of: &logpb.Command_Plan{Plan: &logpb.Plan{Starts: []*logpb.Start{{JobId: 1, ArrayTask: -1, Partition: "p", Nodes: []*logpb.NodeAlloc{{
		Node: "n1", Cpus: 1, Gres: []*logpb.GresAlloc{{Name: "gpu", Type: "a100", Index: []uint32{1}, Count: 1}}}}}}}}}
	short := register("n1", "b")
	short.GetRegisterNode().Gres = "gpu:a100:1"
	short.GetRegisterNode().HeldJob, short.GetRegisterNode().HeldRun = []uint32{1}, []uint32{0}
	f := pairOf(t, []*logpb.Command{config(), register("n1", "b"), register("n2", "b"), submit("", &logpb.JobSpec{Gres: "gpu:1"}), start},
		[]*logpb.Command{other}, []*logpb.Command{without}, []*logpb.Command{short})
	if n := f.View().Node("n1"); n == nil || !n.Removed || len(n.GresUsed) == 0 {
		t.Fatalf("the node is not what the test wants: %+v", n)
	}
}

// TestNodesOfTooManyCPUs: a number of CPUs is the length of a table, and may not be any.
func TestNodesOfTooManyCPUs(t *testing.T) {
	f := busy(t)
	large := config()
	large.GetSetConfig().Nodes[1].Cpus = state.MaxNodeCPUs + 1
	r, err := f.ApplyEntry(99, entry(t, 1, large))
	if err != nil || r[0].Refused == nil || !strings.Contains(r[0].Refused.Why, "MaxNodeCPUs=1048576") {
		t.Errorf("%+v, %v", r, err)
	}
	list := records(snapshotOf(t, f))
	var data []byte
	for _, m := range list {
		if n := m.GetNode(); n != nil && n.Config.Name == "n2" {
			n.Config.Cpus = 4_000_000_000
		}
		body, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		data = append(binary.AppendUvarint(data, uint64(len(body))), body...)
	}
	if err := f.Restore(bytes.NewReader(reseal(data))); !errors.Is(err, fsm.ErrCorrupt) || !strings.Contains(err.Error(), "MaxNodeCPUs=1048576") {
		t.Errorf("%v", err)
	}
	large.GetSetConfig().Nodes[1].Cpus--
	if r, err := f.ApplyEntry(100, entry(t, 1, large)); err != nil || r[0].Refused != nil {
		t.Errorf("at the limit: %+v, %v", r, err)
	}
}
