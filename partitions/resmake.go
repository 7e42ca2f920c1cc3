package partitions

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// ResNode is a node as reservations see it.
type ResNode struct {
	Name       string
	CPUs       uint32
	Cores      uint32 // physical cores
	Features   []string
	Partitions []string
	Up         bool
	Busy       bool  // jobs run on it
	BusyUntil  int64 // when the last of them ends by its limit, Unix ms; 0 = not known
}

// ResEnv is what a reservation is made in.
type ResEnv struct {
	Nodes            []ResNode // configuration order
	Partitions       []string
	DefaultPartition string
	Licenses         []job.License
	Reservations     []*Reservation               // all others
	Known            func(kind, name string) bool // user, group, account, qos; nil = all are
}

const (
	codeReservation = "ESLURM_RESERVATION_INVALID"
	textReservation = "Requested reservation is invalid"
	textTime        = "Invalid time specified"
	textUnsupported = "Requested operation not supported on this system"
	// maxPast is how far in the past a reservation may begin: a request takes its time from user to log.
	maxPast = 5 * minute
	// endless is the length of a reservation with Duration=INFINITE, as Slurm's: a year.
	endless = 365 * day
	// maxList bounds the names in one list of a reservation.
	maxList = 4096
)

func badReservation(format string, args ...any) *Refusal {
	return refuse(codeReservation, textReservation, format, args...)
}

// resFlags are the flags that a reservation may have.
var resFlags = []string{"ANY_NODES", "DAILY", "FLEX", "HOURLY", "IGNORE_JOBS", "LICENSE_ONLY", "MAGNETIC", "MAINT", "NO_HOLD_JOBS_AFTER", "OVERLAP", "PART_NODES",
	"PURGE_COMP", "SPEC_NODES", "STATIC_ALLOC", "TIME_FLOAT", "USER_DELETE", "WEEKDAY", "WEEKEND", "WEEKLY"}

// resNot are Slurm's flags that are refused, with what to do instead.
var resNot = map[string]string{
	"REPLACE":      "nodes of a reservation are not exchanged when jobs take them; use NodeCnt with as many nodes as the jobs need",
	"REPLACE_DOWN": "nodes of a reservation are not exchanged when they fail; update its NodeCnt to choose again",
	"FORCE_START":  "a reservation begins at its StartTime",
	"FIRST_CORES":  "whole nodes are reserved",
	"ALL_NODES":    "use Nodes=ALL",
}

// resAlias are other words for flags.
var resAlias = map[string]string{"NO_HOLD_JOBS_AFTER_END": "NO_HOLD_JOBS_AFTER", "NO_HOLD_JOBS": "NO_HOLD_JOBS_AFTER", "MAINTENANCE": "MAINT", "IGNORE_RUNNING_JOBS": "IGNORE_JOBS", "LICENSES_ONLY": "LICENSE_ONLY", "STATIC": "STATIC_ALLOC"}

// resEdit is a reservation in the making.
type resEdit struct {
	*Reservation
	now      int64
	env      *ResEnv
	fresh    bool // it is being created
	duration int64
	ended    bool // EndTime was given
	started  bool
	names    string // Nodes as given, with its operator
	nodesOp  string
	chooses  bool     // what decides about nodes was given
	before   []string // nodes that it has already
	counted  bool     // NodeCnt or CoreCnt was given
}

// NewReservation makes a reservation of scontrol's words (names in lower case), or refuses them: which word, and what would be
// right. Times are Unix ms or Slurm's words, then in UTC; durations minutes or D-H:M:S. An empty name is chosen after the first user or
// account.
func NewReservation(name string, set []accounting.Clause, now int64, env ResEnv) (*Reservation, *Refusal) {
	r := &Reservation{Name: name}
	if strings.ContainsAny(name, ", =\t\n") || len(name) > 64 {
		return nil, badReservation("%q cannot be the name of a reservation: at most 64 bytes without blanks, commas and =", name)
	}
	e := &resEdit{Reservation: r, now: now, env: &env, fresh: true, duration: -1}
	if refusal := e.apply(set); refusal != nil {
		return nil, refusal
	}
	if r.Name == "" {
		r.Name = e.freeName()
	}
	if slices.ContainsFunc(env.Reservations, func(o *Reservation) bool { return o.Name == r.Name }) {
		return nil, refuse("ESLURM_RESERVATION_NAME_DUP", "Duplicate reservation name", "reservation %s exists", r.Name)
	}
	return r, nil
}

// Update is the reservation with some of it changed, under the same rules; lists take += and -=.
func (r *Reservation) Update(set []accounting.Clause, now int64, env ResEnv) (*Reservation, *Refusal) {
	changed := *r
	e := &resEdit{Reservation: &changed, now: now, env: &env, duration: -1, before: r.Nodes}
	if refusal := e.apply(set); refusal != nil {
		return nil, refusal
	}
	return &changed, nil
}

