package replica

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/tensorgrid/tensorgrid/ctld/fsm"
)

// snapshots is raft's store of snapshots with what the library leaves out: the index of the snapshot
// that is restored, a check that nothing is lost when the newest cannot be read, and the size of the log
// that is kept behind one.
type snapshots struct {
	raft.SnapshotStore
	dir   string // "" when they are not files
	disk  *disk
	point func(name string) error
	saved func() // before the log is cut behind a new one
	// applied is how far the state machine is; foreign is told that the leader's history is another one.
	applied func() uint64
	foreign func(error)
	failed  error       // why the last one that was asked for could not be opened
	begun   func() bool // raft runs: a snapshot to be read is one that was just written
}

// openSnapshots puts the store together for raft.
func (r *Replica) openSnapshots() (*snapshots, error) {
	s := &snapshots{SnapshotStore: r.stores.snaps, dir: r.stores.dir, disk: r.disk, point: r.cfg.point, saved: r.keepTail, begun: r.applier.running.Load,
		foreign: r.halt, applied: func() uint64 { seen, _ := r.progress.applied(); return seen }}
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	for _, m := range list {
		r.disk.cover(m.Index)
	}
	return s, nil
}

// tailBytes bounds what is kept of the log behind a snapshot, beside trailingLogs.
const tailBytes = 64 << 20

// keepTail tells raft how many entries to keep behind the snapshot that was just written: a tail lets
// those catch up who lag a little, but 512 entries can be 512 MiB.
func (r *Replica) keepTail() {
	select {
	case <-r.opened:
	default:
		return
	}
	n := r.disk.tail(r.cfg.tail)
	if err := r.tune(func(c *raft.ReloadableConfig) { c.TrailingLogs = n }); err != nil {
		r.log.Error("the tail of the log is not bounded", "error", err)
	}
}

// tune changes raft's settings while it runs.
func (r *Replica) tune(f func(*raft.ReloadableConfig)) error {
	r.dogs.tuning.Lock()
	defer r.dogs.tuning.Unlock()
	c := r.raft.ReloadableConfig()
	f(&c)
	return r.raft.ReloadConfig(c)
}

// describedReader is the content of a snapshot with its description; raft hands that over only to itself.
type describedReader struct {
	io.ReadCloser
	meta *raft.SnapshotMeta
}

// errNoSnapshot: what is there cannot be read.
var errNoSnapshot = errors.New("snapshot cannot be read; move the replica's folder away and it is copied from the others")

// newest is the index of the newest snapshot that was ever whole, as the folder names say: the library
// does not list those whose description it cannot read.
func (s *snapshots) newest() (index uint64, name string, err error) {
	if s.dir == "" {
		return 0, "", nil
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, snapshotFolder))
	if err != nil {
		return 0, "", fmt.Errorf("snapshots: %w", err)
	}
	for _, e := range entries {
		var term, at, ms uint64
		if n, _ := fmt.Sscanf(e.Name(), "%d-%d-%d", &term, &at, &ms); n != 3 || !e.IsDir() || strings.HasSuffix(e.Name(), ".tmp") {
			continue
		}
		if at >= index {
			index, name = at, e.Name()
		}
	}
	return index, name, nil
}

const snapshotFolder = "snapshots"

// List implements raft.SnapshotStore. Snapshots of which none can be read are an error: to begin
// without them would be to forget what they hold.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	list, err := s.SnapshotStore.List()
	if err != nil || len(list) > 0 {
		return list, err
	}
	if _, name, err := s.newest(); err != nil || name != "" {
		return nil, errors.Join(err, fmt.Errorf("%s: %w", filepath.Join(s.dir, snapshotFolder, name), errNoSnapshot))
	}
	return nil, nil
}

// Open implements raft.SnapshotStore. While raft begins, an older snapshot in the place of one that is
// damaged is given out only if the log reaches from it to the newest: else entries that this replica has
// acknowledged would be gone, and it would vote without them.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, rc, err := s.SnapshotStore.Open(id)
	if err != nil {
		if !s.begun() {
			s.failed = fmt.Errorf("%s: %w: %w", filepath.Join(s.dir, snapshotFolder, id), errNoSnapshot, err)
		}
		return nil, nil, err
	}
	if err := s.reaches(meta.Index); err != nil && !s.begun() {
		s.failed = err
		return nil, nil, errors.Join(err, rc.Close())
	}
	return meta, &describedReader{ReadCloser: rc, meta: meta}, nil
}

