package shepherd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/fault"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// writeRecord puts the record into the step's folder, whole: under another name first. The launcher has
// made a file of that name for us; most records fit in it, so that a full disk does not matter.
func writeRecord(dir *os.File, r *Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	text := bytes.Repeat([]byte{' '}, max(launch.RecordRoom, len(data)+1))
	copy(text, data)
	text[len(text)-1] = '\n'
	const tmp = RecordFile + ".new"
	at := int(dir.Fd())
	f, err := openPlainAt(dir, tmp, unix.O_WRONLY|unix.O_CREAT, 0o640)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(text, 0); err != nil {
		return err
	}
	if st, err := f.Stat(); err != nil {
		return err
	} else if st.Size() != int64(len(text)) {
		if err := f.Truncate(int64(len(text))); err != nil {
			return err
		}
	}
	if err := unix.Renameat(at, tmp, at, RecordFile); err != nil {
		return &os.PathError{Op: "rename", Path: tmp, Err: err}
	}
	return nil
}

// leaveAgain is the pause between two tries to write a record.
const leaveAgain = time.Second

// leave writes the record, again and again while the disk takes nothing. The agent is told meanwhile:
// what it says to the controllers does not come from the disk. While we try we hold the lock, so that
// nobody takes the step for lost. False: the step was released before, nobody asks for its record.
func (s *step) leave(l *link, r *Record) bool {
	for first := true; ; first = false {
		err := fault.Point("shepherd.before-record")
		if err == nil {
			err = writeRecord(s.dir, r)
		}
		switch {
		case err == nil:
			return true
		case s.released():
			return false
		case first:
			fmt.Fprintf(os.Stderr, "step %s: record: %v\n", r.Key, err)
		}
		l.tell(Up{Ended: r}) // an agent that is away hears it the next time
		time.Sleep(leaveAgain)
	}
}

// released tells whether the step's folder has been taken away.
func (s *step) released() bool {
	var have, want unix.Stat_t
	err := errors.Join(unix.Fstat(int(s.dir.Fd()), &want), unix.Stat(s.plan.StepDir, &have))
	return errors.Is(err, fs.ErrNotExist) || err == nil && (have.Ino != want.Ino || have.Dev != want.Dev)
}

// keepAfter is how long a record waits for the controllers to take it before it is made durable
// here. See keeper.
const keepAfter = 100 * time.Millisecond

// keeper makes records durable, unless they are gone by then: a record is deleted when the
// controllers' log holds it, which is the usual case and saves the disk two flushes. Whoever is told
// of the end does not wait for this. A process's death loses nothing, since the kernel has the
// record. Only a power loss before both leaves none, or one of another step; then the machine comes
// back with another boot id, and every run of the old one counts as dead: nothing that anybody was
// promised is lost.
type keeper struct {
	after time.Duration
	work  sync.WaitGroup

	mu      sync.Mutex
	folders []string
}

// add has the record in a step's folder made durable. Those that come meanwhile are looked at
// together.
func (k *keeper) add(folder string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.folders = append(k.folders, folder)
	if len(k.folders) == 1 {
		k.work.Go(k.run)
	}
}

// wait waits for all to be durable.
func (k *keeper) wait() { k.work.Wait() }

func (k *keeper) run() {
	time.Sleep(k.after)
	k.mu.Lock()
	folders := k.folders
	k.folders = nil
	k.mu.Unlock()
	for _, folder := range folders {
		if err := keep(folder); err != nil {
			fmt.Fprintf(os.Stderr, "record in %s: %v\n", folder, err)
		}
	}
}

func keep(folder string) error {
	for _, path := range []string{filepath.Join(folder, RecordFile), folder} {
		f, err := openPlain(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// ParseRecord reads a record file.
func ParseRecord(data []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	return r, nil
}
