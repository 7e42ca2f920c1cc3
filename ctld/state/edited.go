package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Edited gives the specification that a waiting record would have after an update, for whoever has
// to judge it before it is made. What the update's own rules refuse is left as it is: the command
// is refused for it when it is applied. Nothing of v changes.
func (v *View) Edited(j *Job, set map[string]string, c Caller) *job.Spec {
	p := newPrivate()
	shallow := v.tables // setters read the tables and count versions up, no more
	trial, spec := edit(j), *j.Spec
	e := &jobEdit{t: &Tx{tables: &shallow, private: &p, now: v.time}, j: trial, spec: &spec, caller: c}
	for _, key := range updateOrder(set) {
		before := spec
		known, ok := jobParameters[strings.ToLower(key)]
		if ok && known.set(e, key, set[key]) != nil {
			spec = before
		}
	}
	return &spec
}

// updateOrder is the order in which an update's parameters are set: it does not depend on how a
// map is walked.
func updateOrder(set map[string]string) []string {
	return slices.SortedFunc(maps.Keys(set), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.ToLower(a), strings.ToLower(b)), cmp.Compare(a, b))
	})
}
