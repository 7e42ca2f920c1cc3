package fsm_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// busy is a machine that holds one of most things.
func busy(t testing.TB) *fsm.FSM {
	t.Helper()
	f := fsm.New(state.New())
	start := func(id uint32, task int64, node string) *logpb.Start {
		return &logpb.Start{JobId: id, ArrayTask: task, Partition: "p", TimeLimitMs: 60_000, Nodes: []*logpb.NodeAlloc{{Node: node, Cpus: 1, Mem: 1 << 20,
			CpuIds: []uint32{1}, Gres: []*logpb.GresAlloc{{Name: "gpu", Type: "a100", Index: []uint32{1}, Count: 1}}}}}
	}
	for i, cmds := range [][]*logpb.Command{
		{config(), register("n1", "b"), register("n2", "b")},
		{typical(0), typical(1), submit("a", &logpb.JobSpec{Array: "0-9:3%2", Rare: []string{"mail-type", "ALL"}}), submit("b", &logpb.JobSpec{Dependency: "afterok:1"})},
		{{Of: &logpb.Command_Plan{Plan: &logpb.Plan{Starts: []*logpb.Start{start(1, -1, "n1")}, Classes: []*logpb.ClassReason{{Class: "x"}}}}}},
		{{Of: &logpb.Command_PutBlob{PutBlob: &logpb.PutBlob{Hash: make([]byte, 32), Total: 5, Data: []byte("ab")}}}},
		{{Of: &logpb.Command_PartitionUpdate{PartitionUpdate: &logpb.PartitionUpdate{Name: "p", Set: map[string]string{"MaxTime": "60", "State": "UP"}, Caller: &logpb.Caller{Operator: true}}}}},
		{{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: []*logpb.JobRef{{JobId: 3, HasTasks: true, Tasks: []uint32{3}}, {JobId: 2}}, Caller: &logpb.Caller{Operator: true}}}}},
		{{Of: &logpb.Command_Noop{Noop: &logpb.Noop{}}}},
	} {
		if _, err := f.ApplyEntry(uint64(i+1), entry(t, int64(i)*1000, cmds...)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func snapshotOf(t testing.TB, f *fsm.FSM) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := f.Snapshot().Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestEntriesThatStopTheReplica(t *testing.T) {
	unknown := protowire.AppendTag(nil, 3, protowire.BytesType)
	unknown = protowire.AppendBytes(unknown, protowire.AppendBytes(protowire.AppendTag(nil, 900, protowire.BytesType), []byte("x")))
	newer, err := proto.Marshal(&logpb.Entry{Version: fsm.Version + 1})
	if err != nil {
		t.Fatal(err)
	}
	many := make([]*logpb.Command, fsm.MaxEntryCommands+1)
	for i := range many {
		many[i] = &logpb.Command{Of: &logpb.Command_Noop{Noop: &logpb.Noop{}}}
	}
	good := entry(t, 5, submit("k", &logpb.JobSpec{}))
	for _, c := range []struct {
		name string
		data []byte
		want error
	}{
		{"bytes that are no message", []byte{0xff, 0xff}, fsm.ErrCorrupt},
		{"a newer version", newer, fsm.ErrVersion},
		{"an unknown command", unknown, fsm.ErrVersion},
		{"an unknown command behind a known one", append(bytes.Clone(good), unknown...), fsm.ErrVersion},
		{"too many commands", entry(t, 5, many...), fsm.ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := busy(t)
			before, err := fsm.Hash(f.View())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.ApplyEntry(99, c.data); !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if after, _ := fsm.Hash(f.View()); after != before {
				t.Error("something was applied")
			}
		})
	}
	if r, err := busy(t).ApplyEntry(99, entry(t, 5, many[1:]...)); err != nil || len(r) != fsm.MaxEntryCommands {
		t.Errorf("MaxEntryCommands: %d results, %v", len(r), err)
	}
}

func TestRestoreRefusesWhatIsNotWhole(t *testing.T) {
	whole := snapshotOf(t, busy(t))
	f := busy(t)
	before, _ := fsm.Hash(f.View())
	for cutAt := range whole {
		if err := f.Restore(bytes.NewReader(whole[:cutAt])); !errors.Is(err, fsm.ErrCorrupt) {
			t.Fatalf("cut at %d of %d: %v", cutAt, len(whole), err)
		}
	}
	for i := range whole {
		bad := bytes.Clone(whole)
		bad[i] ^= 0x10
		if err := f.Restore(bytes.NewReader(bad)); err == nil {
			t.Fatalf("a flipped bit in byte %d of %d was not seen", i, len(whole))
		}
	}
	if after, _ := fsm.Hash(f.View()); after != before {
		t.Error("a refused snapshot did something")
	}
	large := append(binary.AppendUvarint(nil, fsm.MaxRecord+1), 0)
	if err := f.Restore(bytes.NewReader(large)); !errors.Is(err, fsm.ErrCorrupt) || !bytes.Contains([]byte(err.Error()), []byte("MaxRecord=16777216")) {
		t.Errorf("a record over the limit: %v", err)
	}
	if err := f.Restore(bytes.NewReader(whole)); err != nil {
		t.Errorf("the whole one: %v", err)
	}
}

func TestSnapshotIsPinned(t *testing.T) {
	f := busy(t)
	pinned := f.Snapshot()
	want := snapshotOf(t, f)
	if _, err := f.ApplyEntry(50, entry(t, 50_000, submit("later", &logpb.JobSpec{}))); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := pinned.Write(&got); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("a later entry changed a pinned snapshot (%v)", err)
	}
	if pinned.Index() != 7 || f.View().Index() != 50 {
		t.Errorf("indexes %d and %d", pinned.Index(), f.View().Index())
	}
}

