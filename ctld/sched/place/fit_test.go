package place

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

const gib = 1 << 30

// host is a node of 8 CPUs and 16 GiB with 4 GPUs of two types.
func host() *Node {
	return &Node{Name: "n0", CPUs: 8, Mem: 16 * gib, TmpDisk: gib, Sockets: 2, Cores: 2, Threads: 2, Features: []string{"a"},
		FreeCPUs: 8, FreeMem: 16 * gib, Gres: []Gres{{Name: "gpu", Type: "a100", Total: 2}, {Name: "gpu", Type: "h100", Total: 2}}}
}

func compile(t interface {
	Helper()
	Fatal(...any)
}, spec job.Spec, x job.Extra, lim Limits) *Shape {
	t.Helper()
	s, wrong := Compile(&spec, &x, lim, nil, func(name string) (int, bool) { return int(name[1] - '0'), name == "n0" || name == "n1" })
	if wrong != "" {
		t.Fatal(wrong)
	}
	return s
}

func TestFit(t *testing.T) {
	many := func(s job.Spec) job.Spec { s.NTasks = 100; return s }
	for _, tt := range []struct {
		name   string
		spec   job.Spec
		extra  job.Extra
		lim    Limits
		change func(*Node, *Room)
		tasks  uint32
		cpus   uint32 // of the demand
		mem    int64
	}{
		{name: "one", tasks: 1, cpus: 1, mem: 2 * gib},
		{name: "all CPUs", spec: many(job.Spec{}), tasks: 8, cpus: 8, mem: 16 * gib},
		{name: "CPUs taken", spec: many(job.Spec{}), change: func(_ *Node, r *Room) { r.CPUs = 3 }, tasks: 3, cpus: 3, mem: 6 * gib},
		{name: "share of the memory taken", spec: many(job.Spec{}), change: func(_ *Node, r *Room) { r.Mem = 5 * gib }, tasks: 2, cpus: 2, mem: 4 * gib},
		{name: "tasks per node", spec: job.Spec{NTasksPerNode: 3}, tasks: 3, cpus: 3, mem: 6 * gib},
		{name: "not all tasks of a node", spec: job.Spec{NTasksPerNode: 3}, change: func(_ *Node, r *Room) { r.CPUs = 2 }},
		{name: "most tasks of a node", spec: many(job.Spec{NTasksPerNode: 3}), tasks: 3, cpus: 3, mem: 6 * gib},
		{name: "cpus per task", spec: many(job.Spec{CPUsPerTask: 3}), tasks: 2, cpus: 6, mem: 12 * gib},
		{name: "mincpus", spec: job.Spec{MinCPUsPerNode: 5}, tasks: 1, cpus: 5, mem: 10 * gib},
		{name: "mincpus taken", spec: job.Spec{MinCPUsPerNode: 5}, change: func(_ *Node, r *Room) { r.CPUs = 4 }},
		{name: "mincpus brings memory", spec: job.Spec{MinCPUsPerNode: 5, MemPerCPU: gib}, change: func(_ *Node, r *Room) { r.Mem = 4 * gib }},
		{name: "memory of a node", spec: many(job.Spec{MemPerNode: 5 * gib}), tasks: 8, cpus: 8, mem: 5 * gib},
		{name: "memory of a CPU", spec: many(job.Spec{MemPerCPU: 3 * gib}), tasks: 5, cpus: 5, mem: 15 * gib},
		{name: "all memory", spec: job.Spec{MemPerNode: job.WholeNode}, tasks: 1, cpus: 1, mem: 16 * gib},
		{name: "all memory when some is taken", spec: job.Spec{MemPerNode: job.WholeNode}, change: func(_ *Node, r *Room) { r.Mem-- }},
		{name: "default memory of a node", lim: Limits{DefMemPerNode: 3 * gib, DefMemPerCPU: gib}, tasks: 1, cpus: 1, mem: 3 * gib},
		{name: "default memory of a CPU", lim: Limits{DefMemPerCPU: gib}, spec: many(job.Spec{}), tasks: 8, cpus: 8, mem: 8 * gib},
		{name: "default of all memory", lim: Limits{DefMemPerCPU: -1}, tasks: 1, cpus: 1, mem: 16 * gib},
		{name: "MaxMemPerCPU raises CPUs of a task", lim: Limits{MaxMemPerCPU: 2 * gib}, spec: many(job.Spec{MemPerCPU: 3 * gib}), tasks: 4, cpus: 8, mem: 12 * gib},
		{name: "MaxMemPerCPU raises CPUs of a node", lim: Limits{MaxMemPerCPU: 2 * gib}, spec: job.Spec{MemPerNode: 5 * gib}, tasks: 1, cpus: 3, mem: 5 * gib},
		{name: "MaxMemPerCPU and all memory", lim: Limits{MaxMemPerCPU: 4 * gib}, spec: job.Spec{MemPerNode: job.WholeNode}, tasks: 1, cpus: 4, mem: 16 * gib},
		{name: "MaxMemPerCPU and all memory, CPUs taken", lim: Limits{MaxMemPerCPU: 4 * gib}, spec: job.Spec{MemPerNode: job.WholeNode}, change: func(_ *Node, r *Room) { r.CPUs = 3 }},
		{name: "MaxMemPerNode", lim: Limits{MaxMemPerNode: 4 * gib}, spec: many(job.Spec{MemPerCPU: gib}), tasks: 4, cpus: 4, mem: 4 * gib},
		{name: "over MaxMemPerNode", lim: Limits{MaxMemPerNode: 4 * gib}, spec: job.Spec{MemPerNode: 5 * gib}},
		{name: "MaxMemPerNode of all memory", lim: Limits{MaxMemPerNode: 4 * gib}, spec: job.Spec{MemPerNode: job.WholeNode}, tasks: 1, cpus: 1, mem: 4 * gib},
		{name: "MaxCPUsPerNode", lim: Limits{MaxCPUsPerNode: 3}, spec: many(job.Spec{}), tasks: 3, cpus: 3, mem: 6 * gib},
		{name: "over MaxCPUsPerNode", lim: Limits{MaxCPUsPerNode: 3}, spec: job.Spec{MinCPUsPerNode: 4}},
		{name: "exclusive", spec: many(job.Spec{Exclusive: true}), tasks: 8, cpus: 8, mem: 16 * gib},
		{name: "exclusive takes memory as asked", spec: job.Spec{Exclusive: true, MemPerNode: gib}, tasks: 1, cpus: 8, mem: gib},
		{name: "exclusive beside a run", spec: job.Spec{Exclusive: true}, change: func(_ *Node, r *Room) { r.Runs = 1 }},
		{name: "beside an exclusive run", change: func(_ *Node, r *Room) { r.Runs, r.Shut = 1, true }},
		{name: "whole nodes of a partition", lim: Limits{WholeNodes: true}, tasks: 1, cpus: 8, mem: 16 * gib},
		{name: "another user's node", spec: job.Spec{UID: 5}, change: func(_ *Node, r *Room) { r.Runs, r.Owner, r.User = 1, 7, 7 }},
		{name: "the user's own node", spec: job.Spec{UID: 6}, change: func(_ *Node, r *Room) { r.Runs, r.Owner, r.User = 1, 7, 7 }, tasks: 1, cpus: 1, mem: 2 * gib},
		{name: "root's own node", change: func(_ *Node, r *Room) { r.Runs, r.Owner, r.User = 1, 1, 1 }, tasks: 1, cpus: 1, mem: 2 * gib},
		{name: "exclusive=user beside others", extra: job.Extra{Exclusive: "user"}, change: func(_ *Node, r *Room) { r.Runs, r.User = 1, 9 }},
		{name: "exclusive=user beside several", extra: job.Extra{Exclusive: "user"}, change: func(_ *Node, r *Room) { r.Runs, r.User = 2, severalUsers }},
		{name: "exclusive=user beside own", extra: job.Extra{Exclusive: "user"}, change: func(_ *Node, r *Room) { r.Runs, r.User = 1, 1 }, tasks: 1, cpus: 1, mem: 2 * gib},
		{name: "exclusive=user of a partition", lim: Limits{ExclusiveUser: true}, change: func(_ *Node, r *Room) { r.Runs, r.User = 1, 9 }},
		{name: "gpus of any type", spec: job.Spec{Gres: "gpu:3"}, tasks: 1, cpus: 1, mem: 2 * gib},
		{name: "gpus of a type", spec: job.Spec{Gres: "gpu:a100:2,gpu:2"}, tasks: 1, cpus: 1, mem: 2 * gib},
		{name: "too many gpus", spec: job.Spec{Gres: "gpu:2,gpu:a100:2,gpu:h100:1"}},
		{name: "gpus taken", spec: job.Spec{Gres: "gpu:h100:1"}, change: func(_ *Node, r *Room) { r.Gres[1] = 0 }},
		{name: "overcommit", spec: many(job.Spec{}), extra: job.Extra{Overcommit: true}, change: func(_ *Node, r *Room) { r.CPUs = 1 }, tasks: 100, cpus: 1, mem: 2 * gib},
		{name: "overcommit needs a CPU", spec: many(job.Spec{}), extra: job.Extra{Overcommit: true}, change: func(_ *Node, r *Room) { r.CPUs = 0 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := host()
			r := WholeRoom(n)
			if tt.change != nil {
				tt.change(n, &r)
			}
			s := compile(t, tt.spec, tt.extra, tt.lim)
			got := s.Fit(n, &r)
			if got != tt.tasks {
				t.Fatalf("%d tasks, want %d", got, tt.tasks)
			}
			if got == 0 {
				if s.Lacks(0, n, &r) == 0 {
					t.Error("nothing lacks")
				}
				return
			}
			if a := s.Demand(n, &r, got); a.CPUs != tt.cpus || a.Mem != tt.mem {
				t.Errorf("%d CPUs and %s, want %d and %s", a.CPUs, job.FormatMem(a.Mem), tt.cpus, job.FormatMem(tt.mem))
			}
		})
	}
}

