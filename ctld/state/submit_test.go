package state_test

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func TestSubmitRefusals(t *testing.T) {
	for _, c := range []struct {
		name, code, word string
		config           func(*state.Config)
		spec             job.Spec
		before           int // jobs of the same user that are accepted first
	}{
		{name: "records", code: "EAGAIN", word: "MaxJobCount=2", config: func(c *state.Config) { c.MaxJobCount = 2 }, before: 2},
		{name: "records of an array", code: "EAGAIN", word: "MaxJobCount=4", config: func(c *state.Config) { c.MaxJobCount = 4 }, spec: job.Spec{Array: "0-3"}, before: 1},
		{name: "per user", code: "ESLURM_ACCOUNTING_POLICY", word: "MaxSubmitPerUser=2", config: func(c *state.Config) { c.MaxSubmitPerUser = 2 }, before: 2},
		{name: "per user, array", code: "ESLURM_ACCOUNTING_POLICY", word: "MaxSubmitPerUser=3", config: func(c *state.Config) { c.MaxSubmitPerUser = 3 }, spec: job.Spec{Array: "0-2"}, before: 1},
		{name: "array size", code: "ESLURM_INVALID_ARRAY", word: "Invalid job array specification", spec: job.Spec{Array: "0-1001"}},
		{name: "array text", code: "ESLURM_INVALID_ARRAY", word: "5-1", spec: job.Spec{Array: "5-1"}},
		{name: "script", code: "BLOB_MISSING", word: "is not here", spec: job.Spec{ScriptHash: make([]byte, 32)}},
		{name: "environment", code: "BLOB_MISSING", word: "is not here", spec: job.Spec{EnvHash: make([]byte, 32)}},
		{name: "inline script", code: "ESLURM_SCRIPT_TOO_LARGE", word: "MaxInlineScript=8192", spec: job.Spec{Script: make([]byte, job.MaxInlineScript+1)}},
		{name: "partition", code: "ESLURM_INVALID_PARTITION_NAME", word: `"none"`, spec: job.Spec{Partition: "p,none"}},
		{name: "dependency", code: "ESLURM_DEPENDENCY", word: "999", spec: job.Spec{Dependency: "afterok:999"}},
		{name: "dependency text", code: "ESLURM_DEPENDENCY", word: "never:1", spec: job.Spec{Dependency: "never:1"}},
		{name: "ids", code: "EAGAIN", word: "MaxJobId=67043328", config: func(c *state.Config) { c.FirstJobID = state.MaxJobID }, before: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			if c.config != nil {
				w.configure(c.config)
			}
			for range c.before {
				w.submit(job.Spec{})
			}
			id, _, r := w.trySubmit("", c.spec)
			wantRefusal(t, r, c.code, c.word)
			if id != 0 {
				t.Errorf("a refused submission got id %d", id)
			}
		})
	}
}

func TestSubmitKeys(t *testing.T) {
	w := newWorld(t)
	first, dup, r := w.trySubmit("k", job.Spec{Name: "a", UID: 1})
	if r != nil || dup || first != 1 {
		t.Fatal(first, dup, r)
	}
	if id, dup, r := w.trySubmit("k", job.Spec{Name: "a", UID: 1}); id != first || !dup || r != nil {
		t.Fatalf("again: %d %t %v", id, dup, r)
	}
	if id, dup, r := w.trySubmit("k", job.Spec{Name: "a", UID: 2}); id != 2 || dup || r != nil {
		t.Fatalf("another user: %d %t %v", id, dup, r)
	}
	_, _, r = w.trySubmit("k", job.Spec{Name: "b", UID: 1})
	wantRefusal(t, r, "ESLURM_DUPLICATE_KEY", "job 1")
	if _, _, r := w.trySubmit(strings.Repeat("x", job.MaxKey), job.Spec{}); r != nil {
		t.Fatalf("key of MaxKey bytes: %+v", r)
	}
	_, _, r = w.trySubmit(strings.Repeat("x", job.MaxKey+1), job.Spec{})
	wantRefusal(t, r, "ESLURM_INVALID_KEY", "MaxKey=64")
	id, digest, ok := w.s.View().Key(1, "k")
	if want := sha256.Sum256([]byte("a")); id != 1 || !ok || string(digest) != string(want[:]) {
		t.Errorf("key: %d %x %t", id, digest, ok)
	}
}