func (e *resEdit) freeName() string {
	base := "resv"
	for _, list := range [][]string{e.Users, e.Groups, e.Accounts} {
		if len(list) > 0 {
			base = strings.TrimPrefix(list[0], "-")
			break
		}
	}
	for n := 1; ; n++ {
		name := base + "_" + strconv.Itoa(n)
		if !slices.ContainsFunc(e.env.Reservations, func(o *Reservation) bool { return o.Name == name }) {
			return name
		}
	}
}

func (e *resEdit) apply(set []accounting.Clause) *Refusal {
	if len(set) == 0 && !e.fresh {
		return badReservation("nothing to change was given")
	}
	for _, c := range set {
		if refusal := e.set(c); refusal != nil {
			return refusal
		}
	}
	if refusal := e.times(); refusal != nil {
		return refusal
	}
	if refusal := e.whole(); refusal != nil {
		return refusal
	}
	if refusal := e.nodes(); refusal != nil {
		return refusal
	}
	return e.licenses()
}

// set reads one word.
func (e *resEdit) set(c accounting.Clause) (refusal *Refusal) {
	name := strings.ToLower(c.Name)
	if c.Op != "=" && c.Op != "+=" && c.Op != "-=" {
		return badReservation("%q has no value: NAME=VALUE", c.Name)
	}
	if c.Op != "=" && !slices.Contains([]string{"users", "user", "groups", "group", "accounts", "account", "qos", "flags", "nodes", "node"}, name) {
		return badReservation("%s%s%s: only lists take += and -=", c.Name, c.Op, c.Value)
	}
	switch name {
	case "starttime":
		e.Start, refusal = e.instant(c)
		e.started = true
	case "endtime":
		e.End, refusal = e.instant(c)
		e.ended = true
	case "duration":
		e.duration, refusal = resDuration(c)
	case "nodes", "node":
		e.names, e.nodesOp, e.chooses = c.Value, c.Op, true
	case "nodecnt", "nodecount":
		e.NodeCnt, refusal = resNumber(c)
		e.chooses, e.counted = true, true
	case "corecnt":
		e.CoreCnt, refusal = resNumber(c)
		e.chooses, e.counted = true, true
	case "features", "feature":
		e.Features, e.chooses = c.Value, true
	case "partitionname", "partition":
		e.Partition, e.chooses = c.Value, true
		if c.Value != "" && !slices.Contains(e.env.Partitions, c.Value) {
			refusal = refuse("ESLURM_INVALID_PARTITION_NAME", "Invalid partition name specified", "there is no partition %q", c.Value)
		}
	case "users", "user":
		refusal = e.list("user", &e.Users, c)
	case "groups", "group":
		refusal = e.list("group", &e.Groups, c)
	case "accounts", "account":
		refusal = e.list("account", &e.Accounts, c)
	case "qos":
		refusal = e.list("qos", &e.QOS, c)
	case "licenses", "license":
		var err error
		if e.Licenses, err = job.ParseLicenses(c.Value); err != nil {
			refusal = refuse("ESLURM_INVALID_LICENSES", "Invalid license specification", "%v", err)
		}
	case "flags", "flag":
		refusal = e.flags(c)
	case "maxstartdelay":
		if e.MaxStartDelay, refusal = resDuration(c); refusal == nil && e.MaxStartDelay > 0 {
			refusal = refuse("ESLURM_NOT_SUPPORTED", textUnsupported, "MaxStartDelay is not supported: jobs that do not name the reservation stay off its nodes")
		}
	case "tres":
		refusal = e.tres(c)
	case "comment":
		if e.Comment = c.Value; len(c.Value) > 4096 || strings.ContainsAny(c.Value, "\n\x00") {
			refusal = badReservation("comment: at most 4096 bytes without line ends")
		}
	default:
		refusal = badReservation("%q is nothing that a reservation could have; it has StartTime, EndTime or Duration, Nodes, NodeCnt or CoreCnt, Features, PartitionName, Users, Groups, Accounts, QOS, Licenses, TRES, Flags, MaxStartDelay, Comment", c.Name)
	}
	return refusal
}

// instant is a time as Unix ms, of ten digits or more, or in Slurm's words.
func (e *resEdit) instant(c accounting.Clause) (int64, *Refusal) {
	if n, err := strconv.ParseInt(c.Value, 10, 64); err == nil && len(c.Value) >= 10 && n > 0 && n < 1<<43 {
		return n, nil
	}
	at, err := job.ParseInstant(c.Value, time.UnixMilli(e.now).UTC())
	if err != nil {
		return 0, refuse("ESLURM_INVALID_TIME_VALUE", textTime, "%s=%s: %v", c.Name, c.Value, err)
	}
	return at.UnixMilli(), nil
}

