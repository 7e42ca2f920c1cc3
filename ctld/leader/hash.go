package leader

import (
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

const (
	// hashLook is how often the leader looks for the hash of its own mark.
	hashLook = 200 * time.Millisecond
	// hashPatience is how long it waits for that before it lets the mark go.
	hashPatience = 5 * time.Minute
)

// hashLoop has the replicas compare their states: a mark, which each of them hashes, and when our own
// hash is ready a check with it. A replica whose hash is another halts.
func (l *Leader) hashLoop(t *term) {
	if l.Hashes == nil {
		return
	}
	last := t.began
	for l.pause(t.ctx, hashLook) {
		every := l.Config().StateHashInterval
		if every <= 0 || l.instant().Sub(last) < every || l.Log.View().Feature() < state.FeatureMembers {
			continue
		}
		last = l.instant()
		l.compareStates(t)
	}
}

// compareStates makes one comparison.
func (l *Leader) compareStates(t *term) {
	before, _, _ := l.Hashes.LastHash()
	if _, err := l.propose(t.ctx, &logpb.Command{Of: &logpb.Command_HashMark{HashMark: &logpb.HashMark{}}}); err != nil {
		return // the next one
	}
	for end := l.instant().Add(hashPatience); l.instant().Before(end); {
		index, sum, ok := l.Hashes.LastHash()
		if ok && index > before {
			l.propose(t.ctx, &logpb.Command{Of: &logpb.Command_HashCheck{HashCheck: &logpb.HashCheck{Index: index, Sha256: sum[:], Leader: l.Name}}})
			return
		}
		if !l.pause(t.ctx, hashLook) {
			return
		}
	}
	l.Logger.Warn("the state's hash is not ready", "waited", hashPatience)
}