// TestSpecSurvivesTheLog sets every field of a specification, so that a field that is forgotten on
// the way shows.
func TestSpecSurvivesTheLog(t *testing.T) {
	var s job.Spec
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Interface().(type) {
		case string:
			f.SetString(v.Type().Field(i).Name)
		case bool:
			f.SetBool(true)
		case []string:
			f.Set(reflect.ValueOf([]string{"a", ""}))
		case []byte:
			f.SetBytes([]byte{1, byte(i)})
		case []uint32:
			f.Set(reflect.ValueOf([]uint32{7, uint32(i)}))
		case []job.Option:
			f.Set(reflect.ValueOf([]job.Option{{Name: "a", Value: "b"}, {Name: "c"}}))
		case int8:
			f.SetInt(-1)
		case int32, int64:
			f.SetInt(int64(-i - 1))
		case uint32:
			f.SetUint(uint64(i + 1))
		default:
			t.Fatalf("field %s has a type that this test does not set", v.Type().Field(i).Name)
		}
	}
	data, err := proto.Marshal(fsm.SpecToLog(&s))
	if err != nil {
		t.Fatal(err)
	}
	var m logpb.JobSpec
	if err := proto.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	if got := fsm.SpecFromLog(&m); !reflect.DeepEqual(got, &s) {
		t.Errorf("got  %+v\nwant %+v", got, &s)
	}
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
	f.Fuzz(func(t *testing.T, data []byte) {
		m := busy(t)
		if _, err := m.ApplyEntry(100, data); err != nil {
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
	f.Fuzz(func(t *testing.T, data []byte) {
		m := fsm.New(state.New())
		if err := m.Restore(bytes.NewReader(reseal(data))); err != nil {
			return
		}
		if err := m.Store().Check(); err != nil {
			t.Fatal(err)
		}
		m.View().Sched()
		for j := range m.View().Jobs() {
			m.View().Reason(j)
		}
		if _, err := m.ApplyEntry(m.View().Index()+1, entry(t, 1, config(), register("n1", "c"), typical(9))); err != nil {
			t.Fatal(err)
		}
	})
}
