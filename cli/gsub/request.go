package gsub

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Where an option comes from, the stronger the higher.
const (
	takenOver   = iota // from an earlier component: weaker than all
	fromForeign        // lines of another system
	fromScript
	fromEnvironment
	fromCommandLine
)

// request is what the options add up to.
type request struct {
	env  *program.Env
	spec job.Spec

	source int            // of the option that is being taken
	level  map[string]int // option -> source that set it
	gpu    map[string]string
	claims map[string]int // way to ask for GPUs -> source that used it

	exportFile            string
	wrap                  string
	wrapped               bool
	parsable, quiet, wait bool
	testOnly, ignorePBS   bool
	verbose               int
	forUID                uint32
	cluster               string
	memPerGPU             int64
	scriptGiven           string
	switches              string // of --switches, with the time that it waits
	switchSeconds         int64
	het                   []*request // the further components
}

func newRequest(env *program.Env) *request {
	return &request{env: env, level: map[string]int{}, gpu: map[string]string{}, claims: map[string]int{}}
}

// refusal is a request that the client turns down as the controller would, with exit code 1.
type refusal struct{ text, why string }

func (r *refusal) Error() string { return "Batch job submission failed: " + r.text }

// byteOptions are those whose value does not travel as text: the script, and files that are read here.
var byteOptions = []string{"wrap", "export-file", "nodefile"}

// take applies one option from one source.
func (r *request) take(e *entry, value string, has bool, source int) error {
	r.source = source
	if bad := program.BadByte(value); bad != "" && !slices.Contains(byteOptions, e.Long) {
		return fmt.Errorf("Invalid --%s specification\n%s in %q", e.Long, bad, value)
	}
	if e.refuse != "" {
		return &refusal{text: e.refuse, why: fmt.Sprintf("--%s was given", e.Long)}
	}
	if e.set == nil {
		if e.Arg == getopt.NoArg || !has && value == "" {
			value = "yes"
		}
		r.keep(e.Long, value)
	} else if err := e.set(r, value); err != nil {
		return err
	}
	r.level[e.Long] = source
	return nil
}

// keep stores an option that has no field of its own.
func (r *request) keep(name, value string) {
	i, found := slices.BinarySearchFunc(r.spec.Rare, name, func(o job.Option, n string) int { return strings.Compare(o.Name, n) })
	if found {
		r.spec.Rare[i].Value = value
		return
	}
	r.spec.Rare = slices.Insert(r.spec.Rare, i, job.Option{Name: name, Value: value})
}

// drop forgets a kept option.
func (r *request) drop(name string) {
	r.spec.Rare = slices.DeleteFunc(r.spec.Rare, func(o job.Option) bool { return o.Name == name })
}

// exclude makes options rivals: the stronger source wins, two of one source are an error.
func (r *request) exclude(name string, rivals []string, clear func()) error {
	for _, o := range rivals {
		if o != name && r.level[o] == r.source {
			return fmt.Errorf("--%s and --%s are mutually exclusive", o, name)
		}
	}
	for _, o := range rivals {
		delete(r.level, o)
	}
	clear()
	return nil
}

func invalid(option string) error { return fmt.Errorf("Invalid --%s specification", option) }

func str(field func(*request) *string) setter {
	return func(r *request, v string) error { *field(r) = v; return nil }
}

func number(name string, field func(*request) *uint32) setter {
	return func(r *request, v string) error {
		n, err := strconv.ParseUint(v, 10, 31)
		if err != nil || n == 0 {
			return fmt.Errorf("Invalid numeric value %q for --%s.", v, name)
		}
		*field(r) = uint32(n)
		return nil
	}
}

func gpuText(name string) setter {
	return func(r *request, v string) error {
		r.claimGPUs(name)
		r.gpu[name] = v
		r.keep(name, v)
		return nil
	}
}

func gpuNumber(name string) setter {
	return func(r *request, v string) error {
		if n, err := strconv.ParseUint(v, 10, 31); err != nil || n == 0 {
			return fmt.Errorf("Invalid numeric value %q for --%s.", v, name)
		}
		if name == "cpus-per-gpu" {
			if err := r.rivalCPUs(name); err != nil {
				return err
			}
		}
		r.gpu[name] = v
		r.keep(name, v)
		return nil
	}
}