func resDuration(c accounting.Clause) (int64, *Refusal) {
	ms, err := job.ParseDuration(c.Value)
	if err != nil {
		return 0, refuse("ESLURM_INVALID_TIME_VALUE", textTime, "%s=%s: %v", c.Name, c.Value, err)
	}
	if ms == job.Unlimited {
		ms = endless
	}
	return ms, nil
}

func resNumber(c accounting.Clause) (uint32, *Refusal) {
	n, err := strconv.ParseUint(c.Value, 10, 32)
	if err != nil || n > math.MaxInt32 {
		return 0, badReservation("%s=%s: a whole number from 0 to %d was expected", c.Name, c.Value, math.MaxInt32)
	}
	return uint32(n), nil
}

// list changes a list of names: all of it allows, or all of it denies.
func (e *resEdit) list(kind string, into *[]string, c accounting.Clause) *Refusal {
	out := slices.Clone(*into)
	if c.Op == "=" {
		out = nil
	}
	for word := range strings.SplitSeq(c.Value, ",") {
		word = strings.TrimSpace(word)
		if kind == "account" || kind == "qos" {
			word = strings.ToLower(word)
		}
		name := strings.TrimPrefix(word, "-")
		switch {
		case name == "" && word == "":
			continue
		case name == "" || strings.ContainsAny(name, " \t=|"):
			return badReservation("%s: %q is no name", c.Name, word)
		case c.Op == "-=":
			if !slices.Contains(out, word) {
				return badReservation("%s-=%s: it is not in the list", c.Name, word)
			}
			out = slices.DeleteFunc(out, func(w string) bool { return w == word })
			continue
		case e.env.Known != nil && !e.env.Known(kind, name):
			return badReservation("%s: there is no %s %q", c.Name, kind, name)
		}
		if !slices.Contains(out, word) {
			out = append(out, word)
		}
	}
	slices.Sort(out)
	for _, word := range out {
		if (word[0] == '-') != denies(out) {
			return badReservation("%s: a list allows, or it denies with a - before each name; %s does both", c.Name, strings.Join(out, ","))
		}
	}
	if len(out) > maxList {
		return badReservation("%s: more than %d names", c.Name, maxList)
	}
	*into = out
	return nil
}

func (e *resEdit) flags(c accounting.Clause) *Refusal {
	out := slices.Clone(e.Flags)
	if c.Op == "=" {
		out, e.PurgeAfter = nil, 0
	}
	for word := range strings.SplitSeq(c.Value, ",") {
		word, text, timed := strings.Cut(strings.TrimSpace(word), "=")
		if word == "" {
			continue
		}
		word = strings.ToUpper(word)
		remove := c.Op == "-="
		if after, minus := strings.CutPrefix(word, "-"); minus {
			word, remove = after, true
		}
		word = strings.TrimPrefix(word, "+")
		if other, found := resAlias[word]; found {
			word = other
		}
		if why, refused := resNot[word]; refused && !remove {
			return refuse("ESLURM_NOT_SUPPORTED", textUnsupported, "flag %s is not supported: %s", word, why)
		}
		if !slices.Contains(resFlags, word) || timed && word != "PURGE_COMP" {
			return badReservation("flags: %q is none of %s", word, strings.Join(resFlags, ", "))
		}
		if word == "TIME_FLOAT" && !e.fresh && remove == e.Has(word) {
			return badReservation("flag TIME_FLOAT can only be given when the reservation is made")
		}
		out = slices.DeleteFunc(out, func(f string) bool { return f == word })
		if word == "PURGE_COMP" {
			e.PurgeAfter = 0
		}
		if remove {
			continue
		}
		out = append(out, word)
		if word == "PURGE_COMP" {
			e.PurgeAfter = 5 * minute // as Slurm, when no time is given
			if timed {
				ms, refusal := resDuration(accounting.Clause{Name: "PURGE_COMP", Value: text})
				if refusal != nil || ms == 0 {
					return badReservation("flags: PURGE_COMP=%s: a time over 0 was expected", text)
				}
				e.PurgeAfter = ms
			}
		}
		if word == "ANY_NODES" || word == "PART_NODES" {
			e.chooses = true
		}
	}
	slices.Sort(out)
	e.Flags = out
	return nil
}

