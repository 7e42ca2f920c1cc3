package conf

import (
	"slices"
	"strconv"
	"strings"
)

// Words that lists of the scheduler's keys may hold, lower case. From slurm.conf(5).
var (
	priorityFlags = []string{"accrue_always", "calculate_running", "depth_oblivious", "no_fair_tree", "incr_only", "max_tres", "max_tres_gres",
		"no_normal_all", "no_normal_assoc", "no_normal_part", "no_normal_qos", "no_normal_tres", "small_relative_to_time"}
	// Words that are taken and noted as without an effect, and of lists with other words those that have one.
	idleFlags      = []string{"calculate_running", "depth_oblivious", "incr_only"}
	idleEnforce    = []string{"wckeys", "nojobs", "nosteps"}
	idlePreempt    = []string{"gang", "priority"}
	preemptOptions = []string{"youngest_first", "min_exempt_priority", "send_user_signal"}
	dependOptions  = []string{"kill_invalid_depend"}
	schedOptions   = []string{"promises", "backfill", "estimates", "starvation", "bf_window", "bf_max_job_test", "bf_max_job_user", "sched_max_job_start",
		"max_sched_work", "work", "partition_sched_work", "partition_work", "max_preempting_jobs", "assoc_limit_stop", "kill_invalid_depend", "posted_price"}
	enforceWords = []string{"none", "associations", "limits", "qos", "safe", "wckeys", "nojobs", "nosteps", "all"}
	preemptModes = []string{"off", "cancel", "requeue", "suspend", "gang", "within", "priority"}
)

// scheduling checks what only makes sense together.
func (b *builder) scheduling() {
	c := b.cfg
	c.PreemptExemptTime = max(c.PreemptExemptTime, 0) // a time limit of 0 is read as none
	words := func(key string, list, known []string) {
		for _, w := range list {
			if !slices.Contains(known, strings.ToLower(w)) {
				at := b.at(key)
				b.r.problem(at.File, at.Line, "%s: %q is none of %s", key, clip(w), strings.Join(known, ", "))
			}
		}
	}
	words("PriorityFlags", c.PriorityFlags, priorityFlags)
	words("AccountingStorageEnforce", c.AccountingStorageEnforce, enforceWords)
	words("PreemptMode", c.PreemptMode, preemptModes)
	b.idle("PriorityFlags", c.PriorityFlags, func(w string) bool { return slices.Contains(idleFlags, w) })
	b.idle("AccountingStorageEnforce", c.AccountingStorageEnforce, func(w string) bool { return slices.Contains(idleEnforce, w) })
	b.idle("PreemptMode", c.PreemptMode, func(w string) bool { return slices.Contains(idlePreempt, w) })
	b.idle("PreemptParameters", c.PreemptParameters, func(w string) bool { return !slices.Contains(preemptOptions, w) })
	b.idle("DependencyParameters", c.DependencyParameters, func(w string) bool { return !slices.Contains(dependOptions, w) })
	b.idle("SchedulerParameters", c.SchedulerParameters, func(w string) bool { return !slices.Contains(schedOptions, w) })
	for i := range c.Partitions {
		words("partition "+c.Partitions[i].Name+": PreemptMode", c.Partitions[i].PreemptMode, preemptModes)
	}
	if uint64(c.PriorityWeightBid) > uint64(c.PriorityWeightAge)+uint64(c.PriorityWeightFairshare) {
		b.r.problem(c.Source, 0, "PriorityWeightBid=%d is over PriorityWeightAge + PriorityWeightFairshare = %d: a bid could never be overtaken",
			c.PriorityWeightBid, uint64(c.PriorityWeightAge)+uint64(c.PriorityWeightFairshare))
	}
	if c.PriorityWeightBid > 0 && !slices.ContainsFunc(c.SchedulerParameters, func(w string) bool {
		return strings.HasPrefix(strings.ToLower(w), "posted_price=")
	}) {
		b.r.problem(c.Source, 0, "PriorityWeightBid=%d needs SchedulerParameters=posted_price=N: a bid counts by how far it is above that", c.PriorityWeightBid)
	}
	if c.PriorityCalcPeriod <= 0 {
		b.r.problem(c.Source, 0, "PriorityCalcPeriod must be over 0")
	}
	if c.PriorityMaxAge <= 0 {
		b.r.problem(c.Source, 0, "PriorityMaxAge must be over 0")
	}
	seen := map[string]bool{}
	for _, l := range c.Licenses {
		name, count, ok := strings.Cut(l, ":")
		if !ok {
			count = "1"
		}
		n, err := strconv.ParseUint(count, 10, 31)
		switch {
		case !goodName(name) || err != nil || n == 0:
			b.r.problem(c.Source, 0, "Licenses: %q is not NAME:COUNT", clip(l))
		case seen[name]:
			b.r.problem(c.Source, 0, "Licenses: %s is named twice", name)
		}
		seen[name] = true
	}
}

// idle notes words of a list that have no effect.
func (b *builder) idle(key string, list []string, is func(word string) bool) {
	for _, w := range list {
		if name, _, _ := strings.Cut(strings.ToLower(w), "="); is(name) {
			at := b.at(key)
			at.Text = key + "=" + clip(w) + " has no effect"
			b.cfg.Ignored = append(b.cfg.Ignored, at)
		}
	}
}

// at is where a cluster's key stands, its last line where there are several.
func (b *builder) at(key string) Note {
	if n, ok := b.topAt[strings.ToLower(key)]; ok {
		return n
	}
	return Note{b.cfg.Source, 0, ""}
}
