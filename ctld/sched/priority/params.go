// Package priority ranks waiting jobs: Slurm's weighted sum (multifactor), the expansion factor with a bound on
// starvation, order of submission, and the orders that published replays use. It is pure. What it decides by is worked
// out with float64 in +, -, *, / alone, each rounded by itself, so that machines of every architecture agree.
package priority

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// The orders that Params.Type names.
const (
	Multifactor = "multifactor" // Slurm's weighted sum
	Expansion   = "expansion"   // (waited + run time) / run time, the largest first
	FCFS        = "fcfs"        // submission
	SJF         = "sjf"         // run time, the shortest first
	Area        = "area"        // run time x CPUs, the smallest first
	WFP3        = "wfp3"        // (waited / run time)^3 x CPUs, the largest first
	F1          = "f1"          // log10(run time) x CPUs + 870 log10(submission), the smallest first
)

// DefaultStarvation is how long a job waits under an order that could pass over it for ever, until it goes first, in ms.
const DefaultStarvation = 20 * 3600 * 1000

// UserEstimates and CorrectedEstimates are what run times are for ranking: the limit, or what the user's last jobs took.
const (
	UserEstimates      = "user"
	CorrectedEstimates = "corrected"
)

// Flags are the words of PriorityFlags that change a priority.
type Flags struct {
	AccrueAlways, SmallRelativeToTime                      bool
	NoNormalAssoc, NoNormalPart, NoNormalQOS, NoNormalTRES bool
}

// Weight is the weight of one trackable resource.
type Weight struct {
	Name string // as in accounting.TRES
	W    uint32
}

// Params say how jobs are ranked. Times are ms.
type Params struct {
	Type                                                string
	Age, Assoc, FairShare, JobSize, Partition, QOS, Bid uint32
	TRES                                                []Weight // by name
	MaxAge                                              int64
	FavorSmall                                          bool
	Flags                                               Flags
	Starvation                                          int64 // wait after which a job goes first; 0 = never
	Estimates                                           string
	Price                                               int64 // posted price of a billing unit and hour in 10^-6 token; 0 = none, bids count nothing
}

// Config is what of grid.conf the Params come from, as it is written there.
type Config struct {
	Type                                                string
	Age, Assoc, FairShare, JobSize, Partition, QOS, Bid uint32
	TRES                                                []string
	MaxAge                                              int64
	FavorSmall                                          bool
	Flags                                               []string
	SchedulerParameters                                 []string
}

// Parse makes Params of a configuration. Errors name the key and the word. Words of SchedulerParameters that are of
// other parts of the scheduler are passed over.
func Parse(c Config) (*Params, error) {
	p := &Params{Age: c.Age, Assoc: c.Assoc, FairShare: c.FairShare, JobSize: c.JobSize, Partition: c.Partition, QOS: c.QOS,
		MaxAge: c.MaxAge, FavorSmall: c.FavorSmall, Estimates: UserEstimates}
	p.Type = strings.TrimPrefix(strings.ToLower(c.Type), "priority/")
	switch p.Type {
	case "":
		p.Type = Multifactor
	case "basic":
		p.Type = FCFS
	case Multifactor, FCFS:
	case Expansion, SJF, Area, WFP3, F1:
		p.Starvation = DefaultStarvation
	default:
		return nil, fmt.Errorf("PriorityType: %q is none of multifactor, expansion, fcfs, sjf, area, wfp3, f1", c.Type)
	}
	if p.MaxAge <= 0 {
		p.MaxAge = 7 * 24 * 3600 * 1000
	}
	p.Bid = uint32(min(uint64(c.Bid), uint64(c.Age)+uint64(c.FairShare)))
	if p.Bid != c.Bid {
		return nil, fmt.Errorf("PriorityWeightBid=%d is over PriorityWeightAge + PriorityWeightFairshare = %d: a bid could never be overtaken", c.Bid, p.Bid)
	}
	if err := p.flags(c.Flags); err != nil {
		return nil, err
	}
	if err := p.weights(c.TRES); err != nil {
		return nil, err
	}
	return p, p.options(c.SchedulerParameters)
}

