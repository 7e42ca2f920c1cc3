package state

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

const partitionKeys = "State, Default, MaxTime, DefaultTime, MaxNodes, MinNodes, PriorityTier, PriorityJobFactor, Hidden, RootOnly, OverSubscribe, JobLease"

// UpdatePartition changes a partition over what the configuration file says; all of set or none.
// It stays until the file changes the same partition.
func (t *Tx) UpdatePartition(name string, set map[string]string, c Caller) *Refusal {
	if !c.Operator {
		return denied("changing partitions is for operators")
	}
	p := t.Partition(name)
	if p == nil {
		return refuse("ESLURM_INVALID_PARTITION_NAME", "Invalid partition name specified", fmt.Sprintf("there is no partition %q", name))
	}
	trial := *p
	updated := maps.Clone(t.file.set[name])
	if updated == nil {
		updated = map[string]string{}
	}
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if strings.EqualFold(key, "joblease") && t.feature < FeatureMembers {
			return refuse("ESLURM_INVALID_PARTITION_UPDATE", "Invalid partition update", "the controllers do not all run a version that knows JobLease of a partition yet")
		}
		if t.feature < FeatureSched && ofSched(key) {
			return refuse("ESLURM_INVALID_PARTITION_UPDATE", "Invalid partition update", fmt.Sprintf("the controllers do not all run a version that knows updates of %s yet", key))
		}
		if r := setPartition(&trial, key, set[key]); r != nil {
			return r
		}
		updated[canonicalKey(key)] = set[key]
		if strings.HasPrefix(canonicalKey(key), "qos") && !t.restoring {
			if r := t.mayHaveQOS(&trial); r != nil {
				return r
			}
		}
	}
	all := maps.Clone(t.file.set)
	if all == nil {
		all = map[string]map[string]string{}
	}
	all[name] = updated
	if yes(updated["default"]) {
		for other, o := range all { // one default at a time: the last update counts
			if other != name && yes(o["default"]) {
				o = maps.Clone(o)
				delete(o, "default")
				all[other] = o
			}
		}
	}
	t.file = &fileConfig{nodes: t.file.nodes, parts: t.file.parts, set: all}
	t.buildPartitions()
	t.buildSched()
	t.usage++
	t.layout++
	t.capacity++
	return nil
}

// canonicalKey gives a parameter one name, so that of two updates of it the later counts.
func canonicalKey(key string) string {
	switch key = strings.ToLower(key); key {
	case "shared":
		return "oversubscribe"
	case "qosname":
		return "qos"
	}
	return key
}

// setPartition changes one parameter, named in any case.
func setPartition(p *Partition, key, value string) *Refusal {
	switch strings.ToLower(key) {
	case "state":
		state := strings.ToUpper(value)
		if !slices.Contains([]string{"UP", "DOWN", "DRAIN", "INACTIVE"}, state) {
			return badValue(key, value, "one of UP, DOWN, DRAIN, INACTIVE")
		}
		p.State = state
	case "maxtime":
		return setLimit(&p.MaxTime, key, value)
	case "defaulttime":
		return setLimit(&p.DefaultTime, key, value)
	case "maxnodes":
		if strings.EqualFold(value, "UNLIMITED") || strings.EqualFold(value, "INFINITE") {
			value = "0"
		}
		return setNumber(&p.MaxNodes, key, value)
	case "minnodes":
		return setNumber(&p.MinNodes, key, value)
	case "prioritytier":
		return setNumber(&p.PriorityTier, key, value)
	case "priorityjobfactor":
		return setNumber(&p.PriorityJob, key, value)
	case "default":
		return setFlag(&p.Default, key, value)
	case "hidden":
		return setFlag(&p.Hidden, key, value)
	case "rootonly":
		return setFlag(&p.RootOnly, key, value)
	case "oversubscribe", "shared":
		v := strings.ToUpper(value)
		if v != "NO" && v != "EXCLUSIVE" {
			return badValue(key, value, "NO or EXCLUSIVE")
		}
		p.OverSubscribe = v
	case "joblease":
		return setLease(&p.JobLease, key, value)
	default:
		if r, known := setPartitionSched(p, key, value); known {
			return r
		}
		return unknownKey(key, partitionKeys+partitionKeysSched)
	}
	return nil
}

func setLimit(to *int64, key, value string) *Refusal {
	ms, err := job.ParseTimeLimit(value)
	if err != nil {
		return badValue(key, value, "a time limit: "+err.Error())
	}
	if *to = ms; ms == 0 {
		*to = job.Unlimited
	}
	return nil
}

// setLease takes seconds, or a number with ms, s, m or h; 0 means never, nothing the cluster's rule.
func setLease(to *int64, key, value string) *Refusal {
	number, unit := value, int64(1000)
	for _, u := range []struct {
		suffix string
		ms     int64
	}{{"ms", 1}, {"s", 1000}, {"m", 60_000}, {"h", 3_600_000}} {
		if rest, ok := strings.CutSuffix(strings.ToLower(value), u.suffix); ok {
			number, unit = rest, u.ms
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 32)
	switch {
	case value == "":
		*to = 0
	case err != nil:
		return badValue(key, value, "seconds, or a number with ms, s, m or h")
	case n == 0:
		*to = -1
	default:
		*to = int64(n) * unit
	}
	return nil
}

func setNumber(to *uint32, key, value string) *Refusal {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return badValue(key, value, "a number")
	}
	*to = uint32(n)
	return nil
}

func setFlag(to *bool, key, value string) *Refusal {
	switch strings.ToLower(value) {
	case "yes", "true", "1":
		*to = true
	case "no", "false", "0":
		*to = false
	default:
		return badValue(key, value, "YES or NO")
	}
	return nil
}
