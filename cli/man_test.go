package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/up"
)

var update = flag.Bool("update", false, "write the manual pages")

func manuals() []*getopt.Manual {
	list := []*getopt.Manual{manual()}
	for _, c := range commands {
		list = append(list, c.manual())
	}
	return list
}

// TestManPages compares man1 with the option tables; -update writes it.
func TestManPages(t *testing.T) {
	for _, m := range manuals() {
		path := filepath.Join("..", "man", "man1", m.Name+".1")
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(m.Roff()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(page) != m.Roff() {
			t.Errorf("%s is not what the option table says; run this test with -update", path)
		}
		text := strings.ReplaceAll(string(page), `\-`, "-")
		for _, o := range m.Options {
			if !strings.Contains(text, "--"+o.Long) {
				t.Errorf("%s does not speak of --%s", path, o.Long)
			}
		}
	}
}

// TestHelp: every command says how it is used, with an example, and no line is wider than a terminal.
func TestHelp(t *testing.T) {
	for _, m := range manuals() {
		help := m.Help(m.Name)
		for _, want := range []string{"Usage: " + m.Name, "Example: " + m.Name, "--help", "GRID_CONF"} {
			if !strings.Contains(help, want) {
				t.Errorf("%s --help: no %q", m.Name, want)
			}
		}
		for line := range strings.Lines(help) {
			if len(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("%s --help: a line of %d bytes: %s", m.Name, len(line), line)
			}
		}
	}
}

// TestTables: no spelling stands twice in a table.
func TestTables(t *testing.T) {
	for _, m := range manuals() {
		long, short := map[string]bool{}, map[byte]bool{}
		for _, o := range m.Options {
			for _, s := range append([]string{o.Long}, o.Alias...) {
				if long[s] {
					t.Errorf("%s: --%s twice", m.Name, s)
				}
				long[s] = true
			}
			if o.Short != 0 && short[o.Short] {
				t.Errorf("%s: -%c twice", m.Name, o.Short)
			}
			short[o.Short] = true
		}
	}
}

// TestNames: the links are the commands.
func TestNames(t *testing.T) {
	if len(up.Names) != len(commands) {
		t.Fatalf("%d names, %d commands", len(up.Names), len(commands))
	}
	for i, n := range up.Names {
		if n.Own != commands[i].own || n.Slurm != commands[i].slurm {
			t.Errorf("%v is not %s, %s", n, commands[i].own, commands[i].slurm)
		}
	}
}
