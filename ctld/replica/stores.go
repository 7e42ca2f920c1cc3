package replica

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// stores is the disk of one replica.
type stores struct {
	log    raft.LogStore
	stable raft.StableStore
	snaps  raft.SnapshotStore
	close  func() error
}

// lockTimeout is how long opening waits for another process to let go of the log.
const lockTimeout = 2 * time.Second

// openStores opens the log, the votes and the snapshots under dir. The log is fsynced at each
// append. Its list of free pages is not: after a snapshot has cut the log it would be rewritten
// with every append, and it can be found again by a scan when the file is opened.
func openStores(dir string, logger hclog.Logger) (*stores, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("replica folder: %w", err)
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: filepath.Join(dir, "raft.db"),
		BoltOptions: &bbolt.Options{
			Timeout:        lockTimeout,
			NoFreelistSync: true,
			FreelistType:   bbolt.FreelistMapType,
		},
		MsgpackUseNewTimeFormat: true,
	})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("raft log in %s: another process holds it", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("raft log in %s: %w", dir, err)
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, logger)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("snapshots in %s: %w", dir, err), bolt.Close())
	}
	// A new file is durable only when its folder is.
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := syncDir(d); err != nil {
			return nil, errors.Join(fmt.Errorf("replica folder: %w", err), bolt.Close())
		}
	}
	return &stores{log: bolt, stable: bolt, snaps: snaps, close: bolt.Close}, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// indexedSnapshots tells the state machine the index of the snapshot that it restores; raft
// hands it over only to itself.
type indexedSnapshots struct{ raft.SnapshotStore }

// indexedReader is the content of a snapshot with the index of its last entry.
type indexedReader struct {
	io.ReadCloser
	index uint64
}

// Open implements raft.SnapshotStore.
func (s indexedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, rc, err := s.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	return meta, &indexedReader{ReadCloser: rc, index: meta.Index}, nil
}

// snapshotIndex finds the index in a reader that came from indexedSnapshots, 0 if it did not.
func snapshotIndex(rc io.ReadCloser) uint64 {
	for {
		switch r := rc.(type) {
		case *indexedReader:
			return r.index
		case raft.ReadCloserWrapper:
			rc = r.WrappedReadCloser()
		default:
			return 0
		}
	}
}
