package sched

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// site is a cluster with all that a policy can hold: accounts and their limits, QOS, reservations, licenses, heterogeneous jobs,
// preemption, deadlines, runs that end late. It takes what is planned, and fails where that is more than there is.
type site struct {
	t        *rapid.T
	nodes    []*place.Node
	parts    []*Partition
	rules    *partitions.Rules
	bounds   []bound
	licenses []License
	res      []*partitions.Reservation
	jobs     []*siteJob // waiting, by id
	runs     []*siteRun // by id
	versions map[string]uint64
	now      int64
	wake     int64
	next     uint32
	version  uint64
	promised map[uint32]int64 // the soonest start that a job was promised
	pushes   map[uint32]int   // how often room was made for a waiting job
	counts   map[string]int   // what happened, to see that it does
}

type siteJob struct {
	Waiting
	key     string
	spec    job.Spec
	extra   job.Extra
	user    string
	account string
	qos     string
	time    int64
}

type siteRun struct {
	Running
	job   *siteJob
	limit int64
	real  int64 // when it ends; while it is suspended: how long it has yet to run
	left  int64 // while it is suspended: what is left of its limit
	how   string
}

// bound is one limit as the test counts it: over the runs that it is for, at most so much.
type bound struct {
	name string
	of   func(r *siteRun) bool
	what string // jobs, cpu, node, gpu
	most int
}

var uids = map[string]uint32{"amy": 1, "bob": 2}

func newSite(t *rapid.T) *site {
	s := &site{t: t, now: 100_000, next: 1, versions: map[string]uint64{}, promised: map[uint32]int64{}, pushes: map[uint32]int{}, counts: map[string]int{}}
	cpus := uint32(rapid.IntRange(2, 4).Draw(t, "cpus"))
	low := &Partition{Name: "p", Up: true, Default: true, MaxTime: 100_000, Grace: int64(rapid.IntRange(0, 1).Draw(t, "grace")) * 1000}
	top := &Partition{Name: "q", Up: true, Tier: uint32(rapid.SampledFrom([]int{0, 1, 1}).Draw(t, "tier")), MaxTime: 100_000,
		MaxCPUsPerNode: uint32(rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "cap"))}
	for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
		n := &place.Node{Name: fmt.Sprint("n", i), Weight: 1, Up: true, CPUs: cpus, Mem: int64(cpus) * 1024 * mib}
		if rapid.Bool().Draw(t, "gpus") {
			n.Gres = []place.Gres{{Name: "gpu", Total: 2}}
		}
		s.nodes = append(s.nodes, n)
		low.Nodes = append(low.Nodes, i)
	}
	top.Nodes = low.Nodes[:1+len(low.Nodes)/2]
	s.parts = []*Partition{low, top}
	for i := range s.nodes {
		s.rebuild(i)
	}
	if rapid.Bool().Draw(t, "licenses") {
		s.licenses = []License{{"foo", 2}}
	}
	s.accounts()
	return s
}

