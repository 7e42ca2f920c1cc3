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
	steps map[launch.Key]*storedPlan
}

type stepLock struct {
	mu    sync.Mutex
	users int
}

// adopt takes over a step that an earlier launcher left: its prolog has run.
func (t *jobTable) adopt(p *storedPlan) {
	e := t.entry(p.Key)
	e.ready = true
	e.steps[p.Key] = p
}

// lives tells whether a step of the run is here.
func (t *jobTable) lives(job, run uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.runs[runKey{job, run}] != nil
}

// has tells whether the step has entered and has not left.
func (t *jobTable) has(k launch.Key) bool {
	t.mu.Lock()
	e := t.runs[runKey{k.Job, k.Run}]
	t.mu.Unlock()
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.steps[k] != nil
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
		e = &runEntry{steps: map[launch.Key]*storedPlan{}}
		t.runs[runKey{k.Job, k.Run}] = e
	}
	return e
}

// lockRun gives the run's entry, locked: one that is on the table.
func (t *jobTable) lockRun(k launch.Key) *runEntry {
	for {
		e := t.entry(k)
		e.mu.Lock()
		t.mu.Lock()
		current := t.runs[runKey{k.Job, k.Run}] == e
		t.mu.Unlock()
		if current {
			return e
		}
		e.mu.Unlock() // its last step has left meanwhile
	}
}

// enter adds a step to its run; the first one runs prolog, others wait for it. make is called for
// each step, by one at a time, and never beside the clean-up of the run's last step.
func (t *jobTable) enter(p *storedPlan, prolog, make func() error) error {
	e := t.lockRun(p.Key)
	defer e.mu.Unlock()
	e.steps[p.Key] = p
	if !e.ready {
		if err := prolog(); err != nil {
			return err
		}
		e.ready = true
	}
	return make()
}

// leave takes a step off its run; after the last one epilog runs. A step that is not there changes
// nothing.
func (t *jobTable) leave(k launch.Key, epilog func(*storedPlan) error) error {
	e := t.lockRun(k)
	defer e.mu.Unlock()
	p := e.steps[k]
	delete(e.steps, k)
	if len(e.steps) > 0 {
		return nil
	}
	var err error
	if p != nil {
		err = epilog(p)
	}
	t.mu.Lock()
	delete(t.runs, runKey{k.Job, k.Run})
	t.mu.Unlock()
	return err
}

// empty tells whether no step of the run is here.
func (t *jobTable) empty(k launch.Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.runs[runKey{k.Job, k.Run}] == nil
}