// reaches tells whether the log holds everything between a snapshot and the newest one.
func (s *snapshots) reaches(index uint64) error {
	newest, name, err := s.newest()
	if err != nil || index >= newest {
		return err
	}
	first, err := s.disk.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.disk.LastIndex()
	if err != nil {
		return err
	}
	if first == 0 || first > index+1 || last < newest {
		return fmt.Errorf("%s: %w: the snapshot before it is of entry %d and the log holds %d to %d",
			filepath.Join(s.dir, snapshotFolder, name), errNoSnapshot, index, first, last)
	}
	return nil
}

// Create implements raft.SnapshotStore.
func (s *snapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, t raft.Transport) (raft.SnapshotSink, error) {
	if err := s.point("replica.snapshot-begin"); err != nil {
		return nil, err
	}
	sink, err := s.SnapshotStore.Create(v, index, term, c, at, t)
	if err != nil {
		return nil, err
	}
	return &snapshotSink{SnapshotSink: sink, of: s, index: index, term: term}, nil
}

// snapshotSink tells the store when a snapshot is whole.
type snapshotSink struct {
	raft.SnapshotSink
	of    *snapshots
	index uint64
	term  uint64
}

// Close implements raft.SnapshotSink.
func (s *snapshotSink) Close() error {
	stale, err := s.of.compare(s.index, s.term)
	if err != nil {
		s.of.foreign(err)
		return errors.Join(err, s.SnapshotSink.Cancel())
	}
	if err := s.SnapshotSink.Close(); err != nil {
		return err
	}
	if stale {
		return s.of.drop()
	}
	if err := s.of.point("replica.snapshot-end"); err != nil {
		return err
	}
	s.of.disk.cover(s.index)
	if s.of.saved != nil {
		s.of.saved()
	}
	return nil
}

// snapshotMeta lets snapshotOf find it.
func (r *describedReader) snapshotMeta() *raft.SnapshotMeta { return r.meta }

// snapshotIndex is the index of the last entry in a snapshot, 0 when its reader does not know.
func snapshotIndex(rc io.ReadCloser) uint64 {
	if m := snapshotOf(rc); m != nil {
		return m.Index
	}
	return 0
}

// why adds to the library's word that raft did not start what was the matter with a snapshot, which the
// library keeps to itself.
func (s *snapshots) why(err, restoring error) error {
	if s.failed != nil {
		return fmt.Errorf("%w: %w", err, s.failed)
	}
	if errors.Is(restoring, fsm.ErrVersion) {
		return fmt.Errorf("%w: %w", err, restoring) // another program is what helps
	}
	if restoring != nil {
		return fmt.Errorf("%w: %w: %w", err, errNoSnapshot, restoring)
	}
	return err
}

// ErrForeign: the cluster's history is not the one that this replica's folder is of. It is wrapped by the error
// that Fatal delivers.
var ErrForeign = errors.New("the cluster has another history than this folder, as after a restore from a backup")

// compare holds a snapshot of index and term, which may come from the leader, against what this replica has. An
// error: the two are of different histories. stale: the end of the log, which nobody agreed on, conflicts with it.
func (s *snapshots) compare(index, term uint64) (stale bool, err error) {
	if !s.begun() {
		return false, nil
	}
	list, err := s.SnapshotStore.List()
	if err != nil {
		return false, nil // the library's own Close will meet it
	}
	other := func(at, has uint64) error {
		return fmt.Errorf("%w: entry %d is of term %d here, a snapshot of entry %d and term %d came; move %s away and it is copied from the others",
			ErrForeign, at, has, index, term, s.dir)
	}
	if len(list) > 0 { // terms do not fall within one history
		if m := list[0]; index < m.Index && term > m.Term || index == m.Index && term != m.Term {
			return false, other(m.Index, m.Term)
		}
	}
	var l raft.Log
	if err := s.disk.GetLog(index, &l); err != nil || l.Term == term {
		return false, nil
	}
	if index <= s.applied() {
		return false, other(index, l.Term)
	}
	return true, nil
}

// drop forgets the log when its end conflicts with a snapshot that is on disk. The library keeps such a log and
// then takes no entry any more, until it is started again.
func (s *snapshots) drop() error {
	first, err := s.disk.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.disk.LastIndex()
	if err != nil {
		return err
	}
	if err := s.disk.DeleteRange(first, last); err != nil {
		return err
	}
	err = fmt.Errorf("raft log %s: entries up to %d were never agreed on and are dropped for a snapshot; start again", s.disk.path, last)
	s.foreign(err)
	return err
}
