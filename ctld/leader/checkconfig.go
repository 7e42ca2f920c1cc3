package leader

import (
	"fmt"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
)

// CheckConfig finds what only the scheduler's packages can tell of a configuration: weights and parameters that cannot be
// read. They would otherwise have no effect, and without a word. The error is nil, or conf.Problems with all of them.
func CheckConfig(c *conf.Config) error {
	var found conf.Problems
	add := func(text string, err error) {
		if err != nil {
			found = append(found, conf.Note{File: c.Source, Text: text + err.Error()})
		}
	}
	s := schedToLog(c)
	_, err := priority.Parse(priority.Config{
		Type: s.PriorityType, Age: s.WeightAge, Assoc: s.WeightAssoc, FairShare: s.WeightFairShare, JobSize: s.WeightJobSize,
		Partition: s.WeightPartition, QOS: s.WeightQos, Bid: s.WeightBid, TRES: s.WeightTres, MaxAge: s.MaxAgeMs,
		FavorSmall: s.FavorSmall, Flags: s.PriorityFlags, SchedulerParameters: s.SchedulerParameters,
	})
	add("", err)
	_, err = sched.ParsePolicy(s.SchedulerParameters)
	add("", err)
	_, err = sched.ParsePreemption(s.PreemptType, s.PreemptMode, s.PreemptExemptMs, s.PreemptParameters)
	add("", err)
	for i := range c.Partitions {
		p := &c.Partitions[i]
		_, err := accounting.ParseWeights(p.TRESBillingWeights)
		add(fmt.Sprintf("partition %s: TRESBillingWeights: ", p.Name), err)
	}
	if len(found) == 0 {
		return nil
	}
	return found
}