func TestSuits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spec  job.Spec
		extra job.Extra
		lack  Lack
	}{
		{"anything", job.Spec{}, job.Extra{}, 0},
		{"its shape", job.Spec{}, job.Extra{Sockets: 2, Cores: 2, Threads: 2}, 0},
		{"sockets", job.Spec{}, job.Extra{Sockets: 3}, LackCores},
		{"cores", job.Spec{}, job.Extra{Cores: 3}, LackCores},
		{"threads", job.Spec{}, job.Extra{Threads: 3}, LackCores},
		{"disk", job.Spec{MinTmpDisk: gib}, job.Extra{}, 0},
		{"too much disk", job.Spec{MinTmpDisk: gib + 1}, job.Extra{}, LackTmp},
		{"excluded", job.Spec{Exclude: "n0"}, job.Extra{}, LackAllowed},
		{"feature", job.Spec{Constraint: "a"}, job.Extra{}, 0},
		{"other feature", job.Spec{Constraint: "b"}, job.Extra{}, LackFeatures},
		{"too large", job.Spec{CPUsPerTask: 9}, job.Extra{}, LackSize},
		{"too much memory", job.Spec{MemPerNode: 17 * gib}, job.Extra{}, LackSize},
		{"another node is named", job.Spec{NodeList: "n1"}, job.Extra{}, LackAllowed},
		{"another node is named beside", job.Spec{NodeList: "n1", MinNodes: 2, MaxNodes: 2}, job.Extra{}, 0},
		{"preference is none", job.Spec{}, job.Extra{Prefer: "b"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := host()
			s := compile(t, tt.spec, tt.extra, Limits{})
			r := WholeRoom(n)
			if got := s.Suits(0, n); got != (tt.lack == 0) {
				t.Errorf("suits: %v", got)
			}
			if got := s.Lacks(0, n, &r); got&tt.lack != tt.lack || tt.lack == 0 && got != 0 {
				t.Errorf("lacks %b, want %b", got, tt.lack)
			}
		})
	}
}

