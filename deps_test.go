// Package tensorgrid_test holds the rules of the house: who may import whom, what each program
// links, and where clock, randomness and process exits are allowed.
package tensorgrid_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tensorgrid/tensorgrid"

var update = flag.Bool("update", false, "write the module lists of the programs again")

// rule says what the packages that match may import of ours, and what they never may link directly.
// Patterns: "a/b" one package, "a/..." it and all below. The first rule that matches decides.
type rule struct {
	pkg   string
	may   []string
	never []string
}

// pure is what the packages without I/O, clock and log may not import.
var pure = []string{"google.golang.org/grpc", "github.com/hashicorp/raft", "log/slog", "os", "net", "math/rand"}

var six = []string{"internal/hostlist", "gres", "internal/node", "internal/job", "internal/step", "internal/cred"}

func with(a []string, more ...string) []string { return append(slices.Clone(a), more...) }

var rules = []rule{
	{"api/...", nil, nil},
	{"internal/version", nil, nil},
	{"internal/fault", nil, nil},
	{"internal/robust", []string{"..."}, nil},
	{"internal/hostlist", nil, pure},
	{"gres", six[:1], pure},
	{"internal/node", six[:2], pure},
	{"internal/job", six[:3], pure},
	{"internal/step", six[:4], pure},
	{"internal/cred", six[:5], pure},
	{"partitions", with(six, "accounting"), pure},
	{"accounting", six, pure},
	{"ctld/sched/...", with(six[:5], "partitions", "accounting", "ctld/sched/..."), pure},
	{"ctld/state", with(six, "partitions", "accounting", "accounting/ledger", "zkverify", "ctld/sched/..."), with(pure, "google.golang.org/protobuf")},
	{"ctld/fsm", with(six, "partitions", "accounting", "accounting/ledger", "ctld/state", "ctld/sched/...", "api/logpb"), []string{"github.com/hashicorp/raft", "google.golang.org/grpc", "log/slog", "os", "net"}},
	{"ctld/replica/...", with(six, "ctld/fsm", "ctld/state", "ctld/sched", "api/logpb", "api/peerpb", "internal/fault", "ctld/replica/..."), nil},
	{"ctld/server", with(six, "partitions", "accounting", "conf", "internal/authn", "internal/fault", "internal/version", "ctld/replica", "ctld/fsm", "ctld/state", "ctld/sched/...", "api/..."), []string{"github.com/hashicorp/raft", "github.com/ethereum/go-ethereum"}},
	{"ctld/leader", with(six, "partitions", "accounting", "conf", "internal/authn", "internal/fault", "internal/version", "ctld/replica", "ctld/fsm", "ctld/state", "ctld/sched/...", "api/..."), []string{"github.com/hashicorp/raft", "github.com/ethereum/go-ethereum"}},
	{"ctld/sim/...", with(six, "partitions", "accounting", "conf", "ctld/state", "ctld/sched/...", "ctld/fsm", "api/logpb"), []string{"github.com/hashicorp/raft", "google.golang.org/grpc", "net"}},
	{"ctld/gsim/...", with(six, "partitions", "accounting", "conf", "internal/version", "ctld/state", "ctld/sched/...", "ctld/fsm", "api/logpb", "ctld/gsim/..."), []string{"github.com/hashicorp/raft", "google.golang.org/grpc", "net"}},
	{"ctld/daemon/...", with(six, "partitions", "accounting", "conf", "internal/...", "ctld/...", "api/..."), []string{"github.com/ethereum/go-ethereum"}},
	{"ctld", []string{"ctld/daemon", "internal/version"}, nil},
	{"conf", with(six, "partitions"), []string{"google.golang.org/grpc"}},
	{"internal/authn", []string{"internal/hostlist", "internal/cred"}, []string{"github.com/ethereum/go-ethereum"}},
	{"internal/testcluster", []string{"..."}, nil},
	{"gres/...", []string{"gres", "gres/...", "internal/node"}, []string{"google.golang.org/grpc"}},
	{"nodeagent/cgroup", six, []string{"google.golang.org/grpc", "google.golang.org/protobuf", "log/slog"}},
	{"nodeagent/sandbox", six, []string{"google.golang.org/grpc", "google.golang.org/protobuf"}},
	{"nodeagent/launch/server", with(six, "nodeagent/cgroup", "nodeagent/launch", "nodeagent/sandbox", "internal/fault", "internal/version"), []string{"google.golang.org/grpc", "google.golang.org/protobuf"}},
	{"nodeagent/launch", with(six, "nodeagent/cgroup", "nodeagent/sandbox"), []string{"google.golang.org/grpc", "google.golang.org/protobuf"}},
	{"nodeagent/shepherd", with(six, "nodeagent/cgroup", "nodeagent/launch", "internal/fault"), []string{"google.golang.org/grpc", "google.golang.org/protobuf"}},
	{"nodeagent/launcher", with(six, "nodeagent/cgroup", "nodeagent/launch/...", "nodeagent/sandbox", "internal/fault", "internal/version"), []string{"google.golang.org/grpc", "google.golang.org/protobuf"}},
	{"nodeagent/stepd", with(six, "nodeagent/cgroup", "nodeagent/launch", "nodeagent/shepherd", "internal/version"), []string{"google.golang.org/grpc", "google.golang.org/protobuf"}},
	{"nodeagent/enroll", []string{"internal/authn", "api/nodepb"}, []string{"github.com/consensys/gnark"}},
	{"nodeagent/login", []string{"internal/authn", "api/steppb"}, []string{"github.com/consensys/gnark"}},
	{"nodeagent/...", with(six, "conf", "internal/...", "gres/...", "nodeagent/...", "api/nodepb", "api/steppb"), []string{"github.com/consensys/gnark"}},
	{"cli/...", with(six, "conf", "internal/...", "cli/...", "api/ctldpb", "api/steppb"), []string{"github.com/hashicorp/raft", "github.com/consensys/gnark", "github.com/ethereum/go-ethereum", "database/sql"}},
}

