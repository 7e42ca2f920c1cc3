package ginfo

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

// Formats of the ready-made views.
const (
	defaultFormat  = "%#P %.5a %.10l %.6D %.6t %N"
	summaryFormat  = "%#P %.5a %.10l %.16F  %N"
	longFormat     = "%#P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %11i %N"
	nodeFormat     = "%#N %.6D %#P %6t"
	nodeLongFormat = "%#N %.6D %#P %.11T %.4c %.8z %.6m %.8d %.6w %.8f %20E"
	reasonFormat   = "%20E %9u %19H %N"
	reasonLong     = "%20E %12U %19H %6t %N"
)

// Manual describes the command.
func Manual() *getopt.Manual {
	common := program.CommonOptions()
	common[0].Short = 0
	opts := []getopt.Option{
		{Long: "all", Short: 'a', Help: "hidden partitions too"},
		{Long: "clusters", Short: 'M', Arg: getopt.RequiredArg, Value: "NAME", Help: "only this cluster's name is taken", Alias: []string{"cluster"}},
		{Long: "dead", Short: 'd', Help: "only nodes that do not respond"},
		{Long: "exact", Short: 'e', Help: "do not put nodes of different size together"},
		{Long: "federation", Help: ""},
		{Long: "format", Short: 'o', Arg: getopt.RequiredArg, Value: "FORMAT", Help: `columns by letter, as "%P %.6D %t"`},
		{Long: "Format", Short: 'O', Arg: getopt.RequiredArg, Value: "LIST", Help: "columns by name, as NodeList:30,StateLong"},
		{Long: "future", Short: 'F', Help: ""},
		{Long: "hide", Help: "leave hidden partitions out"},
		{Long: "iterate", Short: 'i', Arg: getopt.RequiredArg, Value: "SECONDS", Help: "repeat after this time"},
		{Long: "json", Arg: getopt.OptionalArg, Value: "PARSER", Help: "everything, as JSON"},
		{Long: "list-reasons", Short: 'R', Help: "why nodes are down or drained, since when, by whom"},
		{Long: "local", Help: ""},
		{Long: "long", Short: 'l', Help: "more columns"},
		{Long: "noconvert", Help: "do not convert units"},
		{Long: "Node", Short: 'N', Help: "one line for each node"},
		{Long: "nodes", Short: 'n', Arg: getopt.RequiredArg, Value: "NODES", Help: "only these nodes"},
		{Long: "noheader", Short: 'h', Help: "no line with the columns' names"},
		{Long: "partition", Short: 'p', Arg: getopt.RequiredArg, Value: "LIST", Help: "only these partitions"},
		{Long: "reservation", Short: 'T', Help: "reservations: when, how long, which nodes"},
		{Long: "responding", Short: 'r', Help: "only nodes that respond"},
		{Long: "sort", Short: 'S', Arg: getopt.RequiredArg, Value: "LETTERS", Help: "order, as P,-t"},
		{Long: "stale", Help: "take what the nearest controller knows"},
		{Long: "states", Short: 't', Arg: getopt.RequiredArg, Value: "LIST", Help: "only nodes in one of these states; a&b are in both"},
		{Long: "summarize", Short: 's', Help: "one line for each partition"},
		{Long: "verbose", Short: 'v', Help: "say what is done"},
		{Long: "yaml", Arg: getopt.OptionalArg, Value: "PARSER", Help: "not available; --json is"},
	}
	return &getopt.Manual{
		Name: "ginfo", Slurm: "sinfo", Summary: "show partitions and nodes",
		Synopsis: []string{"[OPTIONS]"},
		Description: []string{
			"Shows each partition's nodes, one line for each state. An asterisk marks the default partition, and the state of nodes that do not respond.",
		},
		Options: append(opts, common...),
		Sections: []getopt.Section{
			{Title: "FORMATS", Items: []getopt.Item{
				{Text: "As in gqueue(1); # in place of a width is as wide as the widest value. Lines that would be equal are one line; where numbers of its nodes differ, the smallest is shown with a plus sign. With -N each node has a line for each of its partitions."},
				{Text: "Letters: " + letters()},
			}},
			{Title: "ENVIRONMENT", Items: []getopt.Item{{Text: "SINFO_ALL, SINFO_FORMAT, SINFO_PARTITION and SINFO_SORT stand for the options of that name; SLURM_TIME_FORMAT as in gqueue(1)."}}},
		},
		Example: "ginfo -N -l -p debug",
		Exit:    []string{"0 when the list was shown, even when it is empty; 1 otherwise."},
		SeeAlso: []string{"gqueue(1)", "gctl(1)"},
	}
}

