package launch

import (
	"errors"
	"fmt"
	"path/filepath"
)

// The folders of a spool. Root owns them all; a user's process can pass through steps and work to
// its own script and work directory, and list nothing.
const (
	StepsDir  = "steps"
	WorkDir   = "work"
	OutputDir = "output"
	// ScriptFile is the staged script in a step's folder.
	ScriptFile = "script"
)

// String is the name of the step's folder: JOB.RUN.STEP.
func (k Key) String() string { return fmt.Sprintf("%d.%d.%d", k.Job, k.Run, k.Step) }

// ParseKey reads what String writes.
func ParseKey(s string) (Key, error) {
	var k Key
	if n, err := fmt.Sscanf(s, "%d.%d.%d", &k.Job, &k.Run, &k.Step); n != 3 || k.String() != s {
		return Key{}, fmt.Errorf("step folder %q is not JOB.RUN.STEP: %w", s, errors.Join(err))
	}
	return k, nil
}

// StepFolder is where a step's record and lock lie.
func StepFolder(spool string, k Key) string { return filepath.Join(spool, StepsDir, k.String()) }

// OutputFile is where a step without a shared file system keeps its standard output, or error.
func OutputFile(spool string, k Key, stderr bool) string {
	ext := ".out"
	if stderr {
		ext = ".err"
	}
	return filepath.Join(spool, OutputDir, k.String()+ext)
}

// WorkFolder is the work directory of a run without a shared file system.
func WorkFolder(spool string, k Key) string {
	return filepath.Join(spool, WorkDir, fmt.Sprintf("%d.%d", k.Job, k.Run))
}
