package sched

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// limited gives a snapshot accounts: bob (7) in phys, with QOS normal, or high, which may take its place; and limits.
func (s *Snapshot) limited(t *testing.T, set ...string) {
	t.Helper()
	db := accounting.New()
	clauses := func(text string) (list []accounting.Clause) {
		for _, w := range strings.Fields(text) {
			name, value, _ := strings.Cut(w, "=")
			list = append(list, accounting.Clause{Name: name, Op: "=", Value: value})
		}
		return list
	}
	for _, text := range append([]string{"add qos |name=high", "modify qos name=high|preempt=normal", "add account |name=phys",
		"modify account name=root|qos=normal,high defaultqos=normal", "add user |name=bob account=phys"}, set...) {
		head, set, _ := strings.Cut(text, "|")
		verb, rest, _ := strings.Cut(head, " ")
		entity, where, _ := strings.Cut(rest, " ")
		next, _, refused := db.Change(accounting.Change{Verb: verb, Entity: entity, Where: clauses(where), Set: clauses(set)})
		if refused != nil {
			t.Fatalf("%s: %+v", text, *refused)
		}
		db = next
	}
	s.Rules = partitions.Enforce(db, []string{"limits", "qos"})
	uses := tableUses{}
	for _, r := range s.Running {
		r.User, r.UID, r.Account = "bob", 7, "phys"
		if r.QOS == "" {
			r.QOS = "normal"
		}
		chain, refused := s.Rules.Chain(partitions.Job{UID: 7, User: "bob", Account: "phys", Partition: r.Partition, QOS: r.QOS})
		if refused != nil {
			t.Fatal(*refused)
		}
		claim := &partitions.Claim{TRES: accounting.AllocTRES(r.Allocs, r.Licenses), PerNode: accounting.PerNode(r.Allocs), Start: 0, Limit: r.End}
		for _, a := range r.Allocs {
			claim.Nodes = append(claim.Nodes, a.Node)
		}
		for _, e := range chain.Entities() {
			u := uses[e]
			if s.Rules.CountsNodes(e) && u.Nodes == nil {
				u.Nodes = partitions.NewNodeCount()
			}
			uses[e] = u.Plus(claim)
		}
	}
	s.Use = uses
}

type tableUses map[partitions.Entity]partitions.Use

func (u tableUses) Use(e partitions.Entity) partitions.Use   { return u[e] }
func (u tableUses) Usage(partitions.Entity) accounting.Usage { return accounting.Usage{} }

// bobs adds jobs of bob.
func (s *Snapshot) bobs(key string, spec job.Spec, minutes int64, ids ...uint32) *Class {
	spec.User, spec.UID, spec.Account = "bob", 7, "phys"
	c := s.class(key, spec, job.Extra{}, minutes, ids...)
	c.Account, c.QOS = "phys", "normal"
	return c
}

// Limits hold at their edge, for what runs, for several jobs of one round, and on the nodes that are chosen; what a limit
// keeps waiting keeps nobody else waiting.
func TestLimitsAtTheEdge(t *testing.T) {
	for _, tt := range []struct {
		limit, want string
		reason      job.Reason
		spec        job.Spec
	}{
		{"modify account name=phys|grptres=cpu=3", "1@n1:1/1", "AssocGrpCpuLimit", job.Spec{}}, // with 2 in use
		{"modify account name=phys|grptres=cpu=4", "1@n1:1/1 2@n1:1/1", "AssocGrpCpuLimit", job.Spec{}},
		{"modify account name=phys|grptres=cpu=2", "", "AssocGrpCpuLimit", job.Spec{}},
		{"modify account name=root|grptres=cpu=3", "1@n1:1/1", "AssocGrpCpuLimit", job.Spec{}},
		{"modify user name=bob|maxjobs=2", "1@n1:1/1", "AssocMaxJobsLimit", job.Spec{}},
		{"modify qos name=normal|grpjobs=3", "1@n1:1/1 2@n1:1/1", "QOSGrpJobsLimit", job.Spec{}},
		{"modify qos name=normal|maxtresperuser=cpu=4", "1@n1:2/1", "QOSMaxCpuPerUserLimit", job.Spec{CPUsPerTask: 2}},
		{"modify qos name=normal|maxtresperaccount=cpu=4", "1@n1:2/1", "MaxCpuPerAccount", job.Spec{CPUsPerTask: 2}},
		{"modify account name=phys|grptres=mem=2560M", "", "AssocGrpMemLimit", job.Spec{MemPerNode: 1 << 30}},
		{"modify account name=phys|grptres=mem=3G", "1@n1:1/1", "AssocGrpMemLimit", job.Spec{MemPerNode: 1 << 30}},
		{"modify account name=phys|grptres=node=1", "1@n1:2/1", "AssocGrpNodeLimit", job.Spec{CPUsPerTask: 2}}, // n1 is counted already
		{"modify account name=phys|grptresrunmins=cpu=179", "", "AssocGrpCPURunMinutesLimit", job.Spec{}},      // 2 x 60 run
		{"modify account name=phys|grptresrunmins=cpu=180", "1@n1:1/1", "AssocGrpCPURunMinutesLimit", job.Spec{}},
		{"modify qos name=normal|maxtresperjob=cpu=1", "", "QOSMaxCpuPerJobLimit", job.Spec{NTasks: 2}},
	} {
		t.Run(fmt.Sprint(tt.limit, tt.spec.CPUsPerTask), func(t *testing.T) {
			s := cluster(2, 4, 0)
			s.run(90, 0, 2, 0, hour)
			s.limited(t, tt.limit)
			s.bobs("a", tt.spec, 60, 1, 2, 3)
			other := s.class("b", job.Spec{CPUsPerTask: 4}, job.Extra{}, 60, 9) // in no account: nothing limits it
			other.User, other.UID, other.QOS = "eve", 8, "high"
			s.Rules.Associations, s.Rules.QOS = false, false
			d := Plan(s, 0, Policy{})
			got := show(d)
			if !strings.Contains(got, "9@n2:4/1") {
				t.Errorf("the job behind does not start: %s", got)
			}
			if got = strings.TrimSpace(strings.Replace(got, "9@n2:4/1", "", 1)); got != tt.want {
				t.Errorf("starts %q, want %q", got, tt.want)
			}
			for _, c := range d.Classes {
				if c.Class == "a" && c.Reason != tt.reason {
					t.Errorf("reason %s (%s), want %s", c.Reason, c.Detail, tt.reason)
				}
			}
		})
	}
}

