package server

import (
	"sync"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// jobTable counts the steps of each run on this node, so that the prolog runs before the first and
// the epilog after the last, each once.
type jobTable struct {
	mu    sync.Mutex
	runs  map[runKey]*runEntry
	steps map[launch.Key]*stepLock
}

type runKey struct{ job, run uint32 }

type runEntry struct {
	mu    sync.Mutex // held while prolog or epilog runs
	ready bool       // the prolog has succeeded
	steps map[launch.Key]bool
}

type stepLock struct {
	mu    sync.Mutex
	users int
}

// adopt takes over the runs that an earlier launcher left: their prolog has run.
func (t *jobTable) adopt(keys []launch.Key) {
	for _, k := range keys {
		e := t.entry(k)
		e.ready = true
		e.steps[k] = true
	}
}

// lockStep keeps two orders for one step apart. The caller must call what it returns.
func (t *jobTable) lockStep(k launch.Key) (unlock func()) {
	t.mu.Lock()
	if t.steps == nil {
		t.steps = map[launch.Key]*stepLock{}
	}
	l := t.steps[k]
	if l == nil {
		l = new(stepLock)
		t.steps[k] = l
	}
	l.users++
	t.mu.Unlock()
	l.mu.Lock()
	return func() {
		l.mu.Unlock()
		t.mu.Lock()
		defer t.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(t.steps, k)
		}
	}
}

func (t *jobTable) entry(k launch.Key) *runEntry {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.runs == nil {
		t.runs = map[runKey]*runEntry{}
	}
	e := t.runs[runKey{k.Job, k.Run}]
	if e == nil {
		e = &runEntry{steps: map[launch.Key]bool{}}
		t.runs[runKey{k.Job, k.Run}] = e
	}
	return e
}

// enter adds a step to its run; the first one runs prolog, others wait for it.
func (t *jobTable) enter(k launch.Key, prolog func() error) error {
	e := t.entry(k)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.steps[k] = true
	if e.ready {
		return nil
	}
	if err := prolog(); err != nil {
		return err
	}
	e.ready = true
	return nil
}

// leave takes a step off its run; after the last one epilog runs. A step that is not there changes
// nothing.
func (t *jobTable) leave(k launch.Key, epilog func() error) error {
	e := t.entry(k)
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.steps[k]
	delete(e.steps, k)
	if len(e.steps) > 0 {
		return nil
	}
	t.mu.Lock()
	delete(t.runs, runKey{k.Job, k.Run})
	t.mu.Unlock()
	if !was {
		return nil
	}
	return epilog()
}

// empty tells whether no step of the run is here.
func (t *jobTable) empty(k launch.Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.runs[runKey{k.Job, k.Run}] == nil
}
