package job

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestValidateTakes(t *testing.T) {
	for name, s := range map[string]Spec{
		"nothing": {},
		"much": {
			Name: "a|b c", MinNodes: 2, MaxNodes: 4, NTasks: 8, NTasksPerNode: 2, CPUsPerTask: 4, MemPerNode: WholeNode, Gres: "gpu:a100:2,shard:4",
			NodeList: "n[1-3]", Exclude: "n4", TimeLimit: Unlimited, TimeMin: hour, Array: "0-9%2", Nice: -MaxNice, Signal: "B:USR1@60",
			Dependency: "afterok:1?singleton", OpenMode: "append", Umask: 0o777, Requeue: -1, Rare: []Option{{"a", "1"}, {"b", ""}},
		},
	} {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each limit holds at its value and refuses one more, with the option or limit named.
func TestValidateLimits(t *testing.T) {
	text := func(n int) string { return strings.Repeat("x", n) }
	rare := func(n int) []Option {
		var o []Option
		for i := range n {
			o = append(o, Option{Name: fmt.Sprintf("o%04d", i)})
		}
		return o
	}
	for _, c := range []struct {
		name  string
		limit int
		set   func(*Spec, int)
	}{
		{"--job-name", MaxName, func(s *Spec, n int) { s.Name = text(n) }},
		{"--chdir", MaxString, func(s *Spec, n int) { s.WorkDir = text(n) }},
		{"--comment", MaxString, func(s *Spec, n int) { s.Comment = text(n) }},
		{"--output", MaxString, func(s *Spec, n int) { s.StdOut = text(n) }},
		{"--export", MaxList, func(s *Spec, n int) { s.Export = text(n) }},
		{"MaxArgs", MaxArgs, func(s *Spec, n int) { s.Args = make([]string, n) }},
		{"arguments", MaxArgBytes - 1, func(s *Spec, n int) { s.Args = []string{text(n)} }},
		{"MaxGroups", MaxGroups, func(s *Spec, n int) { s.Groups = make([]uint32, n) }},
		{"MaxRare", MaxRare, func(s *Spec, n int) { s.Rare = rare(n) }},
		{"options", MaxKey, func(s *Spec, n int) { s.Rare = []Option{{Name: text(n)}} }},
		{"--long", MaxString, func(s *Spec, n int) { s.Rare = []Option{{"long", text(n)}} }},
		{"MaxScript", MaxScript, func(s *Spec, n int) { s.Script = []byte(text(n)) }},
		{"--nodes", MaxNodesPerJob, func(s *Spec, n int) { s.MinNodes = uint32(n) }},
		{"--nodes", MaxNodesPerJob, func(s *Spec, n int) { s.MaxNodes = uint32(n) }},
		{"--ntasks", MaxTasks, func(s *Spec, n int) { s.NTasks = uint32(n) }},
		{"--ntasks-per-node", MaxTasks, func(s *Spec, n int) { s.NTasksPerNode = uint32(n) }},
		{"--ntasks-per-node", MaxTasks / 2, func(s *Spec, n int) { s.NTasksPerNode, s.MinNodes = uint32(n), 2 }},
		{"--cpus-per-task", MaxCPUsPerTask, func(s *Spec, n int) { s.CPUsPerTask = uint32(n) }},
		{"--mincpus", MaxCPUsPerTask, func(s *Spec, n int) { s.MinCPUsPerNode = uint32(n) }},
		{"--nice", MaxNice, func(s *Spec, n int) { s.Nice = int32(n) }},
		{"--nice", MaxNice, func(s *Spec, n int) { s.Nice = int32(-n) }},
		{"umask", 0o777, func(s *Spec, n int) { s.Umask = uint32(n) }},
		{"--time", int(MaxTimeLimit), func(s *Spec, n int) { s.TimeLimit = int64(n) }},
		{"--time-min", int(MaxTimeLimit), func(s *Spec, n int) { s.TimeMin = int64(n) }},
		{"--mem", int(MaxMemory), func(s *Spec, n int) { s.MemPerNode = int64(n) }},
		{"--mem-per-cpu", int(MaxMemory), func(s *Spec, n int) { s.MemPerCPU = int64(n) }},
		{"--tmp", int(MaxMemory), func(s *Spec, n int) { s.MinTmpDisk = int64(n) }},
	} {
		var s Spec
		c.set(&s, c.limit)
		if err := s.Validate(); err != nil {
			t.Errorf("%s at its limit: %v", c.name, err)
		}
		c.set(&s, c.limit+1)
		err := s.Validate()
		if spec := new(SpecError); !errors.As(err, &spec) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s at its limit + 1: %v", c.name, err)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		spec Spec
		want string
	}{
		{"both memories", Spec{MemPerNode: mib, MemPerCPU: mib}, "--mem: excludes --mem-per-cpu"},
		{"all memory and per CPU", Spec{MemPerNode: WholeNode, MemPerCPU: mib}, "--mem: excludes"},
		{"nodes the wrong way round", Spec{MinNodes: 4, MaxNodes: 2}, "--nodes: the minimum 4"},
		{"tasks that cannot fit", Spec{NTasks: 9, NTasksPerNode: 2, MaxNodes: 4}, "--ntasks: 9 tasks"},
		{"bad array", Spec{Array: "5-1"}, "--array: "},
		{"bad gres", Spec{Gres: "gpu:x:y"}, "--gres: Invalid generic resource (gres) specification"},
		{"bad node list", Spec{NodeList: "node]1-2["}, "--nodelist: "},
		{"bad exclude", Spec{Exclude: "node[1"}, "--exclude: "},
		{"too many nodes", Spec{NodeList: "node[0-2000000]"}, "65536"},
		{"asked for and excluded", Spec{NodeList: "n[1-3]", Exclude: "n[3-4]"}, "--exclude: node n3"},
		{"bad signal", Spec{Signal: "NOPE"}, "--signal: "},
		{"bad dependency", Spec{Dependency: "after"}, "--dependency: "},
		{"open mode", Spec{OpenMode: "a"}, `--open-mode: "a"`},
		{"minimum time above the limit", Spec{TimeMin: hour, TimeLimit: minute}, "--time-min: "},
		{"negative time", Spec{TimeLimit: -2}, "--time: "},
		{"negative memory", Spec{MemPerNode: -2}, "--mem: "},
		{"begin before all time", Spec{Begin: -1}, "--begin: "},
		{"requeue", Spec{Requeue: 2}, "--requeue: "},
		{"two scripts", Spec{Script: []byte("x"), ScriptHash: make([]byte, 32)}, "script: both"},
		{"short hash", Spec{ScriptHash: make([]byte, 31)}, "script: a hash of 31"},
		{"short environment hash", Spec{EnvHash: make([]byte, 1)}, "environment: a hash"},
		{"NUL in a name", Spec{Name: "a\x00b"}, "--job-name: holds a NUL"},
		{"NUL in an argument", Spec{Args: []string{"\x00"}}, "arguments: holds a NUL"},
		{"NUL in the script", Spec{Script: []byte{0}}, "script: holds a NUL"},
		{"NUL in a rare option", Spec{Rare: []Option{{"x", "\x00"}}}, "--x: holds a NUL"},
		{"a comment that is not UTF-8", Spec{Comment: "\xff"}, `--comment: "\xff" is not UTF-8`},
		{"an argument that is not UTF-8", Spec{Args: []string{"a", "\xff"}}, "arguments: "},
		{"unsorted options", Spec{Rare: []Option{{"b", ""}, {"a", ""}}}, "--a: options are not sorted"},
		{"the same option twice", Spec{Rare: []Option{{"a", ""}, {"a", ""}}}, "--a: options are not sorted"},
	} {
		if err := c.spec.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

func TestValidateKeepsTheCause(t *testing.T) {
	if err := (&Spec{Array: "x"}).Validate(); !errors.Is(err, ErrArraySpec) {
		t.Errorf("%v hides its cause", err)
	}
}