// accounts sets up who may do what, with some limits at several levels.
func (s *site) accounts() {
	db := accounting.New()
	do := func(verb, entity, where, set string) {
		clauses := func(text string) (list []accounting.Clause) {
			for _, w := range strings.Fields(text) {
				name, value, _ := strings.Cut(w, "=")
				list = append(list, accounting.Clause{Name: name, Op: "=", Value: strings.ReplaceAll(value, "+", ",")})
			}
			return list
		}
		next, _, refused := db.Change(accounting.Change{Verb: verb, Entity: entity, Where: clauses(where), Set: clauses(set)})
		if refused != nil {
			s.t.Fatalf("%s %s %s set %s: %+v", verb, entity, where, set, refused)
		}
		db = next
	}
	do("add", "qos", "", "name=high")
	do("modify", "qos", "name=high", "preempt=normal")
	do("add", "account", "", "name=phys")
	do("add", "account", "", "name=optics parent=phys")
	do("modify", "account", "name=root", "qos=normal+high defaultqos=normal")
	do("add", "user", "", "name=amy account=optics")
	do("add", "user", "", "name=bob account=phys")
	all := func(*siteRun) bool { return true }
	amy := func(r *siteRun) bool { return r.User == "amy" }
	bob := func(r *siteRun) bool { return r.User == "bob" }
	normal := func(r *siteRun) bool { return r.QOS == "normal" }
	both := func(a, b func(*siteRun) bool) func(*siteRun) bool {
		return func(r *siteRun) bool { return a(r) && b(r) }
	}
	for _, x := range []struct {
		entity, where, set, what string
		of                       []func(*siteRun) bool
	}{
		{"account", "name=phys", "grptres=cpu=%d", "cpu", []func(*siteRun) bool{all}},
		{"account", "name=optics", "grptres=node=%d", "node", []func(*siteRun) bool{amy}},
		{"account", "name=phys", "grpjobs=%d", "jobs", []func(*siteRun) bool{all}},
		{"user", "name=amy", "maxjobs=%d", "jobs", []func(*siteRun) bool{amy}},
		{"qos", "name=normal", "maxtresperuser=cpu=%d", "cpu", []func(*siteRun) bool{both(amy, normal), both(bob, normal)}},
		{"qos", "name=normal", "grpjobs=%d", "jobs", []func(*siteRun) bool{normal}},
		{"qos", "name=high", "grptres=gres/gpu=%d", "gpu", []func(*siteRun) bool{func(r *siteRun) bool { return r.QOS == "high" }}},
	} {
		if rapid.IntRange(0, 4).Draw(s.t, "limit") > 0 {
			continue
		}
		most := rapid.IntRange(1, 4).Draw(s.t, "most")
		do("modify", x.entity, x.where, fmt.Sprintf(x.set, most))
		for _, of := range x.of {
			s.bounds = append(s.bounds, bound{x.where + " " + x.set, of, x.what, most})
		}
	}
	if len(s.bounds) > 0 || rapid.Bool().Draw(s.t, "rules") {
		s.rules = partitions.Enforce(db, []string{"limits", "qos"})
	}
}

// draw makes a request.
func (s *site) draw() *siteJob {
	t := s.t
	j := &siteJob{user: rapid.SampledFrom([]string{"amy", "bob"}).Draw(t, "user"), qos: rapid.SampledFrom([]string{"normal", "normal", "high"}).Draw(t, "qos")}
	j.account = map[string]string{"amy": "optics", "bob": "phys"}[j.user]
	j.spec = job.Spec{NTasks: uint32(rapid.IntRange(0, 4).Draw(t, "tasks")), UID: uids[j.user], User: j.user, Account: j.account, QOS: j.qos,
		Partition: rapid.SampledFrom([]string{"p", "p", "q", "p,q"}).Draw(t, "partition"), Exclusive: rapid.IntRange(0, 6).Draw(t, "exclusive") == 0,
		MemPerCPU: int64(rapid.SampledFrom([]int{0, 64, 64}).Draw(t, "mem")) * mib,
		Gres:      rapid.SampledFrom([]string{"", "", "", "gpu:1"}).Draw(t, "gres"), MinNodes: uint32(rapid.IntRange(0, 2).Draw(t, "nodes"))}
	switch rapid.IntRange(0, 11).Draw(t, "rare") {
	case 0:
		j.extra.Exclusive = "user"
	case 1:
		j.extra.Deadline = s.now + int64(rapid.IntRange(5, 30).Draw(t, "deadline"))*1000
	case 2, 3:
		if len(s.licenses) > 0 {
			j.extra.Licenses = []job.License{{Name: "foo", Count: uint64(rapid.IntRange(1, 2).Draw(t, "licenses"))}}
		}
	case 4, 5:
		for _, r := range s.res {
			if len(j.extra.Reservations) < 2 && r.Admits(j.spec.UID, j.user, nil, j.account, j.qos) {
				j.extra.Reservations = append(j.extra.Reservations, r.Name)
			}
		}
	}
	j.time = int64(rapid.IntRange(1, 8).Draw(t, "limit")) * 1000
	j.Waiting = Waiting{JobID: s.next, Submit: s.now, Accrue: s.now, Limit: -1, Begin: s.now + int64(rapid.SampledFrom([]int{0, 0, 0, 2500}).Draw(t, "begin"))}
	if rapid.IntRange(0, 9).Draw(t, "dependency") == 0 {
		j.Blocked = job.ReasonDependency
	}
	s.next++
	return j
}

func (s *site) queue(j *siteJob) {
	j.key = fmt.Sprintf("%+v|%+v|%s|%d|%v", j.spec, j.extra, j.qos, j.time, j.HetSize > 0)
	s.jobs = append(s.jobs, j)
	slices.SortFunc(s.jobs, func(a, b *siteJob) int { return cmp.Compare(a.JobID, b.JobID) })
	s.touch(j)
}

