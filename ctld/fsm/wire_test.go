package fsm_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// drawSpec fills fields of the message's own description, so that a new one cannot be forgotten.
func drawSpec(t *rapid.T) *logpb.JobSpec {
	m := &logpb.JobSpec{}
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if rapid.IntRange(0, 2).Draw(t, "given") == 0 {
			continue
		}
		n := 1
		if f.IsList() {
			n = 2 * rapid.IntRange(0, 3).Draw(t, "pairs")
		}
		for range n {
			v := drawValue(t, f)
			if f.IsList() {
				m.ProtoReflect().Mutable(f).List().Append(v)
			} else {
				m.ProtoReflect().Set(f, v)
			}
		}
	}
	return m
}

func drawValue(t *rapid.T, f protoreflect.FieldDescriptor) protoreflect.Value {
	name := string(f.Name())
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, name))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, name))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, name))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, name))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, name))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.StringN(0, 300, 600).Draw(t, name))
	}
	t.Fatalf("field %s is of kind %s, which the hand-written codec does not know", name, f.Kind())
	return protoreflect.Value{}
}

// TestWireAgreesWithProtobuf holds the hand-written codec of submissions against the library.
func TestWireAgreesWithProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := drawSpec(t)
		c := submit(rapid.StringN(0, 64, 64).Draw(t, "key"), spec)
		c.GetSubmit().Digest = rapid.SliceOfN(rapid.Byte(), 0, 32).Draw(t, "digest")
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := fsm.AppendCommand([]byte("before"), c)
		if err != nil || string(got) != "before"+string(want) {
			t.Fatalf("%v\n%x\n%x", err, got, want)
		}
		read, own := fsm.ReadSubmission(want)
		if len(read) != 1 || !own {
			t.Fatalf("%d commands, read by itself: %t", len(read), own)
		}
		if ref := fsm.SpecFromLog(spec); !reflect.DeepEqual(normal(read[0]), normal(ref)) {
			t.Fatalf("read\n%+v\nthe library has\n%+v", read[0], ref)
		}
	})
}

// TestTailsAreRemembered: a submission that shares its later fields with one before it, and differs
// in the earlier ones, is read as if it were the first.
func TestTailsAreRemembered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shared, list := drawSpec(t), []*logpb.JobSpec{}
		for range 4 {
			head, tail := drawSpec(t), proto.CloneOf(shared)
			fields := head.ProtoReflect().Descriptor().Fields()
			for i := range fields.Len() {
				if f := fields.Get(i); f.Number() < 14 {
					tail.ProtoReflect().Clear(f)
				} else {
					head.ProtoReflect().Clear(f)
				}
			}
			proto.Merge(tail, head)
			list = append(list, tail)
		}
		got := fsm.ReadSpecs(list)
		for i, spec := range list {
			if ref := fsm.SpecFromLog(spec); !reflect.DeepEqual(normal(got[i]), normal(ref)) {
				t.Fatalf("number %d read\n%+v\nthe library has\n%+v", i, got[i], ref)
			}
		}
	})
}

// TestStrangeSubmissions: what another encoder may write, or what is damaged, means what the library
// says that it means.
func TestStrangeSubmissions(t *testing.T) {
	str := func(num protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s)
	}
	num := func(num protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
	}
	for name, spec := range map[string][]byte{
		"nothing":              nil,
		"a field twice":        append(str(1, "a"), str(1, "b")...),
		"out of order":         append(str(3, "p"), str(1, "a")...),
		"an unknown field":     append(str(1, "a"), str(900, "x")...),
		"a wrong type":         num(1, 5),
		"groups not packed":    append(num(62, 5), num(62, 6)...),
		"a number too long":    num(17, 1<<40|7),
		"requeue out of range": num(33, 1<<64-5),
		"an empty script":      str(14, ""),
		"half a rare option":   str(39, "mail-type"),
		"no text":              str(1, "\xff"),
		"cut off":              str(1, "abc")[:3],
		"a group":              protowire.AppendTag(nil, 5, protowire.StartGroupType),
		"a long string":        str(11, strings.Repeat("x", 5000)),
		"field zero":           {0x00, 0x01},
	} {
		t.Run(name, func(t *testing.T) {
			data := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), append(str(1, "k"), str(2, string(spec))...))
			want := &logpb.Command{}
			err := proto.Unmarshal(data, want)
			got, _ := fsm.ReadSubmission(data)
			if err != nil {
				if got != nil {
					t.Errorf("taken as %+v, the library says %v", got[0], err)
				}
				return
			}
			if ref := fsm.SpecFromLog(want.GetSubmit().Spec); len(got) != 1 || !reflect.DeepEqual(normal(got[0]), normal(ref)) {
				t.Errorf("read %+v, the library has %+v", got, ref)
			}
		})
	}
}

func TestWireRefusesWhatIsNoText(t *testing.T) {
	for _, spec := range []*logpb.JobSpec{{Name: "\xff"}, {Args: []string{"a", "\xff"}}, {Shell: "\xff"}, {Rare: []string{"\xff", ""}}} {
		if _, err := fsm.AppendCommand(nil, submit("k", spec)); err == nil {
			t.Errorf("%v was written", spec)
		}
	}
	if _, err := fsm.AppendCommand(nil, submit("\xff", &logpb.JobSpec{})); err == nil {
		t.Error("a key that is no text was written")
	}
}

// TestReadersDoNotShareEntries: an entry's bytes are the log's, which may use them again.
func TestReadersDoNotShareEntries(t *testing.T) {
	f, g := fsm.New(state.New()), fsm.New(state.New())
	entries := [][]byte{entry(t, 1000, config()), batch(t, 0, 5), batch(t, 5, 5)}
	for i, data := range entries {
		mine := bytes.Clone(data)
		if _, err := f.ApplyEntry(uint64(i+1), mine); err != nil {
			t.Fatal(err)
		}
		for k := range mine {
			mine[k] = 'x'
		}
		if _, err := g.ApplyEntry(uint64(i+1), data); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := fsm.Hash(f.View())
	if b, _ := fsm.Hash(g.View()); a != b {
		t.Error("the state changed with the bytes of the log")
	}
}

// normal makes an empty list, and an empty text, a missing one: nobody tells them apart.
func normal(s *job.Spec) *job.Spec {
	n := *s
	for _, b := range []*[]byte{&n.Script, &n.ScriptHash, &n.EnvHash} {
		if len(*b) == 0 {
			*b = nil
		}
	}
	if len(n.Args) == 0 {
		n.Args = nil
	}
	if len(n.Groups) == 0 {
		n.Groups = nil
	}
	if len(n.Rare) == 0 {
		n.Rare = nil
	}
	return &n
}