func TestLacks(t *testing.T) {
	for _, tt := range []struct {
		name   string
		spec   job.Spec
		change func(*Room)
		want   Lack
	}{
		{"CPUs", job.Spec{}, func(r *Room) { r.CPUs = 0 }, LackCPUs},
		{"memory", job.Spec{MemPerNode: 8 * gib}, func(r *Room) { r.Mem = gib }, LackMem},
		{"both", job.Spec{NTasksPerNode: 4, MemPerCPU: gib}, func(r *Room) { r.Mem, r.CPUs = gib, 1 }, LackCPUs | LackMem},
		{"gpus", job.Spec{Gres: "gpu:1"}, func(r *Room) { r.Gres[0], r.Gres[1] = 0, 0 }, LackGres},
		{"an empty node", job.Spec{Exclusive: true}, func(r *Room) { r.Runs = 1 }, LackEmpty},
		{"the user's own node", job.Spec{}, func(r *Room) { r.Owner = 9 }, LackUser},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := host()
			r := WholeRoom(n)
			tt.change(&r)
			if got := compile(t, tt.spec, job.Extra{}, Limits{}).Lacks(0, n, &r); got != tt.want {
				t.Errorf("%b, want %b", got, tt.want)
			}
		})
	}
}

// within tells whether an allocation is in a room.
func within(n *Node, r *Room, a *job.NodeAlloc) bool {
	for g := range a.Gres {
		if i := GresAt(n, &a.Gres[g]); i < 0 || a.Gres[g].Count > r.Gres[i] {
			return false
		}
	}
	return a.CPUs <= r.CPUs && a.Mem <= r.Mem
}

