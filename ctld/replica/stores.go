package replica

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// stores is the disk of one replica.
type stores struct {
	log    raft.LogStore
	stable raft.StableStore
	snaps  raft.SnapshotStore
	dir    string // "" when they are not files
	close  func() error
}

// lockTimeout is how long opening waits for another process to let go of the log.
const lockTimeout = 2 * time.Second

// openStores opens the log, the votes and the snapshots under dir, having made sure that they are what was
// left there. The log is fsynced at each append.
func openStores(dir string, logger hclog.Logger) (*stores, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("replica folder: %w", err)
	}
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	if err := sweep(dir); err != nil {
		return nil, fmt.Errorf("replica folder: %w", err)
	}
	path := filepath.Join(dir, logFile)
	var before, after int64
	err := safely(func() (err error) { before, after, err = compact(dir, compactFrom); return err })
	if err != nil {
		return nil, err
	}
	if before > 0 {
		logger.Info("raft log made smaller", "path", path, "before", before, "after", after)
	}
	var bolt *raftboltdb.BoltStore
	err = safely(func() (err error) {
		bolt, err = raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions(), MsgpackUseNewTimeFormat: true})
		return err
	})
	if err != nil {
		return nil, boltError(path, err)
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, logger)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("snapshots in %s: %w", dir, err), bolt.Close())
	}
	if err := markMade(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("replica folder: %w", err), bolt.Close())
	}
	// A new file is durable only when its folder is.
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := syncDir(d); err != nil {
			return nil, errors.Join(fmt.Errorf("replica folder: %w", err), bolt.Close())
		}
	}
	return &stores{log: bolt, stable: bolt, snaps: snaps, dir: dir, close: bolt.Close}, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
