package partitions

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// books are what is in use and was used, by entity.
type books struct {
	uses   map[Entity]Use
	usages map[Entity]accounting.Usage
}

func (b *books) Use(e Entity) Use                { return b.uses[e] }
func (b *books) Usage(e Entity) accounting.Usage { return b.usages[e] }

// start counts a claim for all of a chain.
func (b *books) start(c *Chain, cl *Claim) {
	for _, e := range c.Entities() {
		b.uses[e] = b.uses[e].Plus(cl).PlusSubmit(1)
	}
}

func newBooks() *books { return &books{map[Entity]Use{}, map[Entity]accounting.Usage{}} }

// change does gacctmgr commands, as "modify qos where name=high set grpjobs=1".
func change(t testing.TB, db *accounting.DB, commands ...string) *accounting.DB {
	t.Helper()
	for _, text := range commands {
		words := strings.Fields(text)
		c := accounting.Change{Verb: words[0], Entity: words[1]}
		where, set, _ := strings.Cut(strings.Join(words[2:], " "), "set ")
		if c.Verb == "add" {
			c.Set = clauses(where)
		} else {
			c.Where, c.Set = clauses(strings.TrimPrefix(where, "where ")), clauses(set)
		}
		next, _, r := db.Change(c)
		if r != nil {
			t.Fatalf("%s: %+v", text, *r)
		}
		db = next
	}
	return db
}

// office has alice in physics/optics, who may use normal, high and part.
func office(t testing.TB, commands ...string) *accounting.DB {
	db := change(t, accounting.New(), "add qos high", "add qos part", "add account physics", "add account optics parent=physics", "add account art",
		"modify account where name=root set qos=normal,high,part defaultqos=normal", "add user alice account=optics,art", "add user bob account=optics")
	return change(t, db, commands...)
}

var all = []string{"all"}

func chain(t testing.TB, r *Rules, j Job) *Chain {
	t.Helper()
	c, refusal := r.Chain(j)
	if refusal != nil {
		t.Fatalf("%+v", *refusal)
	}
	return c
}

var alice = Job{UID: 1001, User: "alice", Partition: "p"}

