package conf

import (
	"strings"
	"testing"
	"time"
)

// TestJobLease: a partition line that says nothing of leases, one that says 0 and one that says a time
// are three things.
func TestJobLease(t *testing.T) {
	c, err := Load(write(t, "grid.conf", good+`
PartitionName=never Nodes=cpu1 JobLease=0
PartitionName=soon Nodes=cpu1 JobLease=5
PartitionName=odd Nodes=cpu1 JobLease=3500ms
PartitionName=forever Nodes=cpu1 JobLease=UNLIMITED
`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]struct {
		lease Lease
		shown string
	}{"gpu": {0, "(null)"}, "never": {NoLease, "0 sec"}, "soon": {5000, "5 sec"}, "odd": {3500, "3500 ms"}, "forever": {315360000000, "315360000 sec"}}
	for _, p := range c.Partitions {
		w, ok := want[p.Name]
		if !ok {
			continue
		}
		next := *c
		next.Partitions = []Partition{p}
		old := next
		old.Partitions = []Partition{p}
		old.Partitions[0].JobLease = 77000
		applied, _ := Diff(&old, &next)
		if line := "partition " + p.Name + ": JobLease 77 sec -> " + w.shown; p.JobLease != w.lease || len(applied) != 1 || applied[0] != line {
			t.Errorf("%s: %d, shown %v", p.Name, p.JobLease, applied)
		}
	}
	if c.JobLease != 10*time.Minute {
		t.Errorf("the cluster's default is %v", c.JobLease)
	}
}

// TestJobLeaseTooShort: a lease that one lost heartbeat would end is refused with its place.
func TestJobLeaseTooShort(t *testing.T) {
	for text, want := range map[string]string{
		"JobLease=2":                                       "JobLease=2s: a heartbeat renews it, so it must be 0 or at least 3s",
		"HeartbeatInterval=2 JobLease=5":                   "at least 6s, that is 3 times HeartbeatInterval",
		"PartitionName=short Nodes=cpu1 JobLease=1":        ":12: partition short: JobLease=1s",
		"PartitionName=short Nodes=cpu1 JobLease=1ns":      "partition short: JobLease=1ms",
		"PartitionName=short Nodes=cpu1 JobLease=-5":       "JobLease=-5: a number of seconds, or one with a suffix",
		"PartitionName=short Nodes=cpu1 JobLease=01:00":    "JobLease=01:00: a number of seconds, or one with a suffix",
		"PartitionName=short Nodes=cpu1 JobLease=9999999h": "was expected",
	} {
		_, err := Load(write(t, "grid.conf", good+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"JobLease=0", "JobLease=3", "HeartbeatInterval=1.5s JobLease=4500ms", "PartitionName=p Nodes=cpu1 JobLease=3"} {
		if _, err := Load(write(t, "grid.conf", good+text+"\n")); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