func letters() string {
	var list []string
	for i := range columns {
		if columns[i].letter != 0 {
			list = append(list, string(columns[i].letter)+" "+columns[i].header)
		}
	}
	return strings.Join(list, ", ") + "."
}

// query is what was asked for.
type query struct {
	format, longFormat, sort            string
	partitions                          []string
	states                              [][]string // any of these lists, all of its states
	nodes                               string
	all, exact, byNode, noHeader, json  bool
	long, summary, reasons, dead, alive bool
	stale, reservations                 bool
	iterate                             time.Duration
	cols                                []render.Column
	shown                               []*column
	resv                                map[string]string // node -> active reservations, joined; only when they are shown
}

func (q *query) apply(g getopt.Given) error {
	switch g.Option.Long {
	case "all":
		q.all = true
	case "dead":
		q.dead = true
	case "exact":
		q.exact = true
	case "format":
		q.format, q.longFormat = g.Value, ""
	case "Format":
		q.format, q.longFormat = "", g.Value
	case "iterate":
		n, err := strconv.Atoi(g.Value)
		if err != nil || n <= 0 {
			return fmt.Errorf("invalid entry for --iterate=%s", g.Value)
		}
		q.iterate = time.Duration(n) * time.Second
	case "json":
		q.json = true
	case "list-reasons":
		q.reasons = true
	case "long":
		q.long = true
	case "Node":
		q.byNode = true
	case "nodes":
		q.nodes = g.Value
	case "noheader":
		q.noHeader = true
	case "partition":
		q.partitions = commas(g.Value)
	case "reservation":
		q.reservations = true
	case "responding":
		q.alive = true
	case "sort":
		q.sort = g.Value
	case "stale":
		q.stale = true
	case "states":
		return q.setStates(g.Value)
	case "summarize":
		q.summary = true
	case "yaml":
		return program.NoYAML()
	}
	return nil
}

// nodeStates are the words of -t, with the long and compact names they stand for.
var nodeStates = map[string]string{
	"alloc": "allocated", "allocated": "allocated", "comp": "completing", "completing": "completing", "down": "down", "drain": "drain",
	"drained": "drained", "draining": "draining", "drng": "draining", "fail": "fail", "failing": "failing", "futr": "future",
	"future": "future", "idle": "idle", "maint": "maint", "mix": "mixed", "mixed": "mixed", "no_respond": "no_respond", "npc": "npc",
	"perfctrs": "npc", "planned": "planned", "plnd": "planned", "power_down": "powering_down", "power_up": "powering_up", "powered_down": "powered_down",
	"powering_down": "powering_down", "powering_up": "powering_up", "reboot_issued": "reboot", "reboot_requested": "reboot",
	"resv": "reserved", "reserved": "reserved", "unk": "unknown", "unknown": "unknown", "blocked": "blocked", "cloud": "cloud", "inval": "inval",
}

func (q *query) setStates(list string) error {
	for _, s := range commas(list) {
		var all []string
		for part := range strings.SplitSeq(s, "&") {
			word := strings.ToLower(strings.TrimRight(part, "*~#!%$@+^-"))
			if word == "all" {
				q.states = nil
				return nil
			}
			name, ok := nodeStates[word]
			if !ok {
				return badState(part)
			}
			all = append(all, name)
		}
		q.states = append(q.states, all)
	}
	return nil
}

func badState(s string) error {
	return fmt.Errorf("Bad state string: %q\nthe states are alloc, comp, down, drain, drained, draining, fail, idle, maint, mix, no_respond, planned, resv, unk and some more", s)
}

func commas(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// view picks the columns.
func (q *query) view() (err error) {
	format := q.format
	if format == "" {
		switch {
		case q.summary:
			format = summaryFormat
		case q.reasons && q.long:
			format = reasonLong
		case q.reasons:
			format = reasonFormat
		case q.byNode && q.long:
			format = nodeLongFormat
		case q.byNode:
			format = nodeFormat
		case q.long:
			format = longFormat
		default:
			format = defaultFormat
		}
	}
	byName := q.format == "" && q.longFormat != ""
	if byName {
		q.cols, err = render.ParseLong(q.longFormat)
	} else {
		q.cols, err = render.ParseFormat(format)
	}
	if err != nil {
		return err
	}
	for i := range q.cols {
		c := find(q.cols[i].Key, byName)
		if c == nil {
			if byName || q.cols[i].Key != "" {
				return fmt.Errorf("Invalid node format specification: %s", q.cols[i].Key)
			}
			c = &column{value: func(*group) string { return "" }}
		}
		q.shown = append(q.shown, c)
	}
	return nil
}
