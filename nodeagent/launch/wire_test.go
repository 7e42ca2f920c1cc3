package launch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestFrames(t *testing.T) {
	var buf bytes.Buffer
	in := Request{ID: 7, Signal: &Signal{Key: Key{1, 2, 3}, Number: 10}}
	if err := WriteFrame(&buf, in); err != nil {
		t.Fatal(err)
	}
	whole := bytes.Clone(buf.Bytes())
	var out Request
	if err := ReadFrame(iotest.OneByteReader(&buf), &out); err != nil || *out.Signal != *in.Signal || out.ID != 7 {
		t.Errorf("got %+v %v", out, err)
	}
	if err := ReadFrame(&buf, &out); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	for cut := 1; cut < len(whole); cut++ {
		if err := ReadFrame(bytes.NewReader(whole[:cut]), &out); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
	if err := ReadFrame(bytes.NewReader(binary.BigEndian.AppendUint32(nil, MaxFrame+1)), &out); err == nil || !strings.Contains(err.Error(), "MaxFrame") {
		t.Errorf("limit + 1: %v", err)
	}
	if err := WriteFrame(io.Discard, strings.Repeat("x", MaxFrame)); err == nil {
		t.Error("a frame over the limit was written")
	}
	if err := WriteFrame(io.Discard, strings.Repeat("x", MaxFrame-2)); err != nil {
		t.Errorf("a frame at the limit: %v", err)
	}
}

func TestRequests(t *testing.T) {
	for _, in := range []Request{{ID: 1, List: true}, {ID: 2, Start: &Start{Credential: []byte("c"), Payload: []byte("payload")}}, {Start: &Start{}}} {
		frame, err := AppendRequest(nil, &in)
		if err != nil {
			t.Fatal(err)
		}
		r := bytes.NewReader(frame)
		n, err := ReadLength(r, len(frame)-4)
		if err != nil {
			t.Fatal(err)
		}
		out, err := ReadRequest(r, n)
		if err != nil || out.ID != in.ID || out.List != in.List || (out.Start == nil) != (in.Start == nil) {
			t.Fatalf("got %+v %v", out, err)
		}
		if in.Start != nil && (!bytes.Equal(out.Start.Payload, in.Start.Payload) || !bytes.Equal(out.Start.Credential, in.Start.Credential)) {
			t.Errorf("got %+v", out.Start)
		}
		if _, err := ReadLength(bytes.NewReader(frame), len(frame)-5); err == nil {
			t.Error("a frame over the limit is taken")
		}
	}
	for _, bad := range []string{"", "\x00\x00\x00\x03{}", "\xff\xff\xff\xff{}", "\x00\x00\x00\x02{}x", "\x00\x00\x00\x00"} {
		if req, err := ReadRequest(strings.NewReader(bad), len(bad)); err == nil {
			t.Errorf("%q gives %+v", bad, req)
		}
	}
	if _, err := AppendRequest(nil, &Request{Start: &Start{Payload: make([]byte, MaxFrame)}}); err == nil {
		t.Error("a request over the limit is made")
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x0d{\"start\":{}}xy"))
	f.Fuzz(func(t *testing.T, data []byte) { ReadRequest(bytes.NewReader(data), len(data)) })
}

func FuzzReadFrame(f *testing.F) {
	for _, seed := range []string{"\x00\x00\x00\x02{}", "\x00\x00\x00\x14{\"id\":1,\"list\":true}", "\xff\xff\xff\xff", "\x00\x00\x00\x05nul"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Request
		if ReadFrame(bytes.NewReader(data), &r) == nil {
			var buf bytes.Buffer
			if err := WriteFrame(&buf, r); err != nil {
				t.Fatalf("what was read cannot be written: %v", err)
			}
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a b) c) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, data []byte) { parseStat(data) })
}

func TestParseStat(t *testing.T) {
	st, err := parseStat([]byte("12 (a b) c) S 1 11 10 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1"))
	if err != nil || st != (procStat{state: 'S', parent: 1, session: 10, start: 12345}) {
		t.Errorf("got %+v %v", st, err)
	}
}

func TestKeyNames(t *testing.T) {
	k := Key{1, 2, 4294967291}
	if got, err := ParseKey(k.String()); err != nil || got != k {
		t.Errorf("got %v %v", got, err)
	}
	for _, bad := range []string{"", "1", "1.2", "1.2.3.4", "1.2.x", "01.2.3", "1.2.3 ", "../1.2.3", "1.2.4294967296", "-1.2.3"} {
		if k, err := ParseKey(bad); err == nil {
			t.Errorf("%q gives %v", bad, k)
		}
	}
}