func setCPUs(r *request, v string) error {
	if err := r.rivalCPUs("cpus-per-task"); err != nil {
		return err
	}
	return number("cpus-per-task", func(r *request) *uint32 { return &r.spec.CPUsPerTask })(r, v)
}

func setArray(r *request, v string) error {
	if _, _, err := job.ParseArray(v, 0); err != nil {
		return &refusal{text: "Invalid job array specification", why: err.Error()}
	}
	r.spec.Array = v
	return nil
}

func setBegin(r *request, v string) error {
	t, err := job.ParseInstant(v, r.env.Now())
	if err != nil {
		return fmt.Errorf("Invalid --begin specification\n%w", err)
	}
	r.spec.Begin = t.UnixMilli()
	return nil
}

func setDependency(r *request, v string) error {
	if _, err := job.ParseDependency(v); err != nil {
		return &refusal{text: "Job dependency problem", why: err.Error()}
	}
	r.spec.Dependency = v
	return nil
}

func setNice(r *request, v string) error {
	if v == "" {
		r.spec.Nice = 100
		return nil
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil || n > 2147483645 || n < -2147483645 {
		return invalid("nice")
	}
	if n < 0 && r.env.UID != 0 {
		r.env.Errorf("nice value must be non-negative, value ignored")
		n = 0
	}
	r.spec.Nice = int32(n)
	return nil
}

func setOpenMode(r *request, v string) error {
	switch {
	case v != "" && strings.HasPrefix("append", v):
		r.spec.OpenMode = "append"
	case v != "" && strings.HasPrefix("truncate", v):
		r.spec.OpenMode = "truncate"
	default:
		return invalid("open-mode")
	}
	return nil
}

func setSignal(r *request, v string) error {
	if _, err := job.ParseSignalSpec(v); err != nil {
		return fmt.Errorf("Invalid --signal specification\n%w", err)
	}
	r.spec.Signal = v
	return nil
}

func setTime(r *request, v string) error {
	ms, err := job.ParseTimeLimit(v)
	if err != nil {
		return fmt.Errorf("Invalid --time specification\n%w", err)
	}
	r.spec.TimeLimit = ms
	return nil
}

func setTimeMin(r *request, v string) error {
	ms, err := job.ParseTimeLimit(v)
	if err != nil || ms == job.Unlimited {
		return invalid("time-min")
	}
	r.spec.TimeMin = ms
	return nil
}

// listOrFile reads a node list, from a file when v holds a slash.
func listOrFile(option, v string) (string, error) {
	if strings.Contains(v, "/") {
		b, err := os.ReadFile(v)
		if err != nil {
			return "", fmt.Errorf("Unable to read the node list of --%s: %w", option, err)
		}
		v = strings.Join(strings.Fields(string(b)), ",")
	}
	if len(v) > job.MaxList {
		return "", fmt.Errorf("Invalid node name specified in --%s: %d bytes, the limit is %d", option, len(v), job.MaxList)
	}
	if _, err := hostlist.Expand(v); err != nil {
		return "", &refusal{text: "Invalid node name specified", why: fmt.Sprintf("--%s: %v", option, err)}
	}
	return v, nil
}

func setExclude(r *request, v string) (err error) {
	r.spec.Exclude, err = listOrFile("exclude", v)
	return err
}

func setNodeList(r *request, v string) (err error) {
	r.spec.NodeList, err = listOrFile("nodelist", v)
	return err
}

func setNodeFile(r *request, v string) (err error) {
	if !strings.Contains(v, "/") {
		v = "./" + v
	}
	r.spec.NodeList, err = listOrFile("nodefile", v)
	return err
}

func setExclusive(r *request, v string) error {
	switch v {
	case "", "exclusive", "yes", "1", "allocation":
		r.spec.Exclusive = true
		r.drop(job.OptExclusive)
	case "user", "topo":
		r.spec.Exclusive = false
		r.keep(job.OptExclusive, v)
	case "mcs":
		return &refusal{text: "--exclusive=" + v + " is not available", why: "use --exclusive: no other job on the nodes, or --exclusive=user: none of others"}
	default:
		return fmt.Errorf("Invalid --exclusive specification\n%q is not user or topo", v)
	}
	return nil
}

func setMem(name string) setter {
	return func(r *request, v string) error {
		b, err := job.ParseMem(v)
		if err != nil {
			return fmt.Errorf("Invalid --%s specification\n%w", name, err)
		}
		err = r.exclude(name, []string{"mem", "mem-per-cpu", "mem-per-gpu"}, func() {
			r.spec.MemPerNode, r.spec.MemPerCPU, r.memPerGPU = 0, 0, 0
		})
		if err != nil {
			return errors.New("--mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.")
		}
		switch name {
		case "mem":
			r.spec.MemPerNode = b
			if b == 0 {
				r.spec.MemPerNode = job.WholeNode
			}
		case "mem-per-cpu":
			r.spec.MemPerCPU = b
		default:
			r.memPerGPU = b
			r.keep(name, v)
		}
		return nil
	}
}

func setTmp(r *request, v string) error {
	b, err := job.ParseMem(v)
	if err != nil {
		return fmt.Errorf("Invalid --tmp specification\n%w", err)
	}
	r.spec.MinTmpDisk = b
	return nil
}

// setPriority refuses what only those who run the cluster may say. For root it is kept with the job; what sets a
// priority is scontrol update.
func setPriority(r *request, v string) error {
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil && !strings.EqualFold(v, "TOP") || err == nil && n >= 1<<32-1 {
		return fmt.Errorf("Invalid --priority specification\n%q is no number and not TOP", v)
	}
	if r.env.UID != 0 {
		return &refusal{text: client.TextDenied, why: "--priority: only operators may set a job's priority; --nice=N lowers one's own"}
	}
	r.advise("--priority has no effect on a new job; use: scontrol update JobId=ID Priority=%s", v)
	r.keep("priority", v)
	return nil
}

// setRequeue takes --requeue, and --requeue=expedite of later releases, which also puts the job in front.
func setRequeue(r *request, v string) error {
	switch {
	case v == "expedite":
		r.advise("--requeue=expedite: the job may run again, but not sooner than others")
	case r.source != fromEnvironment && v != "":
		return invalid("requeue")
	case !switchedOn(v):
		return nil
	}
	r.spec.Requeue = 1
	return nil
}

func setGres(r *request, v string) error {
	items, err := gres.Parse(v)
	if err != nil {
		return &refusal{text: gres.Invalid, why: err.Error()}
	}
	if gres.Total(items, "gpu") > 0 {
		r.claimGPUs("gres")
	}
	r.spec.Gres = gres.Format(items)
	return nil
}

// setTresPerTask reads cpu=4,gres/gpu:a100=1 and the older gres:gpu:1.
func setTresPerTask(r *request, v string) error {
	for part := range strings.SplitSeq(v, ",") {
		name := strings.NewReplacer("=", ":", "/", ":").Replace(part)
		switch {
		case strings.HasPrefix(name, "cpu:"):
			if err := setCPUs(r, name[4:]); err != nil {
				return err
			}
			r.level["cpus-per-task"] = r.source
		case strings.HasPrefix(name, "gres:gpu:"):
			r.claimGPUs("tres-per-task")
			r.gpu["gpus-per-task"] = name[len("gres:gpu:"):]
		default:
			return fmt.Errorf("Invalid --tres-per-task specification\n%q is not cpu=N or gres/gpu[:TYPE]=N", part)
		}
	}
	r.keep("tres-per-task", v)
	return nil
}

func setClusters(r *request, v string) error { r.cluster = v; return nil }

func setUID(r *request, v string) error {
	if r.env.UID != 0 {
		return errors.New("--uid only permitted by root user")
	}
	id, ok := program.UserID(v)
	if !ok {
		return fmt.Errorf("Invalid --uid specification\nno user %q", v)
	}
	r.forUID = id
	return nil
}
