package job

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// Bounds of the numbers of a Spec.
const (
	MaxNice    = 2147483645
	MaxName    = 1024 // bytes of a job's name
	MaxGroups  = 65536
	hashLength = 32
)

// SpecError says which option of a Spec is wrong and why.
type SpecError struct {
	Option  string // as the user writes it, "--mem"
	Problem string
	Err     error // the parser's error, if it was one
}

// Error names the option first.
func (e *SpecError) Error() string { return e.Option + ": " + e.Problem }

// Unwrap gives the parser's error.
func (e *SpecError) Unwrap() error { return e.Err }

func wrong(option, format string, args ...any) error {
	return &SpecError{Option: option, Problem: fmt.Sprintf(format, args...)}
}

// Validate checks a Spec against the limits of this package and against itself. It knows no configuration: whether
// a partition or node is there is not its question. The error is a *SpecError.
func (s *Spec) Validate() error {
	for _, check := range []func() error{
		s.checkStrings, s.checkLists, s.checkPayload, s.checkNumbers, s.checkTimes, s.checkMemory, s.checkSyntax, s.checkConflicts,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkStrings bounds what is one line of text.
func (s *Spec) checkStrings() error {
	for _, f := range []struct {
		option, value string
		limit         int
	}{
		{"--job-name", s.Name, MaxName}, {"--account", s.Account, MaxString}, {"--partition", s.Partition, MaxString},
		{"--qos", s.QOS, MaxString}, {"--chdir", s.WorkDir, MaxString}, {"--input", s.StdIn, MaxString},
		{"--output", s.StdOut, MaxString}, {"--error", s.StdErr, MaxString}, {"command", s.Command, MaxString},
		{"submit line", s.SubmitLine, MaxList}, {"submit host", s.SubmitHost, MaxString}, {"--gres", s.Gres, MaxString},
		{"--constraint", s.Constraint, MaxString}, {"--comment", s.Comment, MaxString}, {"--signal", s.Signal, MaxString},
		{"--export", s.Export, MaxList}, {"--nodelist", s.NodeList, MaxList}, {"--exclude", s.Exclude, MaxList},
		{"--dependency", s.Dependency, MaxList}, {"--array", s.Array, MaxList}, {"user", s.User, MaxString},
		{"group", s.Group, MaxString}, {"home", s.Home, MaxString}, {"shell", s.Shell, MaxString},
	} {
		if f.value == "" {
			continue
		}
		if len(f.value) > f.limit {
			return wrong(f.option, "%d bytes, the limit is %d", len(f.value), f.limit)
		}
		if err := plain(f.option, f.value); err != nil {
			return err
		}
	}
	return nil
}

// plain refuses text that cannot be shown or handed to a process: with a NUL byte, or not UTF-8.
func plain(option, value string) error {
	if printable(value) {
		return nil
	}
	switch {
	case strings.IndexByte(value, 0) >= 0:
		return wrong(option, "holds a NUL byte")
	case !utf8.ValidString(value):
		return wrong(option, "%.40q is not UTF-8", value)
	}
	return nil
}

// printable tells of most texts in one walk that nothing is wrong with them: ASCII without NUL.
func printable(value string) bool {
	for i := range len(value) {
		if c := value[i]; c == 0 || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// checkLists bounds what is a list.
func (s *Spec) checkLists() error {
	if len(s.Args) > MaxArgs {
		return wrong("arguments", "%d of them, the limit MaxArgs is %d", len(s.Args), MaxArgs)
	}
	total := 0
	for _, a := range s.Args {
		if err := plain("arguments", a); err != nil {
			return err
		}
		if total += len(a) + 1; total > MaxArgBytes {
			return wrong("arguments", "more than %d bytes together", MaxArgBytes)
		}
	}
	if len(s.Groups) > MaxGroups {
		return wrong("groups", "%d of them, the limit MaxGroups is %d", len(s.Groups), MaxGroups)
	}
	if len(s.Rare) > MaxRare {
		return wrong("options", "%d rare ones, the limit MaxRare is %d", len(s.Rare), MaxRare)
	}
	for i, o := range s.Rare {
		switch {
		case o.Name == "" || len(o.Name) > MaxKey:
			return wrong("options", "a name of %d bytes, it must have 1 to %d", len(o.Name), MaxKey)
		case len(o.Value) > MaxString:
			return wrong("--"+o.Name, "%d bytes, the limit MaxString is %d", len(o.Value), MaxString)
		case i > 0 && s.Rare[i-1].Name >= o.Name:
			return wrong("--"+o.Name, "options are not sorted, each once")
		}
		if err := plain("--"+o.Name, o.Name+o.Value); err != nil {
			return err
		}
	}
	return nil
}

// checkPayload bounds the script and its hashes.
func (s *Spec) checkPayload() error {
	switch {
	case len(s.Script) > MaxScript:
		return wrong("script", "%d bytes, the limit MaxScript is %d", len(s.Script), MaxScript)
	case bytes.IndexByte(s.Script, 0) >= 0:
		return wrong("script", "holds a NUL byte")
	case len(s.ScriptHash) != 0 && len(s.ScriptHash) != hashLength:
		return wrong("script", "a hash of %d bytes, it must have %d", len(s.ScriptHash), hashLength)
	case len(s.EnvHash) != 0 && len(s.EnvHash) != hashLength:
		return wrong("environment", "a hash of %d bytes, it must have %d", len(s.EnvHash), hashLength)
	}
	return nil
}

// checkNumbers bounds the counts.
func (s *Spec) checkNumbers() error {
	for _, f := range []struct {
		option string
		value  uint32
		limit  uint32
	}{
		{"--nodes", s.MinNodes, MaxNodesPerJob}, {"--nodes", s.MaxNodes, MaxNodesPerJob}, {"--ntasks", s.NTasks, MaxTasks},
		{"--ntasks-per-node", s.NTasksPerNode, MaxTasks}, {"--cpus-per-task", s.CPUsPerTask, MaxCPUsPerTask},
		{"--mincpus", s.MinCPUsPerNode, MaxCPUsPerTask},
	} {
		if f.value > f.limit {
			return wrong(f.option, "%d is above the limit of %d", f.value, f.limit)
		}
	}
	switch {
	case s.MaxNodes > 0 && s.MinNodes > s.MaxNodes:
		return wrong("--nodes", "the minimum %d is above the maximum %d", s.MinNodes, s.MaxNodes)
	case uint64(max(s.MinNodes, 1))*uint64(s.NTasksPerNode) > MaxTasks:
		return wrong("--ntasks-per-node", "%d on %d nodes is above the limit of %d tasks", s.NTasksPerNode, s.MinNodes, MaxTasks)
	case s.Nice < -MaxNice || s.Nice > MaxNice:
		return wrong("--nice", "%d is not between -%d and %d", s.Nice, MaxNice, MaxNice)
	case s.Umask > 0o777:
		return wrong("umask", "%o is above 777", s.Umask)
	case s.Requeue < -1 || s.Requeue > 1:
		return wrong("--requeue", "%d is none of -1, 0, 1", s.Requeue)
	}
	return nil
}

func (s *Spec) checkTimes() error {
	switch {
	case s.TimeLimit != Unlimited && (s.TimeLimit < 0 || s.TimeLimit > MaxTimeLimit):
		return wrong("--time", "%d ms is not between 0 and %s", s.TimeLimit, FormatDuration(MaxTimeLimit))
	case s.TimeMin < 0 || s.TimeMin > MaxTimeLimit:
		return wrong("--time-min", "%d ms is not between 0 and %s", s.TimeMin, FormatDuration(MaxTimeLimit))
	case s.TimeMin > 0 && s.TimeLimit > 0 && s.TimeMin > s.TimeLimit:
		return wrong("--time-min", "%s is above --time, %s", FormatDuration(s.TimeMin), FormatDuration(s.TimeLimit))
	case s.Begin < 0:
		return wrong("--begin", "before the year %d", minYear)
	}
	return nil
}

func (s *Spec) checkMemory() error {
	switch {
	case s.MemPerNode != WholeNode && (s.MemPerNode < 0 || s.MemPerNode > MaxMemory):
		return wrong("--mem", "%d bytes is not between 0 and %s", s.MemPerNode, FormatMem(MaxMemory))
	case s.MemPerCPU < 0 || s.MemPerCPU > MaxMemory:
		return wrong("--mem-per-cpu", "%d bytes is not between 0 and %s", s.MemPerCPU, FormatMem(MaxMemory))
	case s.MinTmpDisk < 0 || s.MinTmpDisk > MaxMemory:
		return wrong("--tmp", "%d bytes is not between 0 and %s", s.MinTmpDisk, FormatMem(MaxMemory))
	}
	return nil
}

// checkSyntax reads what has a grammar of its own.
func (s *Spec) checkSyntax() error {
	for _, f := range []struct {
		option, value string
		read          func(string) error
	}{
		{"--array", s.Array, func(v string) error { _, _, err := ParseArray(v, MaxArrayIndex); return err }},
		{"--gres", s.Gres, func(v string) error { _, err := gres.Parse(v); return err }},
		{"--nodelist", s.NodeList, func(v string) error { _, err := hostlist.Expand(v); return err }},
		{"--exclude", s.Exclude, func(v string) error { _, err := hostlist.Expand(v); return err }},
		{"--signal", s.Signal, func(v string) error { _, err := ParseSignalSpec(v); return err }},
		{"--dependency", s.Dependency, func(v string) error { _, err := ParseDependency(v); return err }},
	} {
		if f.value == "" {
			continue
		}
		if err := f.read(f.value); err != nil {
			return &SpecError{Option: f.option, Problem: err.Error(), Err: err}
		}
	}
	if !slices.Contains([]string{"", "append", "truncate"}, s.OpenMode) {
		return wrong("--open-mode", "%q is neither append nor truncate", s.OpenMode)
	}
	return nil
}

// checkConflicts refuses what contradicts itself.
func (s *Spec) checkConflicts() error {
	switch {
	case s.MemPerNode != 0 && s.MemPerCPU != 0:
		return wrong("--mem", "excludes --mem-per-cpu, give one of them")
	case len(s.Script) > 0 && len(s.ScriptHash) > 0:
		return wrong("script", "both inline and by hash")
	case s.NTasks > 0 && s.NTasksPerNode > 0 && s.MaxNodes > 0 && uint64(s.MaxNodes)*uint64(s.NTasksPerNode) < uint64(s.NTasks):
		return wrong("--ntasks", "%d tasks do not fit %d nodes with --ntasks-per-node=%d", s.NTasks, s.MaxNodes, s.NTasksPerNode)
	case s.NodeList != "" && s.Exclude != "":
		return s.checkExcluded()
	}
	return nil
}

// checkExcluded refuses a node that is both asked for and excluded.
func (s *Spec) checkExcluded() error {
	want, _ := hostlist.Expand(s.NodeList) // checkSyntax has read both
	not, _ := hostlist.Expand(s.Exclude)
	excluded := make(map[string]bool, len(not))
	for _, name := range not {
		excluded[name] = true
	}
	for _, name := range want {
		if excluded[name] {
			return wrong("--exclude", "node %s is also in --nodelist", name)
		}
	}
	return nil
}
