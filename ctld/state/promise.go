package state

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
)

// promise gives a waiting record the start that the planner promised it, or takes it back. What was promised to
// another revision of the record, or names what is not there, is dropped; and so is the word of a plan that was made on
// an earlier state than the one that gave the present promise, for it may move that to a later time.
func (t *Tx) promise(c *sched.PromiseChange, base uint64) {
	old := t.Job(c.JobID)
	if old == nil || t.feature < FeatureSched || !couldStart(old) || c.Revision != 0 && c.Revision != old.Revision {
		return
	}
	p := c.Promise
	if p == nil && old.Promise == nil || p != nil && !t.mayPromise(old, p) {
		return
	}
	if have := old.Promise; have != nil && base <= old.PromiseBase && (base < old.PromiseBase || p == nil || p.Start > have.Start) {
		return
	}
	j := edit(old)
	if j.Promise, j.PromiseBase = nil, 0; p != nil {
		j.PromiseBase = base
		j.Promise = &sched.Promise{Start: p.Start, Partition: t.Partition(p.Partition).Name, Nodes: t.ownAllocs(p.Nodes), Limit: p.Limit}
	}
	t.put(old, j)
}

// mayPromise: the partition is one that the record asks for, and has the nodes.
func (t *tables) mayPromise(j *Job, p *sched.Promise) bool {
	part := t.Partition(p.Partition)
	if part == nil || p.Start <= 0 || len(p.Nodes) == 0 || !slices.Contains(splitNames(j.Spec.Partition), p.Partition) {
		return false
	}
	for i := range p.Nodes {
		if t.Node(p.Nodes[i].Node) == nil || !slices.Contains(part.Nodes, p.Nodes[i].Node) {
			return false
		}
	}
	return true
}

// keepPromise takes a promise from a record that is no more what it was made to. j is not stored yet.
func keepPromise(old, j *Job) {
	if j.Promise == nil {
		return
	}
	if !couldStart(j) || old != nil && (old.Revision != j.Revision || old.Run != j.Run) {
		j.Promise, j.PromiseBase = nil, 0
	}
}

// indexPromise keeps which records hold a promise.
func (t *Tx) indexPromise(old, j *Job) {
	was, is := old != nil && old.Promise != nil, j != nil && j.Promise != nil
	switch {
	case is && !was:
		t.promised.Set(j.ID, none{})
	case was && !is:
		t.promised.Delete(old.ID)
	}
}