// TestNeverTooMuch: what fits is within the room, one task more is not, and giving it back restores the room.
func TestNeverTooMuch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := host()
		n.CPUs = uint32(rapid.IntRange(0, 9).Draw(t, "node CPUs"))
		n.Mem = rapid.Int64Range(0, 9).Draw(t, "node memory") * gib / 2
		r := WholeRoom(n)
		r.CPUs -= min(uint32(rapid.IntRange(0, 4).Draw(t, "taken")), r.CPUs)
		r.Mem -= min(rapid.Int64Range(0, 4).Draw(t, "taken memory")*gib/2, r.Mem)
		if r.Runs = rapid.IntRange(0, 1).Draw(t, "runs"); r.Runs > 0 {
			r.User = 1
		}
		r.Gres[0] -= uint64(rapid.IntRange(0, 2).Draw(t, "taken gpus"))
		spec := job.Spec{NTasks: 1000, CPUsPerTask: uint32(rapid.IntRange(0, 3).Draw(t, "c")),
			MinCPUsPerNode: uint32(rapid.IntRange(0, 4).Draw(t, "mincpus")),
			MemPerNode:     rapid.SampledFrom([]int64{0, 0, gib, 3 * gib, job.WholeNode}).Draw(t, "mem"),
			Gres:           rapid.SampledFrom([]string{"", "gpu:3", "gpu:a100:1,gpu:2"}).Draw(t, "gres"),
			Exclusive:      rapid.IntRange(0, 3).Draw(t, "exclusive") == 0}
		if spec.MemPerNode == 0 {
			spec.MemPerCPU = rapid.Int64Range(0, 3).Draw(t, "mem per cpu") * gib
		}
		lim := Limits{MaxMemPerCPU: rapid.Int64Range(0, 2).Draw(t, "MaxMemPerCPU") * gib,
			MaxMemPerNode:  rapid.Int64Range(0, 3).Draw(t, "MaxMemPerNode") * gib,
			MaxCPUsPerNode: uint32(rapid.IntRange(0, 5).Draw(t, "MaxCPUsPerNode"))}
		s, wrong := Compile(&spec, nil, lim, nil, func(string) (int, bool) { return 0, false })
		if wrong != "" {
			return
		}
		before := r.Clone()
		k := s.Fit(n, &r)
		may := func(tasks uint32) bool {
			a := s.Demand(n, &r, tasks)
			cpus := a.CPUs
			if s.exclusive { // it holds all of them, but limits are on what its tasks use
				cpus = max(tasks*s.cpus, s.minCPUs)
			}
			if s.exclusive && (r.Runs > 0 || r.CPUs < n.CPUs) || cpus > r.CPUs || lim.MaxCPUsPerNode > 0 && cpus > lim.MaxCPUsPerNode {
				return false
			}
			return within(n, &r, &a) && s.gresFit(n, &r) && (lim.MaxMemPerNode == 0 || a.Mem <= lim.MaxMemPerNode)
		}
		if k > 0 && !may(k) {
			t.Fatalf("%d tasks fit, which take %+v of %+v", k, s.Demand(n, &r, k), r)
		}
		if may(k + 1) {
			t.Fatalf("%d tasks fit, and one more would: %+v of %+v", k, s.Demand(n, &r, k+1), r)
		}
		if k == 0 {
			return
		}
		a := s.Demand(n, &r, k)
		r.Less(n, &a, s.Tenant())
		r.More(n, &a)
		if r.CPUs != before.CPUs || r.Mem != before.Mem || !slices.Equal(r.Gres, before.Gres) || r.Runs != before.Runs {
			t.Fatalf("%+v, was %+v", r, before)
		}
	})
}

