package fsm_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

var update = flag.Bool("update", false, "write the golden log and snapshot of the newest feature level again")

// golden is what a feature level had when it was released: a log with the hash of the state after
// each entry, and the snapshot after the entry that makes it hold most. The files of a level that was released never
// change. Before a release the newest level's may: go test -run Golden -update, and put in what it prints.
var golden = []struct {
	level         uint32
	log, snapshot string // SHA-256 of the files
	state         string // of the state after the log
	cut           int    // entries before the snapshot
}{
	{1, "5f62523c01a090cb4d50a40811535e806306b718167d4da182a4468feb5246ad", "f61d3c8011a6c7519053c66cd5ec9e21d00005c3457e09c2de4fc489cdd3a376",
		"43d9491e075097d1b83f529d2eecc7a86aa9bb67e0aa9b1d26fcd3b2aec3cc63", 419},
	{2, "2475cd21f4cd7f8475af63bd9f053bd382ec2f8ece51c47bf2f47b28e39e16d1", "4175a269ce293e05e6134897846621f8f545877d6b45aa3ab177c0df805ad0e0",
		"863078ffc50fd6c0ddb09a780f73740b1587585162e676492f69f76d7f9f70cb", 380},
	{3, "d60536820da4c1d36d8b3a72bde6cbef4f874b10ee88bb42fc0a85085f09f1fd", "81810ad7800719703069d7b9a4ed6415f13043c7ef990dece880e2af75ab4247",
		"1db34b762e25582cb65b9ab0d4e38eaf91570d219c0b2b275d43923dc48f7305", 876},
}

// goldenEntry is one entry of a golden log, and the first bytes of the hash of the state after it.
type goldenEntry struct {
	index uint64
	data  []byte
	hash  [goldenHash]byte
}

const (
	goldenHash    = 8
	goldenEntries = 1400
)

// makeGolden makes a log of the newest level, which begins at the first and rises to it: of a few
// hundred entries, with every command and every field that there is.
func makeGolden(t *testing.T) (list []goldenEntry, snapshot []byte, cut int) {
	for seed := range uint64(1000) {
		kept := map[string]bool{}
		list, snapshot, cut = tryGolden(t, rand.New(rand.NewPCG(uint64(fsm.Version), seed)), kept)
		l := lacks(t, list, kept)
		if len(l) == 0 {
			return list, snapshot, cut
		}
		t.Logf("seed %d lacks %v", seed, l)
	}
	t.Fatal("no seed gives a log with everything in it")
	return nil, nil, 0
}

func tryGolden(t *testing.T, rng *rand.Rand, kept map[string]bool) (list []goldenEntry, snapshot []byte, cut int) {
	g := &generator{t: t, draw: func(_ string, n int) int { return rng.IntN(n) }, a: fsm.New(state.New()), now: 1_790_000_000_000}
	later(g)
	index, most := uint64(2), 0
	for i := range goldenEntries {
		var cmds []*logpb.Command
		switch {
		case i == 0:
			cmds = []*logpb.Command{config(), register("n1", "b0"), register("n2", "b0")}
		case i%storyEvery < len(story):
			g.now += 1000
			cmds = story[i%storyEvery](g)
		case i%20 == 0:
			cmds = refresh(g)
		default:
			g.pass()
			cmds = g.commands()
		}
		e := goldenEntry{index: index, data: entryOf(t, levelOf(g), g.now, cmds)}
		if _, err := g.a.ApplyEntry(index, e.data); err != nil {
			t.Fatal(err)
		}
		now, seen := snapshotOf(t, g.a), map[string]bool{}
		for _, r := range records(now) {
			note(seen, r.ProtoReflect())
		}
		maps.Copy(kept, seen)
		sum := sha256.Sum256(now)
		copy(e.hash[:], sum[:])
		list = append(list, e)
		if len(seen) > most && i > goldenEntries/4 && i < goldenEntries*3/4 {
			most, snapshot, cut = len(seen), now, i+1
		}
		index += uint64(g.pick("other entries", 3)/2 + 1) // raft has entries of its own
	}
	if err := g.a.Store().Check(); err != nil {
		t.Fatal(err)
	}
	return list, snapshot, cut
}

