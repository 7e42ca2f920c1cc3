package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// rare sets one option that has no field of its own.
func rare(name, value string) func(*ctldpb.JobSpec) {
	return func(s *ctldpb.JobSpec) {
		if s.Rare == nil {
			s.Rare = map[string]string{}
		}
		s.Rare[name] = value
	}
}

// reservationNames lists what somebody sees.
func (f *fixture) reservationNames(uid uint32) string {
	f.t.Helper()
	resp, err := f.srv.ListReservations(f.as(uid), &ctldpb.ListReservationsRequest{})
	if err != nil {
		f.t.Fatal(err)
	}
	var names []string
	for _, r := range resp.Reservations {
		names = append(names, r.Name)
	}
	return strings.Join(names, " ")
}

// TestReservations: operators make them, users see them, jobs that may not be in one are refused by name.
func TestReservations(t *testing.T) {
	f := newSchedFixture(t, "")
	f.register("n1", "n2", "g1", "g2")
	create := func(uid uint32, name string, words ...string) error {
		_, err := f.srv.ChangeReservation(f.as(uid), &ctldpb.ChangeReservationRequest{Verb: "create", Name: name, Set: clauses(words...)})
		return err
	}
	wantRefusal(t, create(ann, "r1", "nodes=n1", "users=ann", "starttime=now", "duration=60"), "ESLURM_ACCESS_DENIED", "operators")
	wantRefusal(t, create(olga, "r1", "nodes=n1", "users=ann", "starttime=whenever", "duration=60"), "ESLURM_INVALID_TIME_VALUE", "whenever")
	f.reserve("r1", "nodes=n1", "users=ann", "starttime=now", "duration=60")
	f.reserve("later", "nodes=n2", "users=bob", "starttime=now+2hours", "duration=60")
	if got := f.reservationNames(ann); got != "later r1" {
		t.Errorf("ann sees %q", got)
	}
	resp, err := f.srv.ListReservations(f.as(ann), &ctldpb.ListReservationsRequest{Names: []string{"r1"}})
	if err != nil || len(resp.Reservations) != 1 {
		t.Fatalf("%v %v", resp, err)
	}
	if r := resp.Reservations[0]; r.State != "ACTIVE" || r.Nodes != "n1" || r.NodeCount != 1 || r.Users != "ann" || r.EndMs-r.StartMs != time.Hour.Milliseconds() || r.Tres != "cpu=4" {
		t.Errorf("%v", r)
	}
	f.submit(ann, rare(job.OptReservation, "r1"))
	for _, tt := range []struct {
		uid  uint32
		name string
	}{{bob, "r1"}, {ann, "nosuch"}, {ann, "later"}} {
		spec := script()
		rare(job.OptReservation, tt.name)(spec)
		_, err := f.srv.Submit(f.as(tt.uid), &ctldpb.SubmitRequest{Spec: spec})
		r := RefusalOf(err)
		if r == nil || !strings.HasPrefix(r.Code, "ESLURM_RESERVATION_") || !strings.Contains(r.Why, tt.name) {
			t.Errorf("uid %d in %s: %v", tt.uid, tt.name, err)
		}
	}
}

// TestUsersDeleteTheirReservation: only one that is theirs and has the flag.
func TestUsersDeleteTheirReservation(t *testing.T) {
	f := newSchedFixture(t, "")
	f.reserve("mine", "nodes=n1", "users=ann", "starttime=now", "duration=60", "flags=USER_DELETE")
	f.reserve("plain", "nodes=n2", "users=ann", "starttime=now", "duration=60")
	f.reserve("team", "nodes=g1", "groups=staff", "starttime=now", "duration=60", "flags=USER_DELETE")
	drop := func(uid uint32, name string) error {
		_, err := f.srv.ChangeReservation(f.as(uid), &ctldpb.ChangeReservationRequest{Verb: "delete", Name: name})
		return err
	}
	wantRefusal(t, drop(bob, "mine"), "ESLURM_ACCESS_DENIED", "mine")
	wantRefusal(t, drop(ann, "plain"), "ESLURM_ACCESS_DENIED", "USER_DELETE")
	wantRefusal(t, drop(ann, "nosuch"), "ESLURM_RESERVATION_INVALID", "nosuch")
	if err := drop(ann, "mine"); err != nil {
		t.Errorf("her own: %v", err)
	}
	if err := drop(sam, "team"); err != nil {
		t.Errorf("of a group of his: %v", err)
	}
	if got := f.reservationNames(olga); got != "plain" {
		t.Errorf("left: %q", got)
	}
}

