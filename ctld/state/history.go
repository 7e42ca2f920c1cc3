package state

// MaxHistory bounds the users whose last run times are kept.
const MaxHistory = 1 << 17

// RunTimes is how long the last two runs of a user's jobs took, newest first, in ms; 0 = there was none.
type RunTimes [2]int64

// History is how long a user's last jobs ran.
func (t *tables) History(uid uint32) RunTimes {
	h, _ := t.history.Get(uid)
	return h
}

// remember notes how long a run took that has ended. One that goes back to the queue tells nothing of how long the job takes.
func (t *Tx) remember(old, j *Job) {
	if !j.State.Ended() {
		return
	}
	ran := max(1, old.RunTime(t.endOf(old, j)))
	uid := old.Spec.UID
	h, known := t.history.Get(uid)
	if !known && t.history.Len() >= MaxHistory {
		t.forgetHistory(uid)
	}
	t.history.Set(uid, RunTimes{ran, h[0]})
}

// forgetHistory makes room: the next uid leaves, as by a hand that goes round.
func (t *Tx) forgetHistory(uid uint32) {
	next, found := uint32(0), false
	t.history.Ascend(uid, func(k uint32, _ RunTimes) bool {
		next, found = k, true
		return false
	})
	if !found {
		next, _, _ = t.history.Min()
	}
	t.history.Delete(next)
}
