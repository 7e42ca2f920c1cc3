package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Limits of the audit log.
const (
	AuditBytes    = 64 << 20 // of one file; then it becomes NAME.1, and NAME.1 becomes NAME.2
	AuditKept     = 4        // older files that are kept
	auditQueue    = 8192     // lines that wait for a disk that does not take them
	auditBatch    = 256 << 10
	auditRetry    = time.Second
	auditGrace    = 2 * time.Second
	auditComplain = 10 * time.Second // between complaints about a disk that does not take them
)

// AuditLog writes lines to a file of mode 0600 in the background, in order. A disk that takes none stops
// nobody: lines wait, at most auditQueue of them, and further ones are counted as lost; both are told
// loudly. A line is written soon after its call is answered, and flushed to disk by the system.
type AuditLog struct {
	path  string
	log   *slog.Logger
	most  int64
	kept  int
	retry time.Duration

	queue chan []byte
	lost  atomic.Uint64
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once

	// Of the writing goroutine.
	file       *os.File
	size       int64
	failing    bool
	complained time.Time
}

// OpenAuditLog starts writing to path. A file that cannot be opened is no error here: it is tried again.
func OpenAuditLog(path string, log *slog.Logger) *AuditLog {
	return openAuditLog(path, log, AuditBytes, AuditKept, auditRetry)
}

func openAuditLog(path string, log *slog.Logger, most int64, kept int, retry time.Duration) *AuditLog {
	a := &AuditLog{path: path, log: log, most: most, kept: kept, retry: retry,
		queue: make(chan []byte, auditQueue), stop: make(chan struct{}), done: make(chan struct{})}
	go a.run()
	return a
}

// put takes one line, its newline included. It never waits.
func (a *AuditLog) put(line []byte) {
	select {
	case a.queue <- line:
	default:
		a.lost.Add(1)
	}
}

// Lost counts the lines that had no room.
func (a *AuditLog) Lost() uint64 { return a.lost.Load() }

// Close writes what waits, once, and closes the file. Later lines are lost. A disk that hangs is not
// waited for longer than auditGrace.
func (a *AuditLog) Close() error {
	a.once.Do(func() { close(a.stop) })
	t := time.NewTimer(auditGrace)
	defer t.Stop()
	select {
	case <-a.done:
		return nil
	case <-t.C:
		return fmt.Errorf("audit log %s: the disk does not answer", a.path)
	}
}

func (a *AuditLog) run() {
	defer close(a.done)
	var told uint64
	for {
		var batch []byte
		select {
		case line := <-a.queue:
			batch = a.gather(line)
		case <-a.stop:
			a.finish()
			return
		}
		for len(batch) > 0 {
			n, err := a.write(batch)
			batch = batch[n:]
			if err == nil {
				break
			}
			a.complain(err)
			if !a.wait() {
				a.log.Error("the audit log ends with lines that were not written", "file", a.path, "bytes", len(batch), "lines", len(a.queue))
				a.closeFile()
				return
			}
		}
		if lost := a.lost.Load(); lost != told {
			a.log.Error("lines of the audit log are lost", "file", a.path, "lines", lost-told)
			told = lost
		}
	}
}

// finish writes what waits when the log is closed.
func (a *AuditLog) finish() {
	defer a.closeFile()
	for batch := a.gather(nil); len(batch) > 0; batch = a.gather(nil) {
		if _, err := a.write(batch); err != nil {
			a.complain(err)
			return
		}
	}
}

// wait lets time pass before another try; false when the log is closed.
func (a *AuditLog) wait() bool {
	t := time.NewTimer(a.retry)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-a.stop:
		return false
	}
}

// gather appends what waits to line.
func (a *AuditLog) gather(line []byte) []byte {
	batch := line
	for len(batch) < auditBatch {
		select {
		case more := <-a.queue:
			batch = append(batch, more...)
		default:
			return batch
		}
	}
	return batch
}

func (a *AuditLog) complain(err error) {
	a.failing = true
	if time.Since(a.complained) < auditComplain {
		return
	}
	a.complained = time.Now()
	a.log.Error("the audit log cannot be written; what is done now may not be found in it", "file", a.path, "err", err,
		"waiting", len(a.queue), "limit", auditQueue, "lost", a.lost.Load())
}

// write writes whole lines and tells how many bytes need no second try. After an error the file is opened
// anew, and a line that was cut off is ended there.
func (a *AuditLog) write(batch []byte) (int, error) {
	if a.file != nil && a.size >= a.most {
		if err := a.rotate(); err != nil {
			return 0, err
		}
	}
	if a.file == nil {
		if err := a.open(); err != nil {
			return 0, err
		}
	}
	n, err := a.file.Write(batch)
	a.size += int64(n)
	if err != nil {
		a.closeFile()
		return bytes.LastIndexByte(batch[:n], '\n') + 1, err
	}
	if a.failing {
		a.failing = false
		a.log.Info("the audit log is written again", "file", a.path)
	}
	return n, nil
}

func (a *AuditLog) closeFile() {
	if a.file != nil {
		_ = a.file.Close() // each write has told its own errors
		a.file = nil
	}
}

// open opens the file for appending. A name that leads elsewhere, or a file that others may read, is not
// written to.
func (a *AuditLog) open() error {
	f, err := os.OpenFile(a.path, os.O_CREATE|os.O_RDWR|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	err = a.adopt(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	a.file = f
	return nil
}

func (a *AuditLog) adopt(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a plain file", a.path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s has mode %04o, want 0600: it tells who did what", a.path, info.Mode().Perm())
	}
	a.size = info.Size()
	if a.size == 0 {
		return nil
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], a.size-1); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if last[0] != '\n' { // the controller was killed, or the disk full, in the middle of a line
		if _, err := f.Write([]byte{'\n'}); err != nil {
			return err
		}
		a.size++
	}
	return nil
}

// rotate gives the full file its number and moves the older ones up; the oldest goes.
func (a *AuditLog) rotate() error {
	a.closeFile()
	for i := a.kept; i > 1; i-- {
		err := os.Rename(fmt.Sprintf("%s.%d", a.path, i-1), fmt.Sprintf("%s.%d", a.path, i))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(a.path, a.path+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