// TestPrivateReservations: PrivateData=reservations shows them to whom they are for.
func TestPrivateReservations(t *testing.T) {
	f := newSchedFixture(t, "")
	f.reserve("anns", "nodes=n1", "users=ann", "starttime=now", "duration=60")
	f.reserve("staffs", "nodes=n2", "groups=staff", "starttime=now", "duration=60")
	f.srv.Auth.SetPolicy(&authn.Policy{Operators: []string{"olga"}, PrivateData: []string{"reservations"}})
	for uid, want := range map[uint32]string{ann: "anns", sam: "staffs", bob: "", olga: "anns staffs"} {
		if got := f.reservationNames(uid); got != want {
			t.Errorf("uid %d sees %q, want %q", uid, got, want)
		}
	}
}

// TestLicenses: what there is, what is used, and what there is not.
func TestLicenses(t *testing.T) {
	f := newSchedFixture(t, "Licenses=matlab:4,ansys:1\n")
	f.register("n1", "n2")
	id := f.submit(ann, rare(job.OptLicenses, "matlab:3"))
	second := f.submit(ann, rare(job.OptLicenses, "matlab:2"))
	if got := f.plan(); len(got) != 1 || got[0] != id {
		t.Errorf("started %v", got)
	}
	resp, err := f.srv.ListLicenses(f.as(bob), &ctldpb.ListLicensesRequest{})
	if err != nil || len(resp.Licenses) != 2 {
		t.Fatalf("%v %v", resp, err)
	}
	if l := resp.Licenses[1]; l.Name != "matlab" || l.Total != 4 || l.Used != 3 {
		t.Errorf("%v", l)
	}
	jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(second)}})
	if jobs[0].Reason != "Licenses" || jobs[0].Licenses != "matlab:2" {
		t.Errorf("waits for %q (%s) with %q", jobs[0].Reason, jobs[0].ReasonDetail, jobs[0].Licenses)
	}
	for _, value := range []string{"matlab:9", "nosuch", "matlab:x"} {
		spec := script()
		rare(job.OptLicenses, value)(spec)
		_, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec})
		wantRefusal(t, err, "ESLURM_INVALID_LICENSES", "Invalid license specification", value[:6])
	}
}

// TestReservationForNobody: a user that there is not is refused by name.
func TestReservationForNobody(t *testing.T) {
	f := newSchedFixture(t, "")
	for _, users := range []string{"nosuchuser", "ann,nosuchuser", "-nosuchuser"} {
		_, err := f.srv.ChangeReservation(f.as(olga), &ctldpb.ChangeReservationRequest{Verb: "create", Name: "r", Set: clauses("starttime=now", "duration=60", "nodes=n1", "users="+users)})
		wantRefusal(t, err, "ESLURM_USER_ID_MISSING", "nosuchuser")
	}
	f.reserve("r", "starttime=now", "duration=60", "nodes=n1", "users=ann")
	_, err := f.srv.ChangeReservation(f.as(olga), &ctldpb.ChangeReservationRequest{Verb: "update", Name: "r", Set: clauses("users+=nosuchuser")})
	wantRefusal(t, err, "ESLURM_USER_ID_MISSING", "nosuchuser")
	if _, err = f.srv.ChangeReservation(f.as(olga), &ctldpb.ChangeReservationRequest{Verb: "update", Name: "r", Set: clauses("users-=nosuchuser")}); err != nil && strings.Contains(err.Error(), "USER_ID") {
		t.Error(err)
	}
}
