package priority

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/accounting"
)

const (
	hour = 3600 * 1000
	day  = 24 * hour
	noon = 1_000_000 * hour // some moment
)

func parse(t testing.TB, c Config) *Params {
	t.Helper()
	p, err := Parse(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestTerms holds each term against a number worked out by hand, one weight at a time.
func TestTerms(t *testing.T) {
	cluster := &Cluster{Nodes: 10, CPUs: 160, MaxPartition: 4, MaxQOS: 50, MaxAssoc: 8,
		TRES: accounting.TRES{{Name: "cpu", N: 160}, {Name: "gres/gpu", N: 40}, {Name: "mem", N: 1 << 20}}}
	for _, c := range []struct {
		name string
		c    Config
		j    Job
		want int64
	}{
		{"no weights", Config{}, Job{Submit: noon - day, Accrue: noon - day}, 1},
		{"age 3.5 of 7 days", Config{Age: 1000}, Job{Accrue: noon - 84*hour}, 500},
		{"age over PriorityMaxAge", Config{Age: 1000}, Job{Accrue: noon - 30*day}, 1000},
		{"age of one that is not eligible", Config{Age: 1000}, Job{Submit: noon - 84*hour}, 1},
		{"ACCRUE_ALWAYS counts from submission", Config{Age: 1000, Flags: []string{"ACCRUE_ALWAYS"}}, Job{Submit: noon - 84*hour}, 500},
		{"accrues in the future", Config{Age: 1000}, Job{Accrue: noon + hour}, 1},
		{"PriorityMaxAge of a day", Config{Age: 1000, MaxAge: day}, Job{Accrue: noon - 6*hour}, 250},
		{"fair share .75", Config{FairShare: 1000}, Job{FairShare: .75}, 750},
		{"association 2 of 8", Config{Assoc: 1000}, Job{AssocPriority: 2}, 250},
		{"NO_NORMAL_ASSOC", Config{Assoc: 1000, Flags: []string{"NO_NORMAL_ASSOC"}}, Job{AssocPriority: 2}, 2000},
		{"partition 3 of 4", Config{Partition: 1000}, Job{PartFactor: 3}, 750},
		{"NO_NORMAL_PART", Config{Partition: 1000, Flags: []string{"NO_NORMAL_PART"}}, Job{PartFactor: 3}, 3000},
		{"QOS 10 of 50", Config{QOS: 1000}, Job{QOSPriority: 10}, 200},
		{"NO_NORMAL_QOS", Config{QOS: 1000, Flags: []string{"no_normal_qos"}}, Job{QOSPriority: 10}, 10000},
		{"NO_NORMAL_ALL", Config{QOS: 1, Partition: 1, Assoc: 1, Flags: []string{"NO_NORMAL_ALL"}}, Job{QOSPriority: 10, PartFactor: 3, AssocPriority: 2}, 15},
		{"size 4 of 10 nodes", Config{JobSize: 1000}, Job{Nodes: 4}, 400},
		{"size 4 of 10 nodes, 32 of 160 CPUs", Config{JobSize: 1000}, Job{Nodes: 4, CPUs: 32}, 300},
		{"small, 4 of 10 nodes", Config{JobSize: 1000, FavorSmall: true}, Job{Nodes: 4}, 600},
		{"small, 4 of 10 nodes, 32 of 160 CPUs", Config{JobSize: 1000, FavorSmall: true}, Job{Nodes: 4, CPUs: 32}, 700},
		{"small, more nodes than there are", Config{JobSize: 1000, FavorSmall: true}, Job{Nodes: 11}, 1},
		{"relative to time: 32 CPUs, 2 minutes", Config{JobSize: 1000, Flags: []string{"SMALL_RELATIVE_TO_TIME"}}, Job{Nodes: 1, CPUs: 32, Limit: 2 * 60000}, 100},
		{"relative to time: by nodes", Config{JobSize: 1000, Flags: []string{"SMALL_RELATIVE_TO_TIME"}}, Job{Nodes: 5, CPUs: 32, Limit: 60000}, 500},
		{"relative to time, small", Config{JobSize: 1000, FavorSmall: true, Flags: []string{"SMALL_RELATIVE_TO_TIME"}}, Job{Nodes: 5, CPUs: 32, Limit: 60000}, 500},
		{"TRES: 16 of 160 CPUs and 10 of 40 GPUs", Config{TRES: []string{"CPU=1000", "GRES/gpu=2000"}}, Job{TRES: accounting.TRES{{Name: "cpu", N: 16}, {Name: "gres/gpu", N: 10}}}, 600},
		{"TRES of the partition", Config{TRES: []string{"cpu=1000"}}, Job{TRES: accounting.TRES{{Name: "cpu", N: 16}}, PartTRES: accounting.TRES{{Name: "cpu", N: 32}}}, 500},
		{"TRES that the partition lacks", Config{TRES: []string{"gres/gpu=1000"}}, Job{TRES: accounting.TRES{{Name: "gres/gpu", N: 1}}, PartTRES: accounting.TRES{{Name: "cpu", N: 32}}}, 1},
		{"NO_NORMAL_TRES", Config{TRES: []string{"cpu=3"}, Flags: []string{"NO_NORMAL_TRES"}}, Job{TRES: accounting.TRES{{Name: "cpu", N: 16}}}, 48},
		{"bid of twice the price", Config{FairShare: 1000, Bid: 1000}, Job{Bid: 2e6, Price: 1e6}, 250},
		{"bid of 100 times the price", Config{FairShare: 1000, Bid: 1000}, Job{Bid: 100e6, Price: 1e6}, 1000},
		{"bid below the price", Config{FairShare: 1000, Bid: 1000}, Job{Bid: 5, Price: 1e6}, 1},
		{"site and nice", Config{}, Job{Site: 500, Nice: 100}, 400},
		{"nice below 1", Config{}, Job{Nice: 100}, 1},
		{"clamped above", Config{}, Job{Site: 1 << 40}, math.MaxUint32},
		{"a sum is cut off once", Config{Age: 10, FairShare: 10}, Job{Accrue: noon - 7*day*15/100, FairShare: .15}, 3},
		{"set by an administrator", Config{Age: 1000}, Job{Accrue: noon - 84*hour, Fixed: 77}, 77},
		{"deadline: no slack left", Config{Age: 1000, FairShare: 500}, Job{Deadline: noon + 2*hour, Limit: 2 * hour}, 1500},
		{"deadline: half its limit left", Config{Age: 1000}, Job{Deadline: noon + 3*hour, Limit: 2 * hour}, 500},
		{"deadline: far", Config{Age: 1000}, Job{Deadline: noon + day, Limit: 2 * hour}, 1},
	} {
		p := parse(t, c.c)
		terms := p.Rank(cluster, &c.j, noon)
		if terms.Priority != c.want {
			t.Errorf("%s: priority %d, want %d (%+v)", c.name, terms.Priority, c.want, terms)
		}
		if k := p.Key(cluster, &c.j, noon); k.Score != float64(terms.Priority) {
			t.Errorf("%s: Key has score %v, Rank priority %d", c.name, k.Score, terms.Priority)
		}
	}
}

// TestSum adds up all terms of one job as sprio would show them.
func TestSum(t *testing.T) {
	p := parse(t, Config{Age: 1000, FairShare: 10000, JobSize: 500, Partition: 200, QOS: 3000, TRES: []string{"cpu=100"}})
	c := &Cluster{Nodes: 4, CPUs: 64, MaxPartition: 10, MaxQOS: 100, TRES: accounting.TRES{{Name: "cpu", N: 64}}}
	j := &Job{Accrue: noon - 84*hour, FairShare: .25, Nodes: 2, CPUs: 16, PartFactor: 5, QOSPriority: 20, TRES: accounting.TRES{{Name: "cpu", N: 16}}, Nice: 7, Site: 2}
	got := p.Rank(c, j, noon)
	want := Terms{Age: 500, FairShare: 2500, JobSize: 187.5, Partition: 100, QOS: 600, TRES: 25, Nice: 7, Site: 2, Priority: 3907}
	if got.Age != want.Age || got.FairShare != want.FairShare || got.JobSize != want.JobSize || got.Partition != want.Partition || got.QOS != want.QOS ||
		got.TRES != want.TRES || got.Priority != want.Priority || len(got.TRESOf) != 1 || got.TRESOf[0] != (Term{"cpu", .25, 25}) {
		t.Errorf("%+v", got)
	}
}

func TestOrders(t *testing.T) {
	c := &Cluster{Nodes: 1, CPUs: 100}
	type J = Job
	for _, x := range []struct {
		order       string
		first, last J
	}{
		{"expansion", J{Accrue: noon - hour, Limit: hour}, J{Accrue: noon - 5*hour, Limit: 10 * hour}},               // 2 and 1.5
		{"expansion", J{Accrue: noon - 20*hour, Limit: 100 * hour}, J{Accrue: noon - 19*hour, Limit: hour}},          // starved
		{"expansion", J{Accrue: noon - 22*hour, Limit: 100 * hour}, J{Accrue: noon - 21*hour, Limit: hour}},          // both are
		{"sjf", J{Accrue: noon, Limit: hour, CPUs: 90}, J{Accrue: noon - hour, Limit: 2 * hour}},                     //
		{"area", J{Accrue: noon, Limit: hour, CPUs: 3}, J{Accrue: noon, Limit: 2 * hour, CPUs: 2}},                   // 3 and 4
		{"wfp3", J{Accrue: noon - 2*hour, Limit: hour, CPUs: 2}, J{Accrue: noon - 3*hour, Limit: 3 * hour, CPUs: 9}}, // 16 and 9
		{"f1", J{Submit: noon, Limit: 100 * 1000, CPUs: 2}, J{Submit: noon, Limit: 1000 * 1000, CPUs: 2}},
		{"f1", J{Submit: noon, Limit: 1000 * 1000, CPUs: 2}, J{Submit: 2 * noon, Limit: 1000 * 1000, CPUs: 2}},
	} {
		p := parse(t, Config{Type: x.order})
		if a, b := p.Key(c, &x.first, noon), p.Key(c, &x.last, noon); !Less(a, b) || Less(b, a) {
			t.Errorf("%s: %+v must go before %+v (%+v, %+v)", x.order, x.first, x.last, a, b)
		}
	}
	p := parse(t, Config{Type: "priority/basic"})
	if a, b := p.Key(c, &J{Accrue: noon - day}, noon), p.Key(c, &J{Accrue: noon}, noon); Compare(a, b) != 0 {
		t.Error("fcfs must leave the order to the submission")
	}
	if a, b := p.Key(c, &J{Deadline: noon + 3*hour, Limit: 2 * hour}, noon), p.Key(c, &J{Deadline: noon + 3*hour, Limit: hour}, noon); !Less(a, b) {
		t.Error("of equal ones who must start earlier for the deadline goes first")
	}
	if terms := parse(t, Config{Type: "expansion"}).Rank(c, &J{Accrue: noon - hour, Limit: hour}, noon); terms.Priority != 2000 || terms.Expansion != 2 {
		t.Errorf("%+v", terms)
	}
}

func TestEstimate(t *testing.T) {
	for _, c := range []struct {
		last  []int64
		limit int64
		want  int64
	}{{nil, 50, 0}, {[]int64{30}, 50, 30}, {[]int64{30, 10}, 50, 20}, {[]int64{99, 30, 10}, 50, 20}, {[]int64{80, 90}, 50, 50}, {[]int64{80, 90}, -1, 85}, {[]int64{0, 0}, 50, 1}} {
		if got := Estimate(c.last, c.limit); got != c.want {
			t.Errorf("Estimate(%v, %d) = %d, want %d", c.last, c.limit, got, c.want)
		}
	}
	p := parse(t, Config{Type: "sjf", SchedulerParameters: []string{"estimates=corrected", "promises=3"}})
	if k := p.Key(&Cluster{}, &Job{Limit: hour, Estimate: 60000}, noon); k.Score != -60 {
		t.Errorf("a corrected estimate must rank: %+v", k)
	}
	p = parse(t, Config{Type: "sjf"})
	if k := p.Key(&Cluster{}, &Job{Limit: hour, Estimate: 60000}, noon); k.Score != -3600 {
		t.Errorf("without estimates=corrected the limit ranks: %+v", k)
	}
}

func TestParse(t *testing.T) {
	p := parse(t, Config{Type: "expansion", SchedulerParameters: []string{"starvation=10:00:00"}})
	if p.Starvation != 10*hour {
		t.Error(p.Starvation)
	}
	if p = parse(t, Config{Type: "expansion"}); p.Starvation != DefaultStarvation {
		t.Error(p.Starvation)
	}
	if p = parse(t, Config{}); p.Starvation != 0 || p.Type != Multifactor || p.MaxAge != 7*day {
		t.Errorf("%+v", p)
	}
	for _, c := range []struct {
		c    Config
		want string
	}{
		{Config{Type: "magic"}, `PriorityType: "magic"`},
		{Config{Bid: 3, Age: 1, FairShare: 1}, "PriorityWeightBid=3 is over PriorityWeightAge + PriorityWeightFairshare = 2"},
		{Config{Flags: []string{"FAST"}}, `"FAST"`},
		{Config{TRES: []string{"cpu"}}, `"cpu" is not NAME=WEIGHT`},
		{Config{TRES: []string{"cpu=-1"}}, "cpu=-1"},
		{Config{TRES: []string{"cpu=1", "CPU=2"}}, "cpu is named twice"},
		{Config{TRES: []string{"cpus=1"}}, `"cpus=1": invalid TRES`},
		{Config{SchedulerParameters: []string{"starvation=soon"}}, "starvation=soon"},
		{Config{SchedulerParameters: []string{"estimates=good"}}, "estimates=good"},
	} {
		if _, err := Parse(c.c); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.c, err, c.want)
		}
	}
}

