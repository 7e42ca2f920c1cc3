package getopt

import (
	"fmt"
	"strings"
)

// Manual is what is said about a command: --help, --usage and the page in man1 are made from it.
type Manual struct {
	Name        string // "gsub"
	Slurm       string // "sbatch"; "" when Slurm has no such command
	Summary     string // one line, lower case, no dot
	Synopsis    []string
	Description []string // paragraphs
	Options     []Option
	Sections    []Section
	Example     string // one command line
	Exit        []string
	SeeAlso     []string
}

// Section is a titled part of the page. Each item is a paragraph; a Term makes it a list entry.
type Section struct {
	Title string
	Items []Item
}

// Item is a paragraph, or the entry of a list when it has a Term.
type Item struct{ Term, Text string }

// Help is laid out for a terminal of 80 columns.
const (
	helpColumn = 34
	helpWidth  = 80
)

// confFile is where the configuration is when no variable says so.
const confFile = "/etc/tensorgrid/grid.conf"

// Usage is the short form, one line for each way to call the command.
func (m *Manual) Usage(name string) string {
	var b strings.Builder
	for i, s := range m.Synopsis {
		lead := "Usage: "
		if i > 0 {
			lead = "       "
		}
		lines := wrap(s, helpWidth-len(lead)-len(name)-1)
		fmt.Fprintf(&b, "%s%s %s\n", lead, name, lines[0])
		for _, l := range lines[1:] {
			fmt.Fprintf(&b, "%*s%s\n", len(lead)+len(name)+3, "", l)
		}
	}
	return b.String()
}

// Help is the text of --help: usage, options, one example.
func (m *Manual) Help(name string) string {
	var b strings.Builder
	b.WriteString(m.Usage(name))
	fmt.Fprintf(&b, "\n%s%s.\n\n", strings.ToUpper(m.Summary[:1]), m.Summary[1:])
	for i := range m.Options {
		o := &m.Options[i]
		if o.Help == "" {
			continue
		}
		helpLine(&b, "  "+o.label(), o.Help)
	}
	for _, s := range m.Sections {
		if s.Title != "COMMANDS" {
			continue
		}
		b.WriteString("Commands:\n")
		for _, it := range s.Items {
			helpLine(&b, "  "+it.Term, it.Text)
		}
	}
	fmt.Fprintf(&b, "\nConfiguration: the file that GRID_CONF names, else %s.\n", confFile)
	fmt.Fprintf(&b, "Example: %s\n", strings.Replace(m.Example, m.Name, name, 1))
	return b.String()
}

// helpLine puts the text beside the head, or below one that is too long.
func helpLine(b *strings.Builder, head, text string) {
	if len(head) > helpColumn-2 {
		for i, l := range wrap(strings.TrimSpace(head), helpWidth-8) {
			fmt.Fprintf(b, "%*s%s\n", len(head)-len(strings.TrimLeft(head, " "))+4*min(i, 1), "", l)
		}
		head = ""
	}
	for _, l := range wrap(text, helpWidth-helpColumn) {
		fmt.Fprintf(b, "%-*s%s\n", helpColumn, head, l)
		head = ""
	}
}

// wrap cuts a text at blanks into lines of at most width; a longer word stays whole.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// label is "-n, --ntasks=N", aligned for a list.
func (o *Option) label() string {
	var s string
	switch {
	case o.Short != 0 && o.Long != "":
		s = "-" + string(o.Short) + ", --" + o.Long
	case o.Long != "":
		s = "    --" + o.Long
	default:
		s = "-" + string(o.Short)
	}
	v := o.Value
	if v == "" {
		v = "VALUE"
	}
	switch o.Arg {
	case RequiredArg:
		s += "=" + v
	case OptionalArg:
		s += "[=" + v + "]"
	}
	return s
}

// Label is "-n, --ntasks=N".
func (o *Option) Label() string { return strings.TrimSpace(o.label()) }

// Roff is the page of section 1.
func (m *Manual) Roff() string {
	var b strings.Builder
	fmt.Fprintf(&b, ".\\\" Made from the option tables of cli; change them and run: go test ./cli -run TestManPages -update\n")
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"TensorGrid\" \"TensorGrid manual\"\n", strings.ToUpper(m.Name))
	names := esc(m.Name)
	if m.Slurm != "" {
		names += ", " + esc(m.Slurm)
	}
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n", names, esc(m.Summary))
	for i, s := range m.Synopsis {
		if i > 0 {
			b.WriteString(".br\n")
		}
		fmt.Fprintf(&b, ".B %s\n%s\n", esc(m.Name), esc(s))
	}
	b.WriteString(".SH DESCRIPTION\n")
	if m.Slurm != "" {
		fmt.Fprintf(&b, "Called as\n.B %s\nor\n.BR %s ,\nwith the same options.\n", esc(m.Name), esc(m.Slurm))
	}
	for _, p := range m.Description {
		fmt.Fprintf(&b, ".PP\n%s\n", esc(p))
	}
	if len(m.Options) > 0 {
		b.WriteString(".SH OPTIONS\nA long option may be cut to any prefix that is unique.\n")
	}
	for i := range m.Options {
		o := &m.Options[i]
		fmt.Fprintf(&b, ".TP\n.B %s\n", esc(o.Label()))
		help := o.Help
		if help == "" {
			help = "Taken as Slurm spells it and kept with the job."
		}
		if len(o.Alias) > 0 {
			if !strings.HasSuffix(help, ".") {
				help += "."
			}
			help += " Also --" + strings.Join(o.Alias, ", --") + "."
		}
		fmt.Fprintf(&b, "%s\n", esc(help))
	}
	for _, s := range m.Sections {
		fmt.Fprintf(&b, ".SH %s\n", esc(s.Title))
		for _, it := range s.Items {
			if it.Term != "" {
				fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", esc(it.Term), esc(it.Text))
			} else {
				fmt.Fprintf(&b, ".PP\n%s\n", esc(it.Text))
			}
		}
	}
	fmt.Fprintf(&b, ".SH FILES\n%s\n", esc("The configuration is the file that GRID_CONF names, else "+confFile+"; see grid.conf(5)."))
	fmt.Fprintf(&b, ".SH EXAMPLE\n.nf\n%s\n.fi\n", esc(m.Example))
	if len(m.Exit) > 0 {
		b.WriteString(".SH EXIT STATUS\n")
		for _, e := range m.Exit {
			fmt.Fprintf(&b, ".PP\n%s\n", esc(e))
		}
	}
	if len(m.SeeAlso) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", esc(strings.Join(m.SeeAlso, ", ")))
	}
	return b.String()
}

// esc keeps text from being read as roff.
func esc(s string) string {
	s = strings.ReplaceAll(s, "\\", "\\e")
	s = strings.ReplaceAll(s, "-", "\\-")
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = "\\&" + s
	}
	return strings.ReplaceAll(s, "\n.", "\n\\&.")
}
