package conf

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the manual page")

// TestManPage makes grid.conf(5) from the comments and tags of Config, Controller, Node and Partition,
// and fails when man/man5 holds another text (write it with: make man).
func TestManPage(t *testing.T) {
	const path = "../man/man5/grid.conf.5"
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	page := manPage(file)
	if *update {
		if err := os.MkdirAll("../man/man5", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, page, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(have, page) {
		t.Fatalf("%s is not what config.go says (%v); run: make man", path, err)
	}
}

func manPage(file *ast.File) []byte {
	var b bytes.Buffer
	b.WriteString(`.TH GRID.CONF 5 "" TensorGrid "File formats"
.SH NAME
grid.conf \- configuration of a TensorGrid cluster
.SH DESCRIPTION
One file for the whole cluster, the same on every machine, in the syntax of slurm.conf:
.B Key=Value
pairs, several on a line if you like; keys in any case; values with blanks in double quotes;
.B #
starts a comment;
.B \e
at the end of a line continues it;
.B Include
.I FILE
reads another file. Records start with
.BR ControllerName ", " NodeName " or " PartitionName ;
the name
.B DEFAULT
sets defaults for the lines below it. A site's own slurm.conf is read too: keys that have no meaning
here are listed by
.BR "gctl reconfigure" .
.PP
It is looked for in $GRID_CONF, $TENSORGRID_CONF, $SLURM_CONF, and /etc/tensorgrid/grid.conf.
.BR "gctld --check --conf FILE" " prints all that is wrong with a file."
Keys marked
.I reload
are put into force by
.BR "gctl reconfigure" ;
the others need a restart of the daemon that reads them.
`)
	for _, s := range []struct{ name, title string }{
		{"Config", "KEYS"}, {"Controller", "CONTROLLERS"}, {"Node", "NODES"}, {"Partition", "PARTITIONS"}, {"Switch", "SWITCHES"},
	} {
		fmt.Fprintf(&b, ".SH %s\n", s.title)
		section(&b, file, s.name)
	}
	b.WriteString(`.SH EXAMPLE
.nf
ClusterName=lab
ControllerName=c1 Address=10.0.0.1
NodeName=gpu[01-16] CPUs=64 Sockets=2 CoresPerSocket=16 ThreadsPerCore=2 RealMemory=512000 Gres=gpu:a100:4
PartitionName=batch Nodes=gpu[01-16] Default=YES MaxTime=2-00:00:00
.fi
.SH SEE ALSO
.BR gctld (8),
.BR gctl (1),
.BR gsub (1)
`)
	return b.Bytes()
}

var unitText = map[string]string{
	"name": "name", "path": "absolute path", "string": "text", "hostlist": "hostlist", "nodes": "hostlist or ALL",
	"list": "comma list", "bool": "YES or NO", "count": "number", "seconds": "seconds, or 500ms, 2m, 1h",
	"minutes": "minutes, or 90s, 1h", "mib": "MiB, or a number with K, M, G, T",
	"lease": "seconds, or 500ms, 2m, 1h", "timelimit": "time limit as in gsub --time",
}

func section(b *bytes.Buffer, file *ast.File, name string) {
	ast.Inspect(file, func(n ast.Node) bool {
		ts, ok := n.(*ast.TypeSpec)
		if !ok || ts.Name.Name != name {
			return true
		}
		for _, f := range ts.Type.(*ast.StructType).Fields.List {
			if f.Tag == nil {
				continue
			}
			p := strings.SplitN(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("conf"), ",", 4)
			unit, words, _ := strings.Cut(p[1], ":")
			value := unitText[unit]
			if unit == "word" {
				value = strings.ReplaceAll(words, "|", ", ")
			}
			def := ""
			if p[2] != "" {
				def = "; default " + p[2]
			}
			text := strings.TrimSpace(f.Doc.Text())
			fmt.Fprintf(b, ".TP\n.B %s\n%s\n(%s%s; %s)\n", p[0], roff(text), roff(value), roff(def), p[3])
		}
		return false
	})
}

// roff keeps text from being read as a request.
func roff(s string) string {
	s = strings.ReplaceAll(s, `\`, `\e`)
	s = strings.ReplaceAll(s, "-", `\-`)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
