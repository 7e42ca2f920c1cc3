package gacct

import (
	"fmt"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Manual describes the command.
func Manual() *getopt.Manual {
	opts := []getopt.Option{
		{Long: "accounts", Short: 'A', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs of these accounts"},
		{Long: "allclusters", Short: 'L', Help: ""},
		{Long: "allocations", Short: 'X', Help: "jobs only, no steps"},
		{Long: "allusers", Short: 'a', Help: "jobs of all users"},
		{Long: "array", Help: ""},
		{Long: "batch-script", Short: 'B', Help: "print the script of the jobs that -j names, nothing else"},
		{Long: "brief", Short: 'b', Help: "JobID, State and ExitCode"},
		{Long: "clusters", Short: 'M', Arg: getopt.RequiredArg, Value: "NAME", Help: "only this cluster's name is taken", Alias: []string{"cluster"}},
		{Long: "completion", Short: 'c', Help: ""},
		{Long: "delimiter", Arg: getopt.RequiredArg, Value: "TEXT", Help: "what stands between fields with -p and -P"},
		{Long: "duplicates", Short: 'D', Help: ""},
		{Long: "endtime", Short: 'E', Arg: getopt.RequiredArg, Value: "TIME", Help: "jobs up to this time"},
		{Long: "env-vars", Help: "print the environment of the jobs that -j names, nothing else"},
		{Long: "federation", Help: ""},
		{Long: "flags", Short: 'F', Arg: getopt.RequiredArg, Help: ""},
		{Long: "format", Short: 'o', Arg: getopt.RequiredArg, Value: "LIST", Help: "fields, as JobID,State%20; a negative width puts it to the left"},
		{Long: "gid", Short: 'g', Arg: getopt.RequiredArg, Value: "LIST", Help: "", Alias: []string{"group"}},
		{Long: "helpformat", Short: 'e', Help: "list the fields"},
		{Long: "jobs", Short: 'j', Arg: getopt.RequiredArg, Value: "LIST", Help: "these jobs: 12, 12_3, 12.batch", Alias: []string{"job"}},
		{Long: "json", Arg: getopt.OptionalArg, Value: "PARSER", Help: "everything, as JSON"},
		{Long: "local", Help: ""},
		{Long: "long", Short: 'l', Help: "many fields"},
		{Long: "name", Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs with these names"},
		{Long: "ncpus", Short: 'I', Arg: getopt.RequiredArg, Help: ""},
		{Long: "nnodes", Short: 'i', Arg: getopt.RequiredArg, Help: ""},
		{Long: "noconvert", Help: "do not convert units"},
		{Long: "nodelist", Short: 'N', Arg: getopt.RequiredArg, Value: "NODES", Help: "jobs on these nodes"},
		{Long: "noheader", Short: 'n', Help: "no header"},
		{Long: "parsable", Short: 'p', Help: "fields set apart by bars, one at the end too"},
		{Long: "parsable2", Short: 'P', Help: "fields set apart by bars"},
		{Long: "partition", Short: 'r', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs of these partitions"},
		{Long: "qos", Short: 'q', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs with these QOS"},
		{Long: "starttime", Short: 'S', Arg: getopt.RequiredArg, Value: "TIME", Help: "jobs from this time on; today's when not given, all with -j"},
		{Long: "state", Short: 's', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs in these states"},
		{Long: "timelimit-max", Short: 'K', Arg: getopt.RequiredArg, Help: ""},
		{Long: "timelimit-min", Short: 'k', Arg: getopt.RequiredArg, Help: ""},
		{Long: "truncate", Short: 'T', Help: ""},
		{Long: "uid", Short: 'u', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs of these users", Alias: []string{"user"}},
		{Long: "units", Arg: getopt.RequiredArg, Value: "K|M|G|T|P", Help: "show sizes in this unit"},
		{Long: "use-local-uid", Help: ""},
		{Long: "verbose", Short: 'v', Help: "say what is done"},
		{Long: "wckeys", Short: 'W', Arg: getopt.RequiredArg, Help: ""},
		{Long: "whetjob", Arg: getopt.RequiredArg, Help: ""},
		{Long: "yaml", Arg: getopt.OptionalArg, Value: "PARSER", Help: "not available; --json is"},
	}
	var names []string
	for i := range fields {
		names = append(names, fields[i].name)
	}
	return &getopt.Manual{
		Name: "gacct", Slurm: "sacct", Summary: "show what jobs did and used",
		Synopsis: []string{"[OPTIONS]"},
		Description: []string{
			"Shows jobs with their steps, from what the controllers keep: jobs that are not finished, and finished ones for MinJobAge. Root sees the jobs of all users, others their own unless -a or -u is given.",
		},
		Options: append(opts, program.CommonOptions()...),
		Sections: []getopt.Section{
			{Title: "FIELDS", Items: []getopt.Item{{Text: "In any case, each with %WIDTH or %-WIDTH. What is too long ends in a plus sign. " + strings.Join(names, ", ") + "."}}},
			{Title: "ENVIRONMENT", Items: []getopt.Item{{Text: "SACCT_FORMAT stands for --format; SLURM_TIME_FORMAT as in gqueue(1)."}}},
		},
		Example: "gacct -X -S today -o JobID,State,Elapsed,MaxRSS",
		Exit:    []string{"0 when the list was shown, even when it is empty; 1 otherwise."},
		SeeAlso: []string{"gqueue(1)", "gctl(1)"},
	}
}

const longFields = "JobID,JobIDRaw,JobName,Partition,MaxVMSize,MaxVMSizeNode,MaxVMSizeTask,AveVMSize,MaxRSS,MaxRSSNode,MaxRSSTask,AveRSS,MaxPages,MaxPagesNode," +
	"MaxPagesTask,AvePages,MinCPU,MinCPUNode,MinCPUTask,AveCPU,NTasks,AllocCPUS,Elapsed,State,ExitCode,AveCPUFreq,ReqCPUFreqMin,ReqCPUFreqMax,ReqCPUFreqGov," +
	"ReqMem,ConsumedEnergy,MaxDiskRead,MaxDiskReadNode,MaxDiskReadTask,AveDiskRead,MaxDiskWrite,MaxDiskWriteNode,MaxDiskWriteTask,AveDiskWrite,ReqTRES,AllocTRES"

// query is what was asked for.
type query struct {
	jobs, steps, users, partitions, states, names, accounts, qos, nodes []string
	cols                                                                []column
	start, end                                                          time.Time
	hasWindow, allUsers, allocations, json                              bool
	noHeader, parsable, trailing, noConvert, helpFormat                 bool
	script, environ                                                     bool
	delimiter                                                           string
	unit                                                                byte
	format, startText, endText                                          string
}

func newQuery(env *program.Env, given []getopt.Given, operands []string) (*query, error) {
	q := &query{delimiter: "|", format: env.Getenv("SACCT_FORMAT")}
	for _, g := range given {
		if err := q.apply(g); err != nil {
			return nil, err
		}
	}
	if len(operands) > 0 {
		return nil, fmt.Errorf("Unrecognized option: %s", operands[0])
	}
	switch {
	case q.script && q.environ:
		return nil, fmt.Errorf("--batch-script and --env-vars are mutually exclusive")
	case (q.script || q.environ) && len(q.jobs) == 0:
		return nil, fmt.Errorf("--batch-script and --env-vars need --jobs\nsay which jobs are meant, as -j 12")
	}
	if q.format == "" {
		q.format = defaultFields
	}
	var err error
	if q.cols, err = parseFields(q.format); err != nil {
		return nil, err
	}
	if len(q.users) == 0 && !q.allUsers && env.UID != 0 && len(q.jobs) == 0 {
		q.users = []string{fmt.Sprint(env.UID)}
	}
	return q, q.window(env.Now())
}

// window settles the times: today, from the beginning with -j, and with states at this moment.
func (q *query) window(now time.Time) (err error) {
	q.start, q.end, q.hasWindow = midnight(now), now, q.startText != "" || q.endText != ""
	if len(q.states) > 0 {
		q.start = now
	}
	if len(q.jobs) > 0 {
		q.start = time.Unix(0, 0)
	}
	if q.startText != "" {
		if q.start, err = job.ParsePastInstant(q.startText, now); err != nil {
			return fmt.Errorf("Invalid time specification %q: %w", q.startText, err)
		}
	}
	if q.endText != "" {
		if q.end, err = job.ParsePastInstant(q.endText, now); err != nil {
			return fmt.Errorf("Invalid time specification %q: %w", q.endText, err)
		}
	}
	if q.start.After(q.end) {
		return fmt.Errorf("Start time (%s) requested is after end time (%s).", q.start.Format("2006-01-02T15:04:05"), q.end.Format("2006-01-02T15:04:05"))
	}
	return nil
}

func (q *query) apply(g getopt.Given) error {
	switch g.Option.Long {
	case "accounts":
		q.accounts = commas(g.Value)
	case "allocations":
		q.allocations = true
	case "allusers":
		q.allUsers = true
	case "brief":
		q.format = briefFields
	case "delimiter":
		q.delimiter = g.Value
	case "endtime":
		q.endText = g.Value
	case "format":
		q.format = g.Value
	case "batch-script":
		q.script = true
	case "env-vars":
		q.environ = true
	case "helpformat":
		q.helpFormat = true
	case "jobs":
		return q.setJobs(g.Value)
	case "json":
		q.json = true
	case "long":
		q.format = longFields
	case "name":
		q.names = commas(g.Value)
	case "noconvert":
		q.noConvert = true
	case "nodelist":
		q.nodes = []string{g.Value}
	case "noheader":
		q.noHeader = true
	case "parsable":
		q.parsable, q.trailing = true, true
	case "parsable2":
		q.parsable, q.trailing = true, false
	case "partition":
		q.partitions = commas(g.Value)
	case "qos":
		q.qos = commas(g.Value)
	case "starttime":
		q.startText = g.Value
	case "state":
		return q.setStates(g.Value)
	case "uid":
		return q.setUsers(g.Value)
	case "units":
		q.unit = strings.ToUpper(g.Value + " ")[0]
		if !strings.ContainsRune("KMGTP", rune(q.unit)) || len(g.Value) != 1 {
			return fmt.Errorf("Invalid unit type %q; use K, M, G, T or P", g.Value)
		}
	case "yaml":
		return program.NoYAML()
	}
	return nil
}

// setJobs keeps the jobs and, for "12.batch", which step is meant. Tasks stay in their brackets.
func (q *query) setJobs(list string) error {
	depth := 0
	for _, id := range strings.FieldsFunc(list, func(r rune) bool {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		}
		return r == ' ' || r == ',' && depth <= 0
	}) {
		base, _, has := strings.Cut(id, ".")
		if _, err := job.ParseRef(base); err != nil {
			return fmt.Errorf("Invalid job id: %s", id)
		}
		if has {
			q.steps = append(q.steps, id)
		}
		q.jobs = append(q.jobs, base)
	}
	return nil
}

func (q *query) setStates(list string) error {
	for _, s := range commas(list) {
		if strings.EqualFold(s, "all") {
			q.states = nil
			return nil
		}
		base, flags, ok := job.ParseState(s)
		switch {
		case !ok:
			return fmt.Errorf("Invalid state: %s", s)
		case flags != 0:
			q.states = append(q.states, flags.Names()[0])
		default:
			q.states = append(q.states, base.String())
		}
	}
	return nil
}

func (q *query) setUsers(list string) error {
	for _, u := range commas(list) {
		uid, ok := program.UserID(u)
		if !ok {
			return fmt.Errorf("Invalid user id: %s", u)
		}
		q.users = append(q.users, fmt.Sprint(uid))
	}
	return nil
}

func commas(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}
