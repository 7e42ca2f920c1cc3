package replica

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

// disk is the log and the votes as raft sees them. It tells how long a write is under way, ends the
// replica at the first that fails, and keeps the sizes of the newest entries.
//
// Invariant: after one write has failed nothing is written any more. What a disk holds after a failed
// flush is not known, and a second flush that succeeds does not say that the first one's pages are there.
type disk struct {
	log    raft.LogStore
	stable raft.StableStore
	path   string                  // of the file, for people
	point  func(name string) error // where tests break it
	failed func(error)             // told of the first failure once raft runs
	live   atomic.Bool             // raft runs; before that errors are the opener's
	broken atomic.Pointer[error]

	covered atomic.Uint64 // newest snapshot's index: the log may lack what is not behind it

	mu      sync.Mutex
	next    uint64
	pending map[uint64]pendingWrite
	sizes   []entrySize // of the newest entries, each at index % len
	last    uint64      // newest entry that is in sizes
}

type entrySize struct {
	index uint64
	bytes int64
}

// pendingWrite is a write that has not come back.
type pendingWrite struct {
	id    uint64
	what  string
	since time.Time
}

// newDisk puts a disk on s. It reads the newest entries, as many as are kept behind a snapshot.
func newDisk(s *stores, path string, point func(string) error, failed func(error)) (*disk, error) {
	d := &disk{log: s.log, stable: s.stable, path: path, point: point, failed: failed,
		pending: map[uint64]pendingWrite{}, sizes: make([]entrySize, trailingLogs+1)}
	first, err := d.FirstIndex()
	if err != nil {
		return nil, err
	}
	last, err := d.LastIndex()
	if err != nil {
		return nil, err
	}
	for i := max(first, last-min(last, trailingLogs)); i <= last && last > 0; i++ {
		var l raft.Log
		switch err := safely(func() error { return d.log.GetLog(i, &l) }); {
		case err == nil:
			d.note(i, int64(len(l.Data)))
		case !errors.Is(err, raft.ErrLogNotFound): // a hole is the opener's to judge
			return nil, d.fail(fmt.Sprintf("read entry %d", i), unreadable(err))
		}
	}
	return d, nil
}

// err is why nothing can be written any more, nil while it can.
func (d *disk) err() error {
	if e := d.broken.Load(); e != nil {
		return *e
	}
	return nil
}

// oldest is the write that has been under way for the longest; ok is false when there is none.
func (d *disk) oldest() (w pendingWrite, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pending {
		if !ok || p.since.Before(w.since) {
			w, ok = p, true
		}
	}
	return w, ok
}

// write runs one change of the file between two points.
func (d *disk) write(what, before, after string, f func() error) error {
	if err := d.err(); err != nil {
		return err
	}
	d.mu.Lock()
	d.next++
	id := d.next
	d.pending[id] = pendingWrite{id, what, time.Now()}
	d.mu.Unlock()
	err := safely(func() error {
		if err := d.point(before); err != nil {
			return err
		}
		if err := f(); err != nil {
			return err
		}
		return d.point(after)
	})
	d.mu.Lock()
	delete(d.pending, id)
	d.mu.Unlock()
	if err != nil {
		return d.fail(what, err)
	}
	return nil
}

// fail records the first failure. Nothing is written after it.
func (d *disk) fail(what string, err error) error {
	err = fmt.Errorf("raft log %s: %s: %w%s", d.path, what, err, errnoText(err))
	if d.broken.CompareAndSwap(nil, &err) && d.live.Load() {
		d.failed(err)
	}
	return d.err()
}

// errnoText names the errno in err, " (ENOSPC, errno 28)", or gives nothing.
func errnoText(err error) string {
	var e syscall.Errno
	if !errors.As(err, &e) {
		return ""
	}
	name := unix.ErrnoName(e)
	if name == "" {
		return fmt.Sprintf(" (errno %d)", int(e))
	}
	return fmt.Sprintf(" (%s, errno %d)", name, int(e))
}

// errUnreadable: the file's own structure is broken, or the disk gives what is mapped no more.
var errUnreadable = errors.New("it cannot be read; move the replica's folder away and it is copied from the others")

// safely runs f, which works on a file mapped into memory: a page that the disk does not give is a
// fault there, and one with nonsense in it makes the library panic.
func safely(f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errUnreadable, p)
		}
	}()
	return f()
}

// stop ends the goroutine that called where the library would panic because of err. Its answers to others are
// negative ones until it has succeeded, and they are sent when the goroutine ends.
func (d *disk) stop(err error) error {
	if d.live.Load() {
		runtime.Goexit()
	}
	return err
}

