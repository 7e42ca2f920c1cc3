package sched

import (
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// What a person reads who asks why a job waits: only what matters, in the right number.
func TestWords(t *testing.T) {
	for _, x := range []struct {
		name string
		make func(s *Snapshot)
		spec job.Spec
		x    job.Extra
		want string // the detail of the plan
		lack string // what the answer says that is lacking
	}{
		{"exclusive, all busy", func(s *Snapshot) {
			for i := range 3 {
				s.run(uint32(90+i), i, 1, 0, hour)
			}
		}, job.Spec{Exclusive: true}, job.Extra{}, "Resources: needs all CPUs on one node; no node is empty", "an empty node: 3 nodes are in use"},
		{"cpus in use", func(s *Snapshot) {
			for i := range 3 {
				s.run(uint32(90+i), i, 4, 0, hour)
			}
		}, job.Spec{NTasks: 2}, job.Extra{}, "Resources: needs 2 CPUs; no node has the CPUs free", "free CPUs on 3 nodes"},
		{"4 nodes' worth, two busy", func(s *Snapshot) { s.run(90, 0, 4, 0, hour); s.run(91, 1, 4, 0, hour) }, job.Spec{MinNodes: 2, MaxNodes: 2, NTasks: 8}, job.Extra{}, "Resources: needs 8 CPUs on 2 nodes; 1 node has the CPUs", "free CPUs on 2 nodes"},
		{"gpus in use", func(s *Snapshot) {
			for i := range 3 {
				s.run(uint32(90+i), i, 1, 2, hour)
			}
		}, job.Spec{Gres: "gpu:1"}, job.Extra{}, "Resources: needs 1 CPU and 1 gpu on one node; 3 nodes have the CPUs, none has a free gpu", "a free gpu on 3 nodes"},
		{"memory", func(s *Snapshot) {
			for i := range 3 {
				s.run(uint32(90+i), i, 1, 0, hour)
				s.Nodes[i].FreeMem = 1 << 29
			}
		}, job.Spec{MemPerNode: 2 << 30}, job.Extra{}, "Resources: needs 1 CPU and 2G of memory on one node; 3 nodes have the CPUs, none has the memory free", "free memory on 3 nodes"},
		{"license", func(s *Snapshot) {
			s.Licenses = []License{{"matlab", 1}}
			s.run(90, 0, 1, 0, hour)
			s.Running[0].Licenses = []job.License{{Name: "matlab", Count: 1}}
		}, job.Spec{}, job.Extra{Licenses: []job.License{{Name: "matlab", Count: 1}}}, "Licenses: license matlab is in use", ""},
		{"reserved", func(s *Snapshot) {
			s.Reservations = []*partitions.Reservation{reservation("maint", 0, hour, "root", "n1", "n2", "n3")}
		}, job.Spec{}, job.Extra{}, "Resources: needs 1 CPU on one node; 3 nodes reserved by maint", ""},
		{"reserved soon, one busy", func(s *Snapshot) {
			s.Reservations = []*partitions.Reservation{reservation("maint", hour/2, hour, "root", "n1", "n2")}
			s.run(90, 2, 4, 0, hour)
		}, job.Spec{}, job.Extra{}, "Resources: needs 1 CPU on one node; no other node has the CPUs free; 2 nodes reserved by maint", "free CPUs on 1 node"},
		{"down", func(s *Snapshot) {
			for i := range 3 {
				s.Nodes[i].Up = false
			}
		}, job.Spec{}, job.Extra{}, "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions: needs 1 CPU on one node; these are down, drained or silent: n1,n2,n3", "down, drained or silent: 3 nodes"},
		{"features", func(s *Snapshot) {}, job.Spec{Constraint: "big"}, job.Extra{}, "BadConstraints: too few nodes of partition p have the features \"big\"", "the features asked for on 3 nodes"},
		{"named busy", func(s *Snapshot) { s.run(90, 0, 4, 0, hour) }, job.Spec{NodeList: "n1"}, job.Extra{}, "Resources: needs 1 CPU on one node; no node has the CPUs free", "free CPUs on 1 node"},
		{"unlimited", func(s *Snapshot) {
			for i := range 3 {
				s.run(uint32(90+i), i, 4, 0, 0)
			}
		}, job.Spec{}, job.Extra{}, "Resources: needs 1 CPU on one node; no node has the CPUs free; the jobs it waits for have no time limit", "free CPUs on 3 nodes"},
		{"behind a promise", func(s *Snapshot) {
			s.run(90, 0, 4, 0, hour)
			s.class("a", job.Spec{MinNodes: 3, MaxNodes: 3, NTasks: 12}, job.Extra{}, 60, 1)
		}, job.Spec{}, job.Extra{}, "Resources: needs 1 CPU on one node; job 1 comes first in partition p", "free CPUs on 1 node"},
		{"too big", func(s *Snapshot) {}, job.Spec{CPUsPerTask: 9}, job.Extra{}, "PartitionConfig: needs 9 CPUs on one node; partition p has no such nodes", "a node that is large enough: 3 nodes are too small even when empty"},
		{"one user's node", func(s *Snapshot) {
			for i := range 3 {
				s.run(uint32(90+i), i, 1, 0, hour)
				s.Nodes[i].Users = []uint32{3}
				s.Nodes[i].Runs = 1
			}
		}, job.Spec{}, job.Extra{Exclusive: "user"}, "Resources: needs 1 CPU on one node; 3 nodes have jobs of other users", "a node without other users: 3 nodes have jobs of theirs"},
	} {
		s := cluster(3, 4, 2)
		x.make(s)
		s.class("m", x.spec, x.x, 120, 50)
		a := Probe(s, 1, Policy{Promises: 3}, Ask{JobID: 50})
		got := ""
		for _, c := range Plan(s, 1, Policy{Promises: 3}).Classes {
			if c.Class == "m" {
				got = string(c.Reason) + ": " + c.Detail
			}
		}
		if got != x.want {
			t.Errorf("%s:\ngot  %s\nwant %s", x.name, got, x.want)
		}
		if lack := strings.Join(a.Lacks, "; "); lack != x.lack {
			t.Errorf("%s: lacks %q, want %q", x.name, lack, x.lack)
		}
	}
}
