package cred

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// full is a credential with every field set.
func full() *Launch {
	return &Launch{
		Cluster: "alpha", Node: "n1", JobID: 7, Run: 2, Step: job.BatchStep, UID: 1000, GID: 1001, Groups: []uint32{1001, 27},
		User: "ada", Home: "/home/ada", Shell: "/bin/sh", NotBefore: 1, Expires: 1 << 41,
		Alloc: job.NodeAlloc{Node: "n1", CPUs: 4, Mem: 1 << 34, Tasks: 2, CPUIDs: []uint32{0, 1, 4, 5}, Gres: []job.GresAlloc{
			{Name: "gpu", Type: "a100", Count: 2, Index: []uint32{0, 3}}, {Name: "shard", Count: 4},
		}},
		NodeList: "n[1-2]", NodeIndex: 1, NumNodes: 2, WorkDir: "/home/ada/w", StdIn: "/dev/null", StdOut: "/home/ada/w/o",
		StdErr: "/home/ada/w/e", Append: true, Umask: 0o022, TimeLimit: job.Unlimited, KillWait: 30000, Signal: "B:USR1@60",
		SharedFS: true, Requeue: true, Lease: 600000, Payload: [32]byte{1, 2, 3}, JobName: "train", Partition: "gpu",
		Account: "lab", Restarts: 3,
	}
}

func TestRoundTrip(t *testing.T) {
	for name, l := range map[string]*Launch{"full": full(), "empty": {}} {
		got, err := UnmarshalLaunch(l.Marshal())
		if err != nil || !reflect.DeepEqual(got, l) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// Every field must reach the bytes, also one that is added later: each is changed in turn by reflection.
func TestEveryFieldIsCovered(t *testing.T) {
	base := full().Marshal()
	var visit func(path string, get func(*Launch) reflect.Value)
	visit = func(path string, get func(*Launch) reflect.Value) {
		l := full()
		v := get(l)
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				visit(path+"."+v.Type().Field(i).Name, func(l *Launch) reflect.Value { return get(l).Field(i) })
			}
			return
		case reflect.Slice, reflect.Array:
			if v.Len() == 0 {
				t.Fatalf("%s is empty in the example", path)
			}
			visit(path+"[0]", func(l *Launch) reflect.Value { return get(l).Index(0) })
			if v.Kind() == reflect.Slice {
				v.Set(v.Slice(0, v.Len()-1))
			} else {
				return
			}
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Int64, reflect.Int32:
			v.SetInt(v.Int() + 1)
		case reflect.Uint32, reflect.Uint64, reflect.Uint8:
			v.SetUint(v.Uint() + 1)
		default:
			t.Fatalf("%s has kind %s", path, v.Kind())
		}
		if bytes.Equal(l.Marshal(), base) {
			t.Errorf("%s is not in the canonical bytes", path)
		}
	}
	visit("Launch", func(l *Launch) reflect.Value { return reflect.ValueOf(l).Elem() })
}

func TestUnmarshalRefuses(t *testing.T) {
	good := full().Marshal()
	flip := func(i int, v byte) []byte {
		b := bytes.Clone(good)
		b[i] = v
		return b
	}
	empty := (&Launch{}).Marshal()
	appendAt := bytes.Index(good, []byte("/home/ada/w/e")) + len("/home/ada/w/e")
	for name, b := range map[string][]byte{
		"nothing":         nil,
		"another version": flip(0, 2),
		"cut short":       good[:len(good)-1],
		"a byte too many": append(bytes.Clone(good), 0),
		"a boolean of 2":  flip(appendAt, 2),
		"a huge length":   append([]byte{formatVersion, 0xff, 0xff, 0xff, 0xff}, empty[5:]...),
		"a NUL in a text": flip(bytes.Index(good, []byte("alpha")), 0),
		"too large":       make([]byte, MaxCredential+1),
	} {
		if _, err := UnmarshalLaunch(b); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range good {
		if _, err := UnmarshalLaunch(good[:i]); err == nil {
			t.Fatalf("the first %d bytes were taken", i)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit int
		set   func(*Launch, int)
	}{
		{"cluster", MaxText, func(l *Launch, n int) { l.Cluster = strings.Repeat("x", n) }},
		{"work directory", MaxText, func(l *Launch, n int) { l.WorkDir = strings.Repeat("x", n) }},
		{"node list", MaxNodeList, func(l *Launch, n int) { l.NodeList = strings.Repeat("x", n) }},
		{"groups", MaxGroups, func(l *Launch, n int) { l.Groups = make([]uint32, n) }},
		{"CPU ids", MaxCPUs, func(l *Launch, n int) { l.Alloc.CPUIDs = make([]uint32, n) }},
		{"generic resources", MaxGres, func(l *Launch, n int) { l.Alloc.Gres = make([]job.GresAlloc, n) }},
		{"devices", MaxDevices, func(l *Launch, n int) { l.Alloc.Gres[0].Index = make([]uint32, n) }},
	} {
		l := full()
		c.set(l, c.limit)
		if err := l.Validate(); err != nil {
			t.Errorf("%s at the limit: %v", c.name, err)
		}
		c.set(l, c.limit+1)
		if err := l.Validate(); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s at the limit + 1: %v", c.name, err)
		}
	}
}

func TestSignature(t *testing.T) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, ed25519.SeedSize))
	pub := key.Public().(ed25519.PublicKey)
	canonical := full().Marshal()
	sig := Sign(key, canonical)
	if err := Verify(pub, canonical, sig); err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(canonical)
	changed[len(changed)-1] ^= 1
	for name, err := range map[string]error{
		"changed bytes":        Verify(pub, changed, sig),
		"another key":          Verify(other.Public().(ed25519.PublicKey), canonical, sig),
		"no signature":         Verify(pub, canonical, nil),
		"no key":               Verify(nil, canonical, sig),
		"signed without words": Verify(pub, canonical, ed25519.Sign(key, canonical)),
	} {
		if !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ed25519.Verify(pub, canonical, sig) {
		t.Error("the signature holds without the domain")
	}
}

