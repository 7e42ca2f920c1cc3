// Package command is gsim's command line.
package command

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/ctld/gsim/plot"
	"github.com/tensorgrid/tensorgrid/ctld/gsim/replay"
	"github.com/tensorgrid/tensorgrid/ctld/gsim/trace"
	"github.com/tensorgrid/tensorgrid/internal/version"
)

const help = `Usage: gsim replay TRACE [--policy FILE] [OPTION...]
       gsim compare TRACE --policy FILE --policy FILE... [OPTION...]
       gsim whatif SNAPSHOT [--policy FILE] [--down NODES] [OPTION...]

Replays a recorded workload through the controller's scheduler in virtual
time, and reports waits, bounded slowdown and use. whatif loads a snapshot
that "gctl snapshot save" wrote, and says when each waiting job would start,
as things are and as they would be.

TRACE is a file in the Standard Workload Format, or a pod list of the openb
traces (.csv) with --nodes.

  --policy FILE     how jobs are ordered and started; without it as a
                    controller does that nobody has told anything
  --procs N         processors of the machine, where the trace does not say
  --nodes FILE      node list of an openb trace
  --first N         begin with the job of this index, counted from 0
  --jobs N          take so many jobs
  --down NODES      whatif: as if these nodes were down
  --add COUNT=NODE  whatif: as if there were COUNT more nodes like NODE
  --plot FOLDER     draw queue, utilisation and wait by size, as SVG and PNG
  --json            print the figures as JSON
  --help            print this
  --version         print the version

A policy file has lines KEY=VALUE; # begins a comment:

  order=multifactor|expansion|fcfs|sjf|area|wfp3|f1
  promises=N             waiting jobs whose start is promised; 0 = open mode
  backfill=priority|shortest|submission|off
  estimates=user|corrected|perfect
  starvation=TIME        a job that waited so long goes first
  events=batched|single  one plan a moment, or one after each event
  expired=held|free      a run at its limit, before the word of its end
  head=anew|sticky  end=by|before  spare=yes|no
  PriorityWeightAge=N PriorityWeightJobSize=N PriorityWeightTRES=LIST
  PriorityMaxAge=TIME PriorityFavorSmall=YES PriorityFlags=LIST
  SchedulerParameters=LIST   as in grid.conf

Examples:
  gsim replay KTH-SP2-1996-2.swf
  gsim compare KTH-SP2-1996-2.swf --policy easy --policy ours --plot pictures
  gsim replay openb_pod_list_default.csv --nodes openb_node_list_gpu_node.csv
  gctl snapshot save now.snap && gsim whatif now.snap --down gpu[1-4]
`

// options are what was said on the command line.
type options struct {
	policies    []string
	procs       uint
	nodes       string
	first, jobs int
	down        string
	add         string
	plot        string
	json        bool
}

// errUsage is wrapped by mistakes in the command line: exit status 2.
var errUsage = errors.New("try gsim --help")

// Main runs gsim and gives its exit status: 0, 1 when it could not be done, 2 for a mistake in the command line.
func Main(args []string, stdout, stderr io.Writer) int {
	err := run(args, stdout)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "gsim: %v\n", err)
	if errors.Is(err, errUsage) {
		return 2
	}
	return 1
}

func run(args []string, stdout io.Writer) error {
	word := ""
	if len(args) > 0 {
		word = args[0]
	}
	switch word {
	case "--help", "-h", "help":
		_, err := io.WriteString(stdout, help)
		return err
	case "--version", "-V":
		_, err := fmt.Fprintln(stdout, "gsim", version.Version)
		return err
	case "replay", "compare", "whatif":
	case "":
		return fmt.Errorf("what is to be done is missing: replay, compare or whatif; %w", errUsage)
	default:
		return fmt.Errorf("%q is none of replay, compare, whatif; %w", word, errUsage)
	}
	o, files, err := parse(args[1:])
	if errors.Is(err, flag.ErrHelp) {
		_, err := io.WriteString(stdout, help)
		return err
	}
	if err != nil {
		return fmt.Errorf("%s: %w; %w", word, err, errUsage)
	}
	if err := o.check(word, files); err != nil {
		return fmt.Errorf("%s: %w; %w", word, err, errUsage)
	}
	if word == "whatif" {
		return whatIf(o, files[0], stdout)
	}
	return replays(o, files[0], stdout)
}

