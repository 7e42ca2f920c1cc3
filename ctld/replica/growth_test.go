package replica

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// liveLog sums the entries in a log file.
func liveLog(t *testing.T, path string) (bytes int64, entries int) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("logs")).ForEach(func(_, v []byte) error { bytes += int64(len(v)); entries++; return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes, entries
}

// TestLogIsBounded: behind snapshots the log holds a tail of so many bytes and entries, however long the
// log was.
func TestLogIsBounded(t *testing.T) {
	dir := t.TempDir()
	const limit = 4 << 20
	r, _, err := lone(t, dir, func(c *Config, l *ledger) { c.SnapshotBytes, c.tail, l.forget = limit, 2<<20, true })
	if err != nil {
		t.Fatal(err)
	}
	<-r.Leadership()
	for range 64 {
		if _, err := r.Propose(t.Context(), blob(500<<10), blob(10), blob(500<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	live, entries := liveLog(t, filepath.Join(dir, logFile))
	if live > 2<<20+MaxCommand || entries < 2 || entries > trailingLogs {
		t.Errorf("%d entries of %d bytes are left of the log", entries, live)
	}
	st, err := os.Stat(filepath.Join(dir, logFile))
	if err != nil || st.Size() > 8*limit {
		t.Errorf("the file has %d bytes, %v", st.Size(), err)
	}
	if n := snapshotDirs(t, dir); n > snapshotsKept {
		t.Errorf("%d snapshots", n)
	}
}

func snapshotDirs(t *testing.T, dir string) int {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, snapshotFolder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestTail counts from the newest entry back until a bound is met.
func TestTail(t *testing.T) {
	log := raft.NewInmemStore()
	d, err := newDisk(&stores{log: log, stable: log}, "", func(string) error { return nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := d.tail(100); n != 1 {
		t.Errorf("empty: %d", n)
	}
	for i := range uint64(2000) {
		if err := d.StoreLog(&raft.Log{Index: i + 1, Data: make([]byte, 10)}); err != nil {
			t.Fatal(err)
		}
	}
	for bytes, want := range map[int64]uint64{0: 1, 5: 1, 10: 1, 25: 2, 1000: 100, 1 << 20: trailingLogs} {
		if n := d.tail(bytes); n != want {
			t.Errorf("%d bytes: %d entries, want %d", bytes, n, want)
		}
	}
	again, err := newDisk(&stores{log: log, stable: log}, "", func(string) error { return nil }, nil)
	if err != nil || again.tail(1000) != 100 {
		t.Errorf("after a restart: %d, %v", again.tail(1000), err)
	}
}

// TestLogGetsSmaller: a file that is mostly free is written anew when it is opened, with the same content.
func TestLogGetsSmaller(t *testing.T) {
	dir := t.TempDir()
	want := bigLog(t, dir, 40, 200<<10)
	path := filepath.Join(dir, logFile)
	for _, left := range []string{compactFile, "snapshots/1-2-3.tmp/state.bin"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, left)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, left), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := sweep(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, compactFile)); err == nil || snapshotDirs(t, dir) != 0 {
		t.Error("what a crash left is still there")
	}
	if before, _, err := compact(dir, 1<<30); err != nil || before != 0 {
		t.Errorf("a small file: %d, %v", before, err)
	}
	before, after, err := compact(dir, 1<<20)
	if err != nil || before < 8<<20 || after > 2<<20 {
		t.Fatalf("from %d to %d bytes, %v", before, after, err)
	}
	if got := logText(t, path); got != want {
		t.Error("the content is another")
	}
	if before, _, err := compact(dir, 1<<20); err != nil || before != 0 {
		t.Errorf("twice: %d, %v", before, err)
	}
}

// bigLog writes a log of n entries, cuts all but the last two, and tells what it holds.
func bigLog(t *testing.T, dir string, n, size int) string {
	t.Helper()
	path := filepath.Join(dir, logFile)
	db, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := db.StoreLog(&raft.Log{Index: uint64(i + 1), Term: 1, Data: bytes.Repeat([]byte{byte(i)}, size)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(db.SetUint64(keyTerm, 7), db.DeleteRange(1, uint64(n-2)), db.Close()); err != nil {
		t.Fatal(err)
	}
	return logText(t, path)
}

// logText is all that a log file holds.
func logText(t *testing.T, path string) string {
	t.Helper()
	var out strings.Builder
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error { _, err := fmt.Fprintf(&out, "%s %x=%x\n", name, k, v); return err })
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestCompactionCrash: whatever is left of the new file, the old one is used.
func TestCompactionCrash(t *testing.T) {
	dir := t.TempDir()
	want := bigLog(t, dir, 40, 200<<10)
	whole := filepath.Join(t.TempDir(), "new")
	src, err := openBolt(filepath.Join(dir, logFile), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(copyBolt(src, whole), src.Close()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range slices.Concat([]int{0, 1, 4096, len(data) - 1, len(data)}, []int{rng.IntN(len(data)), rng.IntN(len(data))}) {
		if err := os.WriteFile(filepath.Join(dir, compactFile), data[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := openStores(dir, newRaftLogger(quiet, 100))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		if logText(t, filepath.Join(dir, logFile)) != want {
			t.Fatalf("with %d bytes of the new file the log is another", n)
		}
	}
}

// TestDeleteInPieces: what a snapshot covers is deleted in pieces, an end of the log never: a crash between two
// pieces would leave entries that nobody agreed on and a hole before them.
func TestDeleteInPieces(t *testing.T) {
	for _, tt := range []struct{ from, to, covered, writes uint64 }{
		{1, 1000, 1000, 4},
		{1, 1000, 2000, 4},
		{1, 1000, 0, 1},
		{1, 1000, 900, 1},
		{301, 1000, 1000, 1},
	} {
		writes := uint64(0)
		s := memoryDisk(t)
		d, err := newDisk(s, "", func(point string) error {
			if point == "replica.before-store" {
				writes++
			}
			return nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(1000) {
			if err := s.log.StoreLog(&raft.Log{Index: i + 1, Term: 1}); err != nil {
				t.Fatal(err)
			}
		}
		d.cover(tt.covered)
		if err := d.DeleteRange(tt.from, tt.to); err != nil || writes != tt.writes {
			t.Errorf("%+v: %d writes, %v", tt, writes, err)
		}
	}
}
