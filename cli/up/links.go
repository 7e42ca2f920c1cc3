package up

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Names are the commands that this program is, by their own name, with Slurm's.
var Names = []struct{ Own, Slurm string }{
	{"gsub", "sbatch"}, {"gqueue", "squeue"}, {"gcancel", "scancel"}, {"ginfo", "sinfo"}, {"gacct", "sacct"}, {"gctl", "scontrol"},
	{"gacctmgr", "sacctmgr"}, {"gshare", "sshare"}, {"gprio", "sprio"},
}

// InstallLinks makes dir with a link to this program for every name. A file of another kind is never replaced.
func InstallLinks(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, n := range Names {
		for _, name := range []string{n.Own, n.Slurm} {
			if err := link(self, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func link(target, path string) error {
	if old, err := os.Readlink(path); err == nil {
		if old == target {
			return nil
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	err := os.Symlink(target, path)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there and is not a link", path)
	}
	return err
}
