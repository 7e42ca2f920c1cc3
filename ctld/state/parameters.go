package state

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// when says in which part of a job's life a parameter may change.
type when uint8

const (
	whileLive when = iota
	whilePending
)

// parameter is one that UpdateJob knows.
type parameter struct {
	when     when
	operator bool
	later    bool // from FeatureSched on
	first    bool // of a heterogeneous job, its first component's for all
	set      func(e *jobEdit, key, value string) *Refusal
}

// jobParameters is what UpdateJob knows, by lower-case name. Never changed.
var jobParameters = map[string]parameter{
	"timelimit":         {set: setTimeLimit},
	"timemin":           {when: whilePending, set: setTimeMin},
	"priority":          {set: setPriority, when: whilePending, first: true},
	"nice":              {set: setNice, when: whilePending},
	"jobname":           {set: text(func(s *job.Spec) *string { return &s.Name })},
	"name":              {set: text(func(s *job.Spec) *string { return &s.Name })},
	"comment":           {set: text(func(s *job.Spec) *string { return &s.Comment })},
	"admincomment":      {operator: true, set: setAdminComment},
	"account":           {when: whilePending, set: text(func(s *job.Spec) *string { return &s.Account })},
	"qos":               {when: whilePending, set: text(func(s *job.Spec) *string { return &s.QOS })},
	"partition":         {when: whilePending, set: setJobPartition},
	"starttime":         {when: whilePending, set: setBegin, first: true},
	"eligibletime":      {when: whilePending, set: setBegin, first: true},
	"arraytaskthrottle": {set: setThrottle},
	"numnodes":          {when: whilePending, set: setNodes},
	"reqnodes":          {when: whilePending, set: setNodes},
	"numcpus":           {when: whilePending, set: setCPUs},
	"reqcpus":           {when: whilePending, set: setCPUs},
	"numtasks":          {when: whilePending, set: count32(func(s *job.Spec) *uint32 { return &s.NTasks })},
	"cpuspertask":       {when: whilePending, set: count32(func(s *job.Spec) *uint32 { return &s.CPUsPerTask })},
	"cpus/task":         {when: whilePending, set: count32(func(s *job.Spec) *uint32 { return &s.CPUsPerTask })},
	"mincpusnode":       {when: whilePending, set: count32(func(s *job.Spec) *uint32 { return &s.MinCPUsPerNode })},
	"minmemorynode":     {when: whilePending, set: setMemNode},
	"minmemorycpu":      {when: whilePending, set: setMemCPU},
	"mintmpdisknode":    {when: whilePending, set: setTmpDisk},
	"requeue":           {set: setRequeue},
	"deadline":          {when: whilePending, later: true, set: setDeadline},
	"reservation":       {when: whilePending, later: true, set: setOption(job.OptReservation)},
	"reservationname":   {when: whilePending, later: true, set: setOption(job.OptReservation)},
	"licenses":          {when: whilePending, later: true, set: setOption(job.OptLicenses)},
	"prefer":            {when: whilePending, later: true, set: setOption(job.OptPrefer)},
	"contiguous":        {when: whilePending, later: true, set: setContiguous},
	"checkpoint":        {later: true, first: true, set: setCheckpoint},
	"dependency":        {when: whilePending, set: setDependency, first: true},
	"reqnodelist":       {when: whilePending, set: text(func(s *job.Spec) *string { return &s.NodeList })},
	"nodelist":          {when: whilePending, set: text(func(s *job.Spec) *string { return &s.NodeList })},
	"excnodelist":       {when: whilePending, set: text(func(s *job.Spec) *string { return &s.Exclude })},
	"features":          {when: whilePending, set: text(func(s *job.Spec) *string { return &s.Constraint })},
	"gres":              {when: whilePending, set: setGres},
	"trespernode":       {when: whilePending, set: setGres},
	"workdir":           {when: whilePending, set: text(func(s *job.Spec) *string { return &s.WorkDir })},
	"stdout":            {when: whilePending, set: text(func(s *job.Spec) *string { return &s.StdOut })},
	"stderr":            {when: whilePending, set: text(func(s *job.Spec) *string { return &s.StdErr })},
	"stdin":             {when: whilePending, set: text(func(s *job.Spec) *string { return &s.StdIn })},
}

func text(field func(*job.Spec) *string) func(*jobEdit, string, string) *Refusal {
	return func(e *jobEdit, _, value string) *Refusal {
		*field(e.spec) = value
		return nil
	}
}