// tres reads TRES=node=4,license/x=2; what can be asked for in another way stands in its field.
func (e *resEdit) tres(c accounting.Clause) *Refusal {
	t, err := accounting.ParseTRES(c.Value)
	if err != nil {
		return badReservation("TRES=%s: %v", c.Value, err)
	}
	for _, a := range t {
		name, license := strings.CutPrefix(a.Name, "license/")
		switch {
		case a.N > math.MaxInt32:
			return badReservation("TRES: %s=%d is too large", a.Name, a.N)
		case a.Name == "node":
			e.NodeCnt, e.chooses, e.counted = uint32(a.N), true, true
		case a.Name == "cpu":
			e.CoreCnt, e.chooses, e.counted = uint32(a.N), true, true
		case license:
			e.Licenses = slices.DeleteFunc(slices.Clone(e.Licenses), func(l job.License) bool { return l.Name == name })
			e.Licenses = append(e.Licenses, job.License{Name: name, Count: uint64(a.N)})
			slices.SortFunc(e.Licenses, func(a, b job.License) int { return strings.Compare(a.Name, b.Name) })
		default:
			return refuse("ESLURM_NOT_SUPPORTED", textUnsupported, "TRES: %s cannot be reserved; node, cpu (in whole nodes) and license/NAME can", a.Name)
		}
	}
	e.TRES = t.String()
	return nil
}

// times works out and checks start and end.
func (e *resEdit) times() *Refusal {
	const code = "ESLURM_INVALID_TIME_VALUE"
	switch {
	case e.fresh && !e.started:
		return refuse(code, textTime, "a reservation needs a StartTime")
	case e.fresh && !e.ended && e.duration < 0:
		return refuse(code, textTime, "a reservation needs an EndTime or a Duration")
	case e.duration >= 0 && e.ended && e.End != e.Start+e.duration:
		return refuse(code, textTime, "EndTime and Duration do not agree; one of them is enough")
	case e.duration >= 0:
		e.End = e.Start + e.duration
	}
	length := e.End - e.Start
	switch {
	case e.started && e.Start < e.now-maxPast:
		return refuse(code, textTime, "StartTime %s has passed", utc(e.Start))
	case length <= 0:
		return refuse(code, textTime, "the reservation would end (%s) before it begins (%s)", utc(e.End), utc(e.Start))
	case length > 10*endless:
		return refuse(code, textTime, "a reservation of more than ten years")
	case e.period() > 0 && length > e.period():
		return refuse(code, textTime, "it lasts %s and would come again after %s", job.FormatDuration(length), job.FormatDuration(e.period()))
	case e.period() == 0 && e.End <= e.now:
		return refuse(code, textTime, "the reservation would be over: its end is %s", utc(e.End))
	}
	if e.Has("TIME_FLOAT") && (e.fresh || e.started) {
		e.Float = max(e.Start-e.now, 0)
	}
	return nil
}

func utc(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05Z") }

// whole checks what belongs together.
func (e *resEdit) whole() *Refusal {
	repeats := 0
	for _, f := range []string{"HOURLY", "DAILY", "WEEKLY", "WEEKDAY", "WEEKEND", "TIME_FLOAT"} {
		if e.Has(f) {
			repeats++
		}
	}
	switch {
	case len(e.Users)+len(e.Groups)+len(e.Accounts)+len(e.QOS) == 0:
		return refuse("ESLURM_RESERVATION_USERS", textReservation, "a reservation needs Users, Groups, Accounts or QOS that may use it")
	case len(e.Users) > 0 && len(e.Groups) > 0:
		return badReservation("Users and Groups exclude each other")
	case repeats > 1:
		return badReservation("HOURLY, DAILY, WEEKLY, WEEKDAY, WEEKEND and TIME_FLOAT exclude each other")
	case e.Has("PART_NODES") && (e.Partition == "" || e.NodeCnt > 0):
		return badReservation("flag PART_NODES needs PartitionName and Nodes=ALL")
	case e.Has("LICENSE_ONLY") && len(e.Licenses) == 0:
		return badReservation("flag LICENSE_ONLY needs Licenses")
	case e.Has("LICENSE_ONLY") && (e.NodeCnt > 0 || e.CoreCnt > 0 || e.names != ""):
		return badReservation("flag LICENSE_ONLY reserves no nodes")
	case e.Has("ANY_NODES") && e.Partition != "":
		return badReservation("flag ANY_NODES takes nodes of any partition, PartitionName=%s of one", e.Partition)
	}
	if e.Features != "" {
		f, err := ParseFeatures(e.Features)
		if err != nil {
			return refuse("ESLURM_INVALID_FEATURE", "Invalid feature specification", "%v", err)
		}
		if !f.Plain() {
			return refuse("ESLURM_INVALID_FEATURE", "Invalid feature specification", "Features=%s: a reservation takes names joined by & and |", e.Features)
		}
	}
	return nil
}
