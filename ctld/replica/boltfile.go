package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// Names in a replica's folder.
const (
	logFile = "raft.db"
	// compactFile is raft.db on its way to a smaller one.
	compactFile = "raft.db.compact"
	// markFile says that raft.db was made here. From then on the log is not to be missing.
	markFile = "raft.made"
)

// errMoved is what to do about a folder that cannot be trusted.
var errMoved = errors.New("move the replica's folder away and it is copied from the others")

// checkFolder refuses a folder whose log has been cut or taken away. Raft would begin anew in its place
// and forget what this replica has acknowledged and whom it has voted for.
func checkFolder(dir string) error {
	path := filepath.Join(dir, logFile)
	st, err := os.Stat(path)
	switch {
	case err == nil && st.Size() > 0:
		return checkBolt(path, st.Size())
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("raft log: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, markFile)); err == nil {
		return fmt.Errorf("raft log %s is missing or empty, though it was here before: %w", path, errMoved)
	}
	if list, _ := filepath.Glob(filepath.Join(dir, snapshotFolder, "*-*-*")); len(list) > 0 {
		return fmt.Errorf("raft log %s is missing or empty beside snapshots: %w", path, errMoved)
	}
	return nil
}

// The head of a bbolt file: two pages of which each describes the file as one transaction left it.
const (
	metaMagic    = 0xED0CDAED
	metaFlag     = 0x04
	metaHeader   = 16 // id, flags, count, overflow
	metaSize     = 64
	metaChecksum = 56
	metaPages    = 40 // number of pages in use
	metaTxid     = 48
	minPage      = 1 << 10
	maxPage      = 64 << 10
)

// checkBolt refuses a file that is shorter than its own description says. The library maps such a file
// and the process dies of it when it looks at what is not there.
func checkBolt(path string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("raft log: %w", err)
	}
	defer f.Close()
	head := make([]byte, min(size, 2*maxPage))
	if _, err := io.ReadFull(f, head); err != nil {
		return fmt.Errorf("raft log: %w", err)
	}
	need, ok := boltSize(head)
	if !ok {
		return fmt.Errorf("raft log %s has no head that can be read (%d bytes): %w", path, size, errMoved)
	}
	if size < need {
		return fmt.Errorf("raft log %s is cut off: %d bytes, %d were written: %w", path, size, need, errMoved)
	}
	return nil
}

// boltSize is how long the file is that head is the beginning of, by its newest description.
func boltSize(head []byte) (size int64, ok bool) {
	var newest uint64
	look := func(at, page int) {
		if len(head) < at+metaHeader+metaSize {
			return
		}
		m := head[at+metaHeader:]
		sum := fnv.New64a()
		_, _ = sum.Write(m[:metaChecksum])
		le := binary.LittleEndian
		if le.Uint16(head[at+8:])&metaFlag == 0 || le.Uint32(m) != metaMagic || sum.Sum64() != le.Uint64(m[metaChecksum:]) {
			return
		}
		if p := int(le.Uint32(m[8:])); page != 0 && p != page {
			return
		}
		if tx := le.Uint64(m[metaTxid:]); !ok || tx > newest {
			newest, ok = tx, true
			size = int64(le.Uint64(m[metaPages:])) * int64(le.Uint32(m[8:]))
		}
	}
	look(0, 0)
	for page := minPage; page <= maxPage; page *= 2 {
		look(page, page)
	}
	return size, ok
}

// markMade records that the log exists.
func markMade(dir string) error {
	path := filepath.Join(dir, markFile)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString("raft.db was made in this folder. Without it the folder must not be used.\n")
	return errors.Join(err, f.Sync(), f.Close())
}

// sweep removes what a crash has left half done: snapshots that were never whole and a log on its
// way to a smaller one.
func sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, snapshotFolder, "*.tmp"))
	if err != nil {
		return err
	}
	for _, path := range append(left, filepath.Join(dir, compactFile)) {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// A log is made smaller when it is opened if more than half of at least compactFrom bytes is free.
const compactFrom = 64 << 20

// compact writes raft.db anew without its free pages. It never shrinks by itself, and one burst would
// keep its size for ever. The old file is in place until the new one is whole and flushed.
func compact(dir string, from int64) (before, after int64, err error) {
	path := filepath.Join(dir, logFile)
	st, err := os.Stat(path)
	if err != nil || st.Size() < from {
		return 0, 0, ignoreMissing(err)
	}
	src, err := openBolt(path, false)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	free := int64(src.Stats().FreePageN+src.Stats().PendingPageN) * int64(src.Info().PageSize)
	if unused := max(0, st.Size()-free); free <= unused {
		return 0, 0, nil
	}
	if room, err := freeSpace(dir); err != nil || room < st.Size()-free {
		return 0, 0, err // no room for both: it stays as it is
	}
	if err := copyBolt(src, filepath.Join(dir, compactFile)); err != nil {
		return 0, 0, fmt.Errorf("compact raft log %s: %w", path, err)
	}
	if err := os.Rename(filepath.Join(dir, compactFile), path); err != nil {
		return 0, 0, fmt.Errorf("compact raft log: %w", err)
	}
	if err := syncDir(dir); err != nil {
		return 0, 0, fmt.Errorf("compact raft log: %w", err)
	}
	now, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	return st.Size(), now.Size(), nil
}

// compactStep is how much one transaction of a compaction writes.
const compactStep = 16 << 20

// copyBolt writes all of src to a new file and flushes it.
func copyBolt(src *bbolt.DB, path string) error {
	dst, err := openBolt(path, true)
	if err != nil {
		return err
	}
	err = bbolt.Compact(dst, src, compactStep)
	if err == nil {
		err = sameKeys(src, dst)
	}
	if err == nil {
		err = dst.Sync()
	}
	return errors.Join(err, dst.Close())
}

// sameKeys compares how many keys both files hold, and the last of each bucket.
func sameKeys(a, b *bbolt.DB) error {
	count := func(db *bbolt.DB) (text string, err error) {
		var out strings.Builder
		err = db.View(func(tx *bbolt.Tx) error {
			return tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error {
				last, _ := bucket.Cursor().Last()
				_, err := fmt.Fprintf(&out, "%s %d %x\n", name, bucket.Stats().KeyN, last)
				return err
			})
		})
		return out.String(), err
	}
	x, err := count(a)
	if err != nil {
		return err
	}
	y, err := count(b)
	if err != nil {
		return err
	}
	if x != y {
		return fmt.Errorf("the copy differs: %q, not %q", y, x)
	}
	return nil
}

// boltOptions: the log is flushed at each append, its list of free pages is not: after a snapshot has cut the
// log it would be rewritten with every append, and it can be found again by a scan when the file is opened.
func boltOptions() *bbolt.Options {
	return &bbolt.Options{Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType}
}

// openBolt opens a file; a new one is flushed by its maker, once.
func openBolt(path string, fresh bool) (db *bbolt.DB, err error) {
	o := boltOptions()
	o.NoSync = fresh
	err = safely(func() (err error) { db, err = bbolt.Open(path, 0o600, o); return err })
	return db, boltError(path, err)
}

// boltError says what is the matter with a log that does not open.
func boltError(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("raft log in %s: another process holds it", filepath.Dir(path))
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return fmt.Errorf("raft log %s: %w: %w", path, err, errMoved)
	}
	return fmt.Errorf("raft log %s: %w%s", path, err, errnoText(err))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