func count32(field func(*job.Spec) *uint32) func(*jobEdit, string, string) *Refusal {
	return func(e *jobEdit, key, value string) *Refusal { return setNumber(field(e.spec), key, value) }
}

// setTimeLimit takes a limit, or +limit and -limit to move it. Only operators may raise it.
func setTimeLimit(e *jobEdit, key, value string) *Refusal {
	word, sign := value, int64(0)
	if strings.HasPrefix(value, "+") {
		word, sign = value[1:], 1
	} else if strings.HasPrefix(value, "-") && value != "-1" {
		word, sign = value[1:], -1
	}
	ms, err := job.ParseTimeLimit(word)
	if err != nil {
		return refuse("ESLURM_INVALID_TIME_LIMIT", "Requested time limit is invalid (missing or exceeds some limit)", err.Error())
	}
	if ms == 0 && sign == 0 {
		ms = job.Unlimited
	}
	if isComponent(e.j) && isRunning(e.j) {
		return refuse("ESLURM_NOT_WHOLE_HET_JOB", "Operation not permitted on a component of a heterogeneous job",
			fmt.Sprintf("%s of a run is one for the whole job: change it of job %d", key, e.j.Het))
	}
	now := e.j.TimeLimit
	if sign != 0 {
		if ms < 0 || now < 0 || now+sign*ms <= 0 || sign > 0 && ms > 1<<62-now {
			return refuse("ESLURM_INVALID_TIME_LIMIT", "Requested time limit is invalid (missing or exceeds some limit)",
				fmt.Sprintf("%s from %s is no time limit", value, job.FormatDuration(now)))
		}
		ms = now + sign*ms
	}
	if more := ms < 0 && now > 0 || ms > now && now > 0; more && !e.caller.Operator {
		return denied(fmt.Sprintf("only operators may raise a time limit; it is %s, asked was %s", job.FormatDuration(now), job.FormatDuration(ms)))
	}
	e.spec.TimeLimit, e.j.TimeLimit = ms, ms
	if isRunning(e.j) {
		e.j.End = e.j.limitEnd()
		e.t.capacity++ // the planner counts on when runs end, and what it keeps for whom follows from that
	}
	return nil
}

func setTimeMin(e *jobEdit, key, value string) *Refusal {
	ms, err := job.ParseTimeLimit(value)
	if err != nil || ms < 0 {
		return badValue(key, value, "a time limit")
	}
	e.spec.TimeMin = ms
	return nil
}

// setPriority takes a number; 0 holds the job. Users may only lower theirs.
func setPriority(e *jobEdit, key, value string) *Refusal {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return badValue(key, value, "a number of 32 bits")
	}
	j, p := e.j, int64(n)
	switch {
	case e.caller.Operator:
	case p > j.Priority:
		return denied("only operators may raise a priority")
	case p > 0 && !j.Fixed && e.t.feature >= FeatureSched:
		return denied("the priority of job " + j.Name() + " is worked out, and one that is set stands above those: only operators may set it; to let others go first raise Nice, or hold it with Priority=0")
	}
	switch {
	case p == 0 && e.caller.Operator:
		j.HeldBy = HoldAdmin
	case p == 0:
		j.HeldBy = max(j.HeldBy, HoldUser)
	default:
		j.HeldBy = HoldNone
		j.happen(job.EventRelease)
	}
	j.Priority, j.Reason, j.Detail = p, "", ""
	j.Fixed = p > 0 && e.t.feature >= FeatureSched
	return nil
}

// setNice moves the priority by how much the nice value moves. Users may only raise it.
func setNice(e *jobEdit, key, value string) *Refusal {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return badValue(key, value, "a number")
	}
	if int32(n) < e.spec.Nice && !e.caller.Operator {
		return denied("only operators may lower a nice value")
	}
	if e.j.Priority > 0 && !e.j.Fixed {
		e.j.Priority = max(1, e.j.Priority+int64(e.spec.Nice)-n)
	}
	e.spec.Nice = int32(n)
	return nil
}

func setAdminComment(e *jobEdit, key, value string) *Refusal {
	if len(value) > job.MaxString {
		return badValue(key, fmt.Sprintf("of %d bytes", len(value)), fmt.Sprintf("at most MaxString=%d bytes", job.MaxString))
	}
	e.j.Comment = value
	return nil
}

