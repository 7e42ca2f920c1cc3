// Package replay runs a trace through the controller's planner in virtual time, and reports what came of it. It knows
// no clock: a trace and a policy give the same report, byte for byte.
package replay

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Policy is how a trace is replayed.
type Policy struct {
	Name     string
	Priority *priority.Params
	Sched    sched.Policy
	Perfect  bool // users know how long their jobs run
	Expired  bool // a run whose limit ends now counts as gone before the word of its end has come
	Single   bool // a plan after each event, also among those of one moment, as published replays have it
}

// policyFile is a policy while it is read.
type policyFile struct {
	config  priority.Config
	options []string // words of SchedulerParameters
	pol     *Policy
	seen    map[string]bool
}

// keys are what a policy file may hold.
var keys = map[string]func(*policyFile, string) error{
	"order":      func(p *policyFile, v string) error { p.config.Type = v; return nil },
	"promises":   func(p *policyFile, v string) error { return p.option("promises", v) },
	"backfill":   func(p *policyFile, v string) error { return p.option("backfill", v) },
	"starvation": func(p *policyFile, v string) error { return p.option("starvation", v) },
	"estimates": func(p *policyFile, v string) error {
		if p.pol.Perfect = v == "perfect"; p.pol.Perfect {
			return nil
		}
		return p.option("estimates", v)
	},
	"events":  choice("batched", "single", func(p *policyFile, on bool) { p.pol.Single = on }),
	"expired": choice("held", "free", func(p *policyFile, on bool) { p.pol.Expired = on }),
	"head":    choice("anew", "sticky", func(p *policyFile, on bool) { p.pol.Sched.StickyHead = on }),
	"end":     choice("by", "before", func(p *policyFile, on bool) { p.pol.Sched.StrictEnd = on }),
	"spare":   choice("yes", "no", func(p *policyFile, on bool) { p.pol.Sched.NoSpare = on }),

	"PriorityWeightAge":     weight(func(c *priority.Config) *uint32 { return &c.Age }),
	"PriorityWeightJobSize": weight(func(c *priority.Config) *uint32 { return &c.JobSize }),
	"PriorityWeightTRES":    func(p *policyFile, v string) error { p.config.TRES = strings.Split(v, ","); return nil },
	"PriorityFlags":         func(p *policyFile, v string) error { p.config.Flags = strings.Split(v, ","); return nil },
	"PriorityFavorSmall":    choice("NO", "YES", func(p *policyFile, on bool) { p.config.FavorSmall = on }),
	"PriorityMaxAge":        func(p *policyFile, v string) (err error) { p.config.MaxAge, err = job.ParseTimeLimit(v); return err },
	"SchedulerParameters": func(p *policyFile, v string) error {
		p.options = append(p.options, strings.Split(v, ",")...)
		return nil
	},
}

func (p *policyFile) option(name, value string) error {
	p.options = append(p.options, name+"="+value)
	return nil
}

// choice is a key with two values, of which the first is what holds without it.
func choice(off, on string, set func(*policyFile, bool)) func(*policyFile, string) error {
	return func(p *policyFile, v string) error {
		if v != off && v != on {
			return fmt.Errorf("%q is neither %s nor %s", v, off, on)
		}
		set(p, v == on)
		return nil
	}
}

func weight(of func(*priority.Config) *uint32) func(*policyFile, string) error {
	return func(p *policyFile, v string) error {
		n, err := strconv.ParseUint(v, 10, 32)
		if err != nil {
			return fmt.Errorf("%q is no weight: a number from 0 to 4294967295", v)
		}
		*of(&p.config) = uint32(n)
		return nil
	}
}

// Keys names what a policy file may hold, sorted.
func Keys() []string {
	var list []string
	for k := range keys {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

// MaxPolicyLine bounds a line of a policy file, in bytes.
const MaxPolicyLine = 64 << 10

// ReadPolicy reads a policy file: lines of key=value, # begins a comment. Without a line the controller's own default
// holds. Errors name file, line and key.
func ReadPolicy(name string, r io.Reader) (*Policy, error) {
	p := &policyFile{pol: &Policy{Name: name}, seen: map[string]bool{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, MaxPolicyLine)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		set := keys[key]
		switch {
		case !ok:
			return nil, fmt.Errorf("%s:%d: %q is not KEY=VALUE", name, n, line)
		case set == nil:
			return nil, fmt.Errorf("%s:%d: %q is none of %s", name, n, key, strings.Join(Keys(), ", "))
		case p.seen[key]:
			return nil, fmt.Errorf("%s:%d: %s is set twice", name, n, key)
		}
		p.seen[key] = true
		if err := set(p, value); err != nil {
			return nil, fmt.Errorf("%s:%d: %s: %w", name, n, key, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p.finish()
}

// finish makes the policy of what was read.
func (p *policyFile) finish() (*Policy, error) {
	replay := p.pol.Sched
	pol, err := sched.ParsePolicy(p.options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.pol.Name, err)
	}
	pol.StickyHead, pol.StrictEnd, pol.NoSpare = replay.StickyHead, replay.StrictEnd, replay.NoSpare
	pol.MaxStarts = 1 << 20
	p.pol.Sched = pol
	p.config.SchedulerParameters = p.options
	if p.pol.Priority, err = priority.Parse(p.config); err != nil {
		return nil, fmt.Errorf("%s: %w", p.pol.Name, err)
	}
	return p.pol, nil
}