// TestOvertakes: whatever others bid, a job of full age and the best fair share is never behind a new one of somebody
// who has used more than anybody; where no fair share is weighed, age alone does it.
func TestOvertakes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		age, fs := rapid.Uint32().Draw(t, "age"), rapid.Uint32().Draw(t, "fs")
		most := min(uint64(age)+uint64(fs), math.MaxUint32)
		p, err := Parse(Config{Age: age, FairShare: fs, Bid: uint32(rapid.Uint64Range(0, most).Draw(t, "bid weight"))})
		if err != nil {
			t.Fatal(err)
		}
		c := &Cluster{Nodes: 1, CPUs: 1}
		poor := &Job{Submit: 1, Accrue: 1, FairShare: 1}
		rich := &Job{FairShare: 0, Bid: rapid.Int64Range(0, math.MaxInt64).Draw(t, "bid"), Price: rapid.Int64Range(0, 1<<40).Draw(t, "price")}
		now := p.MaxAge + 1
		rich.Submit, rich.Accrue = now, now
		if a, b := p.Key(c, poor, now), p.Key(c, rich, now); Compare(a, b) > 0 {
			t.Fatalf("age %d fair share %d bid %d: %+v is behind %+v", p.Age, p.FairShare, p.Bid, a, b)
		}
	})
}