func TestPayloadDigest(t *testing.T) {
	seen := map[[32]byte]string{}
	for name, d := range map[string][32]byte{
		"nothing":              PayloadDigest(nil, nil, nil),
		"script":               PayloadDigest([]byte("ab"), nil, nil),
		"argument":             PayloadDigest(nil, []string{"ab"}, nil),
		"two arguments":        PayloadDigest(nil, []string{"a", "b"}, nil),
		"an empty argument":    PayloadDigest(nil, []string{""}, nil),
		"two empty arguments":  PayloadDigest(nil, []string{"", ""}, nil),
		"environment":          PayloadDigest(nil, nil, [][]byte{[]byte("ab")}),
		"an empty variable":    PayloadDigest(nil, nil, [][]byte{nil}),
		"script and argument":  PayloadDigest([]byte("a"), []string{"b"}, nil),
		"argument, then empty": PayloadDigest(nil, []string{"ab", ""}, nil),
	} {
		if was, ok := seen[d]; ok {
			t.Errorf("%s has the digest of %s", name, was)
		}
		seen[d] = name
	}
}

func anyLaunch(t *rapid.T) *Launch {
	text := rapid.StringMatching(`[ -~é]{0,12}`)
	n32, n64 := rapid.Uint32(), rapid.Int64()
	list := func(label string) []uint32 {
		if l := rapid.SliceOfN(n32, 0, 5).Draw(t, label); len(l) > 0 {
			return l
		}
		return nil
	}
	l := &Launch{
		Cluster: text.Draw(t, "cluster"), Node: text.Draw(t, "node"), JobID: n32.Draw(t, "job"), Run: n32.Draw(t, "run"),
		Groups: list("groups"), NotBefore: n64.Draw(t, "not before"), Append: rapid.Bool().Draw(t, "append"),
		WorkDir: text.Draw(t, "dir"), TimeLimit: n64.Draw(t, "limit"), Restarts: n32.Draw(t, "restarts"),
	}
	l.Alloc = job.NodeAlloc{Node: text.Draw(t, "alloc node"), CPUIDs: list("cpus"), Mem: n64.Draw(t, "mem")}
	for range rapid.IntRange(0, 3).Draw(t, "gres") {
		l.Alloc.Gres = append(l.Alloc.Gres, job.GresAlloc{Name: text.Draw(t, "name"), Count: rapid.Uint64().Draw(t, "count"), Index: list("index")})
	}
	return l
}

func TestRoundTripProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyLaunch(t), anyLaunch(t)
		got, err := UnmarshalLaunch(a.Marshal())
		if err != nil || !reflect.DeepEqual(got, a) {
			t.Fatalf("%+v became %+v, %v", a, got, err)
		}
		if reflect.DeepEqual(a, b) != bytes.Equal(a.Marshal(), b.Marshal()) {
			t.Fatalf("the bytes of %+v and %+v", a, b)
		}
	})
}

func FuzzUnmarshalLaunch(f *testing.F) {
	f.Add(full().Marshal())
	f.Add((&Launch{}).Marshal())
	f.Add([]byte{1, 0, 0, 0, 5})
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := UnmarshalLaunch(b)
		if err != nil {
			if l != nil {
				t.Fatal("an error and a credential")
			}
			return
		}
		if !bytes.Equal(l.Marshal(), b) {
			t.Fatal("accepted bytes are not canonical")
		}
	})
}
