package state

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
)

// partitionLists are the lists of a partition that an update may set, by lower-case key, from FeatureSched on. An
// empty value, or ALL, clears one.
var partitionLists = map[string]func(*Partition) *[]string{
	"allowqos":      func(p *Partition) *[]string { return &p.AllowQOS },
	"denyqos":       func(p *Partition) *[]string { return &p.DenyQOS },
	"allowaccounts": func(p *Partition) *[]string { return &p.AllowAccounts },
	"denyaccounts":  func(p *Partition) *[]string { return &p.DenyAccounts },
	"allowgroups":   func(p *Partition) *[]string { return &p.AllowGroups },
}

const partitionKeysSched = ", QOS, AllowQos, DenyQos, AllowAccounts, DenyAccounts, AllowGroups, PreemptMode, GraceTime, ExclusiveUser, LLN, MaxCPUsPerNode, ReqResv, TRESBillingWeights"

// preemptModes are what may happen to runs of a partition that make room.
var preemptModes = []string{"OFF", "CANCEL", "REQUEUE", "SUSPEND"}

// ofSched tells whether a partition's parameter came with FeatureSched.
func ofSched(key string) bool {
	_, known := setPartitionSched(new(Partition), key, "")
	return known
}

// setPartitionSched changes one parameter that came with FeatureSched; known is false when it is none.
func setPartitionSched(p *Partition, key, value string) (r *Refusal, known bool) {
	name := strings.ToLower(key)
	if list := partitionLists[name]; list != nil {
		*list(p) = words(value)
		return nil, true
	}
	switch name {
	case "qos", "qosname":
		p.QOS = value
		if strings.EqualFold(value, "N/A") {
			p.QOS = ""
		}
	case "preemptmode":
		mode := strings.ToUpper(value)
		if mode != "" && !slices.Contains(preemptModes, mode) {
			return badValue(key, value, "one of "+strings.Join(preemptModes, ", ")), true
		}
		p.PreemptMode = mode
	case "gracetime":
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return badValue(key, value, "seconds"), true
		}
		p.Grace = int64(n) * 1000
	case "exclusiveuser":
		return setFlag(&p.ExclusiveUser, key, value), true
	case "lln":
		return setFlag(&p.LLN, key, value), true
	case "reqresv":
		return setFlag(&p.ReqResv, key, value), true
	case "maxcpuspernode":
		if strings.EqualFold(value, "UNLIMITED") || strings.EqualFold(value, "INFINITE") {
			value = "0"
		}
		return setNumber(&p.MaxCPUsPerNode, key, value), true
	case "tresbillingweights":
		list := words(value)
		if _, err := accounting.ParseWeights(list); err != nil {
			return badValue(key, value, "CPU=1.0,Mem=0.25G,GRES/gpu=2.0: "+err.Error()), true
		}
		p.BillingWeights = list
	default:
		return nil, false
	}
	return nil, true
}

// words splits a comma list; nothing and ALL are no words.
func words(value string) []string {
	if value == "" || strings.EqualFold(value, "ALL") || strings.EqualFold(value, "N/A") || value == "(null)" {
		return nil
	}
	return strings.Split(value, ",")
}

// mayHaveQOS refuses a partition QOS that is not there.
func (t *tables) mayHaveQOS(p *Partition) *Refusal {
	if p.QOS == "" || t.db != nil && t.db.QOS(p.QOS) != nil {
		return nil
	}
	return refuse("ESLURM_INVALID_QOS", "Invalid qos specification", fmt.Sprintf("QOS=%s: there is no such QOS; add it with gacctmgr", p.QOS))
}