func setJobPartition(e *jobEdit, _, value string) *Refusal {
	if r := e.t.mayUsePartitions(value); r != nil {
		return r
	}
	if value == "" {
		value = e.t.DefaultPartition().Name
	}
	e.spec.Partition = value
	return nil
}

// unixDigits is the least number of digits that are read as Unix ms and not as a date.
const unixDigits = 10

// setBegin takes Unix ms, or an instant in UTC, relative ones to the state's clock.
func setBegin(e *jobEdit, key, value string) *Refusal {
	if ms, err := strconv.ParseInt(value, 10, 64); err == nil && len(value) >= unixDigits && ms > 0 {
		e.spec.Begin, e.j.Begin = ms, ms
		return nil
	}
	at, err := job.ParseInstant(value, time.UnixMilli(e.t.now).UTC())
	if err != nil {
		return badValue(key, value, "a time: "+err.Error())
	}
	e.spec.Begin = at.UnixMilli()
	e.j.Begin = e.spec.Begin
	return nil
}

func setThrottle(e *jobEdit, key, value string) *Refusal {
	if e.j.ArrayID == 0 {
		return refuse("ESLURM_NOT_ARRAY", "Job is not an array", fmt.Sprintf("job %s has no tasks to throttle", e.j.Name()))
	}
	e.t.capacity++
	return setNumber(&e.j.ArrayLimit, key, value)
}

// setNodes takes n, or min-max.
func setNodes(e *jobEdit, key, value string) *Refusal {
	low, high, ranged := strings.Cut(value, "-")
	if r := setNumber(&e.spec.MinNodes, key, low); r != nil {
		return r
	}
	if e.spec.MaxNodes = e.spec.MinNodes; ranged {
		return setNumber(&e.spec.MaxNodes, key, high)
	}
	return nil
}

// setCPUs takes how many CPUs the job needs: as many tasks as that takes.
func setCPUs(e *jobEdit, key, value string) *Refusal {
	var n uint32
	low, _, _ := strings.Cut(value, "-")
	if r := setNumber(&n, key, low); r != nil {
		return r
	}
	per := max(e.spec.CPUsPerTask, 1)
	if n == 0 || n%per != 0 {
		return badValue(key, value, fmt.Sprintf("a multiple of the job's %d CPUs a task", per))
	}
	e.spec.NTasks = n / per
	return nil
}

func setMemNode(e *jobEdit, key, value string) *Refusal {
	bytes, err := job.ParseMem(value)
	if err != nil {
		return badValue(key, value, "a size: "+err.Error())
	}
	if bytes == 0 {
		bytes = job.WholeNode
	}
	e.spec.MemPerNode, e.spec.MemPerCPU = bytes, 0
	return nil
}

func setMemCPU(e *jobEdit, key, value string) *Refusal {
	bytes, err := job.ParseMem(value)
	if err != nil {
		return badValue(key, value, "a size: "+err.Error())
	}
	e.spec.MemPerNode, e.spec.MemPerCPU = 0, bytes
	return nil
}

func setTmpDisk(e *jobEdit, key, value string) *Refusal {
	bytes, err := job.ParseMem(value)
	if err != nil {
		return badValue(key, value, "a size: "+err.Error())
	}
	e.spec.MinTmpDisk = bytes
	return nil
}

func setRequeue(e *jobEdit, key, value string) *Refusal {
	var again bool
	if r := setFlag(&again, key, value); r != nil {
		return r
	}
	if e.spec.Requeue = -1; again {
		e.spec.Requeue = 1
	}
	return nil
}

func setDependency(e *jobEdit, _, value string) *Refusal {
	if _, err := job.ParseDependency(value); err != nil {
		return dependencyProblem(err.Error())
	}
	e.spec.Dependency = value
	return nil
}

// setGres takes a list as --gres does, or as TresPerNode shows it: "gres:gpu:2", "gres/gpu:2".
func setGres(e *jobEdit, key, value string) *Refusal {
	words := strings.Split(value, ",")
	for i := range words {
		words[i] = strings.TrimPrefix(strings.TrimPrefix(words[i], "gres:"), "gres/")
	}
	value = strings.Join(words, ",")
	if _, err := gres.Parse(value); err != nil {
		return badValue(key, value, "a list of resources: "+err.Error())
	}
	e.spec.Gres = value
	return nil
}
