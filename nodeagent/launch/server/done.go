package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

const (
	doneFile = "done"
	// doneRecord is job, run, step and expiry in the done file.
	doneRecord = 20
	// maxDone is how many records the file holds before those with an expired credential are dropped,
	// or twice as many as were left the last time.
	maxDone = 1 << 16
)

// doneLog is which runs have been here, in memory and in a file.
type doneLog struct {
	runs  map[launch.Key]int64 // until the credential expires (Unix ms)
	path  string
	file  *os.File
	size  int64 // of the file: whole records
	limit int   // records
}

// load reads the file and drops what has expired, where the disk has room for that. Part of a record at
// the end is a mark that was never confirmed.
func (d *doneLog) load(path string, nowMS int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	d.runs, d.path, d.file = map[launch.Key]int64{}, path, f
	d.size = int64(len(data) / doneRecord * doneRecord)
	old := false
	for ; len(data) >= doneRecord; data = data[doneRecord:] {
		k, expires := decodeDone(data)
		d.runs[k] = expires
		old = old || expires <= nowMS
	}
	d.limit = max(maxDone, 2*len(d.runs))
	if err := f.Truncate(d.size); err != nil || !old {
		return err
	}
	if err := d.shrink(nowMS); !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return nil
}

// shrink drops what has expired and puts a new file in the old one's place.
func (d *doneLog) shrink(nowMS int64) error {
	var keep bytes.Buffer
	for k, expires := range d.runs {
		if expires <= nowMS {
			delete(d.runs, k)
			continue
		}
		keep.Write(encodeDone(k, expires))
	}
	tmp := d.path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(keep.Bytes())
	if err == nil {
		err = os.Rename(tmp, d.path)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(tmp))
	}
	if d.file != nil {
		err = d.file.Close()
	}
	d.file, d.size, d.limit = f, int64(keep.Len()), max(maxDone, 2*len(d.runs))
	return err
}

// mark adds a run. Where it fails nothing is added, and what follows stays in its place.
func (d *doneLog) mark(k launch.Key, expires, nowMS int64) error {
	if records := int(d.size / doneRecord); records >= d.limit {
		if d.shrink(nowMS) != nil { // no room for a second file: the old one is good for more
			d.limit = 2 * records
		}
	}
	if _, err := d.file.WriteAt(encodeDone(k, expires), d.size); err != nil {
		return errors.Join(err, d.file.Truncate(d.size))
	}
	d.size += doneRecord
	d.runs[k] = expires
	return nil
}

func encodeDone(k launch.Key, expires int64) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(le.AppendUint32(le.AppendUint32(make([]byte, 0, doneRecord), k.Job), k.Run), k.Step)
	return le.AppendUint64(b, uint64(expires))
}

func decodeDone(b []byte) (launch.Key, int64) {
	le := binary.LittleEndian
	return launch.Key{Job: le.Uint32(b), Run: le.Uint32(b[4:]), Step: le.Uint32(b[8:])}, int64(le.Uint64(b[12:]))
}

// markDone remembers that a run has been here, so that its credential is of no more use. It is not
// flushed to the disk: a process's death loses nothing of it, and after a power loss the machine has
// another boot id. The controllers take every run of the old one for dead when the node registers
// with it, and give a job that is to run again the next run number; what they had sent to the old
// boot went over a connection that died with it. So none of them sends such a run again, and the
// credential that somebody kept of it is good for an hour only.
func (s *spool) markDone(k launch.Key, expires, nowMS int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done.mark(k, expires, nowMS)
}

func (s *spool) wasDone(k launch.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.done.runs[k]
	return ok
}
