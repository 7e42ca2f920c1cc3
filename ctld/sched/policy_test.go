package sched

import (
	"strings"
	"testing"
)

func TestParsePolicy(t *testing.T) {
	for _, tt := range []struct {
		words string
		want  Policy
		err   string
	}{
		{"", Policy{Promises: DefaultPromises}, ""},
		{"promises=0", Policy{}, ""},
		{"promises=100,backfill=shortest,bf_window=10", Policy{Promises: 100, Backfill: BackfillShortest, Window: 600_000}, ""},
		{"sched_max_job_start=5,bf_max_job_test=6,bf_max_job_user=7,work=8,partition_work=9,assoc_limit_stop,promises=1",
			Policy{MaxStarts: 5, Depth: 6, UserDepth: 7, Work: 8, PartWork: 9, LimitStop: true, Promises: 1}, ""},
		{"max_sched_work=8,partition_sched_work=9,promises=0", Policy{Work: 8, PartWork: 9}, ""},
		{"starvation=1:00,promises=2", Policy{Promises: 2}, ""},
		{"promises=-1", Policy{}, `SchedulerParameters: promises=-1: "-1" is not a number from 0 to 2147483647`},
		{"backfill=fastest", Policy{}, `SchedulerParameters: backfill=fastest: "fastest" is none of priority, shortest, submission, off`},
	} {
		var words []string
		if tt.words != "" {
			words = strings.Split(tt.words, ",")
		}
		got, err := ParsePolicy(words)
		switch {
		case tt.err != "":
			if err == nil || err.Error() != tt.err {
				t.Errorf("%s: error %v, want %s", tt.words, err, tt.err)
			}
		case err != nil || got != tt.want:
			t.Errorf("%s: %+v, %v, want %+v", tt.words, got, err, tt.want)
		}
	}
}

func TestParsePreemption(t *testing.T) {
	got, err := ParsePreemption("preempt/qos", "suspend,gang", -1, []string{"youngest_first", "min_exempt_priority=7"})
	want := Preemption{Type: PreemptQOS, Mode: EvictSuspend, Youngest: true, MinExempt: 7}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, bad := range [][3]string{{"preempt/best", "", ""}, {"preempt/qos", "KILL", ""}, {"", "", "min_exempt_priority=x"}} {
		if _, err := ParsePreemption(bad[0], bad[1], 0, []string{bad[2]}); err == nil {
			t.Errorf("%v was read", bad)
		}
	}
}
