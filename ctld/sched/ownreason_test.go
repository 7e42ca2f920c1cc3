package sched

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// A job that something of its own keeps from starting is told that first, and no start that isn't so.
func TestOwnReasonComesFirst(t *testing.T) {
	for _, tt := range []struct {
		name   string
		w      Waiting
		busy   bool
		reason job.Reason
		start  int64
		queue  int
	}{
		{"held", Waiting{Held: true, Blocked: job.ReasonHeldUser}, false, job.ReasonHeldUser, 0, 0},
		{"held, all in use", Waiting{Held: true, Blocked: job.ReasonHeldAdmin}, true, job.ReasonHeldAdmin, 0, 0},
		{"dependency", Waiting{Blocked: job.ReasonDependency}, false, job.ReasonDependency, 0, 0},
		{"dependency that failed", Waiting{Blocked: job.ReasonDependencyNever}, false, job.ReasonDependencyNever, 0, 0},
		{"reservation deleted", Waiting{Held: true, Blocked: job.ReasonReservationDeleted}, true, job.ReasonReservationDeleted, 0, 0},
		{"begin", Waiting{Begin: hour}, false, job.ReasonBeginTime, hour, 0},
		{"begin, in use until then", Waiting{Begin: hour / 2}, true, job.ReasonBeginTime, hour, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := cluster(1, 4, 0)
			if tt.busy {
				s.run(90, 0, 4, 0, hour)
			}
			tt.w.JobID, tt.w.Limit = 1, -1
			c := s.class("k", job.Spec{}, job.Extra{}, 30)
			c.Count, c.Waiting = 1, func(yield func(Waiting) bool) { yield(tt.w) }
			for _, promises := range []int{0, 32} {
				a := Probe(s, 1000, Policy{Promises: promises}, Ask{JobID: 1})
				if a.Reason != tt.reason || a.Start != tt.start || a.Queue != tt.queue || a.Ahead != 0 {
					t.Errorf("%d promises: %+v", promises, a)
				}
				if a.Promised || len(a.Advice) > 0 || len(a.Lacks) > 0 || len(a.Blocked) > 0 || tt.start == 0 && a.Nodes != nil {
					t.Errorf("%d promises: more than its own reason: %+v", promises, a)
				}
			}
		})
	}
}

// A job that waits for a limit is not told that a shorter time would do.
func TestNoAdviceBelowALimit(t *testing.T) {
	s := cluster(2, 8, 0)
	s.run(90, 0, 6, 0, 2*hour)
	s.limited(t, "modify account name=phys|grptres=cpu=6")
	s.bobs("k", job.Spec{CPUsPerTask: 6}, 200, 1)
	s.Reservations = []*partitions.Reservation{reservation("maint", 2*hour, 3*hour, "amy", "n1", "n2")}
	a := Probe(s, 1000, Policy{Promises: 32}, Ask{JobID: 1})
	if a.Reason != "AssocGrpCpuLimit" || len(a.Advice) > 0 {
		t.Errorf("%+v", a)
	}
}

// What makes a start unknowable is named: a job without a time limit that a start is kept for.
func TestBlockedByWhatNeverEnds(t *testing.T) {
	s := cluster(2, 4, 0)
	s.run(90, 0, 4, 0, hour)
	s.run(91, 1, 4, 0, hour)
	endless := s.class("endless", job.Spec{CPUsPerTask: 4}, job.Extra{}, 0, 65)
	endless.Time = job.Unlimited
	s.promise(endless, 65, hour, "n2", 4)
	s.class("vip", job.Spec{MinNodes: 2, MaxNodes: 2, Exclusive: true}, job.Extra{}, 1, 68)
	a := Probe(s, 1000, Policy{Promises: 32}, Ask{JobID: 68})
	if a.Start != 0 || len(a.Blocked) != 1 || a.Blocked[0] != "job 65 on 1 node, without a time limit" {
		t.Errorf("%+v", a)
	}
}