// Starts that are kept count: a job that would still run then does not take the last of a limit from one that is promised it.
func TestLimitsCountPromises(t *testing.T) {
	for _, tt := range []struct {
		minutes int64
		want    string
	}{{59, "2@n1:1/1"}, {61, ""}} {
		s := cluster(2, 4, 0)
		s.run(90, 0, 3, 0, hour)
		s.Running[0].End = hour
		s.limited(t, "modify user name=bob|maxjobs=2")
		s.bobs("a", job.Spec{MinNodes: 2, MaxNodes: 2, NTasks: 8}, 60, 1) // when n1 is free
		s.bobs("b", job.Spec{}, tt.minutes, 2)
		s.Running[0].End = hour
		d := Plan(s, 0, Policy{Promises: 3})
		if got := show(d); got != tt.want || len(d.Promises) == 0 || d.Promises[0].Promise.Start != hour {
			t.Errorf("%d minutes: starts %q, want %q; promises %+v", tt.minutes, got, tt.want, d.Promises)
		}
	}
}

// A job that is promised a start and whose time has come gives its nodes free when a limit keeps it.
func TestLimitedPromiseBlocksNobody(t *testing.T) {
	s := cluster(1, 4, 0)
	s.run(90, 0, 1, 0, 9*hour)
	s.limited(t, "modify user name=bob|maxjobs=1")
	c := s.bobs("a", job.Spec{NTasks: 3}, 60, 1)
	s.promise(c, 1, 1000, "n1", 3)
	other := s.class("b", job.Spec{NTasks: 3}, job.Extra{}, 600, 2)
	other.User, other.UID = "eve", 8
	s.Rules.Associations, s.Rules.QOS = false, false
	d := Plan(s, 1000, Policy{Promises: 3})
	if got := show(d); got != "2@n1:3/3" || len(d.Promises) != 1 || d.Promises[0].Promise != nil {
		t.Errorf("%s, promises %+v", got, d.Promises)
	}
}

// A partition's MaxCPUsPerNode bounds its runs together, now and later.
func TestMaxCPUsPerNode(t *testing.T) {
	s := cluster(2, 4, 0)
	s.Partitions[0].MaxCPUsPerNode = 2
	s.run(90, 0, 1, 0, hour)
	s.class("a", job.Spec{}, job.Extra{}, 60, 1, 2, 3, 4)
	d := Plan(s, 0, Policy{Promises: 3})
	if got := show(d); got != "1@n1:1/1 2@n2:1/1 3@n2:1/1" || len(d.Promises) != 1 || d.Promises[0].Promise.Start != hour {
		t.Errorf("%s, promises %+v", got, d.Promises)
	}
}

// Billing is the state's: the dearest resource of a node where the site says so.
func TestBillingOfTheDearest(t *testing.T) {
	for _, tt := range []struct {
		most bool
		want string
	}{{false, ""}, {true, "1@n1:4/4"}} {
		s := cluster(1, 4, 0)
		s.limited(t, "modify account name=phys|grptres=billing=6")
		w, err := accounting.ParseWeights([]string{"CPU=1", "Mem=1G"})
		if err != nil {
			t.Fatal(err)
		}
		s.Partitions[0].Billing, s.MaxTRES = w, tt.most
		s.bobs("a", job.Spec{NTasks: 4, MemPerNode: 4 << 30}, 60, 1)
		if got := show(Plan(s, 0, Policy{})); got != tt.want {
			t.Errorf("MAX_TRES %v: starts %q, want %q", tt.most, got, tt.want)
		}
	}
}
