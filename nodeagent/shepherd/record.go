package shepherd

import (
	"encoding/json"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// writeRecord makes the record durable: after a power loss there is the whole record or none.
func writeRecord(dir *os.File, r *Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	const tmp = RecordFile + ".new"
	at := int(dir.Fd())
	f, err := openPlainAt(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(data, '\n')); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := unix.Renameat(at, tmp, at, RecordFile); err != nil {
		return &os.PathError{Op: "rename", Path: tmp, Err: err}
	}
	return dir.Sync()
}

// ParseRecord reads a record file.
func ParseRecord(data []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	return r, nil
}