// TestMoreRoomFitsMore: preemption and the search for the earliest start rest on it.
func TestMoreRoomFitsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := host()
		spec := job.Spec{UID: 3, NTasks: uint32(rapid.IntRange(0, 9).Draw(t, "n")), CPUsPerTask: uint32(rapid.IntRange(1, 3).Draw(t, "c")),
			MemPerNode: rapid.SampledFrom([]int64{0, gib, job.WholeNode}).Draw(t, "mem"), MinCPUsPerNode: uint32(rapid.IntRange(0, 3).Draw(t, "mincpus")),
			Gres: rapid.SampledFrom([]string{"", "gpu:1", "gpu:a100:1,gpu:1"}).Draw(t, "gres"), Exclusive: rapid.IntRange(0, 4).Draw(t, "exclusive") == 0}
		x := job.Extra{Exclusive: rapid.SampledFrom([]string{"", "user"}).Draw(t, "user"), Overcommit: rapid.IntRange(0, 4).Draw(t, "O") == 0}
		s := compile(t, spec, x, Limits{MaxMemPerCPU: rapid.Int64Range(0, 3).Draw(t, "MaxMemPerCPU") * gib})
		r := WholeRoom(n)
		var held []job.NodeAlloc
		for range rapid.IntRange(0, 4).Draw(t, "runs") {
			a := job.NodeAlloc{CPUs: uint32(rapid.IntRange(0, 3).Draw(t, "cpus")), Mem: rapid.Int64Range(0, 5).Draw(t, "memory") * gib}
			if rapid.Bool().Draw(t, "gpu") {
				a.Gres = []job.GresAlloc{{Name: "gpu", Type: rapid.SampledFrom([]string{"a100", "h100"}).Draw(t, "type"), Count: 1}}
			}
			if !within(n, &r, &a) {
				continue
			}
			r.Less(n, &a, Tenant{UID: uint32(rapid.IntRange(2, 3).Draw(t, "uid")), User: rapid.IntRange(0, 4).Draw(t, "own") == 0})
			held = append(held, a)
		}
		was := s.Fit(n, &r)
		for i := range held {
			r.More(n, &held[i])
			now := s.Fit(n, &r)
			if now < was {
				t.Fatalf("%d tasks fit after %d did, in %+v", now, was, r)
			}
			was = now
		}
		if whole := WholeRoom(n); !slices.Equal(r.Gres, whole.Gres) || r.CPUs != whole.CPUs || r.Mem != whole.Mem {
			t.Fatalf("%+v is left", r)
		}
	})
}

func TestRoomOfUsers(t *testing.T) {
	n := host()
	r := WholeRoom(n)
	a := job.NodeAlloc{CPUs: 1, Mem: gib}
	r.Less(n, &a, Tenant{UID: 5})
	if r.User != 6 || r.Owner != 0 {
		t.Fatalf("%+v", r)
	}
	r.Less(n, &a, Tenant{UID: 5, User: true})
	if r.User != 6 || r.Owner != 6 {
		t.Fatalf("%+v", r)
	}
	r.Less(n, &a, Tenant{UID: 9, Exclusive: true})
	if r.User != severalUsers || !r.Shut || r.CPUs != 5 {
		t.Fatalf("%+v", r)
	}
	for range 3 {
		r.More(n, &a)
	}
	if r.User != 0 || r.Owner != 0 || r.Shut || r.CPUs != 8 || r.Mem != n.Mem {
		t.Fatalf("%+v", r)
	}
	var c Room
	c.Copy(&r)
	if c.Gres[0]--; r.Gres[0] != 2 {
		t.Fatal("a copy shares")
	}
	n.Busy, n.Users, n.Runs, n.Owner, n.Excl = true, []uint32{4}, 2, 5, true
	n.Gres[0].Taken = 3
	if r = FreeRoom(n); r.User != 5 || r.Runs != 2 || r.Owner != 5 || !r.Shut || r.Gres[0] != 0 {
		t.Fatalf("%+v", r)
	}
	n.Users = nil
	if r = FreeRoom(n); r.User != severalUsers {
		t.Fatalf("whose runs are there is not known: %+v", r)
	}
}