// TestLimitEdges: each limit at its value less one, at it, and at one more. ask is the claim at the limit's edge: cpus CPUs
// and mem MiB on nodes for minutes; running jobs (alice's) hold what stands in running.
func TestLimitEdges(t *testing.T) {
	type want = string
	base := func(n int64) *Claim {
		return &Claim{TRES: accounting.TRES{{Name: "billing", N: n}, {Name: "cpu", N: n}, {Name: "gres/gpu", N: n}, {Name: "license/m", N: n}, {Name: "mem", N: n}, {Name: "node", N: n}},
			PerNode: accounting.TRES{{Name: "cpu", N: n}, {Name: "gres/gpu", N: n}, {Name: "mem", N: n}}, Start: 0, Limit: minute}
	}
	cases := map[string]struct {
		set     string // with %d for the limit
		reason  want
		running int64 // TRES that another job of alice holds
	}{}
	add := func(set string, reason string, running int64) {
		cases[set+" "+reason] = struct {
			set     string
			reason  want
			running int64
		}{set, reason, running}
	}
	short := map[string]string{"cpu": "cpu", "mem": "mem", "node": "node", "gpu": "gres/gpu", "lic": "license/m", "bill": "billing"}
	for _, on := range []struct{ target, prefix string }{{"qos where name=normal", "QOS"}, {"account where name=root", "Assoc"}, {"account where name=physics", "Assoc"}, {"user where name=alice account=optics", "Assoc"}} {
		for tres, word := range map[string]string{"cpu": "CpuLimit", "mem": "MemLimit", "node": "NodeLimit", "gpu": "GRES", "lic": "License", "bill": "Billing"} {
			add("modify "+on.target+" set grptres="+short[tres]+"=%d", on.prefix+"Grp"+word, 3)
		}
		mem := map[string]string{"QOS": "Memory", "Assoc": "Mem"}[on.prefix]
		for tres, word := range map[string]string{"cpu": "CPURunMinutesLimit", "mem": mem + "RunMinutes", "node": "NodeRunMinutes", "gpu": "GRESRunMinutes"} {
			add("modify "+on.target+" set grptresrunmins="+short[tres]+"=%d", on.prefix+"Grp"+word, 3)
		}
		for tres, word := range map[string]string{"cpu": "CPUMinutesLimit", "mem": mem + "Minutes", "gpu": "GRESMinutes"} {
			add("modify "+on.target+" set grptresmins="+short[tres]+"=%d", on.prefix+"Grp"+word, 3)
		}
		for tres, word := range map[string]string{"cpu": "CpuPerJobLimit", "mem": mem + "PerJob", "node": "NodePerJobLimit", "gpu": "GRESPerJob"} {
			add("modify "+on.target+" set maxtresperjob="+short[tres]+"=%d", on.prefix+"Max"+word, 0)
		}
		for tres, word := range map[string]string{"cpu": "CpuPerNode", "mem": mem + "PerNode", "gpu": "GRESPerNode"} {
			add("modify "+on.target+" set maxtrespernode="+short[tres]+"=%d", on.prefix+"Max"+word, 0)
		}
		add("modify "+on.target+" set maxtresminsperjob=cpu=%d", on.prefix+"MaxCpuMinutesPerJobLimit", 0)
	}
	for tres, word := range map[string]string{"cpu": "CpuPerUserLimit", "mem": "MemoryPerUser", "node": "NodePerUserLimit", "gpu": "GRESPerUser"} {
		add("modify qos where name=normal set maxtresperuser="+short[tres]+"=%d", "QOSMax"+word, 3)
	}
	for tres, word := range map[string]string{"cpu": "Cpu", "mem": "Memory", "node": "Node", "gpu": "GRES"} {
		add("modify qos where name=normal set maxtresperaccount="+short[tres]+"=%d", "Max"+word+"PerAccount", 3)
	}
	add("modify qos where name=normal set maxtresrunminsperuser=cpu=%d", "MaxCpuRunMinsPerUser", 3)
	add("modify qos where name=normal set maxtresrunminsperaccount=gres/gpu=%d", "MaxGRESRunMinsPerAccount", 3)
	const limit = 10
	for name, c := range cases {
		for _, off := range []int64{-1, 0, 1} {
			ch := chain(t, Enforce(office(t, fmt.Sprintf(c.set, limit)), all), alice)
			b := newBooks()
			if c.running > 0 {
				b.start(ch, base(c.running))
			}
			w := ch.MayStart(b, base(limit-c.running+off), 0)
			if over := off > 0; over != (w != nil) {
				t.Errorf("%s: %d over: %+v", name, off, w)
			} else if over && (string(w.Reason) != c.reason || w.Value != limit || w.Use != c.running || w.Asked != limit-c.running+1 || !strings.Contains(w.Text, " is 10")) {
				t.Errorf("%s: %+v", name, *w)
			}
			r := ch.MaySubmit(newBooks(), base(limit+off).TRES, base(limit+off).PerNode, minute, 1)
			if (off > 0) != (r != nil) || r != nil && (r.Code != "ESLURM_ACCOUNTING_POLICY" || !strings.Contains(r.Why, c.reason)) {
				t.Errorf("%s: %d over at submission: %+v", name, off, r)
			}
		}
	}
}

// TestCountEdges: numbers of jobs and times, at the limit and beyond.
func TestCountEdges(t *testing.T) {
	one := &Claim{TRES: accounting.TRES{{Name: "cpu", N: 1}}, Limit: minute}
	for name, c := range map[string]struct {
		set, reason string
	}{
		"group of a QOS":   {"modify qos where name=normal set grpjobs=2", "QOSGrpJobsLimit"},
		"group of root":    {"modify account where name=root set grpjobs=2", "AssocGrpJobsLimit"},
		"group of account": {"modify account where name=optics set grpjobs=2", "AssocGrpJobsLimit"},
		"user of a QOS":    {"modify qos where name=normal set maxjobsperuser=2", "QOSMaxJobsPerUserLimit"},
		"account of a QOS": {"modify qos where name=normal set maxjobsperaccount=2", "MaxJobsPerAccount"},
		"user":             {"modify user where name=alice account=optics set maxjobs=2", "AssocMaxJobsLimit"},
		"user, by account": {"modify account where name=physics set maxjobs=2", "AssocMaxJobsLimit"},
	} {
		ch := chain(t, Enforce(office(t, c.set), []string{"limits"}), alice)
		b := newBooks()
		for n := range 3 {
			w := ch.MayStart(b, one, 0)
			if (n == 2) != (w != nil) || w != nil && (string(w.Reason) != c.reason || w.Use != 2 || w.Value != 2) {
				t.Errorf("%s: job %d: %+v", name, n+1, w)
			}
			b.start(ch, one)
		}
	}
	for name, c := range map[string]struct{ set, reason string }{
		"group":            {"modify qos where name=normal set grpsubmitjobs=3", "QOSGrpSubmitJobsLimit"},
		"group of account": {"modify account where name=physics set grpsubmitjobs=3", "AssocGrpSubmitJobsLimit"},
		"user":             {"modify user where name=alice account=optics set maxsubmitjobs=3", "AssocMaxSubmitJobLimit"},
		"user of a QOS":    {"modify qos where name=normal set maxsubmitjobsperuser=3", "QOSMaxSubmitJobPerUserLimit"},
		"account of a QOS": {"modify qos where name=normal set maxsubmitjobsperaccount=3", "MaxSubmitJobsPerAccount"},
	} {
		ch := chain(t, Enforce(office(t, c.set), []string{"limits"}), alice)
		b := newBooks()
		b.start(ch, one)
		for tasks := int64(1); tasks <= 3; tasks++ {
			r := ch.MaySubmit(b, one.TRES, nil, 0, tasks)
			if (tasks == 3) != (r != nil) || r != nil && !strings.Contains(r.Why, c.reason+": ") {
				t.Errorf("%s: %d tasks: %+v", name, tasks, r)
			}
		}
	}
}