// refresh puts nodes and the partition back into use, so that plans find free nodes to the end of a log.
func refresh(g *generator) []*logpb.Command {
	admin := &logpb.Caller{User: "root", Operator: true}
	cmds := []*logpb.Command{config(),
		{Of: &logpb.Command_NodeUpdate{NodeUpdate: &logpb.NodeUpdate{Nodes: []string{"n1", "n2"}, State: "RESUME", Set: map[string]string{"Comment": "c"}, Caller: admin}}},
		{Of: &logpb.Command_PartitionUpdate{PartitionUpdate: &logpb.PartitionUpdate{Name: "p", Set: map[string]string{"State": "UP"}, Caller: admin}}}}
	for _, name := range []string{"n1", "n2"} {
		c := register(name, "b0")
		if n := g.a.View().Node(name); n != nil {
			c.GetRegisterNode().BootId = n.BootID
		}
		for j := range g.a.View().Active() {
			c.GetRegisterNode().HeldJob, c.GetRegisterNode().HeldRun = append(c.GetRegisterNode().HeldJob, j.ID), append(c.GetRegisterNode().HeldRun, j.Run)
		}
		cmds = append(cmds, c)
	}
	return cmds
}

func packGolden(t *testing.T, list []goldenEntry) []byte {
	var b []byte
	for _, e := range list {
		b = binary.AppendUvarint(b, e.index)
		b = append(binary.AppendUvarint(b, uint64(len(e.data))), e.data...)
		b = append(b, e.hash[:]...)
	}
	return b
}