// flags reads PriorityFlags. Those that are of the fair share's are passed over.
func (p *Params) flags(words []string) error {
	for _, w := range words {
		f := &p.Flags
		switch strings.ToUpper(w) {
		case "ACCRUE_ALWAYS":
			f.AccrueAlways = true
		case "SMALL_RELATIVE_TO_TIME":
			f.SmallRelativeToTime = true
		case "NO_NORMAL_ALL":
			f.NoNormalAssoc, f.NoNormalPart, f.NoNormalQOS, f.NoNormalTRES = true, true, true, true
		case "NO_NORMAL_ASSOC":
			f.NoNormalAssoc = true
		case "NO_NORMAL_PART":
			f.NoNormalPart = true
		case "NO_NORMAL_QOS":
			f.NoNormalQOS = true
		case "NO_NORMAL_TRES":
			f.NoNormalTRES = true
		case "NO_FAIR_TREE", "MAX_TRES", "MAX_TRES_GRES":
		case "DEPTH_OBLIVIOUS", "INCR_ONLY", "CALCULATE_RUNNING": // the configuration notes that they have no effect
		default:
			return fmt.Errorf("PriorityFlags: %q is not known", w)
		}
	}
	return nil
}

// weights reads PriorityWeightTRES.
func (p *Params) weights(words []string) error {
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		n, err := strconv.ParseUint(value, 10, 32)
		if !ok || name == "" || err != nil {
			return fmt.Errorf("PriorityWeightTRES: %q is not NAME=WEIGHT with a weight from 0 to %d", w, uint32(math.MaxUint32))
		}
		if _, err := accounting.ParseTRES(name + "=0"); err != nil {
			return fmt.Errorf("PriorityWeightTRES: %q: %w", w, err)
		}
		p.TRES = append(p.TRES, Weight{strings.ToLower(name), uint32(n)})
	}
	slices.SortFunc(p.TRES, func(a, b Weight) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(p.TRES); i++ {
		if p.TRES[i].Name == p.TRES[i-1].Name {
			return fmt.Errorf("PriorityWeightTRES: %s is named twice", p.TRES[i].Name)
		}
	}
	return nil
}

// options reads the words of SchedulerParameters that are of the ranking.
func (p *Params) options(words []string) error {
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		switch strings.ToLower(name) {
		case "starvation":
			ms, err := job.ParseTimeLimit(value)
			if err != nil {
				return fmt.Errorf("SchedulerParameters: starvation=%s: %w", value, err)
			}
			p.Starvation = max(ms, 0) // UNLIMITED: never
		case "estimates":
			p.Estimates = strings.ToLower(value)
			if p.Estimates != UserEstimates && p.Estimates != CorrectedEstimates {
				return fmt.Errorf("SchedulerParameters: estimates=%s is none of user, corrected", value)
			}
		case "posted_price":
			price, err := strconv.ParseInt(value, 10, 64)
			if err != nil || price < 1 {
				return fmt.Errorf("SchedulerParameters: posted_price=%s: a whole number of 10^-6 token from 1 on was expected", value)
			}
			p.Price = price
		}
	}
	return nil
}

// Cluster is what a job's size is seen against.
type Cluster struct {
	Nodes, CPUs                    uint32 // of the nodes that are up
	TRES                           accounting.TRES
	MaxPartition, MaxQOS, MaxAssoc uint32 // largest factors that are configured
}

// Estimate is how long a user's next job will run, from the run times of the last ones, latest last: the mean of the last
// two, and never above limit (0 or less = no limit). It is 0 where nothing is known. It may rank jobs; no promise rests on it.
func Estimate(last []int64, limit int64) int64 {
	if len(last) == 0 {
		return 0
	}
	if len(last) > 2 {
		last = last[len(last)-2:]
	}
	var sum int64
	for _, ms := range last {
		sum += max(ms, 0)
	}
	mean := max(sum/int64(len(last)), 1)
	if limit > 0 {
		return min(mean, limit)
	}
	return mean
}
