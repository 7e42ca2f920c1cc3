package job

import "github.com/tensorgrid/tensorgrid/gres"

// GresAlloc is a part of one generic resource of one node.
type GresAlloc = gres.Alloc

// NodeAlloc is what a run holds on one node. CPUIDs are the node's abstract CPU numbers.
type NodeAlloc struct {
	Node   string
	CPUs   uint32
	Mem    int64 // bytes
	Tasks  uint32
	Gres   []GresAlloc
	CPUIDs []uint32
}

// Step ids that are not numbers counted from 0.
const (
	BatchStep       uint32 = 4294967291
	ExternStep      uint32 = 4294967292
	InteractiveStep uint32 = 4294967290
)

// Why says why a run was ended from outside.
type Why uint8

// The values are those of nodepb.Kill.Why.
const (
	WhyNone Why = iota
	WhyCancel
	WhyTimeLimit
	WhyRequeue
	WhyPreempt
	WhyNodeFail
	WhyStale
	WhyUserSignal
)

// Cause says which side was to blame when a launch went wrong.
type Cause uint8

// The values are those of nodepb.LaunchResult.Cause.
const (
	CauseNone Cause = iota
	CauseProlog
	CauseNode
	CauseUser
	CauseCredential
	CauseDuplicate
)