func TestDemandGres(t *testing.T) {
	n := host()
	r := WholeRoom(n)
	r.Gres[0] = 1
	show := func(s *Shape) string {
		var out []string
		for _, g := range s.Demand(n, &r, 1).Gres {
			out = append(out, g.Type+"="+string(rune('0'+g.Count)))
		}
		return strings.Join(out, " ")
	}
	for _, tt := range []struct{ gres, want string }{
		{"", ""}, {"gpu:2", "a100=1 h100=1"}, {"gpu:1,gpu:a100:1", "a100=1 h100=1"}, {"gpu:h100:2,gpu:1", "a100=1 h100=2"},
	} {
		if got := show(compile(t, job.Spec{Gres: tt.gres}, job.Extra{}, Limits{})); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.gres, got, tt.want)
		}
	}
	if got := show(compile(t, job.Spec{Exclusive: true}, job.Extra{}, Limits{})); got != "a100=1 h100=2" {
		t.Errorf("exclusive: %s", got)
	}
}

func TestCompileRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spec  job.Spec
		extra job.Extra
		lim   Limits
		want  string
	}{
		{"unknown node", job.Spec{NodeList: "n1"}, job.Extra{}, Limits{}, `node "n1" does not exist`},
		{"node list", job.Spec{NodeList: "n["}, job.Extra{}, Limits{}, "--nodelist: "},
		{"exclude list", job.Spec{Exclude: "n["}, job.Extra{}, Limits{}, "--exclude: "},
		{"both", job.Spec{NodeList: "n0", Exclude: "n0"}, job.Extra{}, Limits{}, "the same node"},
		{"constraint", job.Spec{Constraint: "a&"}, job.Extra{}, Limits{}, `constraint "a&": at character 3: the name of a feature is missing`},
		{"preference", job.Spec{}, job.Extra{Prefer: "(a"}, Limits{}, "--prefer: "},
		{"counts preferred", job.Spec{}, job.Extra{Prefer: "a*2"}, Limits{}, "--prefer: counts"},
		{"more counted than nodes", job.Spec{Constraint: "[a*2&b*2]", MinNodes: 3, MaxNodes: 3}, job.Extra{}, Limits{}, "counts 4 nodes, the job has at most 3"},
		{"segment", job.Spec{MinNodes: 3, MaxNodes: 3}, job.Extra{Segment: 2}, Limits{}, "--segment=2 does not divide the 3 nodes"},
		{"segment and counts", job.Spec{MinNodes: 4, MaxNodes: 4, Constraint: "a*2"}, job.Extra{Segment: 2}, Limits{}, "exclude each other"},
		{"segment and row", job.Spec{MinNodes: 4, MaxNodes: 4}, job.Extra{Segment: 2, Contiguous: true}, Limits{}, "exclude each other"},
		{"exclusive=topo", job.Spec{}, job.Extra{Exclusive: "topo"}, Limits{}, "--exclusive=topo"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, wrong := Compile(&tt.spec, &tt.extra, tt.lim, nil, func(name string) (int, bool) { return 0, name == "n0" })
			if !strings.Contains(wrong, tt.want) {
				t.Errorf("%q, want %q", wrong, tt.want)
			}
		})
	}
}

func TestNeeds(t *testing.T) {
	for _, tt := range []struct {
		spec  job.Spec
		extra job.Extra
		want  string
	}{
		{job.Spec{}, job.Extra{}, "1 CPU on one node"},
		{job.Spec{CPUsPerTask: 4, MemPerNode: gib, Gres: "gpu:a100:2"}, job.Extra{}, "4 CPUs, 1G of memory and 2 gpu:a100 on one node"},
		{job.Spec{MinNodes: 3, MaxNodes: 3, MemPerCPU: gib}, job.Extra{Contiguous: true}, "1 CPU and 1G of memory a CPU on each of 3 nodes side by side"},
		{job.Spec{NTasks: 6}, job.Extra{}, "6 CPUs"},
		{job.Spec{NTasks: 6, MinNodes: 2, MaxNodes: 2}, job.Extra{Switches: 1}, "6 CPUs on 2 nodes at one switch"},
		{job.Spec{Exclusive: true, MemPerNode: job.WholeNode}, job.Extra{}, "all CPUs and all memory on one node"},
		{job.Spec{MinNodes: 4, MaxNodes: 4}, job.Extra{Switches: 2, Segment: 2}, "1 CPU on each of 4 nodes at no more than 2 switches, in segments of 2"},
	} {
		if got := compile(t, tt.spec, tt.extra, Limits{}).Needs(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
