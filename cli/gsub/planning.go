package gsub

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// planningOptions say where, when and for how much a job runs. They travel as rare options, in the form that
// job.Extra reads.
func planningOptions() []entry {
	number := func(name string) setter {
		return func(r *request, v string) error { return r.keepNumber(name, v) }
	}
	yes := func(name string) setter {
		return func(r *request, _ string) error { r.keep(name, "yes"); return nil }
	}
	return []entry{
		value(job.OptBid, 0, "TOKENS", "", "tokens for a billing unit and hour; ranks within the QOS", setBid),
		flag(job.OptContiguous, 0, "", "only nodes beside each other", yes(job.OptContiguous)),
		value(job.OptCores, 0, "N", "", "only nodes with so many cores in a socket", number(job.OptCores)),
		value(job.OptDeadline, 0, "TIME", "", "it must end by then, as now+2hours; refused when no plan meets it", setDeadline),
		value("extra-node-info", 'B', "S[:C[:T]]", "", "least sockets, cores of a socket, threads of a core", setGeometry),
		value(job.OptInvalidDep, 0, "yes|no", "", "end it when a dependency can never be met", setInvalidDep),
		value(job.OptLicenses, 'L', "LIST", "", "licenses, as matlab:2,ansys", setLicenses),
		flag(job.OptOvercommit, 'O', "OVERCOMMIT", "one CPU for each node, however many tasks", yes(job.OptOvercommit)),
		flag("oversubscribe", 's', "", "taken; what is shared is the partition's affair", yes("oversubscribe")).alias("share"),
		value(job.OptPrefer, 0, "LIST", "", "nodes with these features when they are free at once", setPrefer),
		value(job.OptReservation, 0, "LIST", "RESERVATION", "run in one of these reservations", setReservation),
		value(job.OptSegment, 0, "N", "SEGMENT_SIZE", "so many nodes at a time must share a block", number(job.OptSegment)),
		value(job.OptSockets, 0, "N", "", "only nodes with so many sockets", number(job.OptSockets)),
		flag(job.OptSpread, 0, "SPREAD_JOB", "over as many nodes as possible", yes(job.OptSpread)),
		value(job.OptSwitches, 0, "N[@TIME]", "REQ_SWITCH", "at most so many leaf switches; wait up to TIME for that", setSwitches),
		value(job.OptThreads, 0, "N", "THREADS_PER_CORE", "only nodes with so many threads in a core", number(job.OptThreads)),
		flag(job.OptFewNodes, 0, "USE_MIN_NODES", "of a range of nodes, as few as will do", yes(job.OptFewNodes)),
	}
}

// switchWait is the variable that gives --switches its time; no option stands for it.
const switchWait = "SBATCH_WAIT4SWITCH"

// keepNumber keeps a number from 1 on.
func (r *request) keepNumber(name, v string) error {
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil || n == 0 {
		return fmt.Errorf("Invalid numeric value %q for --%s.", v, name)
	}
	r.keep(name, strconv.FormatUint(n, 10))
	return nil
}

// maxBid bounds --bid in tokens, so that 10^-6 of it and the hours of a year stay numbers of 64 bits.
const maxBid = 1 << 32

// setBid reads tokens with up to six decimals and keeps millionths.
func setBid(r *request, v string) error {
	whole, frac, _ := strings.Cut(v, ".")
	n, err := strconv.ParseUint(whole, 10, 63)
	if err != nil || n > maxBid || len(frac) > 6 || strings.Trim(frac, "0123456789") != "" || strings.HasSuffix(v, ".") {
		return fmt.Errorf("Invalid --bid specification\n%q is no number of tokens from 0 to %d with up to six decimals", v, uint64(maxBid))
	}
	m, _ := strconv.ParseUint((frac + "000000")[:6], 10, 32) // digits only
	r.keep(job.OptBid, strconv.FormatUint(n*1_000_000+m, 10))
	return nil
}

func setDeadline(r *request, v string) error {
	t, err := job.ParseInstant(v, r.env.Now())
	if err != nil {
		return fmt.Errorf("Invalid --deadline specification\n%w", err)
	}
	if !t.After(r.env.Now()) {
		return fmt.Errorf("Invalid --deadline specification\n%s is over; give a time to come, as now+2hours", t.Format("2006-01-02T15:04:05"))
	}
	r.keep(job.OptDeadline, strconv.FormatInt(t.UnixMilli(), 10))
	return nil
}

// setGeometry reads -B; a star leaves a part out.
func setGeometry(r *request, v string) error {
	parts := strings.Split(v, ":")
	names := []string{job.OptSockets, job.OptCores, job.OptThreads}
	if len(parts) > len(names) {
		return fmt.Errorf("Invalid --extra-node-info specification\n%q is not SOCKETS[:CORES[:THREADS]]", v)
	}
	for i, p := range parts {
		if p == "*" {
			continue
		}
		if err := r.keepNumber(names[i], p); err != nil {
			return fmt.Errorf("Invalid --extra-node-info specification\n%q in %q is no number and no star", p, v)
		}
	}
	return nil
}

func setInvalidDep(r *request, v string) error {
	switch v {
	case "yes", "no":
		r.keep(job.OptInvalidDep, v)
		return nil
	}
	return fmt.Errorf("Invalid --kill-on-invalid-dep specification\n%q is neither yes nor no", v)
}

// setLicenses reads name[@server][:count]; the server is part of the name.
func setLicenses(r *request, v string) error {
	if strings.Contains(v, "|") {
		return &refusal{text: "Invalid license specification", why: fmt.Sprintf("%q: alternatives are not offered; name the licenses with commas", v)}
	}
	list, err := job.ParseLicenses(v)
	if err != nil || len(list) == 0 {
		why := fmt.Sprintf("%q names none", v)
		if err != nil {
			why = err.Error()
		}
		return &refusal{text: "Invalid license specification", why: why}
	}
	words := make([]string, len(list))
	for i, l := range list {
		words[i] = fmt.Sprintf("%s:%d", l.Name, l.Count)
	}
	r.keep(job.OptLicenses, strings.Join(words, ","))
	return nil
}

func setPrefer(r *request, v string) error {
	if strings.TrimSpace(v) == "" {
		return invalid("prefer")
	}
	r.keep(job.OptPrefer, v)
	return nil
}

func setReservation(r *request, v string) error {
	names := strings.Split(v, ",")
	if slices.Contains(names, "") {
		return fmt.Errorf("Invalid --reservation specification\n%q has an empty name", v)
	}
	r.keep(job.OptReservation, v)
	return nil
}

// setSwitches reads count[@time].
func setSwitches(r *request, v string) error {
	text, wait, timed := strings.Cut(v, "@")
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n == 0 {
		return fmt.Errorf("Invalid --switches specification\n%q is no number of switches", text)
	}
	if timed {
		if err := setSwitchWait(r, wait); err != nil {
			return err
		}
	}
	r.switches = text
	r.keepSwitches()
	return nil
}

// setSwitchWait takes the time of --switches.
func setSwitchWait(r *request, v string) error {
	ms, err := job.ParseTimeLimit(v)
	if err != nil || ms == job.Unlimited {
		return fmt.Errorf("Invalid --switches specification\n%q is no time to wait, as 30 or 1:00:00", v)
	}
	r.switchSeconds = ms / 1000
	r.keepSwitches()
	return nil
}

func (r *request) keepSwitches() {
	switch {
	case r.switches == "":
	case r.switchSeconds > 0:
		r.keep(job.OptSwitches, fmt.Sprintf("%s@%d", r.switches, r.switchSeconds))
	default:
		r.keep(job.OptSwitches, r.switches)
	}
}
