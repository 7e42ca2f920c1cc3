package state_test

import (
	"fmt"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// late is a clock in which times have as many digits as the log's.
const late = 1_790_000_000_000

func (w *world) reserve(verb, name string, words ...string) (got string, r *state.Refusal) {
	w.Helper()
	w.do(func(t *state.Tx) { got, r = t.ChangeReservation(verb, name, clausesOf(words...), root) })
	return got, r
}

// reserved is a world with a reservation of n1 for alice in an hour, for an hour.
func reserved(t *testing.T, more ...string) *world {
	w := newWorld3(t)
	w.now = late
	words := append([]string{fmt.Sprint("starttime=", late+3_600_000), "duration=60", "nodes=n1", "users=alice"}, more...)
	if name, r := w.reserve("create", "r", words...); r != nil || name != "r" {
		t.Fatal(name, r)
	}
	return w
}

func (w *world) to(minutes int64) { w.now = late + minutes*60_000; w.do(func(*state.Tx) {}) }

// TestNoRunIntoAReservation: a job that is not in it starts there only when it ends before.
func TestNoRunIntoAReservation(t *testing.T) {
	w := reserved(t)
	short, long := w.submit(of("bob", job.Spec{TimeLimit: 30 * 60_000})), w.submit(of("bob", job.Spec{TimeLimit: 61 * 60_000}))
	if n := w.plan(w.begin(long, -1, alloc("n1", 1))); n != 0 {
		t.Error("a job that does not end before the reservation was started on its node")
	}
	if n := w.plan(w.begin(short, -1, alloc("n1", 1)), w.begin(long, -1, alloc("n2", 1))); n != 2 {
		t.Errorf("%d of 2 starts were taken", n)
	}
	if f := w.s.View().ReservationFlags("n1", w.now); f != 0 {
		t.Errorf("flags %v before it begins", f)
	}
	w.to(60)
	if f := w.s.View().ReservationFlags("n1", w.now); f != node.Reserved {
		t.Errorf("flags %v", f)
	}
	other := w.submit(of("bob", job.Spec{TimeLimit: 60_000}))
	if n := w.plan(w.begin(other, -1, alloc("n1", 1))); n != 0 {
		t.Error("a job of another was started in the reservation")
	}
}

func TestRunInAReservation(t *testing.T) {
	w := reserved(t)
	_, _, r := w.trySubmit("", of("bob", job.Spec{Rare: option(job.OptReservation, "r")}))
	wantRefusal(t, r, "ESLURM_RESERVATION_ACCESS", "bob")
	in := w.submit(of("alice", job.Spec{TimeLimit: 30 * 60_000, Rare: option(job.OptReservation, "r")}))
	if n := w.plan(w.begin(in, -1, alloc("n1", 1))); n != 0 {
		t.Error("it was started before its reservation")
	}
	w.to(61)
	if n := w.plan(w.begin(in, -1, alloc("n2", 1))); n != 0 {
		t.Error("it was started on a node that is not the reservation's")
	}
	if n := w.plan(w.begin(in, -1, alloc("n1", 1))); n != 1 {
		t.Fatal("it was not started in its reservation")
	}
	if j := w.job(in); j.Reservation != "r" {
		t.Errorf("it is in %q", j.Reservation)
	}
	_, r = w.reserve("delete", "r")
	wantRefusal(t, r, "ESLURM_RESERVATION_BUSY", "1 jobs")
	w.to(100)
	late := w.submit(of("alice", job.Spec{TimeLimit: 30 * 60_000, Rare: option(job.OptReservation, "r")}))
	if n := w.plan(w.begin(late, -1, alloc("n1", 1))); n != 0 {
		t.Error("a job that does not end within the reservation was started in it")
	}
}

// TestReservationGone: what waits for it is held, or goes on without it where it was made so.
func TestReservationGone(t *testing.T) {
	for _, c := range []struct {
		name   string
		flags  []string
		end    func(w *world)
		held   bool
		expect job.Reason
	}{
		{"deleted", nil, func(w *world) { w.reserve("delete", "r") }, true, job.ReasonReservationDeleted},
		{"over", nil, func(w *world) { w.to(121) }, true, job.ReasonReservationDeleted},
		{"over, without a hold", []string{"flags=NO_HOLD_JOBS_AFTER"}, func(w *world) { w.to(121) }, false, ""},
		{"unused", []string{"flags=PURGE_COMP=00:10:00"}, func(w *world) {
			for j := range w.s.View().Jobs() {
				w.cancel(root, job.Ref{ID: j.ID})
			}
			w.to(61)
			w.to(69)
			if len(w.s.View().Reservations()) != 1 {
				w.Error("it left too early")
			}
			w.to(71)
		}, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := reserved(t, c.flags...)
			id := w.submit(of("alice", job.Spec{TimeLimit: 60_000, Rare: option(job.OptReservation, "r")}))
			c.end(w)
			if n := len(w.s.View().Reservations()); n != 0 {
				t.Fatalf("%d reservations", n)
			}
			j := w.job(id)
			if held := j.Flags&job.ResvDelHold != 0; held != c.held {
				t.Fatalf("flags %v", j.Flags.Names())
			}
			if c.held {
				wantReason(w, id, c.expect)
				if r := w.control(state.OpRelease, state.Caller{UID: j.Spec.UID, User: "alice"}, id); r != nil {
					t.Fatal(r)
				}
				w.is(id, job.Pending)
			} else if j.State == job.Pending && len(j.Spec.Rare) != 0 {
				t.Errorf("it still names the reservation: %v", j.Spec.Rare)
			}
		})
	}
}