// TestBidOrder: of jobs equal but in their bids the higher bid is never behind.
func TestBidOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := Parse(Config{Age: 1000, FairShare: 1000, Bid: 2000})
		if err != nil {
			t.Fatal(err)
		}
		low := rapid.Int64Range(0, 1<<62).Draw(t, "low")
		a := &Job{Accrue: noon, Bid: rapid.Int64Range(low, 1<<62).Draw(t, "high"), Price: rapid.Int64Range(1, 1<<40).Draw(t, "price")}
		b := *a
		b.Bid = low
		if Compare(p.Key(&Cluster{}, a, noon), p.Key(&Cluster{}, &b, noon)) > 0 {
			t.Fatal("the higher bid is behind")
		}
	})
}

// TestStarved: under every order that has the bound a job that waited so long goes before all that have not.
func TestStarved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := Parse(Config{Type: rapid.SampledFrom([]string{Expansion, SJF, Area, WFP3}).Draw(t, "order")})
		if err != nil {
			t.Fatal(err)
		}
		draw := func(name string, least, most int64) *Job {
			at := noon - rapid.Int64Range(least, most).Draw(t, name)
			return &Job{Submit: at, Accrue: at, CPUs: rapid.Uint32Range(1, 1<<20).Draw(t, "cpus"), Limit: rapid.Int64Range(1, 1<<40).Draw(t, "limit")}
		}
		old, young := draw("old", p.Starvation, 100*p.Starvation), draw("young", 0, p.Starvation-1)
		if !Less(p.Key(&Cluster{}, old, noon), p.Key(&Cluster{}, young, noon)) {
			t.Fatal("a starved job is behind one that is not")
		}
	})
}

// TestWaits: within a class who waits longer is never behind: the planner looks at the first of each class alone.
func TestWaits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := Parse(Config{Type: rapid.SampledFrom([]string{Multifactor, Expansion, FCFS, SJF, Area, WFP3, F1}).Draw(t, "order"), Age: rapid.Uint32().Draw(t, "age")})
		if err != nil {
			t.Fatal(err)
		}
		a := &Job{CPUs: rapid.Uint32Range(1, 1000).Draw(t, "cpus"), Limit: rapid.Int64Range(1, 1<<40).Draw(t, "limit")}
		b := *a
		b.Accrue = rapid.Int64Range(1, noon).Draw(t, "b")
		a.Accrue = rapid.Int64Range(1, b.Accrue).Draw(t, "a")
		a.Submit, b.Submit = a.Accrue, b.Accrue
		if Compare(p.Key(&Cluster{}, a, noon), p.Key(&Cluster{}, &b, noon)) > 0 {
			t.Fatal("who came first is behind")
		}
	})
}