func (s *site) touch(j *siteJob) {
	s.version++
	s.versions[j.key] = s.version
}

// arrive lets a job be submitted.
func (s *site) arrive() {
	j := s.draw()
	if rapid.IntRange(0, 5).Draw(s.t, "het") == 0 {
		other := s.draw()
		other.Begin, other.Blocked, other.spec.UID, other.spec.User = j.Begin, j.Blocked, j.spec.UID, j.user
		other.user, other.account, other.spec.Account = j.user, j.account, j.account
		j.Het, j.HetSize, other.Het, other.HetSize = j.JobID, 2, j.JobID, 2
		s.queue(other)
	} else if rapid.IntRange(0, 5).Draw(s.t, "array") == 0 {
		j.Tasks, j.Limit = job.NewSet(0, 1), rapid.IntRange(1, 2).Draw(s.t, "at once")
		s.next += 5
	}
	s.queue(j)
}

// reserve lets an administrator make a reservation. What was promised before is not held against it.
func (s *site) reserve() {
	if len(s.res) == 3 {
		return
	}
	t := s.t
	r := &partitions.Reservation{Name: fmt.Sprint("r", len(s.res)), Start: s.now + int64(rapid.IntRange(0, 8).Draw(t, "start"))*500}
	r.End = r.Start + int64(rapid.IntRange(2, 12).Draw(t, "length"))*500
	for _, i := range s.parts[0].Nodes {
		if rapid.Bool().Draw(t, "reserved") {
			r.Nodes = append(r.Nodes, s.nodes[i].Name)
		}
	}
	for _, f := range []string{"FLEX", "IGNORE_JOBS", "MAGNETIC", "MAINT"} {
		if rapid.IntRange(0, 3).Draw(t, f) == 0 {
			r.Flags = append(r.Flags, f)
		}
	}
	r.Users = []string{rapid.SampledFrom([]string{"amy", "bob", "-bob"}).Draw(t, "for")}
	if len(s.licenses) > 0 && rapid.Bool().Draw(t, "with license") {
		r.Licenses = []job.License{{Name: "foo", Count: 1}}
	}
	s.res = append(s.res, r)
	s.version++
	clear(s.promised)
}

// snapshot is the site's, with new pointers only where something has changed.
func (s *site) snapshot() *Snapshot {
	x := &Snapshot{Version: s.version, Layout: 1, Nodes: slices.Clone(s.nodes), Partitions: s.parts, Reservations: slices.Clone(s.res),
		Licenses: s.licenses, Rules: s.rules, KillWait: 500}
	byKey := map[string]*Class{}
	for _, j := range s.jobs {
		c := byKey[j.key]
		if c == nil {
			spec, extra := j.spec, j.extra
			c = &Class{Key: j.key, Version: s.versions[j.key], Spec: &spec, Extra: &extra, UID: spec.UID, User: j.user, Account: j.account, QOS: j.qos, Time: j.time}
			byKey[j.key] = c
			x.Classes = append(x.Classes, c)
			var list []Waiting
			for _, o := range s.jobs {
				if o.key == j.key {
					list = append(list, o.Waiting)
				}
			}
			c.Waiting, c.Count = slices.Values(list), len(list)
		}
		if j.Promise != nil {
			x.Promised = append(x.Promised, Promised{Class: j.key, Waiting: j.Waiting})
		}
	}
	slices.SortFunc(x.Classes, func(a, b *Class) int { return cmp.Compare(a.Key, b.Key) })
	uses := siteUses{}
	for _, r := range s.runs {
		x.Running = append(x.Running, &r.Running)
		if s.rules != nil {
			uses.add(s, r)
		}
	}
	if s.rules != nil {
		x.Use = uses
	}
	return x
}

// siteUses is what runs take of limits, as the state keeps it.
type siteUses map[partitions.Entity]partitions.Use

func (u siteUses) Use(e partitions.Entity) partitions.Use       { return u[e] }
func (u siteUses) Usage(partitions.Entity) (x accounting.Usage) { return x }

