package shepherd

import (
	"encoding/json"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// writeRecord puts the record into the step's folder, whole. The file is returned open, to be made
// durable by keep.
func writeRecord(dir *os.File, r *Record) (*os.File, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	const tmp = RecordFile + ".new"
	at := int(dir.Fd())
	f, err := openPlainAt(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o640)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(append(data, '\n')); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := unix.Renameat(at, tmp, at, RecordFile); err != nil {
		return nil, errors.Join(&os.PathError{Op: "rename", Path: tmp, Err: err}, f.Close())
	}
	return f, nil
}

// keepAfter is how long a record waits for the controllers to take it before it is made durable
// here. See keep.
const keepAfter = 100 * time.Millisecond

// keep makes a record durable, unless it is gone by then: it is deleted when the controllers' log
// holds it, which is the usual case and saves the disk two flushes. Whoever is told of the end does
// not wait for this. A process's death loses nothing, since the kernel has the record. Only a power
// loss before both leaves none, or an empty one; then the machine comes back with another boot id,
// and every run of the old one counts as dead: nothing that anybody was promised is lost.
func keep(dir, f *os.File, wait time.Duration) error {
	defer dir.Close()
	defer f.Close()
	time.Sleep(wait)
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err == nil && st.Nlink == 0 {
		return nil
	}
	return errors.Join(f.Sync(), dir.Sync())
}

// ParseRecord reads a record file.
func ParseRecord(data []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	return r, nil
}