// TestJobEdges: the time and the least resources of one job, at the limit and beyond.
func TestJobEdges(t *testing.T) {
	for name, c := range map[string]struct{ set, reason, which string }{
		"QOS":  {"modify qos where name=normal set maxwall=10", "QOSMaxWallDurationPerJobLimit", "MaxWall of QOS normal"},
		"user": {"modify account where name=physics set maxwall=10", "AssocMaxWallDurationPerJobLimit", "MaxWall of account physics"},
	} {
		ch := chain(t, Enforce(office(t, c.set), []string{"limits"}), alice)
		if ms, which := ch.MaxTime(); ms != 10*minute || which != c.which {
			t.Errorf("%s: %d %s", name, ms, which)
		}
		for limit, over := range map[int64]bool{10*minute - 1: false, 10 * minute: false, 10*minute + 1: true, -1: true} {
			w := ch.MayStart(newBooks(), &Claim{Limit: limit}, 0)
			if over != (w != nil) || w != nil && string(w.Reason) != c.reason {
				t.Errorf("%s: %d ms: %+v", name, limit, w)
			}
			if r := ch.MaySubmit(newBooks(), nil, nil, limit, 1); over != (r != nil) {
				t.Errorf("%s: %d ms at submission: %+v", name, limit, r)
			}
		}
		if r := ch.MaySubmit(newBooks(), nil, nil, 0, 1); r != nil {
			t.Errorf("%s: without a limit yet: %+v", name, r)
		}
	}
	least := chain(t, Enforce(office(t, "modify qos where name=normal set mintresperjob=cpu=4,gres/gpu=1"), []string{"limits"}), alice)
	for cpus, want := range map[int64]string{3: "QOSMinCpuNotSatisfied", 4: "", 5: ""} {
		w := least.MayStart(newBooks(), &Claim{TRES: accounting.TRES{{Name: "cpu", N: cpus}, {Name: "gres/gpu", N: 1}}}, 0)
		if got := reasonOf(w); got != want {
			t.Errorf("least of %d: %s", cpus, got)
		}
	}
	if w := least.MayStart(newBooks(), &Claim{TRES: accounting.TRES{{Name: "cpu", N: 9}}}, 0); reasonOf(w) != "QOSMinGRES" {
		t.Errorf("%+v", w)
	}
}

func reasonOf(w *Wait) string {
	if w == nil {
		return ""
	}
	return string(w.Reason)
}

