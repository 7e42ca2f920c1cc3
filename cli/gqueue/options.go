package gqueue

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Formats of the ready-made views.
const (
	defaultFormat = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
	longFormat    = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
	startFormat   = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
	stepFormat    = "%.15i %.8j %.9P %.8u %.9M %N"
	defaultSort   = "P,t,-p"
)

// Manual describes the command.
func Manual() *getopt.Manual {
	return &getopt.Manual{
		Name: "gqueue", Slurm: "squeue", Summary: "show the jobs that wait and run",
		Synopsis: []string{"[OPTIONS]", "--why JOB"},
		Description: []string{
			"Shows the jobs that are not finished; with -t also others, as long as the controllers keep them.",
			"--start shows when each waiting job starts. gqueue says in START_KIND of each time whether it is promised, which later arrivals cannot move, or an estimate; squeue keeps Slurm's columns, and shows it with -O StartKind. SCHEDNODES are the nodes of a promise.",
			"--why asks the planner: what the job needs, what is missing on how many nodes, what blocks it, its place in line, its earliest start, and what would let it start earlier.",
			"A long queue comes in pieces and is sorted here; with --sort=none each row is shown as it comes, in the controller's order, and nothing is kept.",
			"Components of a heterogeneous job are shown as 12+0, 12+1; -j 12 shows them all.",
			"On a terminal gqueue says below each waiting job why it waits, in a sentence. squeue never does, and neither does when the output goes elsewhere.",
		},
		Options: append([]getopt.Option{
			{Long: "account", Short: 'A', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs of these accounts", Alias: []string{"accounts"}},
			{Long: "all", Short: 'a', Help: "jobs of hidden partitions too"},
			{Long: "array", Short: 'r', Help: "one line for each waiting array task"},
			{Long: "array-unique", Help: "one line for each array"},
			{Long: "clusters", Short: 'M', Arg: getopt.RequiredArg, Value: "NAME", Help: "only this cluster's name is taken", Alias: []string{"cluster"}},
			{Long: "expand-patterns", Help: ""},
			{Long: "federation", Help: ""},
			{Long: "format", Short: 'o', Arg: getopt.RequiredArg, Value: "FORMAT", Help: `columns by letter, as "%.18i %.9P %j"`},
			{Long: "Format", Short: 'O', Arg: getopt.RequiredArg, Value: "LIST", Help: "columns by name, as JobID:10,State"},
			{Long: "hide", Help: "leave jobs of hidden partitions out"},
			{Long: "iterate", Short: 'i', Arg: getopt.RequiredArg, Value: "SECONDS", Help: "repeat after this time"},
			{Long: "jobs", Short: 'j', Arg: getopt.OptionalArg, Value: "LIST", Help: "these jobs: 12, 12_3, 12_[1-5]"},
			{Long: "json", Arg: getopt.OptionalArg, Value: "PARSER", Help: "everything, as JSON"},
			{Long: "licenses", Short: 'L', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs that ask for these licences"},
			{Long: "local", Help: ""},
			{Long: "long", Short: 'l', Help: "more columns"},
			{Long: "me", Help: "my jobs"},
			{Long: "name", Short: 'n', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs with these names", Alias: []string{"names"}},
			{Long: "noconvert", Help: "do not convert units"},
			{Long: "nodelist", Short: 'w', Arg: getopt.RequiredArg, Value: "NODES", Help: "jobs on these nodes", Alias: []string{"nodes"}},
			{Long: "noheader", Short: 'h', Help: "no line with the columns' names"},
			{Long: "only-job-state", Help: "ids and states only"},
			{Long: "partition", Short: 'p', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs of these partitions", Alias: []string{"partitions"}},
			{Long: "priority", Short: 'P', Help: "one line for each partition that a job asked for"},
			{Long: "qos", Short: 'q', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs with these QOS"},
			{Long: "reservation", Short: 'R', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs in this reservation"},
			{Long: "sibling", Help: ""},
			{Long: "sort", Short: 'S', Arg: getopt.RequiredArg, Value: "LETTERS", Help: "order, as -p,i; default " + defaultSort + "; none: as they come"},
			{Long: "stale", Help: "take what the nearest controller knows; its age is told"},
			{Long: "start", Help: "when waiting jobs start, promised or estimated"},
			{Long: "states", Short: 't', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs in these states; all = every state"},
			{Long: "steps", Short: 's', Arg: getopt.OptionalArg, Value: "LIST", Help: "running steps"},
			{Long: "user", Short: 'u', Arg: getopt.RequiredArg, Value: "LIST", Help: "jobs of these users", Alias: []string{"users"}},
			{Long: "verbose", Short: 'v', Help: "say what is done"},
			{Long: "why", Arg: getopt.RequiredArg, Value: "JOB", Help: "say why this job waits, and nothing else"},
			{Long: "yaml", Arg: getopt.OptionalArg, Value: "PARSER", Help: "not available; --json is"},
		}, commonOptions()...),
		Sections: []getopt.Section{
			{Title: "FORMATS", Items: []getopt.Item{
				{Text: "A field of -o is %[[.]width]letter: a dot puts it to the right, no width leaves it as long as it is, a value that is too long is cut. Text between fields stays. %all shows everything."},
				{Text: "A field of -O is name[:[.]width][separator]: 20 wide when nothing is said, without padding when only a separator is given."},
				{Text: "Letters: " + letters()},
			}},
			{Title: "ENVIRONMENT", Items: []getopt.Item{
				{Text: "SQUEUE_ACCOUNT, SQUEUE_ALL, SQUEUE_ARRAY, SQUEUE_FORMAT, SQUEUE_FORMAT2, SQUEUE_LICENSES, SQUEUE_NAMES, SQUEUE_PARTITION, SQUEUE_PRIORITY, SQUEUE_QOS, SQUEUE_SORT, SQUEUE_STATES and SQUEUE_USERS stand for the options of that name."},
				{Text: "SLURM_TIME_FORMAT is standard, relative or a strftime format. SLURM_BITSTR_LEN is how much of an array's list is shown, 0 for all. GRID_CONF or SLURM_CONF names the configuration."},
			}},
		},
		Example: "gqueue --me -t PD,R",
		Exit:    []string{"0 when the list was shown; 1 when a single job asked for is not known, or no controller answered."},
		SeeAlso: []string{"gsub(1)", "gcancel(1)", "gctl(1)", "gacct(1)"},
	}
}

// commonOptions: -h is --noheader here, so --help has no letter.
func commonOptions() []getopt.Option {
	opts := program.CommonOptions()
	opts[0].Short = 0
	return opts
}

func letters() string {
	var list []string
	for i := range columns {
		list = append(list, string(columns[i].letter)+" "+columns[i].header)
	}
	return strings.Join(list, ", ") + "."
}

// query is what was asked for.
type query struct {
	jobs, users, partitions, states, names, accounts, qos, nodes []string
	licenses, reservation                                        []string

	format, longFormat, sort  string
	long, start, steps, array bool
	noHeader, json, stale     bool
	me                        bool
	stepIDs                   []string
	why                       string
	iterate                   time.Duration
	bitmap                    int
	badUsers                  []string
}

// environment gives the options that stand in variables, in front of the command line's.
func environment(env *program.Env, q *query) {
	list := func(name string, to *[]string) {
		if v := env.Getenv(name); v != "" {
			*to = split(v)
		}
	}
	list("SQUEUE_ACCOUNT", &q.accounts)
	list("SQUEUE_NAMES", &q.names)
	list("SQUEUE_PARTITION", &q.partitions)
	list("SQUEUE_QOS", &q.qos)
	list("SQUEUE_STATES", &q.states)
	list("SQUEUE_USERS", &q.users)
	list("SQUEUE_LICENSES", &q.licenses)
	q.format, q.longFormat, q.sort = env.Getenv("SQUEUE_FORMAT"), env.Getenv("SQUEUE_FORMAT2"), env.Getenv("SQUEUE_SORT")
	_, q.array = env.Lookup("SQUEUE_ARRAY")
	q.bitmap = 64
	if n, err := strconv.Atoi(env.Getenv("SLURM_BITSTR_LEN")); err == nil && n >= 0 {
		q.bitmap = n
	}
}

// apply takes one option of the command line.
func (q *query) apply(g getopt.Given) error {
	switch g.Option.Long {
	case "account":
		q.accounts = split(g.Value)
	case "array":
		q.array = true
	case "format":
		q.format, q.longFormat = g.Value, ""
	case "Format":
		q.longFormat, q.format = g.Value, ""
	case "iterate":
		n, err := strconv.Atoi(g.Value)
		if err != nil || n <= 0 {
			return fmt.Errorf("invalid entry for --iterate=%s", g.Value)
		}
		q.iterate = time.Duration(n) * time.Second
	case "jobs":
		q.jobs = append(q.jobs, split(g.Value)...)
	case "json":
		q.json = true
	case "licenses":
		q.licenses = split(g.Value)
	case "long":
		q.long = true
	case "me":
		q.me = true
	case "name":
		q.names = split(g.Value)
	case "nodelist":
		q.nodes = []string{g.Value}
	case "noheader":
		q.noHeader = true
	case "only-job-state":
		if q.format == "" {
			q.format = "%.18i %T"
		}
	case "partition":
		q.partitions = split(g.Value)
	case "qos":
		q.qos = split(g.Value)
	case "reservation":
		q.reservation = split(g.Value)
	case "sort":
		q.sort = g.Value
	case "stale":
		q.stale = true
	case "start":
		q.start = true
	case "states":
		q.states = split(g.Value)
	case "steps":
		q.steps, q.stepIDs = true, append(q.stepIDs, split(g.Value)...)
	case "user":
		q.users = split(g.Value)
	case "why":
		q.why = g.Value
	case "yaml":
		return program.NoYAML()
	}
	return nil
}

// checkStates turns compact names into long ones.
func (q *query) checkStates() error {
	for i, s := range q.states {
		if strings.EqualFold(s, "all") {
			q.states = []string{"all"}
			return nil
		}
		base, flags, ok := job.ParseState(s)
		switch {
		case !ok:
			return fmt.Errorf("Invalid job state specified: %s\nValid job states include: %s", s, validStates())
		case flags != 0:
			q.states[i] = flags.Names()[0]
		default:
			q.states[i] = base.String()
		}
	}
	return nil
}

func validStates() string {
	var list []string
	for s := job.Pending; s <= job.OutOfMemory; s++ {
		list = append(list, s.String())
	}
	for f := job.Flags(1); f <= job.LaunchFailed; f <<= 1 {
		list = append(list, f.Names()...)
	}
	return strings.Join(list, ",")
}

// split cuts a comma list; commas in brackets stay. Empty entries are left out.
func split(s string) []string {
	var list []string
	depth, from := 0, 0
	add := func(to int) {
		if w := strings.TrimSpace(s[from:to]); w != "" {
			list = append(list, w)
		}
		from = to + 1
	}
	for i := range len(s) {
		switch s[i] {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth <= 0 {
				add(i)
			}
		}
	}
	if from <= len(s) {
		add(len(s))
	}
	return list
}