func match(pattern, pkg string) bool {
	if pattern == "..." {
		return true
	}
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == base || strings.HasPrefix(pkg, base+"/")
	}
	return pkg == pattern
}

// goPackage is what "go list -json" says of a package.
type goPackage struct {
	ImportPath   string
	Dir          string
	Name         string
	Imports      []string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

func list(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Imports,GoFiles,TestGoFiles,XTestGoFiles", "./...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// TestImports holds every package against the table.
func TestImports(t *testing.T) {
	for _, p := range list(t) {
		rel := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if rel == "" {
			continue
		}
		i := slices.IndexFunc(rules, func(r rule) bool { return match(r.pkg, rel) })
		if i < 0 {
			t.Errorf("%s has no rule in deps_test.go", rel)
			continue
		}
		for _, imp := range p.Imports {
			checkImport(t, rules[i], rel, imp)
		}
	}
}

func checkImport(t *testing.T, r rule, rel, imp string) {
	t.Helper()
	if own, ok := strings.CutPrefix(imp, module+"/"); ok {
		if own == "internal/testcluster" {
			t.Errorf("%s imports internal/testcluster, which is for tests", rel)
		}
		if !slices.ContainsFunc(r.may, func(m string) bool { return match(m, own) }) {
			t.Errorf("%s imports %s, which its rule does not allow", rel, own)
		}
		return
	}
	if slices.ContainsFunc(r.never, func(n string) bool { return match(n+"/...", imp) && (imp != "net/netip" && imp != "net/url") }) {
		t.Errorf("%s imports %s, which its rule forbids", rel, imp)
	}
}

// programs are the binaries, with what none of their dependencies may be.
var programs = []struct {
	dir   string
	never []string
}{
	{"cli", []string{"github.com/hashicorp/raft", "github.com/ethereum/go-ethereum", "github.com/consensys/gnark"}},
	{"ctld", []string{"github.com/ethereum/go-ethereum"}},
	{"ctld/gsim", []string{"github.com/hashicorp/raft", "google.golang.org/grpc", "github.com/ethereum/go-ethereum", "github.com/consensys/gnark", "net/http"}},
	{"nodeagent", []string{"github.com/consensys/gnark", "github.com/hashicorp/raft", "github.com/ethereum/go-ethereum"}},
	{"nodeagent/launcher", []string{"google.golang.org/grpc", "google.golang.org/protobuf", "net/http"}},
	{"nodeagent/stepd", []string{"google.golang.org/grpc", "google.golang.org/protobuf", "net/http"}},
}

// TestPrograms compares the modules that each binary links with its deps.txt, so that a new
// dependency is a visible change (write them again with: go test . -update).
func TestPrograms(t *testing.T) {
	for _, p := range programs {
		out, err := exec.Command("go", "list", "-deps", "-f", "{{if .Module}}{{.Module.Path}}{{else}}std {{.ImportPath}}{{end}}", "./"+p.dir).Output()
		if err != nil {
			t.Errorf("%s: go list: %v", p.dir, err)
			continue
		}
		var mods []string
		for l := range strings.Lines(string(out)) {
			l = strings.TrimSpace(l)
			for _, n := range p.never {
				if match(n+"/...", strings.TrimPrefix(l, "std ")) {
					t.Errorf("%s links %s", p.dir, l)
				}
			}
			if !strings.HasPrefix(l, "std ") && l != module {
				mods = append(mods, l)
			}
		}
		slices.Sort(mods)
		text := strings.Join(slices.Compact(mods), "\n") + "\n"
		path := filepath.Join(p.dir, "deps.txt")
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(path); err != nil || string(have) != text {
			t.Errorf("%s is not what the program links (%v); look at the change, then: go test . -update\n%s", path, err, text)
		}
	}
}

const maxFileLines, maxTestLines, maxFuncLines = 600, 800, 70

// TestHouse: sizes, one package comment a package, clock, randomness and exits by path.
func TestHouse(t *testing.T) {
	for _, p := range list(t) {
		rel := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		comments := 0
		for _, name := range p.GoFiles {
			if !strings.HasSuffix(name, ".pb.go") {
				comments += houseFile(t, rel, filepath.Join(p.Dir, name), false)
			}
		}
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			houseFile(t, rel, filepath.Join(p.Dir, name), true)
		}
		if comments != 1 && len(p.GoFiles) > 0 && !strings.HasPrefix(rel, "api/") {
			t.Errorf("%s has %d package comments, not one", rel, comments)
		}
	}
}

// houseFile checks one file and counts its package comment.
func houseFile(t *testing.T, rel, path string, test bool) (comments int) {
	src, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return 0
	}
	name := rel + "/" + filepath.Base(path)
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, src, parser.ParseComments)
	if err != nil {
		t.Error(err)
		return 0
	}
	limit := maxFileLines
	if test {
		limit = maxTestLines
	}
	if n := bytes.Count(src, []byte("\n")); n > limit {
		t.Errorf("%s has %d lines, the limit is %d: it holds two subjects", name, n, limit)
	}
	if test {
		return 0
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > maxFuncLines {
				t.Errorf("%s: func %s has %d lines, the limit is %d", name, fn.Name.Name, n, maxFuncLines)
			}
		}
	}
	forbidCalls(t, rel, name, f)
	if f.Doc != nil {
		return 1
	}
	return 0
}