// TestKeysOutliveJobs: a key goes only when a day has passed and its job has left memory.
func TestKeysOutliveJobs(t *testing.T) {
	w := newWorld(t)
	id, _, _ := w.trySubmit("k", job.Spec{Name: "a"})
	w.cancel(root, job.Ref{ID: id})
	purge := func() { w.do(func(t *state.Tx) { t.Purge(w.now+1, 0, 0) }) }
	purge()
	if w.s.View().Job(id) != nil {
		t.Fatal("the ended job is still there")
	}
	if again, dup, _ := w.trySubmit("k", job.Spec{Name: "a"}); again != id || !dup {
		t.Fatalf("a key of a purged job made job %d", again)
	}
	w.now += state.KeyAge
	purge()
	if _, _, ok := w.s.View().Key(0, "k"); ok {
		t.Fatal("the key is still there after a day")
	}
	if again, dup, _ := w.trySubmit("k", job.Spec{Name: "a"}); again != id+1 || dup {
		t.Fatalf("ids must never come back, got %d", again)
	}
	w.now += 2 * state.KeyAge
	purge()
	if _, _, ok := w.s.View().Key(0, "k"); !ok {
		t.Fatal("the key of a live job is gone")
	}
}

func TestPurgeOldestFirst(t *testing.T) {
	w := newWorld(t)
	for range 5 {
		w.cancel(root, job.Ref{ID: w.submit(job.Spec{})})
	}
	live := w.submit(job.Spec{})
	var n int
	w.do(func(t *state.Tx) { n = t.Purge(0, 3, 0) })
	if n != 2 || w.s.View().Job(2) != nil || w.s.View().Job(3) == nil {
		t.Fatalf("to keep 3 of 5 it removed %d", n)
	}
	w.do(func(t *state.Tx) { n = t.Purge(w.now, 0, 1) })
	if n != 1 || w.s.View().Job(3) != nil || w.s.View().Job(4) == nil {
		t.Fatalf("at most 1: removed %d", n)
	}
	w.do(func(t *state.Tx) { n = t.Purge(w.now+1, 0, 0) })
	if n != 2 || w.s.View().Job(live) == nil {
		t.Fatalf("removed %d of the rest", n)
	}
}

func TestOrderOfTheQueue(t *testing.T) {
	w := newWorld(t)
	a := w.submit(job.Spec{})
	nice := w.submit(job.Spec{Nice: 100})
	b := w.submit(job.Spec{})
	urgent := w.submit(job.Spec{Nice: -100})
	held := w.submit(job.Spec{Hold: true})
	var got []uint32
	for _, c := range w.s.View().Sched().Classes {
		for x := range c.Waiting {
			got = append(got, x.JobID)
			if held := x.Blocked == job.ReasonHeldUser; held != (x.Priority == 0) {
				t.Errorf("job %d: priority %d, blocked by %q", x.JobID, x.Priority, x.Blocked)
			}
		}
	}
	want := []uint32{urgent, a, b, nice, held}
	if len(got) != len(want) {
		t.Fatalf("order %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("order %v, want %v", got, want)
		}
	}
}

func TestClassesOfShape(t *testing.T) {
	w := newWorld(t)
	base := job.Spec{NTasks: 2, Gres: "gpu:1"}
	same := base
	same.Name, same.UID, same.TimeLimit = "other", 9, 5
	same.Rare = []job.Option{{Name: "mail-type", Value: "ALL"}}
	other := base
	other.Rare = []job.Option{{Name: "contiguous", Value: "yes"}}
	first, second, third := w.submit(base), w.submit(same), w.submit(other)
	if w.job(first).Class != w.job(second).Class || w.job(first).Class == w.job(third).Class {
		t.Errorf("classes %q %q %q", w.job(first).Class, w.job(second).Class, w.job(third).Class)
	}
}

