package conf

import (
	"slices"
	"strconv"
	"strings"
)

// Words that lists of the scheduler's keys may hold, lower case. From slurm.conf(5); those without an effect here
// are taken from a site's file without a word.
var (
	priorityFlags = []string{"accrue_always", "calculate_running", "depth_oblivious", "no_fair_tree", "incr_only", "max_tres", "max_tres_gres",
		"no_normal_all", "no_normal_assoc", "no_normal_part", "no_normal_qos", "no_normal_tres", "small_relative_to_time"}
	enforceWords = []string{"none", "associations", "limits", "qos", "safe", "wckeys", "nojobs", "nosteps", "all"}
	preemptModes = []string{"off", "cancel", "requeue", "suspend", "gang", "within", "priority"}
)

// scheduling checks what only makes sense together.
func (b *builder) scheduling() {
	c := b.cfg
	words := func(key string, list, known []string) {
		for _, w := range list {
			if !slices.Contains(known, strings.ToLower(w)) {
				b.r.problem(c.Source, 0, "%s: %q is none of %s", key, clip(w), strings.Join(known, ", "))
			}
		}
	}
	words("PriorityFlags", c.PriorityFlags, priorityFlags)
	words("AccountingStorageEnforce", c.AccountingStorageEnforce, enforceWords)
	words("PreemptMode", c.PreemptMode, preemptModes)
	for i := range c.Partitions {
		words("partition "+c.Partitions[i].Name+": PreemptMode", c.Partitions[i].PreemptMode, preemptModes)
	}
	if uint64(c.PriorityWeightBid) > uint64(c.PriorityWeightAge)+uint64(c.PriorityWeightFairshare) {
		b.r.problem(c.Source, 0, "PriorityWeightBid=%d is over PriorityWeightAge + PriorityWeightFairshare = %d: a bid could never be overtaken",
			c.PriorityWeightBid, uint64(c.PriorityWeightAge)+uint64(c.PriorityWeightFairshare))
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