// TestReservedLicenses: what a reservation keeps is not for others while it is there.
func TestReservedLicenses(t *testing.T) {
	w := newWorld3(t, func(c *state.Config) { c.Sched.Licenses = []string{"matlab:3"} })
	w.now = late
	if _, r := w.reserve("create", "l", fmt.Sprint("starttime=", late+2000), "duration=60", "licenses=matlab:2", "users=alice", "flags=LICENSE_ONLY"); r != nil {
		t.Fatal(r)
	}
	w.to(1)
	if l := w.s.View().Licenses(); l[0].Reserved != 2 {
		t.Fatalf("%+v", l)
	}
	two, one := w.submit(of("bob", job.Spec{TimeLimit: 60_000, Rare: option(job.OptLicenses, "matlab:2")})), w.submit(of("bob", job.Spec{TimeLimit: 60_000, Rare: option(job.OptLicenses, "matlab")}))
	if n := w.plan(w.begin(two, -1, alloc("n1", 1)), w.begin(one, -1, alloc("n1", 1))); n != 1 {
		t.Errorf("%d starts", n)
	}
	in := w.submit(of("alice", job.Spec{TimeLimit: 60_000, Rare: []job.Option{{Name: job.OptLicenses, Value: "matlab:2"}, {Name: job.OptReservation, Value: "l"}}}))
	if n := w.plan(w.begin(in, -1, alloc("n1", 1))); n != 1 {
		t.Error("a job in the reservation did not get its licenses")
	}
}

// TestNameless: a reservation without a name is called after its first user.
func TestNameless(t *testing.T) {
	w := reserved(t)
	for i := range 2 {
		name, r := w.reserve("create", "", fmt.Sprint("starttime=", late+3_600_000), "duration=1", "nodes=n2", "users=bob,alice", "flags=OVERLAP")
		if want := fmt.Sprint("bob_", i+1); r != nil || name != want {
			t.Fatalf("%q, %+v, want %q", name, r, want)
		}
	}
}

// TestReserveABusyNode: what runs on a node counts until its limit ends it.
func TestReserveABusyNode(t *testing.T) {
	w := newWorld3(t)
	w.now = late
	id := w.submit(of("bob", job.Spec{TimeLimit: 30 * 60_000}))
	if n := w.plan(w.begin(id, -1, alloc("n1", 1))); n != 1 {
		t.Fatal("it was not started")
	}
	reserve := func(minutes int64, more ...string) *state.Refusal {
		words := append([]string{fmt.Sprint("starttime=", late+minutes*60_000), "duration=60", "nodes=n1", "users=alice"}, more...)
		name, r := w.reserve("create", "", words...)
		if r == nil {
			w.reserve("delete", name)
		}
		return r
	}
	wantRefusal(t, reserve(29), "ESLURM_NODES_BUSY", "n1")
	for what, r := range map[string]*state.Refusal{"after it": reserve(31), "all the same": reserve(29, "flags=IGNORE_JOBS")} {
		if r != nil {
			t.Errorf("%s: %+v", what, *r)
		}
	}
	forever := w.submit(of("bob", job.Spec{TimeLimit: job.Unlimited}))
	if n := w.plan(w.begin(forever, -1, alloc("n1", 1))); n != 1 {
		t.Fatal("it was not started")
	}
	wantRefusal(t, reserve(5000), "ESLURM_NODES_BUSY", "n1")
}
