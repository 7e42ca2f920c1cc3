package gsub

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tensorgrid/tensorgrid/cli/getopt"
)

// maxComponents bounds the parts of a heterogeneous job.
const maxComponents = 128

// eachAnew are the options that a component does not take over from those before it: what it asks for is its own. All
// others hold until a later component says otherwise.
var eachAnew = []string{
	"array", "batch", "constraint", "contiguous", "core-spec", "cores-per-socket", "cpus-per-gpu", "cpus-per-task", "exclusive", "extra-node-info",
	"gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-task", "gres", "gres-flags", "hint", "licenses", "mem-per-cpu", "mem-per-gpu",
	"mincpus", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "overcommit",
	"oversubscribe", "partition", "prefer", "segment", "sockets-per-node", "spread-job", "switches", "thread-spec", "threads-per-core", "tmp",
	"tres-bind", "tres-per-task", "use-min-nodes", "wait-all-nodes",
}

// group is the options of one component from one source.
type group []getopt.Given

// parseCommandLine splits "optsA : optsB script": a colon of its own begins the next component.
func parseCommandLine(opts []getopt.Option, args []string) (groups []group, operands []string, err error) {
	for {
		given, rest, err := getopt.Parse(opts, args, getopt.StopAtOperand)
		if err != nil {
			return nil, nil, err
		}
		groups = append(groups, given)
		if len(rest) == 0 || rest[0] != ":" {
			return groups, rest, nil
		}
		if len(groups) == maxComponents {
			return nil, nil, errComponents
		}
		args = rest[1:]
	}
}

var errComponents = fmt.Errorf("Invalid het job specification\nmore than %d components", maxComponents)

// foreignGroups are the lines of other systems: they all speak of the first component.
func foreignGroups(opts []getopt.Option, list []directive) ([]group, error) {
	var all group
	for _, d := range list {
		if !d.foreign() {
			continue
		}
		line, _, err := d.parse(opts)
		if err != nil {
			return nil, err
		}
		all = append(all, line...)
	}
	return []group{all}, nil
}

// scriptGroups are our own lines; one that says hetjob begins the next component.
func scriptGroups(opts []getopt.Option, list []directive) ([]group, error) {
	groups := []group{nil}
	for _, d := range list {
		if d.foreign() {
			continue
		}
		line, next, err := d.parse(opts)
		if err != nil {
			return nil, err
		}
		if next {
			if groups = append(groups, nil); len(groups) > maxComponents {
				return nil, errComponents
			}
			continue
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], line...)
	}
	return groups, nil
}

// takeGroups takes the options of one source for component k: those of the components before it that hold on, then its
// own. What was taken over never clashes with its own.
func (r *request) takeGroups(entries map[string]*entry, groups []group, k, source int) error {
	for i := range min(k+1, len(groups)) {
		for _, g := range groups[i] {
			e := entries[g.Option.Long]
			if i < k && slices.Contains(eachAnew, e.Long) {
				continue
			}
			if err := r.take(e, g.Value, g.HasValue, source); err != nil {
				return err
			}
		}
		if i < k {
			for name, level := range r.level {
				if level == source {
					r.level[name] = takenOver
				}
			}
		}
	}
	return nil
}

// addComponents makes the requests of the further components. The script, its environment and what concerns the
// command itself are the first one's.
func (r *request) addComponents(entries map[string]*entry, s *sources, count int) error {
	for k := 1; k < count; k++ {
		c := newRequest(r.env)
		c.scriptGiven, c.quiet = r.scriptGiven, true
		if err := c.takeSources(entries, s, k); err != nil {
			return fmt.Errorf("het component %d: %w", k, err)
		}
		c.spec.Script, c.spec.Command, c.spec.Args = nil, r.spec.Command, r.spec.Args
		if err := c.complete(); err != nil {
			return fmt.Errorf("het component %d: %w", k, err)
		}
		r.parsable, r.wait, r.testOnly = r.parsable || c.parsable, r.wait || c.wait, r.testOnly || c.testOnly
		if c.spec.Array != "" {
			r.spec.Array = c.spec.Array
		}
		r.het = append(r.het, c)
	}
	if r.spec.Array != "" && count > 1 {
		return &refusal{text: "Invalid job array specification", why: "a heterogeneous job cannot be an array; submit one for each task"}
	}
	return nil
}

// sources are the options by where they come from, each by component.
type sources struct{ foreign, script, commandLine []group }

// readSources gathers the options of script and command line.
func (r *request) readSources(opts []getopt.Option, found *scan, commandLine []group) (*sources, error) {
	s := &sources{commandLine: commandLine}
	var err, more error
	if !r.ignorePBS {
		s.foreign, err = foreignGroups(opts, found.directives)
	}
	s.script, more = scriptGroups(opts, found.directives)
	return s, errors.Join(err, more)
}

func (s *sources) components() int { return max(1, len(s.script), len(s.commandLine)) }

// takeSources takes all options of component k, weakest source first.
func (r *request) takeSources(entries map[string]*entry, s *sources, k int) error {
	if err := r.takeGroups(entries, s.foreign, k, fromForeign); err != nil {
		return err
	}
	if err := r.takeGroups(entries, s.script, k, fromScript); err != nil {
		return err
	}
	if err := r.takeEnvironment(); err != nil {
		return err
	}
	return r.takeGroups(entries, s.commandLine, k, fromCommandLine)
}
