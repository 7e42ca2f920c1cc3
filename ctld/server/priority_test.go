package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// TestPriorities: each waiting job with its terms and its place in line; the queue shows the same number.
func TestPriorities(t *testing.T) {
	f := newSchedFixture(t, "PriorityWeightAge=1000\nPriorityMaxAge=1-0\nPriorityWeightJobSize=500\n")
	small := f.submit(ann, nil)
	f.pass(12 * time.Hour)
	large := f.submit(bob, func(s *ctldpb.JobSpec) { s.MinNodes = 4 })
	held := f.submit(ann, func(s *ctldpb.JobSpec) { s.Hold = true })
	later := f.submit(ann, func(s *ctldpb.JobSpec) { s.BeginMs = f.now.Add(time.Hour).UnixMilli() })
	resp, err := f.srv.ListPriorities(f.as(ann), &ctldpb.ListPrioritiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]*ctldpb.PriorityRow{}
	for _, r := range resp.Rows {
		rows[r.JobId] = r
	}
	if resp.Policy != "multifactor" || resp.Weights["age"] != 1000 || len(resp.Rows) != 3 || rows[fmt.Sprint(held)] != nil {
		t.Fatalf("policy %s weights %v rows %v", resp.Policy, resp.Weights, resp.Rows)
	}
	a, b := rows[fmt.Sprint(small)], rows[fmt.Sprint(large)]
	if a.NormAge != 0.5 || a.Age != 500 || a.Place != 1 || b.Place != 2 || b.NormJobSize <= a.NormJobSize || rows[fmt.Sprint(later)].Place != 0 {
		t.Errorf("small %v\nlarge %v\nlater %v", a, b, rows[fmt.Sprint(later)])
	}
	jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{})
	for _, j := range jobs {
		want := int64(0)
		if r := rows[fmt.Sprint(j.JobId)]; r != nil {
			want = r.Priority
		}
		if j.Priority != want {
			t.Errorf("the queue shows %d for job %d, its terms %d", j.Priority, j.JobId, want)
		}
	}
	one, err := f.srv.ListPriorities(f.as(ann), &ctldpb.ListPrioritiesRequest{JobIds: []string{fmt.Sprint(large)}})
	if err != nil || len(one.Rows) != 1 || one.Rows[0].Place != 2 {
		t.Errorf("one job: %v %v", one, err)
	}
	mine, err := f.srv.ListPriorities(f.as(ann), &ctldpb.ListPrioritiesRequest{Users: []string{"bob"}})
	if err != nil || len(mine.Rows) != 1 {
		t.Errorf("of a user: %v %v", mine, err)
	}
	f.srv.Auth.SetPolicy(&authn.Policy{PrivateData: []string{"jobs"}})
	if mine, err = f.srv.ListPriorities(f.as(bob), &ctldpb.ListPrioritiesRequest{}); err != nil || len(mine.Rows) != 1 || mine.Rows[0].Place != 2 {
		t.Errorf("PrivateData=jobs: %v %v", mine, err)
	}
}

// TestPrioritiesWithoutWeights: while nothing is weighed, priorities are those of the order of submission.
func TestPrioritiesWithoutWeights(t *testing.T) {
	f := newSchedFixture(t, "")
	a, b := f.submit(ann, nil), f.submit(ann, nil)
	jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{})
	if len(jobs) != 2 || jobs[0].JobId != a || jobs[1].JobId != b || jobs[0].Priority <= jobs[1].Priority {
		t.Errorf("%v", jobs)
	}
}

// TestPriorityOfWhatRan: a job keeps the priority that it had when it started.
func TestPriorityOfWhatRan(t *testing.T) {
	f := newSchedFixture(t, "PriorityType=priority/multifactor\nPriorityWeightAge=100000\nPriorityMaxAge=100-0\n")
	f.register("n1")
	id := f.submit(ann, nil)
	f.pass(10 * 24 * time.Hour)
	one := func() *ctldpb.Job {
		jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(id)}})
		return jobs[0]
	}
	before := one()
	f.plan()
	f.pass(24 * time.Hour)
	if after := one(); after.State != "RUNNING" || before.Priority != 10000 || after.Priority != 10000 {
		t.Errorf("%s: %d before it started, %d now", after.State, before.Priority, after.Priority)
	}
}

// TestStreamJobs: pieces of at most 500 rows, all of one moment.
func TestStreamJobs(t *testing.T) {
	f := newFixture(t, "MaxArraySize=2001\n")
	f.submit(ann, func(s *ctldpb.JobSpec) { s.Array = "0-1200" })
	s := &jobStream{ctx: f.as(ann)}
	if err := f.srv.StreamJobs(&ctldpb.ListJobsRequest{ArrayTasks: true}, s); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range s.pages {
		if len(p.Jobs) > 500 || p.Info.GetIndex() != s.pages[0].Info.GetIndex() {
			t.Errorf("a page of %d rows at index %d", len(p.Jobs), p.Info.GetIndex())
		}
		n += len(p.Jobs)
	}
	if n != 1201 || len(s.pages) != 3 {
		t.Errorf("%d rows on %d pages", n, len(s.pages))
	}
}

// TestListOfUsersIsByIndex: the queue of some users is theirs alone, in order, by name and by number.
func TestListOfUsersIsByIndex(t *testing.T) {
	f := newFixture(t, "")
	var want []string
	for i := range 9 {
		uid := []uint32{ann, bob, sam}[i%3]
		id := f.submit(uid, nil)
		if uid != sam {
			want = append(want, fmt.Sprint(id))
		}
	}
	for _, users := range [][]string{{"bob", "ann"}, {"1001", "1002"}, {"ann", "bob", "1001"}} {
		jobs, _, _ := f.list(sam, &ctldpb.ListJobsRequest{Users: users})
		if got := ids(jobs); got != fmt.Sprint(want)[1:len(fmt.Sprint(want))-1] {
			t.Errorf("%v: %s, want %v", users, got, want)
		}
	}
}
