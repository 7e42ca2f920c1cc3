// Package gsub submits batch scripts: sbatch's options, directives, precedence and texts.
package gsub

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Main runs the command and gives its exit code.
func Main(env *program.Env) int {
	m := Manual()
	groups, operands, err := parseCommandLine(m.Options, env.Args)
	if err != nil {
		return env.BadUsage(err)
	}
	given := slices.Concat(groups...)
	if env.Common(m, given) {
		return 0
	}
	r := newRequest(env)
	for _, g := range given {
		if g.Option.Long == "gres" && g.Value == "help" {
			return gresHelp(env)
		}
	}
	if err := r.build(m.Options, groups, operands); err != nil {
		return r.failed(err)
	}
	return r.submit()
}

// failed prints what is wrong with the request and gives the exit code: 255 for an option, 1 for a script or
// a request that no controller would take.
func (r *request) failed(err error) int {
	var bad *refusal
	var text *textError
	switch {
	case errors.As(err, &bad):
		r.env.Errorf("%v", bad)
		if bad.why != "" {
			r.env.Errorf("%s", bad.why)
		}
		return 1
	case errors.As(err, &text):
		r.env.Errorf("%v", err)
		return 1
	}
	return r.env.BadUsage(err)
}

// build takes the options of all sources, weakest first, and completes the specification, of each component.
func (r *request) build(opts []getopt.Option, commandLine []group, operands []string) error {
	entries := entriesByName()
	// --wrap and --ignore-pbs decide what is read, so they are looked at before the script is.
	for _, g := range slices.Concat(commandLine...) {
		if g.Option.Long == "wrap" || g.Option.Long == "ignore-pbs" {
			if err := r.take(entries[g.Option.Long], g.Value, g.HasValue, fromCommandLine); err != nil {
				return err
			}
		}
	}
	if err := r.loadScript(operands); err != nil {
		return err
	}
	found, err := scanScript(r.spec.Script)
	if err != nil {
		return err
	}
	if r.wrapped {
		found = &scan{}
	}
	if v, ok := r.env.Lookup("SBATCH_IGNORE_PBS"); ok && switchedOn(v) {
		r.ignorePBS = true
	}
	s, err := r.readSources(opts, found, commandLine)
	if err != nil {
		return err
	}
	if err := r.takeSources(entries, s, 0); err != nil {
		return err
	}
	if err := r.complete(); err != nil {
		return err
	}
	if err := r.addComponents(entries, s, s.components()); err != nil {
		return err
	}
	r.adviseOnScript(found)
	r.adviseOnOutput()
	return nil
}

func entriesByName() map[string]*entry {
	t := table()
	m := make(map[string]*entry, len(t))
	for i := range t {
		m[t[i].Long] = &t[i]
	}
	return m
}

// takeEnvironment takes the SBATCH_ variables, in the table's order.
func (r *request) takeEnvironment() error {
	t := table()
	for i := range t {
		e := &t[i]
		if e.env == "" {
			continue
		}
		v, ok := r.env.Lookup("SBATCH_" + e.env)
		if !ok {
			continue
		}
		switch e.Arg {
		case getopt.NoArg:
			if !switchedOn(v) {
				continue
			}
			v = ""
		case getopt.RequiredArg:
			if v == "" {
				continue
			}
		}
		if err := r.take(e, v, v != "", fromEnvironment); err != nil {
			return fmt.Errorf("SBATCH_%s: %w", e.env, err)
		}
	}
	if v := r.env.Getenv(switchWait); v != "" {
		if err := setSwitchWait(r, v); err != nil {
			return fmt.Errorf("%s: %w", switchWait, err)
		}
	}
	return nil
}

// switchedOn: empty, yes, or a number that is not 0.
func switchedOn(v string) bool {
	if v == "" || strings.EqualFold(v, "yes") {
		return true
	}
	return strings.Trim(v, "0123456789") == "" && strings.Trim(v, "0") != ""
}

// complete fills in what no option said.
func (r *request) complete() error {
	s := &r.spec
	if err := r.resolveGPUs(); err != nil {
		return err
	}
	if s.Name == "" {
		s.Name = r.scriptGiven
	}
	switch {
	case s.WorkDir == "" && r.env.Dir == "":
		s.WorkDir = "/tmp"
		r.env.Warnf("this folder has been removed or cannot be read; the job works in %s (--chdir names another one)", s.WorkDir)
	case s.WorkDir == "":
		s.WorkDir = r.env.Dir
	case !filepath.IsAbs(s.WorkDir) && r.env.Dir == "":
		return &textError{fmt.Sprintf("The working folder %q cannot be found: this folder has been removed or cannot be read\ngive --chdir an absolute path", s.WorkDir)}
	case !filepath.IsAbs(s.WorkDir):
		s.WorkDir = filepath.Join(r.env.Dir, s.WorkDir)
	}
	if s.TimeMin > 0 && s.TimeLimit > 0 && s.TimeMin > s.TimeLimit {
		return errors.New("Invalid --time-min specification\nit is over --time")
	}
	if len(s.Rare) > job.MaxRare {
		return &textError{fmt.Sprintf("%d rarely used options, the limit is %d", len(s.Rare), job.MaxRare)}
	}
	if len(s.Args) > job.MaxArgs {
		return &textError{fmt.Sprintf("%d arguments, the limit is %d", len(s.Args), job.MaxArgs)}
	}
	if err := r.texts(); err != nil {
		return err
	}
	mask := syscall.Umask(0o022)
	syscall.Umask(mask)
	s.Umask = uint32(mask)
	return nil
}

// texts sees to it that all that travels as text is UTF-8. What only shows where the job came from is mended; what
// the job would get or work with is refused.
func (r *request) texts() error {
	s := &r.spec
	if bad := program.BadByte(s.WorkDir); bad != "" {
		return &textError{fmt.Sprintf("The working folder cannot be used: %s in %q\ngive another one with --chdir", bad, s.WorkDir)}
	}
	for i, a := range s.Args {
		if bad := program.BadByte(a); bad != "" {
			return &textError{fmt.Sprintf("Argument %d of the script cannot be used: %s in %q", i+1, bad, a)}
		}
	}
	host, _ := os.Hostname()
	s.SubmitHost, s.Name, s.Command = text(host), text(s.Name), text(s.Command)
	s.SubmitLine = text(strings.Join(append([]string{r.env.Name}, r.env.Args...), " "))
	if len(s.SubmitLine) > job.MaxString {
		s.SubmitLine = strings.ToValidUTF8(s.SubmitLine[:job.MaxString], "")
	}
	return nil
}

// text makes s UTF-8, with a question mark for what is not.
func text(s string) string { return strings.ToValidUTF8(s, "?") }