// TestUsed: limits on what was used. Without safe they hold once they are reached; with it a job must be able to end within.
func TestUsed(t *testing.T) {
	claim := func(minutes int64) *Claim {
		c := &Claim{TRES: accounting.TRES{{Name: "cpu", N: 2}}, Limit: minutes * minute}
		if minutes < 0 {
			c.Limit = -1
		}
		return c
	}
	for name, c := range map[string]struct {
		set     string
		enforce string
		used    int64 // ms of 2 CPUs
		running int64 // minutes that another job of 2 CPUs still has
		ask     int64 // minutes
		want    string
	}{
		"wall below":              {"grpwall=10", "limits", 10*minute - 1, 0, 60, ""},
		"wall reached":            {"grpwall=10", "limits", 10 * minute, 0, 1, "QOSGrpWallLimit"},
		"wall safe":               {"grpwall=10", "safe", 5 * minute, 0, 5, ""},
		"wall safe, over":         {"grpwall=10", "safe", 5*minute + 1, 0, 5, "QOSGrpWallLimit"},
		"wall safe, with running": {"grpwall=10", "safe", 2 * minute, 4, 5, "QOSGrpWallLimit"},
		"wall safe, running fits": {"grpwall=10", "safe", 1 * minute, 4, 5, ""},
		"wall safe, no limit":     {"grpwall=10", "safe", 0, 0, -1, "QOSGrpWallLimit"},
		"wall, no limit":          {"grpwall=10", "limits", 0, 0, -1, ""},
		"wall of nothing":         {"grpwall=0", "limits", 0, 0, 1, "QOSGrpWallLimit"},
		"cpu below":               {"grptresmins=cpu=20", "limits", 10*minute - 1, 0, 60, ""},
		"cpu reached":             {"grptresmins=cpu=20", "limits", 10 * minute, 0, 1, "QOSGrpCPUMinutesLimit"},
		"cpu safe":                {"grptresmins=cpu=20", "safe", 5 * minute, 0, 5, ""},
		"cpu safe, over":          {"grptresmins=cpu=20", "safe", 5 * minute, 0, 6, "QOSGrpCPUMinutesLimit"},
		"cpu safe, with running":  {"grptresmins=cpu=20", "safe", 2 * minute, 4, 5, "QOSGrpCPUMinutesLimit"},
		"other resource":          {"grptresmins=gres/gpu=0", "safe", 5 * minute, 0, 6, ""},
		"factor":                  {"grptresmins=cpu=20 usagefactor=0.5 flags=usagefactorsafe", "safe", 0, 0, 20, ""},
		"factor, over":            {"grptresmins=cpu=20 usagefactor=0.5 flags=usagefactorsafe", "safe", 0, 0, 21, "QOSGrpCPUMinutesLimit"},
		"factor of nothing":       {"grptresmins=cpu=20 usagefactor=0 flags=usagefactorsafe", "safe", 0, 0, 600, ""},
		"wall, factor":            {"grpwall=10 usagefactor=0.5 flags=usagefactorsafe", "safe", 0, 0, 20, ""},
		"wall, factor, over":      {"grpwall=10 usagefactor=0.5 flags=usagefactorsafe", "safe", 0, 0, 21, "QOSGrpWallLimit"},
		"wall, factor of nothing": {"grpwall=10 usagefactor=0 flags=usagefactorsafe", "safe", 0, 0, 600, ""},
	} {
		ch := chain(t, Enforce(office(t, "modify qos where name=normal set "+c.set), []string{c.enforce}), alice)
		if c.used == 0 && c.running == 0 && c.ask > 0 && c.set != "grpwall=0" { // the job alone decides: so does submission
			if r := ch.MaySubmit(newBooks(), claim(c.ask).TRES, nil, claim(c.ask).Limit, 1); (r != nil) != (c.want != "") {
				t.Errorf("%s at submission: %+v, want %q", name, r, c.want)
			}
		}
		b := newBooks()
		for _, e := range ch.Entities() {
			b.usages[e] = accounting.Usage{}.Charge(claim(1).TRES, 2, c.used, 1_000_000)
			if c.running > 0 {
				b.uses[e] = b.uses[e].Plus(claim(c.running))
			}
		}
		if got := reasonOf(ch.MayStart(b, claim(c.ask), 0)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	endless := chain(t, Enforce(office(t, "modify qos where name=normal set grptresrunmins=cpu=20"), all), alice)
	b := newBooks()
	b.start(endless, claim(-1))
	if w := endless.MayStart(b, claim(1), 0); w == nil || w.Use != math.MaxInt64 || !strings.Contains(w.Text, "without end") {
		t.Errorf("a job without limit runs: %+v", w)
	}
}

// TestFirstDefined: where Max limits come from, in the order of the hierarchy.
func TestFirstDefined(t *testing.T) {
	sets := []struct{ set, of string }{
		{"modify account where name=root set maxtresperjob=cpu=10", "account root"}, {"modify account where name=physics set maxtresperjob=cpu=11", "account physics"},
		{"modify user where name=alice account=optics set maxtresperjob=cpu=12", "user alice in account optics"}, {"modify qos where name=high set maxtresperjob=cpu=13", "QOS high"},
		{"modify qos where name=part set maxtresperjob=cpu=14", "QOS part"}, {"modify qos where name=high set flags=OverPartQOS", "QOS high"},
	}
	db := office(t)
	j := alice
	j.QOS, j.PartQOS = "high", "part"
	for _, s := range sets {
		db = change(t, db, s.set)
		w := chain(t, Enforce(db, all), j).MayStart(newBooks(), &Claim{TRES: accounting.TRES{{Name: "cpu", N: 99}}}, 0)
		if w == nil || w.Of != s.of {
			t.Errorf("after %s: %+v", s.set, w)
		}
	}
	db = office(t, "modify account where name=physics set grptres=cpu=10", "modify qos where name=high set limitfactor=2 grptres=mem=1")
	for qos, over := range map[string]bool{"normal": true, "high": false} {
		j := Job{UID: 1001, User: "alice", QOS: qos}
		w := chain(t, Enforce(db, all), j).MayStart(newBooks(), &Claim{TRES: accounting.TRES{{Name: "cpu", N: 20}}}, 0)
		if over != (w != nil) {
			t.Errorf("LimitFactor, QOS %s: %+v", qos, w)
		}
	}
}

// TestDistinctNodes: a node with two jobs is one node.
func TestDistinctNodes(t *testing.T) {
	r := Enforce(office(t, "modify qos where name=normal set grptres=node=2"), []string{"limits"})
	ch := chain(t, r, alice)
	if !ch.CountsNodes() || chain(t, r, Job{User: "alice", QOS: "high"}).CountsNodes() {
		t.Error("which chains count nodes")
	}
	b := newBooks()
	for _, e := range ch.Entities() {
		if r.CountsNodes(e) != (e == Entity{Kind: OfQOS, ID: 1}) {
			t.Errorf("%v", e)
		}
		b.uses[e] = Use{Nodes: NewNodeCount()}
	}
	gpu := func(nodes ...string) *Claim {
		return &Claim{TRES: accounting.TRES{{Name: "gres/gpu", N: 2}, {Name: "node", N: 2}}, Nodes: nodes, Limit: minute}
	}
	first := gpu("n1", "n2")
	if w := ch.MayStart(b, first, 0); w != nil {
		t.Fatalf("%+v", w)
	}
	b.start(ch, first)
	for nodes, want := range map[string]string{"n1,n2": "", "n2,n1": "", "n2,n3": "QOSGrpNodeLimit", "n3,n4": "QOSGrpNodeLimit", "": ""} {
		c := gpu(strings.Split(nodes, ",")...)
		if nodes == "" {
			c.Nodes = nil // not chosen yet
		}
		if got := reasonOf(ch.MayStart(b, c, 0)); got != want {
			t.Errorf("%s: %q, want %q", nodes, got, want)
		}
	}
	b.start(ch, gpu("n1", "n2"))
	u := b.uses[Entity{Kind: OfQOS, ID: 1}]
	if u.Nodes.Len() != 2 || u.Minus(first).Nodes.Len() != 2 || u.Minus(first).Minus(first).Nodes.Len() != 0 {
		t.Errorf("%d nodes", u.Nodes.Len())
	}
}

func TestChain(t *testing.T) {
	db := office(t, "modify user where name=bob set qos=normal", "add user cy account=art partition=gpu", "modify user where name=alice account=art set defaultqos=high")
	for name, c := range map[string]struct {
		enforce string
		job     Job
		code    string
		want    string // account/QOS, or words of the reason
	}{
		"defaults":              {"all", Job{User: "alice"}, "", "optics/normal"},
		"default QOS":           {"all", Job{User: "alice", Account: "art"}, "", "art/high"},
		"upper case":            {"all", Job{User: "alice", Account: "ART", QOS: "High"}, "", "art/high"},
		"stranger":              {"associations", Job{User: "eve"}, "INVALID_ACCOUNT", "gacctmgr add user eve"},
		"stranger, nothing":     {"", Job{User: "eve", Account: "x", QOS: "y"}, "", "x/y"},
		"other account":         {"associations", Job{User: "bob", Account: "art"}, "INVALID_ACCOUNT", "but in optics"},
		"no such account":       {"limits", Job{User: "bob", Account: "maths"}, "INVALID_ACCOUNT", `no account "maths"`},
		"other partition":       {"safe", Job{User: "cy", Partition: "cpu"}, "INVALID_ACCOUNT", "for other partitions than cpu"},
		"partition":             {"safe", Job{User: "cy", Partition: "gpu"}, "", "art/normal"},
		"QOS that is not there": {"limits", Job{User: "bob", QOS: "x"}, "INVALID_QOS", `no QOS "x"`},
		"QOS not allowed":       {"qos", Job{User: "bob", QOS: "high"}, "INVALID_QOS", "normal"},
		"QOS not asked about":   {"limits", Job{User: "bob", QOS: "high"}, "", "optics/high"},
	} {
		ch, r := Enforce(db, []string{c.enforce}).Chain(c.job)
		switch {
		case c.code == "" && r != nil:
			t.Errorf("%s: %+v", name, *r)
		case c.code != "" && (r == nil || r.Code != "ESLURM_"+c.code || !strings.Contains(r.Why, c.want)):
			t.Errorf("%s: %+v", name, r)
		case c.code == "" && ch.Account+"/"+ch.QOS != c.want:
			t.Errorf("%s: %s/%s", name, ch.Account, ch.QOS)
		}
	}
	var nothing *Rules
	if ch := chain(t, nothing, Job{Account: "a", QOS: "q"}); len(ch.Entities()) != 0 || ch.MayStart(nil, &Claim{}, 0) != nil || ch.MaySubmit(nil, nil, nil, 1, 1) != nil {
		t.Error("nil rules enforce something")
	}
	same := chain(t, Enforce(db, all), Job{User: "alice", QOS: "high", PartQOS: "high"})
	both := chain(t, Enforce(db, all), Job{User: "alice", QOS: "high", PartQOS: "part"})
	if len(same.Entities()) != 4+3 || len(both.Entities()) != 4+6 {
		t.Errorf("%v, %v", same.Entities(), both.Entities())
	}
	if job.Reason("QOSGrpWallLimit") != job.LimitReason("QOS", "GrpWallLimit") {
		t.Error("reasons")
	}
}

// TestFactorOfTheJob: what a job will use counts as it will be charged, by the factor of its own QOS, for all that it is
// counted for.
func TestFactorOfTheJob(t *testing.T) {
	j := alice
	j.QOS, j.PartQOS = "high", "part"
	for name, c := range map[string]struct {
		set  []string
		most int64 // minutes of 1 CPU that start
	}{
		"of the job's QOS":           {[]string{"modify qos where name=high set usagefactor=0.5 flags=usagefactorsafe", "modify qos where name=part set grptresmins=cpu=20"}, 40},
		"not of the partition's QOS": {[]string{"modify qos where name=part set grptresmins=cpu=20 usagefactor=0.5 flags=usagefactorsafe"}, 20},
		"for accounts":               {[]string{"modify qos where name=high set usagefactor=2 flags=usagefactorsafe", "modify account where name=physics set grptresmins=cpu=20"}, 10},
		"without the flag":           {[]string{"modify qos where name=high set usagefactor=2", "modify account where name=physics set grptresmins=cpu=20"}, 20},
	} {
		ch := chain(t, Enforce(office(t, c.set...), []string{"safe"}), j)
		for minutes, want := range map[int64]bool{c.most: true, c.most + 1: false} {
			cl := &Claim{TRES: accounting.TRES{{Name: "cpu", N: 1}}, Limit: minutes * minute}
			if w := ch.MayStart(newBooks(), cl, 0); (w == nil) != want {
				t.Errorf("%s: %d minutes: %+v", name, minutes, w)
			}
		}
	}
}

// TestLeastMemory: a job that names no memory, or all of a node's, gets some that submission does not know; the start decides.
func TestLeastMemory(t *testing.T) {
	ch := chain(t, Enforce(office(t, "modify qos where name=normal set mintresperjob=mem=1G"), []string{"limits"}), alice)
	if r := ch.MaySubmit(newBooks(), accounting.TRES{{Name: "cpu", N: 1}}, nil, 0, 1); r != nil {
		t.Errorf("%+v", r)
	}
	if r := ch.MaySubmit(newBooks(), accounting.TRES{{Name: "mem", N: 1023}}, nil, 0, 1); r == nil || !strings.Contains(r.Why, "QOSMinMemory") {
		t.Errorf("%+v", r)
	}
	if w := ch.MayStart(newBooks(), &Claim{TRES: accounting.TRES{{Name: "cpu", N: 1}}}, 0); reasonOf(w) != "QOSMinMemory" {
		t.Errorf("%+v", w)
	}
}
