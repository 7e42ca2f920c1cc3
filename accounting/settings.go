package accounting

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// set applies a setting of the person; known is false when it is none.
func (u *User) set(c Clause) (known bool, r *Refusal) {
	switch c.Name {
	case "adminlevel", "admin":
		for _, level := range []string{levelNone, levelOperator, levelAdmin} {
			if len(c.Value) > 0 && len(c.Value) <= len(level) && strings.EqualFold(level[:len(c.Value)], c.Value) {
				u.Level = level
				return true, plain(c)
			}
		}
		return true, badValue("%s=%s: a level is None, Operator or Administrator", c.Name, c.Value)
	case "comment":
		u.Comment = c.Value
		return true, freeText(c)
	}
	return false, nil
}

func (a *Account) set(c Clause) (known bool, r *Refusal) {
	switch c.Name {
	case "description", "desc", "descr":
		a.Description = c.Value
	case "organization", "org":
		a.Organization = c.Value
	default:
		return false, nil
	}
	return true, freeText(c)
}

// MaxText bounds a comment or a description, in bytes.
const MaxText = 4096

func freeText(c Clause) *Refusal {
	if len(c.Value) > MaxText || strings.ContainsAny(c.Value, "\n\x00") {
		return badValue("%s: a text has at most %d bytes and no line ends", c.Name, MaxText)
	}
	return plain(c)
}

// plain refuses += and -= where only = has a meaning.
func plain(c Clause) *Refusal {
	if c.Op == "+=" || c.Op == "-=" {
		return badValue("%s%s%s: only lists of QOS, preemption and flags take += and -=", c.Name, c.Op, c.Value)
	}
	return nil
}

// count reads a whole number from 0 to most; -1 gives none.
func count(c Clause, most, none int64) (int64, *Refusal) {
	if r := plain(c); r != nil {
		return 0, r
	}
	if c.Value == "-1" {
		return none, nil
	}
	n, err := strconv.ParseUint(c.Value, 10, 63)
	if err != nil || int64(n) > most {
		return 0, badValue("%s=%s: a whole number from 0 to %d was expected, or -1 for none", c.Name, c.Value, most)
	}
	return int64(n), nil
}

// setAssociation applies a setting of an association.
func (d *DB) setAssociation(a *Association, c Clause) (known bool, r *Refusal) {
	switch c.Name {
	case "fairshare", "share", "shares":
		if strings.EqualFold(c.Value, "parent") {
			a.Shares = ParentShare
			return true, plain(c)
		}
		a.Shares, r = count(c, math.MaxInt32, 1)
	case "priority":
		var n int64
		n, r = count(c, math.MaxUint32, 0)
		a.Priority = uint32(n)
	case "defaultqos", "defqos":
		a.DefaultQOS = strings.ToLower(c.Value)
		if c.Value == "-1" {
			a.DefaultQOS = ""
		}
		if r = plain(c); r == nil && a.DefaultQOS != "" && d.QOS(a.DefaultQOS) == nil {
			r = d.noQOS(a.DefaultQOS)
		}
	case "qos", "qoslevel":
		a.QOS, r = d.qosList(c, d.inherited(a))
		if a.QOS == nil && a.Account == Root && a.User == "" {
			a.QOS = []string{}
		}
	case "comment":
		a.Comment, r = c.Value, freeText(c)
	default:
		return setLimit(&a.Limits, onAssociation, c)
	}
	return true, r
}

// inherited is the list that += and -= start from: the association's own, or the one that holds for it.
func (d *DB) inherited(a *Association) []string {
	if a.QOS != nil {
		return a.QOS
	}
	return d.QOSOf(d.Association(a.Parent))
}

// qosList applies =, += or -= to a list of QOS; words may have a + or - of their own. Nothing, or -1, gives nil.
func (d *DB) qosList(c Clause, have []string) ([]string, *Refusal) {
	if c.Op == "=" && (c.Value == "" || c.Value == "-1") {
		return nil, nil
	}
	list := slices.Clone(have)
	for i, word := range split(c.Value) {
		op := c.Op
		switch word[0] {
		case '+':
			op, word = "+=", word[1:]
		case '-':
			op, word = "-=", word[1:]
		}
		word = strings.ToLower(word)
		if d.QOS(word) == nil {
			return nil, d.noQOS(word)
		}
		if op == "=" && i == 0 {
			list = nil
		}
		if op == "-=" {
			list = slices.DeleteFunc(list, func(q string) bool { return q == word })
		} else if !slices.Contains(list, word) {
			list = append(list, word)
		}
	}
	slices.Sort(list)
	return append([]string{}, list...), nil
}

