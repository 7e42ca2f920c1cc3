package replica

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ownerFile holds the name of the replica that a folder is of.
const ownerFile = "raft.name"

// checkOwner refuses a folder of another replica. Under its own name a replica answers for what it has
// acknowledged and whom it has voted for: another's folder knows neither, and entries that a majority
// holds could be lost. Folders of before there was such a file are anybody's.
func checkOwner(dir, name string) error {
	path := filepath.Join(dir, ownerFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if owner := strings.TrimSuffix(string(text), "\n"); owner != name {
		return fmt.Errorf("state directory %s is that of controller %.64q, not of %s (see %s): give %s its own folder; without one it starts with an empty folder and is copied from the others",
			dir, owner, name, path, name)
	}
	return nil
}

// markOwner writes down whose folder this is. It is there whole or not at all.
func markOwner(dir, name string) error {
	path := filepath.Join(dir, ownerFile)
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	_, err = f.WriteString(name + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("state directory: %w%s", err, errnoText(err))
	}
	return nil
}