func (u siteUses) add(s *site, r *siteRun) {
	c, refused := s.rules.Chain(partitions.Job{UID: r.UID, User: r.User, Account: r.Account, Partition: r.Partition, QOS: r.QOS})
	if refused != nil {
		s.t.Fatalf("run %d has no chain: %+v", r.JobID, refused)
	}
	tres := accounting.AllocTRES(r.Allocs, r.Licenses)
	claim := &partitions.Claim{TRES: tres.With("billing", (*accounting.Weights)(nil).Billing(tres, false, false)), PerNode: accounting.PerNode(r.Allocs),
		Start: r.End - r.limit, Limit: r.limit}
	for i := range r.Allocs {
		claim.Nodes = append(claim.Nodes, r.Allocs[i].Node)
	}
	for _, e := range c.Entities() {
		use := u[e]
		if use.Nodes == nil && s.rules.CountsNodes(e) {
			use.Nodes = partitions.NewNodeCount()
		}
		u[e] = use.Plus(claim)
	}
}

// rebuild makes a node anew from the runs on it, and fails where they are more than it has.
func (s *site) rebuild(i int) {
	n := *s.nodes[i]
	n.FreeCPUs, n.FreeMem, n.CPUUsed, n.Busy, n.Excl, n.Owner, n.Runs, n.Users = n.CPUs, n.Mem, make([]bool, n.CPUs), false, false, 0, 0, nil
	n.Gres = slices.Clone(n.Gres)
	for g := range n.Gres {
		n.Gres[g].Used, n.Gres[g].Taken = make([]bool, n.Gres[g].Total), 0
	}
	caps := map[string]uint32{}
	for _, r := range s.runs {
		for k := range r.Allocs {
			a := &r.Allocs[k]
			if a.Node != n.Name {
				continue
			}
			n.Runs++
			if n.Excl = n.Excl || r.Exclusive; n.Excl && n.Runs > 1 {
				s.t.Fatalf("an exclusive run shares %s", n.Name)
			}
			if !slices.Contains(n.Users, r.UID) {
				n.Users = append(n.Users, r.UID)
				slices.Sort(n.Users)
			}
			if r.job.extra.Exclusive == "user" {
				n.Owner = int64(r.UID) + 1
			}
			if n.Owner > 0 && len(n.Users) > 1 {
				s.t.Fatalf("%s is one user's and has runs of %v", n.Name, n.Users)
			}
			if a.Mem > n.FreeMem {
				s.t.Fatalf("%s has no memory for %+v", n.Name, a)
			}
			n.FreeMem -= a.Mem
			for _, g := range a.Gres {
				for _, d := range g.Index {
					if n.Gres[0].Used[d] {
						s.t.Fatalf("device %d of %s is given twice", d, n.Name)
					}
					n.Gres[0].Used[d] = true
					n.Gres[0].Taken++
				}
			}
			if r.Suspended {
				continue
			}
			n.Busy = true
			caps[r.Partition] += a.CPUs
			for _, c := range a.CPUIDs {
				if n.CPUUsed[c] {
					s.t.Fatalf("CPU %d of %s is given twice", c, n.Name)
				}
				n.CPUUsed[c] = true
				n.FreeCPUs--
			}
			if most := s.parts[1].MaxCPUsPerNode; r.Partition == "q" && most > 0 && caps["q"] > most && !r.Exclusive {
				s.t.Fatalf("runs of q have %d CPUs of %s, which may have %d", caps["q"], n.Name, most)
			}
		}
	}
	s.nodes[i] = &n
}

func (s *site) rebuildFor(r *siteRun) {
	for a := range r.Allocs {
		s.rebuild(slices.IndexFunc(s.nodes, func(n *place.Node) bool { return n.Name == r.Allocs[a].Node }))
	}
	s.version++
}

func (s *site) waiting(id uint32) int {
	return slices.IndexFunc(s.jobs, func(j *siteJob) bool { return j.JobID == id })
}

func (s *site) running(id uint32) int {
	return slices.IndexFunc(s.runs, func(r *siteRun) bool { return r.JobID == id })
}

// change puts a changed copy of a run in its place.
func (s *site) change(i int, how func(r *siteRun)) {
	r := *s.runs[i]
	how(&r)
	s.runs[i] = &r
	s.rebuildFor(&r)
}

func TestRandomSite(t *testing.T) {
	counts := map[string]int{}
	rapid.Check(t, func(t *rapid.T) { randomSite(t, counts) })
	text, _ := json.Marshal(counts)
	t.Logf("what happened: %s", text)
}