// limitByName finds a limit by any of its names; tres is set when the name stands for one resource of it.
func limitByName(name string, on int) (f *limitField, tres string) {
	if old, found := oldLimits[name]; found {
		name, tres = old[0], old[1]
	}
	for i := range limitFields {
		if f := &limitFields[i]; f.on&on != 0 && (f.key == name || slices.Contains(f.others, name)) {
			return f, tres
		}
	}
	return nil, ""
}

// notHonoured are the limits that nothing acts on yet: they are refused, so that nobody relies on them.
var notHonoured = []string{"GrpJobsAccrue", "MaxJobsAccrue", "MaxJobsAccruePerUser", "MaxJobsAccruePerAccount", "MinPrioThreshold"}

// setLimit applies a limit. Of a vector only the resources that are named change; -1 takes one, or all, away.
func setLimit(l *Limits, on int, c Clause) (known bool, r *Refusal) {
	f, tres := limitByName(c.Name, on)
	if f == nil {
		return false, nil
	}
	if r := plain(c); r != nil {
		return true, r
	}
	if slices.Contains(notHonoured, f.name) && c.Value != "-1" {
		return true, refuse("ESLURM_NOT_SUPPORTED", "Requested operation not supported on this system", "%s is not supported: nothing would act on it", f.name)
	}
	switch f.kind {
	case limitTRES:
		return true, setVector(f.tres(l), tres, c)
	case limitMinutes:
		ms, err := job.ParseDuration(c.Value)
		if err != nil {
			return true, badValue("%s=%s: %v", c.Name, c.Value, err)
		}
		*f.number(l) = ms
	default:
		*f.number(l), r = count(c, math.MaxInt32, Unset)
	}
	return true, r
}

func setVector(into *TRES, tres string, c Clause) *Refusal {
	text := c.Value
	if tres != "" {
		text = tres + "=" + text
	}
	if text == "-1" || text == "" {
		*into = nil
		return nil
	}
	t, err := ParseLimitTRES(text)
	if err != nil {
		return badValue("%s=%s: %v", c.Name, c.Value, err)
	}
	out := *into
	for _, a := range t {
		if a.N == Unset {
			out = out.without(a.Name)
		} else {
			out = out.with(a.Name, a.N)
		}
	}
	if *into = out; len(out) > MaxTRESNames {
		return badValue("%s: more than MaxTRESNames=%d resources", c.Name, MaxTRESNames)
	}
	return nil
}

// qosFlags are the flags of a QOS, as Slurm writes them. A job that could never keep to a limit is refused with or without
// DenyOnLimit.
var qosFlags = []string{"DenyOnLimit", "NoDecay", "NoReserve", "OverPartQOS", "RequiresReservation", "UsageFactorSafe"}

// qosFlagsNot are Slurm's flags that nothing acts on.
var qosFlagsNot = []string{"EnforceUsageThreshold", "PartitionMaxNodes", "PartitionMinNodes", "PartitionTimeLimit", "Relative"}

// setQOS applies a setting of a QOS.
func (d *DB) setQOS(q *QOS, c Clause) (known bool, r *Refusal) {
	switch c.Name {
	case "description", "desc":
		q.Description, r = c.Value, freeText(c)
	case "priority":
		var n int64
		n, r = count(c, math.MaxUint32, 0)
		q.Priority = uint32(n)
	case "preempt":
		q.Preempt, r = d.qosList(c, q.Preempt)
		if len(q.Preempt) == 0 {
			q.Preempt = nil
		}
	case "preemptmode":
		q.PreemptMode, r = preemptMode(c)
	case "preemptexempttime":
		q.PreemptExempt, r = exemptTime(c)
	case "gracetime":
		q.Grace, r = graceTime(c)
	case "usagefactor":
		q.UsageFactor, r = factor(c, billingUnit)
	case "limitfactor":
		q.LimitFactor, r = factor(c, Unset)
	case "usagethreshold", "usagethres":
		if c.Value != "-1" {
			r = refuse("ESLURM_NOT_SUPPORTED", "Requested operation not supported on this system", "UsageThreshold is not supported: nothing would act on it")
		}
	case "flags":
		q.Flags, r = flagList(c, q.Flags)
	default:
		return setLimit(&q.Limits, onQOS, c)
	}
	return true, r
}

