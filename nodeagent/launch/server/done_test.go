package server

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// TestDoneSurvivesAFullDisk fills the disk in the middle of a record: those that come later are read
// again all the same.
func TestDoneSurvivesAFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=8k"); err != nil {
		t.Skip("needs root and a file system of its own:", err)
	}
	defer unix.Unmount(disk, unix.MNT_DETACH)
	path := filepath.Join(disk, doneFile)
	var d doneLog
	if err := d.load(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(disk+"/fill", make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	n, refused := uint32(0), false
	for ; n < 4096; n++ {
		if refused = d.mark(launch.Key{Job: n}, 10, 0) != nil; refused {
			break
		}
	}
	if !refused || n%(4096/doneRecord) != 0 {
		t.Fatalf("the disk was not full in the middle of a record: %d records", n)
	}
	if _, known := d.runs[launch.Key{Job: n}]; known {
		t.Error("a run whose mark failed is known")
	}
	if err := os.Remove(disk + "/fill"); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(49) {
		if err := d.mark(launch.Key{Job: n + i}, 10, 0); err != nil {
			t.Fatal(err)
		}
	}
	var again doneLog
	if err := again.load(path, 0); err != nil {
		t.Fatal(err)
	}
	for i := range n + 49 {
		if again.runs[launch.Key{Job: i}] != 10 {
			t.Fatalf("run %d of %d is forgotten", i, n+49)
		}
	}
}

// TestDoneForgetsWhatHasExpired: the file shrinks while the launcher runs, and is not gone through for
// each run when nothing has expired.
func TestDoneForgetsWhatHasExpired(t *testing.T) {
	path := filepath.Join(t.TempDir(), doneFile)
	var d doneLog
	if err := d.load(path, 0); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(maxDone) {
		if err := d.mark(launch.Key{Job: i}, 10, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.mark(launch.Key{Job: maxDone}, 20, 5); err != nil {
		t.Fatal(err)
	}
	if len(d.runs) != maxDone+1 || d.limit != 2*maxDone {
		t.Errorf("%d runs, limit %d: want all, and the next look later", len(d.runs), d.limit)
	}
	d.limit = maxDone
	if err := d.mark(launch.Key{Job: 1, Run: 1}, 30, 15); err != nil {
		t.Fatal(err)
	}
	if len(d.runs) != 2 || d.size != 2*doneRecord {
		t.Errorf("%d runs and %d bytes left", len(d.runs), d.size)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != d.size {
		t.Errorf("file: %v %v", st, err)
	}
}
