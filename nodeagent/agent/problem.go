package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	probeEvery = 10 * time.Second
	// probeLimit is after how long a write that does not come back counts as a problem of its own.
	probeLimit = 10 * time.Second
	maxProblem = 256 // bytes
)

// problem is why this node cannot take jobs; empty when it can.
type problem struct {
	mu    sync.Mutex
	text  string
	known chan struct{} // closed with the first verdict
	once  sync.Once
}

func (p *problem) get() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text
}

func (p *problem) set(text string, log *slog.Logger) {
	text = clipTo(text, maxProblem)
	p.mu.Lock()
	changed := p.text != text
	p.text = text
	p.mu.Unlock()
	p.once.Do(func() { close(p.known) })
	switch {
	case changed && text != "":
		log.Error("node cannot take jobs", "problem", text)
	case changed:
		log.Info("node can take jobs again")
	}
}

// watch probes the spool now and then. A probe that hangs is waited for beside the loop, never
// started a second time, and reported.
func (p *problem) watch(ctx context.Context, probe func() error, log *slog.Logger) {
	for p.probe(ctx, probe, log) && sleep(ctx, probeEvery) {
	}
}

// probe makes one probe and takes its result; false: ctx has ended.
func (p *problem) probe(ctx context.Context, probe func() error, log *slog.Logger) bool {
	result := make(chan error, 1)
	go func() { result <- probe() }() // a write to a dead disk cannot be called off
	late := time.NewTimer(probeLimit)
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-late.C:
			p.set("spool: a small write has not come back in "+probeLimit.String(), log)
		case err := <-result:
			text := ""
			if err != nil {
				text = "spool: " + err.Error()
			}
			p.set(text, log)
			return true
		}
	}
}

// WriteProbe writes a small file in dir, syncs it and takes it away again.
func WriteProbe(dir string) error {
	path := filepath.Join(dir, "probe")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 4096))
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		os.Remove(path) // what it holds may be what the disk lacks
		return err
	}
	return os.Remove(path)
}
