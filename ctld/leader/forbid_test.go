package leader

import "testing"

// TestNoLaunchBehindProofOfDeath: once a run is to be told dead its launch does not go out again, although it
// had gone out before. A node that comes back while the word is on its way into the log was sent the run
// under a new lease, and the state gave it up all the same: two runs of one job were alive.
func TestNoLaunchBehindProofOfDeath(t *testing.T) {
	var h health
	sent, fresh, other := runKey{job: 1}, runKey{job: 2}, runKey{job: 3}
	for range 2 {
		if !h.send(sent) {
			t.Fatal("a launch that was not answered does not go out again")
		}
	}
	h.forbid(sent)
	h.forbid(fresh)
	if h.send(sent) || h.send(fresh) || !h.send(other) {
		t.Error("a launch goes out behind the proof that its run is dead")
	}
	if h.giveUp(sent) {
		t.Error("it was sent: nobody may say that it was not")
	}
	// The state is told until it knows, also when the node is heard again before it does.
	if gone, dead := h.verdict(sent); !gone || !dead || !h.owes() {
		t.Errorf("given up: %t, dead: %t, to be told: %t", gone, dead, h.owes())
	}
	h.prune(func(k runKey) bool { return k != other })
	if gone, dead := h.verdict(sent); gone || dead || h.owes() {
		t.Error("a run that is over is not forgotten")
	}
}
