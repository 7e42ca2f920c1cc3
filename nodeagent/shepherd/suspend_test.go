package shepherd

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// The limit's time stands still with the processes; what is said again is not done again; one that is to be ended
// goes on first.
func TestSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := &step{plan: &launch.Plan{Key: launch.Key{Job: 1, Step: job.BatchStep}, TimeLimit: 60_000, KillWait: 1000, Rootless: true}, start: start}
		m := newMinder(s, newLink("", Hello{}), time.Now, func() time.Duration { return 0 })
		defer m.notes.close()
		var done []bool
		m.freezer.do = func(on bool) { done = append(done, on) }
		m.setLimit(60_000)
		time.Sleep(40 * time.Second)
		on, off := true, false
		m.order(t.Context(), Down{Suspend: &on})
		m.order(t.Context(), Down{Suspend: &on})
		select {
		case <-m.limit.C:
			t.Fatal("the limit ran on")
		case <-time.After(time.Hour):
		}
		limit := int64(60_000 + time.Hour.Milliseconds())
		m.order(t.Context(), Down{Limit: &limit})
		m.order(t.Context(), Down{Suspend: &off})
		if <-m.limit.C; time.Since(start) != time.Hour+time.Minute {
			t.Errorf("the limit ended it after %v", time.Since(start))
		}
		m.order(t.Context(), Down{Suspend: &on})
		synctest.Wait()
		m.order(t.Context(), Down{Terminate: &Terminate{Why: uint8(job.WhyCancel)}})
		m.order(t.Context(), Down{Suspend: &on}) // too late
		synctest.Wait()
		if len(done) != 4 || !done[0] || done[1] || !done[2] || done[3] {
			t.Errorf("frozen and thawed: %v", done)
		}
	})
}

// A wish that comes while another is being done is done after it, and only the last of them.
func TestFreezerDoesTheLastWish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done []bool
		f := freezer{do: func(on bool) { time.Sleep(time.Second); done = append(done, on) }}
		f.set(true)
		synctest.Wait()
		f.set(false)
		f.set(true)
		f.set(false)
		time.Sleep(time.Minute)
		if len(done) != 2 || !done[0] || done[1] {
			t.Errorf("done %v", done)
		}
	})
}
