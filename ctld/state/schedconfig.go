package state

import (
	"reflect"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// SchedConfig is what priority, limits, preemption and placement go by, in the words of the configuration. Times in ms.
type SchedConfig struct {
	PriorityType  string // multifactor, expansion, fcfs
	WeightAge     uint32
	WeightAssoc   uint32
	WeightShare   uint32 // PriorityWeightFairshare
	WeightJobSize uint32
	WeightPart    uint32
	WeightQOS     uint32
	WeightTRES    []string // "cpu=1000"
	WeightBid     uint32
	MaxAge        int64
	HalfLife      int64 // 0 = usage does not decay
	CalcPeriod    int64 // between two usage ticks
	FavorSmall    bool
	PriorityFlags []string
	UsageReset    string // NONE, NOW, DAILY, WEEKLY, MONTHLY, QUARTERLY, YEARLY
	Dampening     uint32

	Enforce []string // associations, limits, qos, safe

	PreemptType       string // none, partition_prio, qos
	PreemptMode       string // OFF, CANCEL, REQUEUE, SUSPEND
	PreemptExempt     int64
	PreemptParameters []string

	Parameters   []string // SchedulerParameters
	Licenses     []string // "matlab:10"
	Dependencies []string // DependencyParameters

	Topology   string // "", tree, block
	Switches   []Switch
	BlockSizes []uint32
}

// Switch is one SwitchName or BlockName line.
type Switch struct {
	Name     string
	Switches []string
	Nodes    []string
}

// Given tells whether a configuration said anything of it.
func (c *SchedConfig) Given() bool { return !reflect.DeepEqual(*c, SchedConfig{}) }

// withoutSched gives partitions as a replica below FeatureSched has them.
func withoutSched(p *Partition) {
	copySched(p, &Partition{})
}

// copySched copies what FeatureSched brought to a partition.
func copySched(to, from *Partition) {
	to.QOS, to.DenyQOS, to.PreemptMode, to.Grace, to.BillingWeights = from.QOS, from.DenyQOS, from.PreemptMode, from.Grace, from.BillingWeights
	to.ExclusiveUser, to.LLN, to.MaxCPUsPerNode, to.ReqResv = from.ExclusiveUser, from.LLN, from.MaxCPUsPerNode, from.ReqResv
}

// dropChanged takes the updates out of set that the file has changed the parameter of, of those that FeatureSched brought.
func dropChanged(set map[string]string, was, is *Partition) {
	for key, changed := range map[string]bool{ // each by itself: the order does not matter
		"qos": was.QOS != is.QOS, "denyqos": !slices.Equal(was.DenyQOS, is.DenyQOS), "preemptmode": was.PreemptMode != is.PreemptMode,
		"gracetime": was.Grace != is.Grace, "tresbillingweights": !slices.Equal(was.BillingWeights, is.BillingWeights),
		"exclusiveuser": was.ExclusiveUser != is.ExclusiveUser, "lln": was.LLN != is.LLN,
		"maxcpuspernode": was.MaxCPUsPerNode != is.MaxCPUsPerNode, "reqresv": was.ReqResv != is.ReqResv,
	} {
		if changed {
			delete(set, key)
		}
	}
}

// buildSched compiles what configuration, accounts and partitions say together, and counts anew what jobs take of their
// limits. It is called after any of them has changed.
func (t *Tx) buildSched() {
	if t.feature < FeatureSched || t.db == nil {
		return
	}
	c := &t.cfg.Sched
	t.buildRules()
	t.weights = make(map[string]*accounting.Weights, len(t.parts.list))
	for _, p := range t.parts.list {
		if len(p.BillingWeights) > 0 {
			t.weights[p.Name], _ = accounting.ParseWeights(p.BillingWeights) // checked when the file was loaded
		}
	}
	t.maxTRES, t.maxTRESGres = false, false
	for _, f := range c.PriorityFlags {
		t.maxTRES = t.maxTRES || strings.EqualFold(f, "MAX_TRES")
		t.maxTRESGres = t.maxTRESGres || strings.EqualFold(f, "MAX_TRES_GRES")
	}
	t.licenses = parseTotals(c.Licenses)
	t.recount()
}

// buildRules makes the rules from accounts and configuration.
func (t *Tx) buildRules() {
	t.rules = partitions.Enforce(t.db, t.cfg.Sched.Enforce)
	t.counting = &partitions.Rules{DB: t.db, Limits: t.rules.Limits}
	_, _, associations, _ := t.db.Counts()
	t.plain = !t.enforces() && associations <= plainAssociations
}

// plainAssociations is how many associations accounts have with nobody in them: root and its user.
const plainAssociations = 2