// parse reads options and words in any order.
func parse(args []string) (*options, []string, error) {
	o := &options{}
	f := flag.NewFlagSet("gsim", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Func("policy", "", func(s string) error { o.policies = append(o.policies, s); return nil })
	f.UintVar(&o.procs, "procs", 0, "")
	f.StringVar(&o.nodes, "nodes", "", "")
	f.IntVar(&o.first, "first", 0, "")
	f.IntVar(&o.jobs, "jobs", 0, "")
	f.StringVar(&o.down, "down", "", "")
	f.StringVar(&o.add, "add", "", "")
	f.StringVar(&o.plot, "plot", "", "")
	f.BoolVar(&o.json, "json", false, "")
	var words []string
	for {
		if err := f.Parse(args); err != nil {
			return nil, nil, err
		}
		if f.NArg() == 0 {
			return o, words, nil
		}
		words, args = append(words, f.Arg(0)), f.Args()[1:]
	}
}

// check refuses what does not go together.
func (o *options) check(word string, files []string) error {
	what := "TRACE"
	if word == "whatif" {
		what = "SNAPSHOT"
	}
	switch {
	case len(files) != 1:
		return fmt.Errorf("one %s is wanted, %d are given", what, len(files))
	case word == "compare" && len(o.policies) < 2:
		return errors.New("two --policy or more are wanted")
	case word != "compare" && len(o.policies) > 1:
		return errors.New("one --policy at most; compare takes more")
	case word != "whatif" && (o.down != "" || o.add != ""):
		return errors.New("--down and --add are whatif's")
	case word == "whatif" && (o.plot != "" || o.nodes != "" || o.procs != 0 || o.first != 0 || o.jobs != 0):
		return errors.New("--plot, --nodes, --procs, --first and --jobs are of replays")
	case strings.HasSuffix(files[0], ".csv") != (o.nodes != "") && word != "whatif":
		return errors.New("a pod list (.csv) and --nodes go together")
	case o.procs > 1<<30:
		return errors.New("--procs is over 1073741824")
	case len(o.policies) > plot.MaxReplays && o.plot != "":
		return fmt.Errorf("--plot draws at most %d policies", plot.MaxReplays)
	}
	return nil
}

// replays runs the trace under each policy.
func replays(o *options, file string, stdout io.Writer) error {
	t, err := readTrace(o, file)
	if err != nil {
		return err
	}
	policies := o.policies
	if len(policies) == 0 {
		policies = []string{""}
	}
	var results []*replay.Result
	var summaries []*replay.Summary
	for _, name := range policies {
		pol, err := readPolicy(name)
		if err != nil {
			return err
		}
		r, err := replay.Run(t, pol, replay.Controller())
		if err != nil {
			return fmt.Errorf("%s under %s: %w", t.Name, pol.Name, err)
		}
		results, summaries = append(results, r), append(summaries, &r.Summary)
	}
	if err := print(o, summaries, stdout); err != nil || o.plot == "" {
		return err
	}
	files, err := plot.Write(o.plot, results)
	if err == nil && !o.json {
		_, err = fmt.Fprintf(stdout, "\ndrawn: %s\n", strings.Join(files, " "))
	}
	return err
}

func print(o *options, list []*replay.Summary, stdout io.Writer) error {
	switch {
	case o.json && len(list) == 1:
		return list[0].JSON(stdout)
	case o.json:
		return writeJSON(stdout, list)
	case len(list) == 1:
		return list[0].Text(stdout)
	}
	return replay.Compare(stdout, list)
}

// readTrace reads the workload by the kind of its file.
func readTrace(o *options, file string) (t *trace.Trace, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".swf"), ".csv")
	if o.nodes == "" {
		t, err = trace.ReadSWF(name, f, uint32(o.procs))
	} else {
		var nodes *os.File
		if nodes, err = os.Open(o.nodes); err != nil {
			return nil, err
		}
		defer nodes.Close()
		t, err = trace.ReadOpenb(name, nodes, f)
	}
	if err == nil && (o.first != 0 || o.jobs != 0) {
		t, err = t.Window(o.first, o.jobs)
	}
	return t, err
}

// readPolicy reads a policy file; without a name the policy is the controller's default.
func readPolicy(name string) (*replay.Policy, error) {
	if name == "" {
		return replay.ReadPolicy("default", strings.NewReader(""))
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return replay.ReadPolicy(slices.Collect(strings.SplitSeq(filepath.Base(name), "."))[0], f)
}
