package program

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Beside finds a program in the folder of this one, else in PATH.
func Beside(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		if self, err = filepath.EvalSymlinks(self); err == nil {
			p := filepath.Join(filepath.Dir(self), name)
			if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
				return p, nil
			}
		}
	}
	p, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program nor in PATH", name)
	}
	return p, nil
}
