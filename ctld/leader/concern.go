package leader

import (
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// concernLoop wakes the sessions whose nodes a change of the state concerns. Records are never changed once they
// are stored, so that comparing pointers tells; thousands of sessions that each looked at every entry would be
// all that the leader does.
func (l *Leader) concernLoop(t *term) {
	var c concerns
	for {
		view := l.Log.View()
		changed := l.Log.Changed(view.Index())
		all, names := c.next(view)
		l.mu.Lock()
		if all {
			for _, s := range l.sessions {
				s.wake()
			}
		}
		for name := range names {
			if s := l.sessions[name]; s != nil {
				s.wake()
			}
		}
		l.mu.Unlock()
		select {
		case <-t.ctx.Done():
			return
		case <-changed:
		}
	}
}

// concerns is the records of the last view, in their order.
type concerns struct {
	config *state.Config
	nodes  []*state.Node
	jobs   []*state.Job
}

// next compares a view with the last one and gives the nodes whose sessions have to look: the node itself, or a
// record whose batch step is there, is another. all: every session has to.
func (c *concerns) next(view state.Viewer) (all bool, names map[string]bool) {
	names = map[string]bool{}
	config := view.Config()
	all, c.config = config != c.config, config
	at := 0
	for n := range view.Nodes() {
		switch {
		case at == len(c.nodes):
			c.nodes = append(c.nodes, n)
			names[n.Name] = true
		case c.nodes[at] != n:
			names[c.nodes[at].Name], names[n.Name] = true, true
			c.nodes[at] = n
		}
		at++
	}
	for _, n := range c.nodes[at:] {
		names[n.Name] = true
	}
	clear(c.nodes[at:])
	c.nodes = c.nodes[:at]
	c.compareJobs(view, names)
	return all, names
}

// compareJobs walks the records that hold resources now beside those that did, both ascending by id.
func (c *concerns) compareJobs(view state.Viewer, names map[string]bool) {
	old := c.jobs
	now := make([]*state.Job, 0, len(old)+16)
	note := func(j *state.Job) {
		if len(j.Allocs) > 0 {
			names[j.Allocs[0].Node] = true
		}
	}
	for j := range view.Active() {
		for ; len(old) > 0 && old[0].ID < j.ID; old = old[1:] {
			note(old[0])
		}
		if len(old) > 0 && old[0].ID == j.ID {
			if old[0] != j {
				note(old[0])
				note(j)
			}
			old = old[1:]
		} else {
			note(j)
		}
		now = append(now, j)
	}
	for _, j := range old {
		note(j)
	}
	c.jobs = now
}
