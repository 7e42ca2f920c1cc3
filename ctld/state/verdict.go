package state

import "github.com/tensorgrid/tensorgrid/internal/job"

// Verdict gives the planner's last word on a class as the state has it, "" when there is none yet;
// ok is false when nothing of the class waits.
func (t *tables) Verdict(class string) (r job.Reason, ok bool) {
	c, ok := t.classes.Get(class)
	if !ok {
		return "", false
	}
	return c.reason, true
}

// StaleBlobs tells whether there are blobs that nothing has referred to for BlobAge at time now (Unix
// ms): a Purge takes them.
func (t *tables) StaleBlobs(now int64) bool {
	stale := false
	t.blobs.Scan(func(_ string, b *blob) bool {
		stale = b.refs == 0 && now-b.since >= BlobAge
		return !stale
	})
	return stale
}