// StoreLog implements raft.LogStore.
func (d *disk) StoreLog(l *raft.Log) error { return d.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (d *disk) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	what := fmt.Sprintf("write entries %d to %d", logs[0].Index, logs[len(logs)-1].Index)
	err := d.write(what, "replica.before-store", "replica.after-store", func() error { return d.log.StoreLogs(logs) })
	if err != nil {
		return err
	}
	d.mu.Lock()
	for _, l := range logs {
		d.note(l.Index, int64(len(l.Data)))
	}
	d.mu.Unlock()
	return nil
}

// note keeps the size of an entry; the lock is held, or nobody else has the disk yet.
func (d *disk) note(index uint64, size int64) {
	d.sizes[index%uint64(len(d.sizes))] = entrySize{index, size}
	d.last = index
}

// DeleteRange implements raft.LogStore. A head that a snapshot covers goes in pieces: an entry that waits for
// the file is not held up for long, and whatever is cut between two of them leaves a log without a hole.
// An end goes at once, also when it is the whole log: what a crash left of it would not join the snapshot.
func (d *disk) DeleteRange(from, to uint64) error {
	first, err := d.FirstIndex()
	if err != nil {
		return err
	}
	for from <= to {
		end := to
		if from <= first && to <= d.covered.Load() {
			end = min(to, from+deleteStep-1)
		}
		what := fmt.Sprintf("delete entries %d to %d", from, end)
		if err := d.write(what, "replica.before-store", "replica.after-store", func() error { return d.log.DeleteRange(from, end) }); err != nil {
			return err
		}
		from, first = end+1, end+1
	}
	return nil
}

// deleteStep is how many entries one write deletes at the head of the log.
const deleteStep = 256

// FirstIndex implements raft.LogStore.
func (d *disk) FirstIndex() (i uint64, err error) {
	return i, d.read("find the first entry", func() (err error) { i, err = d.log.FirstIndex(); return err })
}

// LastIndex implements raft.LogStore.
func (d *disk) LastIndex() (i uint64, err error) {
	return i, d.read("find the last entry", func() (err error) { i, err = d.log.LastIndex(); return err })
}

// GetLog implements raft.LogStore. An entry that should be there and is not ends the replica.
func (d *disk) GetLog(index uint64, l *raft.Log) error {
	err := d.read(fmt.Sprintf("read entry %d", index), func() error { return d.log.GetLog(index, l) })
	if err == nil || !errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	first, ferr := d.FirstIndex()
	last, lerr := d.LastIndex()
	if ferr == nil && lerr == nil && first <= index && index <= last && index > d.covered.Load() {
		return d.stop(d.fail(fmt.Sprintf("read entry %d of %d to %d", index, first, last), fmt.Errorf("it is not there; %w", errUnreadable)))
	}
	return err
}

// read runs one look at the file. A failure other than "not found" ends the replica.
func (d *disk) read(what string, f func() error) error {
	if err := safely(f); err != nil {
		if errors.Is(err, raft.ErrLogNotFound) {
			return err
		}
		return d.stop(d.fail(what, unreadable(err)))
	}
	return nil
}

// unreadable says what to do about a file that gives nonsense; a disk that fails has its errno.
func unreadable(err error) error {
	if errors.Is(err, errUnreadable) || errnoText(err) != "" {
		return err
	}
	return fmt.Errorf("%w: %w", errUnreadable, err)
}

// Set implements raft.StableStore.
func (d *disk) Set(key, value []byte) error {
	return d.vote(func() error { return d.stable.Set(key, value) })
}

// SetUint64 implements raft.StableStore.
func (d *disk) SetUint64(key []byte, value uint64) error {
	return d.vote(func() error { return d.stable.SetUint64(key, value) })
}

func (d *disk) vote(f func() error) error {
	if err := d.write("write term or vote", "replica.before-vote", "replica.after-vote", f); err != nil {
		return d.stop(err)
	}
	return nil
}

// Get implements raft.StableStore. That a key is not there is an error, which raft knows by its text.
func (d *disk) Get(key []byte) (v []byte, err error) {
	err = safely(func() (err error) { v, err = d.stable.Get(key); return err })
	return v, err
}

// GetUint64 implements raft.StableStore.
func (d *disk) GetUint64(key []byte) (v uint64, err error) {
	err = safely(func() (err error) { v, err = d.stable.GetUint64(key); return err })
	return v, err
}

// tail is how many of the newest entries fit into bytes: at least one, at most trailingLogs.
func (d *disk) tail(bytes int64) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := uint64(0)
	for ; n < trailingLogs && n < d.last; n++ {
		if e := d.sizes[(d.last-n)%uint64(len(d.sizes))]; e.index == d.last-n {
			bytes -= e.bytes
		}
		if bytes < 0 {
			break
		}
	}
	return max(1, n)
}

// cover records that a snapshot holds all entries up to index.
func (d *disk) cover(index uint64) {
	for old := d.covered.Load(); index > old && !d.covered.CompareAndSwap(old, index); old = d.covered.Load() {
	}
}
