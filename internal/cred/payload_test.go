package cred

import (
	"bytes"
	"slices"
	"testing"
)

func TestEncodedPayload(t *testing.T) {
	for _, p := range []Payload{{}, {Script: []byte("#!/bin/sh\n"), Args: []string{"", "a b"}, Env: [][]byte{[]byte("A=\xff"), {}}}} {
		enc := AppendPayload(nil, p.Script, p.Args, p.Env)
		if EncodedDigest(enc) != PayloadDigest(p.Script, p.Args, p.Env) {
			t.Errorf("%+v: the digests differ", p)
		}
		got, err := ParsePayload(enc)
		if err != nil || !bytes.Equal(got.Script, p.Script) || !slices.Equal(got.Args, p.Args) || !slices.EqualFunc(got.Env, p.Env, bytes.Equal) {
			t.Errorf("got %+v %v, want %+v", got, err, p)
		}
		for cut := range enc {
			if _, err := ParsePayload(enc[:cut]); err == nil {
				t.Errorf("%d bytes of %d are taken", cut, len(enc))
			}
		}
		if _, err := ParsePayload(append(enc, 0)); err == nil {
			t.Error("a byte more is taken")
		}
	}
}

func FuzzParsePayload(f *testing.F) {
	f.Add(AppendPayload(nil, []byte("x"), []string{"a"}, [][]byte{[]byte("b")}))
	f.Add(bytes.Repeat([]byte{0xff}, 24))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := ParsePayload(data); err == nil && !bytes.Equal(AppendPayload(nil, p.Script, p.Args, p.Env), data) {
			t.Errorf("%+v is not what was given", p)
		}
	})
}