func unpackGolden(t *testing.T, b []byte) (list []goldenEntry) {
	t.Helper()
	r := bytes.NewReader(b)
	for {
		index, err := binary.ReadUvarint(r)
		if errors.Is(err, io.EOF) {
			return list
		}
		size, err2 := binary.ReadUvarint(r)
		e := goldenEntry{index: index, data: make([]byte, min(size, uint64(len(b))))}
		_, err3 := io.ReadFull(r, e.data)
		_, err4 := io.ReadFull(r, e.hash[:])
		if err := errors.Join(err, err2, err3, err4); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
}

func goldenFile(level uint32, what string) string {
	return filepath.Join("testdata", "golden", fmt.Sprintf("level%d.%s.gz", level, what))
}

func writeGolden(t *testing.T, what string, data []byte) string {
	t.Helper()
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	_, err := z.Write(data)
	if err := errors.Join(err, z.Close(), os.MkdirAll(filepath.Join("testdata", "golden"), 0o755), os.WriteFile(goldenFile(fsm.Version, what), b.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	return hexSum(b.Bytes())
}

func readGolden(t *testing.T, level uint32, what, want string) []byte {
	t.Helper()
	name := goldenFile(level, what)
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if hexSum(raw) != want {
		t.Fatalf("%s has SHA-256 %s, not %s: what a release has written does not change; a new feature level gets files of its own", name, hexSum(raw), want)
	}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func stateOf(t *testing.T, f *fsm.FSM) string {
	t.Helper()
	sum, err := fsm.Hash(f.View())
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum[:])
}

// TestGolden replays what each level has written: today's program must make the same state of it,
// entry by entry, and the same snapshot, byte by byte.
func TestGolden(t *testing.T) {
	if *update {
		list, snapshot, cut := makeGolden(t)
		f := fsm.New(state.New())
		for _, e := range list {
			if _, err := f.ApplyEntry(e.index, e.data); err != nil {
				t.Fatal(err)
			}
		}
		t.Fatalf("put this in:\n{%d, %q, %q,\n%q, %d},", fsm.Version,
			writeGolden(t, "log", packGolden(t, list)), writeGolden(t, "snapshot", snapshot), stateOf(t, f), cut)
	}
	if n := len(golden); n == 0 || golden[n-1].level != fsm.Version {
		t.Errorf("feature level %d has no golden files; make them with -update", fsm.Version)
	}
	for _, c := range golden {
		t.Run(fmt.Sprint("level ", c.level), func(t *testing.T) {
			list := unpackGolden(t, readGolden(t, c.level, "log", c.log))
			snapshot := readGolden(t, c.level, "snapshot", c.snapshot)
			whole := fsm.New(state.New())
			seen := map[string]bool{}
			replay(t, whole, list[:c.cut], seen)
			if got := snapshotOf(t, whole); !bytes.Equal(got, snapshot) {
				t.Fatalf("the snapshot of entry %d has other bytes", list[c.cut-1].index)
			}
			cut := fsm.New(state.New())
			if err := cut.Restore(bytes.NewReader(snapshot)); err != nil {
				t.Fatal(err)
			}
			for name, f := range map[string]*fsm.FSM{"the whole log": whole, "snapshot and the rest of the log": cut} {
				replay(t, f, list[c.cut:], seen)
				if got := stateOf(t, f); got != c.state {
					t.Errorf("%s: the state's hash is %s, was %s", name, got, c.state)
				}
				if err := f.Store().Check(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if c.level == fsm.Version {
				if l := lacks(t, list, seen); len(l) > 0 {
					t.Errorf("nowhere in the golden files: %v", l)
				}
			}
		})
	}
}

// replay applies entries, and notes which fields the snapshots after them have.
func replay(t *testing.T, f *fsm.FSM, list []goldenEntry, seen map[string]bool) {
	t.Helper()
	for _, e := range list {
		if _, err := f.ApplyEntry(e.index, e.data); err != nil {
			t.Fatal(err)
		}
		snapshot := snapshotOf(t, f)
		for _, r := range records(snapshot) {
			note(seen, r.ProtoReflect())
		}
		sum := sha256.Sum256(snapshot)
		if !bytes.Equal(sum[:goldenHash], e.hash[:]) {
			var m logpb.Entry
			_ = proto.Unmarshal(e.data, &m)
			t.Fatalf("entry %d gives another state than when it was written: %v", e.index, &m)
		}
	}
}

// unwritten are fields that no command and no record has.
var unwritten = map[string]bool{
	"SnapshotJob.array_running": true, "SnapshotJob.hold_admin": true, "SnapshotJob.launch_ms": true, "SnapshotJob.bad_nodes": true,
	"SnapshotJob.warned": true, "SnapshotPartition.state": true, "SnapshotUsage.sub": true,
}

// lacks lists the commands, records and fields that are nowhere in a golden log, nor in the snapshots
// after its entries, of which kept are the fields.
func lacks(t *testing.T, list []goldenEntry, kept map[string]bool) []string {
	seen := map[string]bool{}
	for _, e := range list {
		var m logpb.Entry
		if err := proto.Unmarshal(e.data, &m); err != nil {
			t.Fatal(err)
		}
		note(seen, m.ProtoReflect())
	}
	asked := map[string]bool{"RegisterNode": true, "SetConfig": true, "SetController": true, "CreateJoinToken": true, "Promise": true} // the log has them
	return append(missing(seen, (&logpb.Entry{}).ProtoReflect().Descriptor(), map[string]bool{}),
		missing(kept, (&logpb.SnapshotRecord{}).ProtoReflect().Descriptor(), asked)...)
}

func note(seen map[string]bool, m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		seen[string(f.Parent().Name())+"."+string(f.Name())] = true
		switch {
		case f.IsMap() || f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				note(seen, v.List().Get(i).Message())
			}
		default:
			note(seen, v.Message())
		}
		return true
	})
}

func missing(seen map[string]bool, d protoreflect.MessageDescriptor, asked map[string]bool) (list []string) {
	if asked[string(d.Name())] {
		return nil
	}
	asked[string(d.Name())] = true
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if name := string(d.Name()) + "." + string(f.Name()); !seen[name] && !unwritten[name] {
			list = append(list, name)
		}
		if f.Message() != nil && !f.IsMap() {
			list = append(list, missing(seen, f.Message(), asked)...)
		}
	}
	return list
}
