package state

import (
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

func firstName(names string) string {
	first, _, _ := strings.Cut(names, ",")
	return first
}

// needsSched refuses what the controllers do not all know yet.
func (t *tables) needsSched(what string) *Refusal {
	if t.feature >= FeatureSched {
		return nil
	}
	return refuse("ESLURM_NOT_SUPPORTED", "Operation not supported",
		fmt.Sprintf("the controllers do not all run a version that knows %s yet: the feature level is %d, it needs %d", what, t.feature, FeatureSched))
}

// MaySubmit holds a specification against partitions, accounts, limits, licenses, reservations and its deadline, as
// Submit does. It fills in what is the default there: partition, account, QOS, time limit.
func (t *tables) MaySubmit(s *job.Spec) *Refusal {
	if r := t.mayUsePartitions(s.Partition); r != nil {
		return r
	}
	if s.Partition == "" {
		s.Partition = t.DefaultPartition().Name
	}
	if r := t.mayMeetDeadline(s, t.time); r != nil {
		return r
	}
	n := int64(1)
	if s.Array != "" {
		if set, _, err := job.ParseArray(s.Array, max(t.cfg.MaxArraySize, defaultArraySize)); err == nil {
			n = int64(set.Len())
		}
	}
	return t.admit(s, n, t.chain)
}

// chainOf works out, or remembers, what limits a job of a specification in a partition.
type chainOf func(s *job.Spec, partition string) (*partitions.Chain, *Refusal)

// rememberedChain is chain for commands: what was worked out before is not worked out again.
func (t *Tx) rememberedChain(s *job.Spec, partition string) (*partitions.Chain, *Refusal) {
	if c := t.knownChain(s, partition); c != nil {
		return c, nil
	}
	return t.chain(s, partition)
}

// readmit is admit for a job that is changed.
func (t *Tx) readmit(s *job.Spec, tasks int64) *Refusal { return t.admit(s, tasks, t.rememberedChain) }

// admit resolves account and QOS of a job of so many tasks and holds it against what accounts, limits, licenses and
// reservations say. In several partitions it is enough that one of them takes it.
func (t *tables) admit(s *job.Spec, tasks int64, chain chainOf) *Refusal {
	if t.feature < FeatureSched {
		return nil
	}
	var c *partitions.Chain
	var first *Refusal
	if !t.plain {
		for name := range strings.SplitSeq(s.Partition, ",") {
			found, r := chain(s, name)
			if r == nil {
				r = t.withinLimits(s, name, tasks, found)
			}
			if r == nil {
				c = found
				break
			}
			if first == nil {
				first = r
			}
		}
		if c == nil {
			return first
		}
		if c.NeedsReservation() && s.RareValue(job.OptReservation) == "" {
			return refuse("ESLURM_INVALID_QOS", "Invalid qos specification", fmt.Sprintf("QOS %s is only for jobs in a reservation; name one with --reservation", c.QOS))
		}
		s.Account, s.QOS = c.Account, c.QOS
		t.limitTime(s, c)
	}
	if len(s.Rare) == 0 {
		return nil
	}
	if r := t.licenseProblem(s); r != nil {
		return r
	}
	return t.reservationProblem(s)
}

// withinLimits holds a job against the limits of submission in one partition.
func (t *tables) withinLimits(s *job.Spec, partition string, tasks int64, c *partitions.Chain) *Refusal {
	if !t.counts() {
		return nil
	}
	request, defNode, defCPU := s.Request(), int64(0), int64(0)
	if p := t.Partition(partition); p != nil {
		defNode, defCPU = p.DefMemPerNode, p.DefMemPerCPU
	}
	ask := accounting.RequestTRES(s, &request, licensesOf(s), defNode, defCPU)
	ask = ask.With("billing", t.billing(partition, ask))
	limit := t.effectiveLimit(s.TimeLimit, partition)
	if most, _ := c.MaxTime(); s.TimeLimit == 0 && most > 0 && (limit < 0 || limit > most) {
		limit = most
	}
	return c.MaySubmit(lookup{t}, ask, accounting.RequestPerNode(s, &request, defNode, defCPU), limit, tasks)
}

// limitTime gives a job that asks for no time limit the one of its account or QOS, where that is the tightest.
func (t *tables) limitTime(s *job.Spec, c *partitions.Chain) {
	if s.TimeLimit != 0 || !t.counts() {
		return
	}
	most, _ := c.MaxTime()
	if limit := t.effectiveLimit(0, s.Partition); most > 0 && (limit < 0 || limit > most) {
		s.TimeLimit = most
	}
}

// mayRun tells whether accounts, limits, licenses and reservations let a run start now, and which reservation it is in.
func (t *Tx) mayRun(j *Job, s *sched.Start) (reservation string, ok bool) {
	if t.feature < FeatureSched {
		return "", true
	}
	limit := t.limitOf(j, s)
	end := int64(0)
	if limit > 0 {
		end = t.now + limit
	}
	reservation, ok = t.roomInReservations(j, s, t.now, end)
	if p := t.Partition(s.Partition); !ok || p.ReqResv && reservation == "" {
		return "", false
	}
	if list := licensesOf(j.Spec); len(list) > 0 && !t.licensesFree(list, reservation, t.now, end) {
		return "", false
	}
	if !t.enforces() {
		return reservation, true
	}
	c := t.knownChain(j.Spec, s.Partition)
	if c == nil {
		return "", false
	}
	if !t.counts() {
		return reservation, true
	}
	return reservation, c.MayStart(lookup{t.tables}, t.newClaim(j.Spec, s.Partition, s.Nodes, t.now, limit, c), t.now) == nil
}
