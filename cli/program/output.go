package program

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
)

// Output is standard output that remembers whether a write failed: what a command could not say is a failure of
// the command, wherever it was printed.
type Output struct {
	W   io.Writer
	err error
}

// Write writes on until the first error; from then on nothing is written.
func (o *Output) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.W.Write(p)
	o.err = err
	return n, err
}

// OutputError is what went wrong with standard output, nil when nothing did.
func (e *Env) OutputError() error {
	if o, ok := e.Stdout.(*Output); ok {
		return o.err
	}
	return nil
}

// Checked runs a command with its output watched: exit code 1 and a line when some of it was lost.
func (e *Env) Checked(run func(*Env) int) int {
	e.Stdout = &Output{W: e.Stdout}
	code := run(e)
	if err := e.OutputError(); err != nil {
		e.Errorf("standard output: %v", err)
		return max(code, 1)
	}
	return code
}

// BadByte finds what is no UTF-8 in s, which nothing but bytes can travel as: "byte 0xe9 at 3 is not UTF-8".
func BadByte(s string) string {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			return fmt.Sprintf("byte %#02x at %d is not UTF-8", s[i], i)
		}
		i += n
	}
	return ""
}

// CheckText refuses the first value that is no text.
func CheckText(given []getopt.Given, operands []string) error {
	for _, g := range given {
		if bad := BadByte(g.Value); bad != "" {
			return fmt.Errorf("Invalid --%s specification\n%s in %q", g.Option.Long, bad, g.Value)
		}
	}
	for i, w := range operands {
		if bad := BadByte(w); bad != "" {
			return fmt.Errorf("Invalid argument %d\n%s in %q", i+1, bad, w)
		}
	}
	return nil
}

// onlyCluster lets Connect give a client of no other cluster than those named: a command that was meant for
// another one must not act here.
func (e *Env) onlyCluster(names string) {
	connect := e.Connect
	e.Connect = func() (*client.Client, error) {
		c, err := connect()
		if err != nil {
			return nil, err
		}
		for name := range strings.SplitSeq(names, ",") {
			if name != "" && name != "all" && name != c.Cluster() {
				c.Close()
				return nil, &client.Refusal{Code: "CLUSTER", Text: fmt.Sprintf("No cluster '%s' known by database.", name),
					Why: fmt.Sprintf("this is cluster %s; another one's grid.conf is chosen with GRID_CONF", c.Cluster())}
			}
		}
		return c, nil
	}
}

// NoYAML refuses --yaml and says what to use.
func NoYAML() error {
	return fmt.Errorf("--yaml is not available\nuse --json: the same fields, and every YAML reader takes JSON")
}
