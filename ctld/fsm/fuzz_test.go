package fsm_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// allocated is how many bytes f asks for.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func FuzzApplyEntry(f *testing.F) {
	f.Add(entry(f, 1, config(), register("n1", "b"), typical(1)))
	f.Add(entry(f, 1, submit("k", &logpb.JobSpec{Array: "0-3", Dependency: "singleton"})))
	f.Add(entry(f, 1, &logpb.Command{Of: &logpb.Command_Plan{Plan: &logpb.Plan{Starts: []*logpb.Start{{JobId: 2, ArrayTask: -1, Partition: "p",
		Nodes: []*logpb.NodeAlloc{{Node: "n2", Cpus: 1}}}}}}}))
	f.Add(entry(f, 1, &logpb.Command{Of: &logpb.Command_UpdateJob{UpdateJob: &logpb.UpdateJob{Job: &logpb.JobRef{JobId: 2},
		Set: map[string]string{"TimeLimit": "+1"}, Caller: &logpb.Caller{Operator: true}}}}))
	f.Add(entry(f, 1, &logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: []*logpb.JobRef{{JobId: 3, HasTasks: true, Tasks: []uint32{0}}}}}}))
	f.Add([]byte{0x1a, 0x00})
	for _, c := range laterSamples() {
		f.Add(entry(f, 1, c))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := busy(t)
		var err error
		if used := allocated(func() { _, err = m.ApplyEntry(100, data) }); used > 8<<20+1000*uint64(len(data)) {
			t.Fatalf("%d bytes of memory for an entry of %d", used, len(data))
		}
		if err != nil {
			return
		}
		if err := m.Store().Check(); err != nil {
			t.Fatal(err)
		}
		again := fsm.New(state.New())
		if err := again.Restore(bytes.NewReader(snapshotOf(t, m))); err != nil {
			t.Fatal(err)
		}
		a, _ := fsm.Hash(m.View())
		if b, _ := fsm.Hash(again.View()); a != b {
			t.Fatal("a restored state differs")
		}
	})
}

func FuzzRestore(f *testing.F) {
	whole := snapshotOf(f, busy(f))
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte{})
	grown := busy(f)
	if _, err := grown.ApplyEntry(100, entry(f, 1, laterSamples()...)); err != nil {
		f.Fatal(err)
	}
	f.Add(snapshotOf(f, grown))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := fsm.New(state.New())
		var err error
		if used := allocated(func() {
			if err = m.Restore(bytes.NewReader(reseal(data))); err == nil {
				m.View().Sched()
			}
		}); used > 64<<20+1000*uint64(len(data)) {
			t.Fatalf("%d bytes of memory for a snapshot of %d", used, len(data))
		}
		if err != nil {
			return
		}
		if err := m.Store().Check(); err != nil {
			t.Fatal(err)
		}
		for j := range m.View().Jobs() {
			m.View().Reason(j)
		}
		if _, err := m.ApplyEntry(m.View().Index()+1, entry(t, 1, config(), register("n1", "c"), typical(9))); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzMembers fills the commands for controllers and join tokens with anything.
func FuzzMembers(f *testing.F) {
	f.Add("t0", []byte("secret"), "node", "n[1-3]", "n2", int64(60_000), uint32(2), uint32(6817), true, uint64(9), "c1")
	f.Add("", bytes.Repeat([]byte{1}, 32), "login", "login[1-9999],x", "login9", int64(-1), uint32(1<<31), uint32(70000), false, uint64(0), "")
	f.Add("t1", bytes.Repeat([]byte{1}, 32), "node", "a[1-4097]", "a1", int64(1)<<62, uint32(0), uint32(1), true, uint64(1)<<63, "c")
	f.Fuzz(func(t *testing.T, id string, secret []byte, role, names, name string, at int64, uses, port uint32, operator bool, index uint64, leader string) {
		m := busy(t)
		if len(secret) > 0 {
			secret = append(bytes.Repeat(secret[:1], 31), secret[0])
		}
		who := &logpb.Caller{Uid: uses, User: leader, Operator: operator}
		create := &logpb.CreateJoinToken{Id: id, SecretSha256: secret, Role: role, Names: names, ExpiresMs: at, Uses: uses, Caller: who}
		use := &logpb.UseJoinToken{Id: id, SecretSha256: secret, Role: role, Name: name}
		cmds := []*logpb.Command{
			{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: uses % 4}}},
			{Of: &logpb.Command_SetController{SetController: &logpb.SetController{Name: name, Address: leader, Port: port, RaftPort: port, UserPort: port, Remove: operator && index%4 == 0}}},
			{Of: &logpb.Command_CreateJoinToken{CreateJoinToken: create}},
			{Of: &logpb.Command_UseJoinToken{UseJoinToken: use}},
			{Of: &logpb.Command_UseJoinToken{UseJoinToken: use}},
			{Of: &logpb.Command_RevokeJoinToken{RevokeJoinToken: &logpb.RevokeJoinToken{Id: id, Caller: who}}},
			{Of: &logpb.Command_UseJoinToken{UseJoinToken: use}},
			{Of: &logpb.Command_HashCheck{HashCheck: &logpb.HashCheck{Index: index, Sha256: secret, Leader: leader}}},
		}
		for _, c := range cmds {
			data, err := fsm.AppendCommand(nil, c)
			if err != nil {
				return // no text
			}
			if len(data) > 1<<20 {
				return
			}
		}
		var results []fsm.Result
		data := entry(t, 1000, cmds...)
		if used := allocated(func() {
			var err error
			if results, err = m.ApplyEntry(100, data); err != nil {
				t.Fatal(err)
			}
		}); used > 8<<20+1000*uint64(len(data)) {
			t.Fatalf("%d bytes of memory for an entry of %d", used, len(data))
		}
		if results[4].Refused == nil || results[6].Refused == nil {
			t.Fatalf("a token was used twice by one name, or after it was revoked: %+v", results)
		}
		if results[2].Refused != nil && results[3].Refused == nil {
			t.Fatalf("a token that was not made was used: %+v", results)
		}
		if err := m.Store().Check(); err != nil {
			t.Fatal(err)
		}
		again := fsm.New(state.New())
		if err := again.Restore(bytes.NewReader(snapshotOf(t, m))); err != nil {
			t.Fatal(err)
		}
		if a, b := stateOf(t, m), stateOf(t, again); a != b {
			t.Fatal("a restored state differs")
		}
	})
}
