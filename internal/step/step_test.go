package step

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

type layoutFunc func(tasks, perNode, cpusPerTask uint32, nodeCPUs []uint32) ([]uint32, error)

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name                        string
		layout                      layoutFunc
		tasks, perNode, cpusPerTask uint32
		cpus                        []uint32
		want                        string
	}{
		{"-N2 -n3 on 2,1 CPUs", Layout, 3, 0, 1, []uint32{2, 1}, "2,1"},
		{"-N2 --ntasks-per-node=2", Layout, 4, 2, 1, []uint32{2, 2}, "2(x2)"},
		{"four tasks on three nodes of two CPUs", Layout, 4, 0, 1, []uint32{2, 2, 2}, "2,1(x2)"},
		{"blocks fill the first node", Layout, 6, 0, 1, []uint32{8, 8}, "5,1"},
		{"two CPUs a task", Layout, 3, 0, 2, []uint32{4, 4}, "2,1"},
		{"no CPUs given for a task is one", Layout, 2, 0, 0, []uint32{1, 1}, "1(x2)"},
		{"a node too small for a task", Layout, 2, 0, 4, []uint32{3, 8}, "0,2"},
		{"fewer tasks than nodes", Layout, 1, 0, 1, []uint32{4, 4}, "1,0"},
		{"no tasks", Layout, 0, 0, 1, []uint32{4}, "0"},
		{"cyclic", LayoutCyclic, 6, 0, 1, []uint32{8, 8}, "3(x2)"},
		{"cyclic passes over a full node", LayoutCyclic, 6, 0, 1, []uint32{1, 8, 8}, "1,3,2"},
	} {
		got, err := c.layout(c.tasks, c.perNode, c.cpusPerTask, c.cpus)
		if err != nil || FormatCounts(got) != c.want {
			t.Errorf("%s: %v, %v; want %s", c.name, got, err, c.want)
		}
	}
	if got, err := LayoutPlane(9, 0, 1, 2, []uint32{8, 8}); err != nil || FormatCounts(got) != "5,4" {
		t.Errorf("plane of 2: %v, %v", got, err)
	}
}

func TestLayoutRefuses(t *testing.T) {
	many := make([]uint32, MaxNodes+1)
	for i := range many {
		many[i] = 1 << 10
	}
	_, plane := LayoutPlane(1, 0, 1, 0, []uint32{1})
	layout := func(tasks, perNode, cpus uint32, nodes []uint32) error {
		_, err := Layout(tasks, perNode, cpus, nodes)
		return err
	}
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"too few CPUs", layout(5, 0, 1, []uint32{2, 2}), ErrNoRoom},
		{"per node maximum", layout(5, 2, 1, []uint32{8, 8}), ErrNoRoom},
		{"no nodes", layout(1, 0, 1, nil), ErrLayout},
		{"MaxNodes + 1", layout(1, 0, 1, many), ErrLayout},
		{"MaxTasks + 1", layout(MaxTasks+1, 0, 1, many[1:]), ErrLayout},
		{"a plane of nothing", plane, ErrLayout},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v", c.name, c.err)
		}
	}
	if err := layout(MaxTasks, 0, 1, many[1:]); err != nil {
		t.Errorf("MaxTasks on MaxNodes: %v", err)
	}
}

