package getopt

import (
	"slices"
	"strings"
	"testing"
)

var sample = []Option{
	{Long: "nodes", Short: 'N', Arg: RequiredArg}, {Long: "ntasks", Short: 'n', Arg: RequiredArg}, {Long: "nice", Arg: OptionalArg},
	{Long: "hold", Short: 'H'}, {Long: "verbose", Short: 'v'}, {Long: "ntasks-per-node", Arg: RequiredArg, Alias: []string{"tasks-per-node"}},
	{Long: "kill", Short: 'K', Arg: OptionalArg}, {Long: "cpu-bind", Arg: RequiredArg, Alias: []string{"cpu_bind"}},
}

// show writes options as "name=value" and operands after a bar.
func show(given []Given, operands []string) string {
	var parts []string
	for _, g := range given {
		s := g.Option.Long
		if g.HasValue {
			s += "=" + g.Value
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ") + " | " + strings.Join(operands, " ")
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, args string
		mode       Mode
		want       string
	}{
		{"glued shorts", "-N2 -n4", Permute, "nodes=2 ntasks=4 | "},
		{"shorts in one word", "-vvH", Permute, "verbose verbose hold | "},
		{"flags, then a value", "-vN 3", Permute, "verbose nodes=3 | "},
		{"long with equals and with a blank", "--nodes=2 --nodes 3", Permute, "nodes=2 nodes=3 | "},
		{"unique prefix", "--nod=2 --ho", Permute, "nodes=2 hold | "},
		{"exact name that is a prefix of another", "--ntasks=1", Permute, "ntasks=1 | "},
		{"prefix of an alias of the same option only", "--tasks=3", Permute, "ntasks-per-node=3 | "},
		{"underscore spelling", "--cpu_bind=none", Permute, "cpu-bind=none | "},
		{"optional value only with equals", "--nice 5", Permute, "nice | 5"},
		{"optional value with equals", "--nice=5", Permute, "nice=5 | "},
		{"optional short glued", "-K1", Permute, "kill=1 | "},
		{"optional short alone", "-K 1", Permute, "kill | 1"},
		{"value that looks like an option", "-N -1", Permute, "nodes=-1 | "},
		{"options after operands", "a -H b", Permute, "hold | a b"},
		{"stop at the script", "-H script -N 2", StopAtOperand, "hold | script -N 2"},
		{"double dash", "-H -- -N", Permute, "hold | -N"},
		{"single dash is an operand", "- -H", Permute, "hold | -"},
		{"empty value", "--nodes=", Permute, "nodes= | "},
	} {
		given, operands, err := Parse(sample, strings.Fields(c.args), c.mode)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got := show(given, operands); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--bogus", "unrecognized option '--bogus'"},
		{"-x", "invalid option -- 'x'"},
		{"-N", "option requires an argument -- 'N'"},
		{"--nodes", "option '--nodes' requires an argument"},
		{"--hold=1", "option '--hold' doesn't allow an argument"},
		{"--n=1", "option '--n' is ambiguous; possibilities: '--nodes' '--ntasks' '--nice' '--ntasks-per-node'"},
		{"--=1", "unrecognized option '--'"},
	} {
		_, _, err := Parse(sample, strings.Fields(c.args), Permute)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %q", c.args, err, c.want)
		}
	}
}

func TestManualEscapes(t *testing.T) {
	m := &Manual{Name: "x", Summary: "try things", Synopsis: []string{"-a"}, Description: []string{".not a request\n.nor this", `back\slash`}, Example: "x -a"}
	page := m.Roff()
	for _, bad := range []string{"\n.not", "\n.nor", `back\slash`} {
		if strings.Contains(page, bad) {
			t.Errorf("%q stands in the page", bad)
		}
	}
}

// FuzzParse: nothing panics, and each word is either taken or given back.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"-N2\x00-n4\x00x", "--nodes\x003\x00--\x00y", "-vvK1", "--nice=\x00-", "--n", "-\x00--\x00--"} {
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, line string, permute bool) {
		args := strings.Split(line, "\x00")
		mode := StopAtOperand
		if permute {
			mode = Permute
		}
		given, operands, err := Parse(sample, slices.Clone(args), mode)
		if err != nil {
			return
		}
		if len(operands) > len(args) {
			t.Fatalf("%d operands of %d words", len(operands), len(args))
		}
		for _, g := range given {
			if g.Option.Arg == RequiredArg && !g.HasValue || g.Option.Arg == NoArg && g.HasValue {
				t.Fatalf("--%s: value %t", g.Option.Long, g.HasValue)
			}
		}
	})
}
