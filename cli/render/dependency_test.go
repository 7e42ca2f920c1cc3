package render

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// What a job still waits for: a dependency whose minutes run is not over yet, one behind a time to begin is.
func TestDependency(t *testing.T) {
	for _, x := range []struct {
		dep, reason     string
		eligible, begin int64
		want            string
	}{
		{"afterok:9", "Dependency", 0, 0, "afterok:9(unfulfilled)"},
		{"afterok:9", "DependencyNeverSatisfied", 0, 0, "afterok:9(failed)"},
		{"afterok:9", "Resources", 5, 0, ""},
		{"after:26+1", "Dependency", 0, 0, "after:26+1(unfulfilled)"},
		{"after:26+1", "BeginTime", 60000, 0, "after:26+1(unfulfilled)"},
		{"after:26+1", "BeginTime", 60000, 60000, ""},
		{"after:26+1", "Priority", 60000, 0, ""},
	} {
		j := &ctldpb.Job{State: "PENDING", Reason: x.reason, EligibleMs: x.eligible, Spec: &ctldpb.JobSpec{Dependency: x.dep, BeginMs: x.begin}}
		if got := Dependency(j); got != x.want {
			t.Errorf("%+v: %q", x, got)
		}
	}
}