// clockless packages take time and randomness as parameters.
var clockless = []string{"internal/hostlist", "internal/node", "internal/job", "internal/step", "internal/cred", "gres", "partitions",
	"accounting", "accounting/ledger", "ctld/sched/...", "ctld/state", "ctld/fsm", "ctld/sim/...", "ctld/gsim/...", "zkverify", "zkverify/tensor"}

// forbidCalls finds the clock, global randomness and exits where they do not belong.
func forbidCalls(t *testing.T, rel, name string, f *ast.File) {
	t.Helper()
	for _, imp := range f.Imports {
		if path := strings.Trim(imp.Path.Value, `"`); imp.Name != nil && slices.Contains([]string{"time", "math/rand", "math/rand/v2", "os"}, path) {
			t.Errorf("%s imports %s under another name; the rules on clock and exits go by its own", name, path)
		}
	}
	pureHere := slices.ContainsFunc(clockless, func(p string) bool { return match(p, rel) })
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok || x.Obj != nil {
			return true
		}
		switch call := x.Name + "." + sel.Sel.Name; {
		case pureHere && slices.Contains([]string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.Tick", "time.NewTimer", "time.NewTicker", "time.AfterFunc"}, call):
			t.Errorf("%s uses %s; time is a parameter here", name, call)
		case pureHere && x.Name == "rand" && sel.Sel.Name != "Rand" && sel.Sel.Name != "Reader":
			t.Errorf("%s uses %s; randomness is a parameter here", name, call)
		case call == "os.Exit" && f.Name.Name != "main":
			t.Errorf("%s uses os.Exit; only a main package ends the process", name)
		}
		return true
	})
}