func TestBlobs(t *testing.T) {
	data := []byte("#!/bin/sh\n" + strings.Repeat("x", state.MaxChunk))
	hash := sha256.Sum256(data)
	put := func(w *world, hash []byte, total, offset uint64, data []byte) (r *state.Refusal) {
		w.do(func(t *state.Tx) { r = t.PutBlob(0, hash, total, offset, data) })
		return r
	}
	w := newWorld(t)
	total := uint64(len(data))
	wantRefusal(t, put(w, hash[:], total, 0, data), "ESLURM_INVALID_BLOB", "MaxChunk=131072")
	wantRefusal(t, put(w, hash[:], state.MaxBlob+1, 0, data[:5]), "ESLURM_INVALID_BLOB", "MaxBlob=4194304")
	wantRefusal(t, put(w, hash[:5], total, 0, data[:5]), "ESLURM_INVALID_BLOB", "32 bytes")
	wantRefusal(t, put(w, hash[:], total, total, data[:1]), "ESLURM_INVALID_BLOB", "piece")
	if r := put(w, hash[:], total, 0, data[:state.MaxChunk]); r != nil {
		t.Fatalf("first piece: %+v", r)
	}
	if _, ok := w.s.View().Blob(hash[:]); ok {
		t.Fatal("half a blob is given out")
	}
	if r := put(w, hash[:], total, 0, data[:state.MaxChunk]); r != nil {
		t.Fatalf("the same piece again: %+v", r)
	}
	wantRefusal(t, put(w, hash[:], total, state.MaxChunk+1, data[state.MaxChunk+1:]), "ESLURM_INVALID_BLOB", "are here")
	if r := put(w, hash[:], total, state.MaxChunk, data[state.MaxChunk:]); r != nil {
		t.Fatalf("last piece: %+v", r)
	}
	if got, ok := w.s.View().Blob(hash[:]); !ok || string(got) != string(data) {
		t.Fatal("the blob is not what was put")
	}
	wrong := sha256.Sum256([]byte("else"))
	wantRefusal(t, put(w, wrong[:], 3, 0, []byte("abc")), "ESLURM_INVALID_BLOB", "another SHA-256")

	id := w.submit(job.Spec{ScriptHash: hash[:]})
	w.now += 2 * state.BlobAge
	w.do(func(t *state.Tx) { t.Purge(0, 0, 0) })
	if _, ok := w.s.View().Blob(hash[:]); !ok {
		t.Fatal("a blob that a job needs is gone")
	}
	w.cancel(root, job.Ref{ID: id})
	w.do(func(t *state.Tx) { t.Purge(w.now+1, 0, 0) })
	if _, ok := w.s.View().Blob(hash[:]); !ok {
		t.Fatal("an unreferenced blob is gone before its time")
	}
	w.now += state.BlobAge
	w.do(func(t *state.Tx) { t.Purge(0, 0, 0) })
	if _, ok := w.s.View().Blob(hash[:]); ok {
		t.Fatal("an unreferenced blob stays")
	}
}

func TestOpenBlobs(t *testing.T) {
	w := newWorld(t)
	w.do(func(tx *state.Tx) {
		for i := range state.MaxOpenBlobs + 1 {
			hash := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
			r := tx.PutBlob(uint32(i/state.MaxUserOpenBlobs), hash[:], 10, 0, []byte("abc"))
			if i < state.MaxOpenBlobs && r != nil {
				t.Fatalf("blob %d: %+v", i, r)
			}
			if i == state.MaxOpenBlobs {
				wantRefusal(t, r, "ESLURM_INVALID_BLOB", "MaxOpenBlobs=4096")
			}
		}
	})
}

func TestTimeNeverRunsBack(t *testing.T) {
	w := newWorld(t)
	before := w.s.View().Time()
	w.s.Apply(w.index+1, before-500, func(*state.Tx) {})
	if got := w.s.View().Time(); got != before {
		t.Errorf("time went from %d to %d", before, got)
	}
}

// TestBlobsOfOneUser: nobody fills the state with what no job names, nor keeps others from sending.
func TestBlobsOfOneUser(t *testing.T) {
	w := newWorld(t)
	put := func(uid uint32, n, size int) (r *state.Refusal, hash [32]byte) {
		data := make([]byte, size)
		binary.LittleEndian.PutUint32(data, uint32(n))
		hash = sha256.Sum256(data)
		w.index++
		w.s.Apply(w.index, w.now, func(tx *state.Tx) { r = tx.PutBlob(uid, hash[:], uint64(size), 0, data) })
		return r, hash
	}
	n := 0
	var last [32]byte
	for ; ; n++ {
		r, hash := put(1, n, state.MaxChunk)
		if r != nil {
			wantRefusal(t, r, "ESLURM_INVALID_BLOB", "MaxUserNewBytes=134217728")
			break
		}
		last = hash
	}
	if n != state.MaxUserNewBytes/state.MaxChunk {
		t.Errorf("refused after %d", n)
	}
	if r, _ := put(2, n+1, state.MaxChunk); r != nil {
		t.Errorf("another user: %+v", r)
	}
	w.submit(job.Spec{ScriptHash: last[:]})
	if r, _ := put(1, n, state.MaxChunk); r != nil {
		t.Errorf("one of them is a job's now: %+v", r)
	}
	w.now += state.BlobAge
	w.do(func(tx *state.Tx) { tx.Purge(0, 0, 0) })
	if r, _ := put(1, n+2, state.MaxChunk); r != nil {
		t.Errorf("the others have left: %+v", r)
	}
	w.do(func(tx *state.Tx) {
		for i := range state.MaxUserOpenBlobs + 1 {
			hash := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
			r := tx.PutBlob(3, hash[:], 10, 0, []byte("abc"))
			if i < state.MaxUserOpenBlobs && r != nil {
				t.Fatalf("blob %d: %+v", i, r)
			}
			if i == state.MaxUserOpenBlobs {
				wantRefusal(t, r, "ESLURM_INVALID_BLOB", "MaxUserOpenBlobs=256")
			}
		}
		if r := tx.PutBlob(2, make([]byte, 32), 10, 0, []byte("abc")); r != nil {
			t.Errorf("another user: %+v", r)
		}
	})
}