func preemptMode(c Clause) (string, *Refusal) {
	switch mode := strings.ToUpper(c.Value); mode {
	case "", "-1", "CLUSTER":
		return "", plain(c)
	case "OFF", "CANCEL", "REQUEUE", "SUSPEND":
		return mode, plain(c)
	}
	return "", badValue("preemptmode=%s: use cluster, off, cancel, requeue or suspend", c.Value)
}

// exemptTime is a time as --time takes it; -1 gives the cluster's.
func exemptTime(c Clause) (int64, *Refusal) {
	if r := plain(c); r != nil || c.Value == "-1" || c.Value == "" {
		return Unset, r
	}
	ms, err := job.ParseDuration(c.Value)
	if err != nil {
		return 0, badValue("%s=%s: %v", c.Name, c.Value, err)
	}
	return ms, nil
}

// graceTime is in seconds, or a time with colons.
func graceTime(c Clause) (int64, *Refusal) {
	if strings.ContainsAny(c.Value, ":-") && c.Value != "-1" {
		return exemptTime(c)
	}
	n, r := count(c, math.MaxInt32, 0)
	return n * 1000, r
}

func factor(c Clause, none int64) (int64, *Refusal) {
	if r := plain(c); r != nil || c.Value == "-1" || c.Value == "" {
		return none, r
	}
	n, err := ParseFixed(c.Value)
	if err != nil || n > 1_000_000*billingUnit {
		return 0, badValue("%s=%s: a number from 0 to 1000000 was expected, or -1 for none", c.Name, c.Value)
	}
	return n, nil
}

func flagList(c Clause, have []string) ([]string, *Refusal) {
	list := slices.Clone(have)
	if c.Op != "+=" && c.Op != "-=" {
		if list = nil; c.Value == "-1" {
			return nil, nil
		}
	}
	for _, word := range split(c.Value) {
		if slices.ContainsFunc(qosFlagsNot, func(f string) bool { return strings.EqualFold(f, word) }) && c.Op != "-=" {
			return nil, refuse("ESLURM_NOT_SUPPORTED", "Requested operation not supported on this system", "flag %s is not supported: nothing would act on it", word)
		}
		i := slices.IndexFunc(qosFlags, func(f string) bool { return strings.EqualFold(f, word) })
		if i < 0 {
			return nil, badValue("flags: %q is none of %s", word, strings.Join(qosFlags, ", "))
		}
		list = slices.DeleteFunc(list, func(f string) bool { return f == qosFlags[i] })
		if c.Op != "-=" {
			list = append(list, qosFlags[i])
		}
	}
	slices.Sort(list)
	return list, nil
}

// settingNames are what can be set, for hints.
func settingNames(on int) []string {
	list := []string{"priority"}
	if on == onQOS {
		list = append(list, "description", "preempt", "preemptmode", "preemptexempttime", "gracetime", "usagefactor", "limitfactor", "flags")
	} else {
		list = append(list, "fairshare", "defaultqos", "qos", "comment", "parent", "description", "organization", "defaultaccount", "adminlevel")
	}
	for i := range limitFields {
		if limitFields[i].on&on != 0 {
			list = append(append(list, limitFields[i].key), limitFields[i].others...)
		}
	}
	return list
}

// rawUsage is the setting that forgets what was used.
const rawUsage = "rawusage"

// resets refuses a rawusage that is none: usage is counted, and can only be forgotten.
func (s *selection) resets(c Clause) *Refusal {
	if s.verb != "modify" || c.Op != "=" || c.Value != "0" {
		return badValue("%s%s%s: usage is counted; modify ... set rawusage=0 forgets it", c.Name, c.Op, c.Value)
	}
	return nil
}
