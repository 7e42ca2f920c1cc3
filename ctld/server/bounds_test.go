package server

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// TestCancelUnfoldsOnlyWhatExists: a small request that names millions of tasks costs what the
// array has, not what was asked for.
func TestCancelUnfoldsOnlyWhatExists(t *testing.T) {
	f := newFixture(t, "")
	arr := f.submit(ann, func(s *ctldpb.JobSpec) { s.Array = "0-9" })
	asked := make([]string, 256)
	for i := range asked {
		asked[i] = fmt.Sprintf("%d_[5-3999999]", arr)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f.cancel(ann, &ctldpb.JobFilter{JobIds: asked})
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
		t.Errorf("%d MiB were allocated for a request of %d bytes", used>>20, len(asked)*len(asked[0]))
	}
	if left := f.log.View().Job(arr).Waiting.Len(); left != 5 {
		t.Errorf("%d tasks wait, want 5", left)
	}
	res := f.cancel(ann, &ctldpb.JobFilter{JobIds: []string{fmt.Sprintf("%d_[10-3999999]", arr)}})
	if len(res) != 1 || res[0].Code != "ESLURM_INVALID_JOB_ID" {
		t.Errorf("tasks that never were: %v", res)
	}
}

// TestTasksOfOneRequest: over MaxTasks a request is refused with the limit named, however it names them.
func TestTasksOfOneRequest(t *testing.T) {
	f := newFixture(t, "MaxArraySize=4000001\nMaxJobCount=4000001\n")
	arr := f.submit(ann, func(s *ctldpb.JobSpec) { s.Array = fmt.Sprintf("0-%d", MaxTasks) })
	_, err := f.srv.Cancel(f.as(ann), &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{fmt.Sprintf("%d_[0-%d]", arr, MaxTasks)}}})
	wantRefusal(t, err, codeLimit, "MaxTasks", "1048576")
	_, err = f.srv.Control(f.as(ann), &ctldpb.ControlRequest{Op: ctldpb.ControlRequest_HOLD, JobIds: []string{fmt.Sprintf("%d_[0-%d]", arr, MaxTasks)}})
	wantRefusal(t, err, codeLimit, "MaxTasks")
	if res := f.cancel(ann, &ctldpb.JobFilter{Names: []string{"job"}}); len(res) != 0 || f.log.View().Job(arr).State != job.Cancelled {
		t.Errorf("by name: %v", res)
	}
}

// TestUpdateBytes: an update is one command a job; all of them together are bounded.
func TestUpdateBytes(t *testing.T) {
	f := newFixture(t, "")
	ids := make([]string, MaxIDs)
	for i := range ids {
		ids[i] = fmt.Sprint(f.submit(ann, nil))
	}
	set := map[string]string{"Comment": strings.Repeat("x", MaxUpdateBytes/MaxIDs)}
	_, err := f.srv.UpdateJob(f.as(ann), &ctldpb.UpdateJobRequest{JobIds: ids, Set: set})
	wantRefusal(t, err, codeLimit, "MaxUpdateBytes")
}

// TestCancelByNameTakesNoOtherTask: one task of an array with another name is all that goes.
func TestCancelByNameTakesNoOtherTask(t *testing.T) {
	f := newFixture(t, "")
	arr := f.submit(ann, func(s *ctldpb.JobSpec) { s.Array = "1-5" })
	_, err := f.srv.UpdateJob(f.as(ann), &ctldpb.UpdateJobRequest{JobIds: []string{fmt.Sprintf("%d_3", arr)}, Set: map[string]string{"JobName": "bad"}})
	if err != nil {
		t.Fatal(err)
	}
	f.cancel(ann, &ctldpb.JobFilter{Names: []string{"bad"}})
	if j := f.log.View().Job(arr); j.State != job.Pending || j.Waiting.Len() != 4 {
		t.Errorf("the others: %v, %d tasks wait", j.State, j.Waiting.Len())
	}
	if j := f.log.View().ArrayTask(arr, 3); j == nil || j.State != job.Cancelled {
		t.Errorf("task 3: %+v", j)
	}
}

// TestCancelOfWaitingJobs: one that starts while the request is on its way is left alone.
func TestCancelOfWaitingJobs(t *testing.T) {
	f := newFixture(t, "")
	f.register("n1")
	id := f.submit(ann, nil)
	arr := f.submit(ann, func(s *ctldpb.JobSpec) { s.Array = "1-3" })
	f.log.hook = func() { f.start(id, -1, "n1") }
	f.cancel(ann, &ctldpb.JobFilter{JobIds: []string{fmt.Sprint(id)}, States: []string{"PENDING"}})
	if j := f.log.View().Job(id); j.State != job.Running {
		t.Errorf("job %d is %v", id, j.State)
	}
	f.end(id, 0, "n1", 0)
	f.log.hook = func() { f.start(arr, 2, "n1") }
	f.cancel(ann, &ctldpb.JobFilter{States: []string{"PENDING"}})
	if j := f.log.View().ArrayTask(arr, 2); j.State != job.Running {
		t.Errorf("task 2 is %v", j.State)
	}
	if j := f.log.View().Job(arr); j.State != job.Cancelled {
		t.Errorf("the rest is %v", j.State)
	}
}
