package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
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
	texts [problems]string
	known chan struct{} // closed with the first verdict on the spool
	once  sync.Once

	asked   chan chan<- struct{} // who wants a probe now; answered when it is made
	changed func()               // called when the text changes; set before anybody sets one
}

func newProblem() *problem {
	return &problem{known: make(chan struct{}), asked: make(chan chan<- struct{}), changed: func() {}}
}

// The parts that a node cannot work without.
const (
	ofSpool = iota
	ofLauncher
	problems
)

func (p *problem) get() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.textLocked()
}

func (p *problem) textLocked() string {
	var all []string
	for _, text := range p.texts {
		if text != "" {
			all = append(all, text)
		}
	}
	return clipTo(strings.Join(all, "; "), maxProblem)
}

func (p *problem) set(of int, text string, log *slog.Logger) {
	p.mu.Lock()
	was := p.textLocked()
	p.texts[of] = clipTo(text, maxProblem)
	is := p.textLocked()
	p.mu.Unlock()
	if of == ofSpool {
		p.once.Do(func() { close(p.known) })
	}
	if is != was {
		p.changed()
	}
	switch {
	case is == was:
	case is != "":
		log.Error("node cannot take jobs", "problem", is)
	default:
		log.Info("node can take jobs again")
	}
}

// launcherEvery and launcherLimit: how often the launcher is asked whether it is there, and how long
// its answer may take. It is a problem after launcherPatience.
const (
	launcherEvery = 5 * time.Second
	launcherLimit = 10 * time.Second
)

// watchLauncher asks the launcher for nothing, now and then: any answer will do. One that is started
// again, as for an update, is no problem.
func (a *Agent) watchLauncher(ctx context.Context) {
	heard := instant()
	for sleep(ctx, launcherEvery) {
		asking, cancel := context.WithTimeout(ctx, launcherLimit)
		_, err := a.launch.call(asking, &launch.Request{})
		cancel()
		if ctx.Err() != nil {
			return
		}
		switch now := instant(); {
		case err == nil:
			heard = now
			a.problem.set(ofLauncher, "", a.log)
		case now.Sub(heard) >= launcherPatience:
			a.problem.set(ofLauncher, "launcher down: "+err.Error(), a.log)
		}
	}
}

// watch probes the spool now and then, and when somebody asks. A probe that hangs is waited for beside
// the loop, never started a second time, and reported.
func (p *problem) watch(ctx context.Context, probe func() error, log *slog.Logger) {
	for p.probe(ctx, probe, log) {
		next := time.NewTimer(probeEvery)
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-next.C:
		case done := <-p.asked:
			next.Stop()
			if !p.probe(ctx, probe, log) {
				return
			}
			close(done)
		}
	}
}

// probeWait is how long a launch waits for the word on the spool.
const probeWait = 5 * time.Second

// probeNow has the spool probed and tells whether something is wrong with it.
func (p *problem) probeNow(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	done := make(chan struct{})
	select {
	case p.asked <- done:
		select {
		case <-done:
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.texts[ofSpool] != ""
}

// spoolErrno tells whether an errno is one that a spool gives which takes nothing.
func spoolErrno(errno int) bool {
	switch unix.Errno(errno) {
	case unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.ESTALE, unix.EUCLEAN:
		return true
	}
	return false
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
			p.set(ofSpool, "spool: a small write has not come back in "+probeLimit.String(), log)
		case err := <-result:
			text := ""
			if err != nil {
				text = "spool: " + err.Error()
			}
			p.set(ofSpool, text, log)
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