// Whatever the distribution, all tasks are placed, no node gets more than fits, ranks are each there once and ascending.
func TestLayoutProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cpus := rapid.SliceOfN(rapid.Uint32Range(0, 20), 1, 12).Draw(t, "cpus")
		perNode := rapid.Uint32Range(0, 6).Draw(t, "per node")
		cpusPerTask := rapid.Uint32Range(0, 4).Draw(t, "cpus per task")
		tasks := rapid.Uint32Range(0, 120).Draw(t, "tasks")
		size := rapid.Uint32Range(1, 4).Draw(t, "plane")
		var room uint32
		for _, c := range cpus {
			n := c / max(cpusPerTask, 1)
			if perNode > 0 {
				n = min(n, perNode)
			}
			room += n
		}
		block, err := Layout(tasks, perNode, cpusPerTask, cpus)
		plane, planeErr := LayoutPlane(tasks, perNode, cpusPerTask, size, cpus)
		if (err == nil) != (tasks <= room) || (planeErr == nil) != (err == nil) {
			t.Fatalf("%d tasks, room for %d: %v, %v", tasks, room, err, planeErr)
		}
		if err != nil {
			return
		}
		check := func(counts []uint32, ranks [][]uint32) {
			var sum uint32
			var all []uint32
			for i, n := range counts {
				sum += n
				if n*max(cpusPerTask, 1) > cpus[i] || perNode > 0 && n > perNode {
					t.Fatalf("node %d gets %d tasks", i, n)
				}
				if len(ranks[i]) != int(n) || !slices.IsSorted(ranks[i]) {
					t.Fatalf("node %d has ranks %v for %d tasks", i, ranks[i], n)
				}
				all = append(all, ranks[i]...)
			}
			slices.Sort(all)
			if sum != tasks || len(slices.Compact(all)) != int(tasks) || tasks > 0 && all[tasks-1] != tasks-1 {
				t.Fatalf("%v places %d of %d tasks, ranks %v", counts, sum, tasks, all)
			}
		}
		check(block, Ranks(block))
		check(plane, RanksPlane(plane, size))
		back, err := ParseCounts(FormatCounts(block))
		if err != nil || !slices.Equal(back, block) {
			t.Fatalf("%v reads back as %v, %v", block, back, err)
		}
	})
}

func TestRanks(t *testing.T) {
	if got, want := Ranks([]uint32{2, 0, 1}), [][]uint32{{0, 1}, {}, {2}}; !reflect.DeepEqual(got, want) {
		t.Errorf("block: %v", got)
	}
	if got, want := RanksPlane([]uint32{3, 1}, 1), [][]uint32{{0, 2, 3}, {1}}; !reflect.DeepEqual(got, want) {
		t.Errorf("cyclic: %v", got)
	}
	if got, want := RanksPlane([]uint32{3, 3}, 2), [][]uint32{{0, 1, 4}, {2, 3, 5}}; !reflect.DeepEqual(got, want) {
		t.Errorf("plane of 2: %v", got)
	}
}

func TestCounts(t *testing.T) {
	for text, want := range map[string][]uint32{
		"": nil, "2(x3),1": {2, 2, 2, 1}, "2,1": {2, 1}, "72(x2),36": {72, 72, 36}, "0": {0},
	} {
		if got := FormatCounts(want); got != text {
			t.Errorf("FormatCounts(%v) = %q, want %q", want, got, text)
		}
		if got, err := ParseCounts(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("ParseCounts(%q) = %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{",", "2,", "x", "2(x", "2(x0)", "2(x2", "2(x2)3", "-1", "2(y2)", "4294967296", "1(x65537)", "1(x65536),1"} {
		if got, err := ParseCounts(bad); !errors.Is(err, ErrLayout) {
			t.Errorf("ParseCounts(%q) = %d, %v", bad, len(got), err)
		}
	}
	if got, err := ParseCounts("1(x65536)"); err != nil || len(got) != MaxNodes {
		t.Errorf("MaxNodes: %d, %v", len(got), err)
	}
	if _, err := ParseCounts(strings.Repeat("9", 2000)); err == nil || len(err.Error()) > 400 {
		t.Errorf("a long text makes a long error: %v", err)
	}
}

func FuzzParseCounts(f *testing.F) {
	for _, s := range []string{"2(x3),1", "2,1", "1(x65537)", "2(x", ",,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		counts, err := ParseCounts(s)
		if err != nil {
			return
		}
		back, err := ParseCounts(FormatCounts(counts))
		if err != nil || !slices.Equal(back, counts) {
			t.Fatalf("%q: %v, then %v, %v", s, counts, back, err)
		}
	})
}
