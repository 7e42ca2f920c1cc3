package replica

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// Saved says what a snapshot holds.
type Saved struct {
	Index  uint64            // of the last log entry in it
	Time   int64             // of the state, Unix ms
	SHA256 [sha256.Size]byte // of its bytes, which is the hash of the state
	Bytes  int64
}

// hashWriter sums what passes, and gives up when its replica stops.
type hashWriter struct {
	to      io.Writer // nil for none
	stopped func() bool
	sum     hash.Hash
	n       int64
}

func (w *hashWriter) Write(b []byte) (int, error) {
	if w.stopped() {
		return 0, ErrStopped
	}
	_, _ = w.sum.Write(b) // never fails
	w.n += int64(len(b))
	if w.to == nil {
		return len(b), nil
	}
	return w.to.Write(b)
}

// SaveSnapshot writes the state to w as a snapshot: all that was acknowledged before the call is in it.
// Commands go on meanwhile. It fails as Read does, or when ctx ends or w fails.
func (r *Replica) SaveSnapshot(ctx context.Context, w io.Writer) (Saved, error) {
	if _, err := r.Read(ctx); err != nil {
		return Saved{}, err
	}
	var out Saved
	s := r.machine.Snapshot()
	for { // the time of the very state that is pinned
		v := r.machine.View()
		if out.Index, out.Time = v.Index(), v.Time(); out.Index == s.Index() {
			break
		}
		s = r.machine.Snapshot()
	}
	sum := &hashWriter{to: w, sum: sha256.New(), stopped: func() bool { return ctx.Err() != nil || r.isClosing() }}
	if err := s.Write(sum); err != nil {
		return Saved{}, errors.Join(err, ctx.Err())
	}
	sum.sum.Sum(out.SHA256[:0])
	out.Bytes = sum.n
	return out, nil
}

// ErrNotEmpty: a cluster is restored into empty folders only.
var ErrNotEmpty = errors.New("it is not empty")

// RestoreDir makes a replica's folder from a backup, which is the bytes of a snapshot. Each controller does
// the same with the same file and the same voters: they then agree on state, log position, term and
// members, and begin as if they had stopped together. The next job id is moved on by skipIDs, so that ids
// given after the backup are not given again. dir must be empty or not exist. What is returned is what was
// written: its hash is the backup's only if skipIDs is 0.
//
// The term is the time of the backup's state in seconds: far above any that elections reach. A controller
// that somebody forgot to empty is then behind the restored ones and takes their state, not they its.
func RestoreDir(dir string, voters []Voter, file string, skipIDs uint32) (out Saved, err error) {
	if len(voters) == 0 || len(voters) > MaxVoters {
		return out, fmt.Errorf("restore: %d controllers, 1 to %d are possible", len(voters), MaxVoters)
	}
	there, err := emptyFolder(dir)
	if err != nil {
		return out, fmt.Errorf("restore: %w", err)
	}
	machine, err := readBackup(file)
	if err != nil {
		return out, fmt.Errorf("restore from %s: %w", file, err)
	}
	if err := machine.Store().SkipIDs(skipIDs); err != nil {
		return out, fmt.Errorf("restore from %s: skip job ids: %w", file, err)
	}
	if err := machine.Store().Check(); err != nil {
		return out, fmt.Errorf("restore from %s: the state is not consistent: %w", file, err)
	}
	// Built aside and moved: a crash leaves no folder that a controller would take for its own. A folder that
	// is there is kept, since it may be a file system of its own or a link to one.
	aside := filepath.Clean(dir) + asideFolder
	if there {
		aside = filepath.Join(dir, asideFolder)
	}
	if err := os.RemoveAll(aside); err != nil {
		return out, fmt.Errorf("restore: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(aside))
		}
	}()
	if out, err = writeRestored(aside, voters, machine); err != nil {
		return out, fmt.Errorf("restore into %s: %w", aside, err)
	}
	if there {
		err = moveParts(aside, dir)
	} else if err = os.Rename(aside, dir); err == nil {
		err = syncDir(filepath.Dir(filepath.Clean(dir)))
	}
	if err != nil {
		return out, fmt.Errorf("restore: %w", err)
	}
	return out, nil
}

// asideFolder is where a restored folder is built: beside the one that is not there yet, or in it.
const asideFolder = ".restore"

// emptyFolder tells whether dir is there. It is an error if somebody's files are in it; what a file system
// is made with and what a restore that was killed has left are not.
func emptyFolder(dir string) (there bool, err error) {
	left, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, e := range left {
		if name := e.Name(); name != asideFolder && name != "lost+found" {
			return false, fmt.Errorf("into %s: %w (%s); move it away first", dir, ErrNotEmpty, name)
		}
	}
	return true, nil
}

// moveParts moves a folder that was built in dir to its place. The log comes last: snapshots without one are
// a folder that checkFolder refuses, should the power fail in between.
func moveParts(aside, dir string) error {
	for _, name := range []string{snapshotFolder, markFile, logFile} {
		if err := os.Rename(filepath.Join(aside, name), filepath.Join(dir, name)); err != nil {
			return err
		}
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	return errors.Join(os.Remove(aside), syncDir(dir))
}

// readBackup builds the state of a backup.
func readBackup(file string) (*fsm.FSM, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	machine := fsm.New(state.New())
	in := bufio.NewReaderSize(f, snapshotBuffer)
	if err := machine.Restore(in); err != nil {
		return nil, err
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: bytes behind its end", fsm.ErrCorrupt)
	}
	return machine, nil
}

// keyTerm is where raft keeps its term.
var keyTerm = []byte("CurrentTerm")

// writeRestored writes one snapshot and the term that goes with it.
func writeRestored(dir string, voters []Voter, machine *fsm.FSM) (out Saved, err error) {
	s, err := openStores(dir, hclog.NewNullLogger())
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	view := machine.View()
	out.Index, out.Time = max(1, view.Index()), view.Time()
	term := uint64(max(1, view.Time()/1000))
	_, transport := raft.NewInmemTransport("")
	sink, err := s.snaps.Create(raft.SnapshotVersionMax, out.Index, term, Config{Voters: voters}.cluster(), 1, transport)
	if err != nil {
		return out, err
	}
	sum := &hashWriter{to: sink, sum: sha256.New(), stopped: func() bool { return false }}
	if err := machine.Snapshot().Write(sum); err != nil {
		return out, errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return out, err
	}
	sum.sum.Sum(out.SHA256[:0])
	out.Bytes = sum.n
	return out, s.stable.SetUint64(keyTerm, term)
}
