package shepherd

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
)

// writeRecord makes the record durable: after a power loss there is the whole record or none.
func writeRecord(dir *os.Root, r *Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	const tmp = RecordFile + ".new"
	if err := dir.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(data, '\n')); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := dir.Rename(tmp, RecordFile); err != nil {
		return err
	}
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ParseRecord reads a record file.
func ParseRecord(data []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	return r, nil
}
