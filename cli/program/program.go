// Package program is what a command runs in: its name, arguments, streams, environment, clock and
// the way to a controller. Commands touch nothing else of the process, so tests can run them.
package program

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/version"
)

// SlurmVersion is the release whose behaviour the commands keep.
const SlurmVersion = "22.05.8"

// ExitUsage is what a bad command line ends with, as Slurm's commands do.
const ExitUsage = 255

// Env is one call of a command.
type Env struct {
	Name    string // as called: "gsub" or "sbatch"
	Args    []string
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Environ []string
	Dir     string // working directory, absolute
	UID     uint32
	Now     func() time.Time
	Sleep   func(time.Duration)
	After   func(time.Duration) <-chan time.Time // nil = time.After

	StdinTerminal  bool
	StdoutTerminal bool
	// SharedOutput: standard output and error are one pipe or file. Programs that read ids from
	// such a pipe count words, so advice is kept back.
	SharedOutput bool
	Width        int // of the terminal; 0 = not one

	// Connect gives the client for this call; it is not called before a controller is needed.
	Connect func() (*client.Client, error)
}

// Lookup gives an environment variable; the last one of a name counts.
func (e *Env) Lookup(name string) (string, bool) {
	for i := len(e.Environ) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(e.Environ[i], name); ok && strings.HasPrefix(v, "=") {
			return v[1:], true
		}
	}
	return "", false
}

// Getenv gives an environment variable, "" when it is not set.
func (e *Env) Getenv(name string) string {
	v, _ := e.Lookup(name)
	return v
}

// Timer gives a channel that fires once d has passed.
func (e *Env) Timer(d time.Duration) <-chan time.Time {
	if e.After != nil {
		return e.After(d)
	}
	return time.After(d)
}

// ByGName tells whether the command was called under its own name, not Slurm's.
func (e *Env) ByGName() bool { return strings.HasPrefix(e.Name, "g") }

// Errorf writes "name: error: ..." to standard error.
func (e *Env) Errorf(format string, args ...any) { e.say("error: ", format, args) }

// Warnf writes "name: warning: ..." to standard error.
func (e *Env) Warnf(format string, args ...any) { e.say("warning: ", format, args) }

// Infof writes "name: ..." to standard error.
func (e *Env) Infof(format string, args ...any) { e.say("", format, args) }

// say writes lines. They may repeat words that others have written, so control characters do not go out.
func (e *Env) say(kind, format string, args []any) {
	text := fmt.Sprintf(format, args...)
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		fmt.Fprintf(e.Stderr, "%s: %s%s\n", e.Name, kind, render.Clean(strings.ReplaceAll(line, "\t", " ")))
	}
}

// BadUsage reports a bad command line and gives the exit code.
func (e *Env) BadUsage(err error) int {
	var bad *getopt.Error
	if errors.As(err, &bad) {
		fmt.Fprintf(e.Stderr, "%s: %s\nTry \"%s --help\" for more information\n", e.Name, render.Clean(bad.Text), e.Name)
		return ExitUsage
	}
	e.Errorf("%v", err)
	return ExitUsage
}

// Common takes care of --help, --usage, --version and --clusters; done tells that the call is over.
func (e *Env) Common(m *getopt.Manual, given []getopt.Given) (done bool) {
	for _, g := range given {
		switch g.Option.Long {
		case "help":
			io.WriteString(e.Stdout, m.Help(e.Name))
			return true
		case "usage":
			io.WriteString(e.Stdout, m.Usage(e.Name))
			return true
		case "version":
			fmt.Fprintln(e.Stdout, e.VersionLine())
			return true
		case "clusters":
			e.onlyCluster(g.Value)
		}
	}
	return false
}

// VersionLine is "slurm 22.05.8 (TensorGrid 0.1.0)" under Slurm's names: tools take its second word.
func (e *Env) VersionLine() string {
	if e.ByGName() {
		return "tensorgrid " + version.Version
	}
	return "slurm " + SlurmVersion + " (TensorGrid " + version.Version + ")"
}

// CommonOptions are the rows that every command's table ends with.
func CommonOptions() []getopt.Option {
	return []getopt.Option{
		{Long: "help", Short: 'h', Help: "show this text"},
		{Long: "usage", Help: "show the synopsis"},
		{Long: "version", Short: 'V', Help: "show the version"},
	}
}

// Refused prints what a controller or the way to it refused: "lead: TEXT", then why.
func (e *Env) Refused(lead string, err error) {
	var r *client.Refusal
	if !errors.As(err, &r) {
		e.Errorf("%s%v", lead, err)
		return
	}
	e.Errorf("%s%s", lead, r.Text)
	if r.Why != "" {
		e.Errorf("%s", r.Why)
	}
}
