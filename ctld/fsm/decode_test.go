package fsm_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
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
	newer, err := proto.Marshal(&logpb.Entry{Version: 4})
	if err != nil {
		t.Fatal(err)
	}
	many := make([]*logpb.Command, fsm.MaxEntryCommands+1)
	for i := range many {
		many[i] = &logpb.Command{Of: &logpb.Command_Noop{Noop: &logpb.Noop{}}}
	}
	good := entry(t, 5, submit("k", &logpb.JobSpec{}))
	raise := entry(t, 5, &logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: 4}}})
	for _, c := range []struct {
		name string
		data []byte
		want error
		text string
	}{
		{"bytes that are no message", []byte{0xff, 0xff}, fsm.ErrCorrupt, "log entry 99"},
		{"a newer version", newer, fsm.ErrVersion, "log entry 99 has version 4, this program reads up to 3"},
		{"an unknown command", unknown, fsm.ErrVersion, "log entry 99 of version 0, command 1 of 1 is not known to version 3"},
		{"an unknown command behind a known one", append(bytes.Clone(good), unknown...), fsm.ErrVersion, "of version 3, command 2 of 2 is not known to version 3"},
		{"too many commands", entry(t, 5, many...), fsm.ErrCorrupt, "MaxEntryCommands=256"},
		{"a level that is not known", raise, fsm.ErrVersion, "log entry 99, command 1 of 1 raises the feature level to 4, this program knows up to 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := busy(t)
			before, err := fsm.Hash(f.View())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.ApplyEntry(99, c.data); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("error %v, want %v with %q", err, c.want, c.text)
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

// TestSnapshotsOfNewerVersions: a snapshot with another version, or with a record that nobody knows
// here, halts the replica and says which version wrote it.
func TestSnapshotsOfNewerVersions(t *testing.T) {
	write := func(version uint32, more ...[]byte) []byte {
		header := &logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Header{Header: &logpb.SnapshotHeader{Version: version, NextJobId: 1}}}
		conf := &logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Config{Config: &logpb.SetConfig{}}}
		var out []byte
		for _, r := range []proto.Message{header, conf} {
			body, err := proto.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			out = append(binary.AppendUvarint(out, uint64(len(body))), body...)
		}
		for _, body := range more {
			out = append(binary.AppendUvarint(out, uint64(len(body))), body...)
		}
		return reseal(out)
	}
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 900, protowire.BytesType), []byte("x"))
	for name, c := range map[string]struct {
		data []byte
		text string
	}{
		"a newer version":   {write(4), "snapshot of version 4, this program reads up to 3"},
		"an unknown record": {write(2, unknown), "snapshot of version 2, record 3 is not known to version 3"},
	} {
		f := busy(t)
		before := stateOf(t, f)
		if err := f.Restore(bytes.NewReader(c.data)); !errors.Is(err, fsm.ErrVersion) || errors.Is(err, fsm.ErrCorrupt) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		if stateOf(t, f) != before {
			t.Errorf("%s: it did something", name)
		}
	}
	for version := range uint32(3) {
		f := fsm.New(state.New())
		if err := f.Restore(bytes.NewReader(write(version))); err != nil || f.View().Feature() != max(1, version) {
			t.Errorf("version %d: level %d, %v", version, f.View().Feature(), err)
		}
	}
}

// TestLevels: a state is of the first level until a command raises it, and its snapshots say so.
func TestLevels(t *testing.T) {
	f := busy(t)
	level := func() uint32 { return records(snapshotOf(t, f))[0].GetHeader().Version }
	apply := func(cmds ...*logpb.Command) []fsm.Result {
		t.Helper()
		r, err := f.ApplyEntry(f.View().Index()+1, entryOf(t, f.View().Feature(), 60_000, cmds))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	lease := config()
	lease.GetSetConfig().Partitions[0].JobLeaseMs = 5000
	update := &logpb.Command{Of: &logpb.Command_PartitionUpdate{PartitionUpdate: &logpb.PartitionUpdate{Name: "p", Set: map[string]string{"JobLease": "7"}, Caller: &logpb.Caller{Operator: true}}}}
	if r := apply(lease, update); r[0].Refused != nil || r[1].Refused == nil || f.View().Partition("p").JobLease != 0 {
		t.Errorf("at level 1 a partition has no lease of its own, since a replica of the first release has none: %+v, %+v", r, f.View().Partition("p"))
	}
	if f.View().Feature() != 1 || level() != 1 {
		t.Errorf("level %d, in the snapshot %d", f.View().Feature(), level())
	}
	raise := func(n uint32) *logpb.Command {
		return &logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: n}}}
	}
	if apply(raise(2)); f.View().Feature() != 2 || level() != 2 {
		t.Errorf("level %d, in the snapshot %d", f.View().Feature(), level())
	}
	if apply(raise(1), raise(0)); f.View().Feature() != 2 {
		t.Errorf("the level fell to %d", f.View().Feature())
	}
	if r := apply(lease, update); r[1].Refused != nil || f.View().Partition("p").JobLease != 7000 {
		t.Errorf("%+v, %+v", r[1].Refused, f.View().Partition("p"))
	}
	sum := make([]byte, 32)
	sum[0] = 9
	before := f.View().Header()
	r := apply(&logpb.Command{Of: &logpb.Command_HashMark{HashMark: &logpb.HashMark{}}},
		&logpb.Command{Of: &logpb.Command_HashCheck{HashCheck: &logpb.HashCheck{Index: 5, Sha256: sum, Leader: "c1"}}},
		&logpb.Command{Of: &logpb.Command_HashCheck{HashCheck: &logpb.HashCheck{Index: 5, Sha256: sum[1:], Leader: "c1"}}})
	if !r[0].Mark || r[0].Check != nil || r[1].Mark || r[1].Check == nil || *r[1].Check != (fsm.HashCheck{Index: 5, SHA256: [32]byte(sum), Leader: "c1"}) || r[2].Check != nil || r[2].Refused == nil {
		t.Errorf("results %+v", r)
	}
	before.Index, before.Version = before.Index+1, before.Version+1
	if h := f.View().Header(); h != before {
		t.Errorf("the entry counts, and nothing else changes: %+v, want %+v", h, before)
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
