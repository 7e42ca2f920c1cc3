package state

import (
	"slices"
	"strings"
	"sync"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// fixedView is what the planner sees that changes with configuration, partitions and accounts only.
type fixedView struct {
	parts    []*sched.Partition
	topology *place.Topology
	cluster  priority.Cluster
	params   *priority.Params // nil below FeatureSched
}

func (t *tables) fixedView() *fixedView {
	f := &fixedView{parts: t.schedPartitions()}
	if t.feature < FeatureSched {
		return f
	}
	f.topology, f.cluster, f.params = t.schedTopology(), t.schedCluster(), t.priorityParams()
	return f
}

func (t *tables) schedPartitions() []*sched.Partition {
	list := make([]*sched.Partition, 0, len(t.parts.list))
	for i, p := range t.parts.list {
		list = append(list, &sched.Partition{
			Name: p.Name, Nodes: t.parts.nodes[i], Up: p.State == "UP" || p.State == "DRAIN", Tier: p.PriorityTier,
			MaxTime: p.MaxTime, DefaultTime: t.usualTime(p), MinNodes: p.MinNodes, MaxNodes: p.MaxNodes,
			DefMemPerNode: p.DefMemPerNode, DefMemPerCPU: p.DefMemPerCPU,
			MaxMemPerNode: p.MaxMemPerNode, MaxMemPerCPU: p.MaxMemPerCPU,
			Inactive: p.State == "INACTIVE", Default: p.Default, WholeNodes: strings.EqualFold(p.OverSubscribe, "EXCLUSIVE"),
			ExclusiveUser: p.ExclusiveUser, LLN: p.LLN, ReqResv: p.ReqResv, PriorityJob: p.PriorityJob, MaxCPUsPerNode: p.MaxCPUsPerNode,
			QOS: p.QOS, PreemptMode: p.PreemptMode, Grace: p.Grace, Billing: t.weights[p.Name],
		})
	}
	return list
}

func (t *tables) schedTopology() *place.Topology {
	c := &t.cfg.Sched
	lines := make([]place.Switch, len(c.Switches))
	for i, s := range c.Switches {
		lines[i] = place.Switch{Name: s.Name, Switches: strings.Join(s.Switches, ","), Nodes: strings.Join(s.Nodes, ",")}
	}
	return place.NewTopology(c.Topology, lines, c.BlockSizes, func(name string) (int, bool) {
		at, ok := t.nodeAt[name]
		return int(at), ok
	})
}

// schedCluster is what the size of a job is seen against: all nodes that are configured.
func (t *tables) schedCluster() priority.Cluster {
	var c priority.Cluster
	var mem int64
	devices := map[string]int64{}
	for n := range t.Nodes() {
		if n.Removed {
			continue
		}
		c.Nodes++
		c.CPUs += n.Config.CPUs
		mem += n.Config.Mem >> 20
		inventory, _ := gres.ParseInventory(n.Config.Gres)
		for _, i := range gres.Items(inventory) {
			devices["gres/"+i.Name] += int64(i.Count)
			if i.Type != "" {
				devices["gres/"+i.Name+":"+i.Type] += int64(i.Count)
			}
		}
	}
	tres := accounting.TRES{{Name: "cpu", N: int64(c.CPUs)}, {Name: "mem", N: mem}, {Name: "node", N: int64(c.Nodes)}}
	for name, n := range devices { // sorted below
		tres = append(tres, accounting.Amount{Name: name, N: n})
	}
	for _, l := range t.licenses {
		tres = append(tres, accounting.Amount{Name: "license/" + l.name, N: int64(l.total)})
	}
	slices.SortFunc(tres, func(a, b accounting.Amount) int { return strings.Compare(a.Name, b.Name) })
	c.TRES = tres
	for _, p := range t.parts.list {
		c.MaxPartition = max(c.MaxPartition, p.PriorityJob)
	}
	if t.db == nil {
		return c
	}
	for q := range t.db.AllQOS() {
		c.MaxQOS = max(c.MaxQOS, q.Priority)
	}
	for a := range t.db.Associations() {
		c.MaxAssoc = max(c.MaxAssoc, a.Priority)
	}
	return c
}

// priorityParams reads how jobs are ranked. Words that cannot be read were refused when the file was loaded; a
// configuration of a later version that has such is ranked by submission.
func (t *tables) priorityParams() *priority.Params {
	s := &t.cfg.Sched
	p, err := priority.Parse(priority.Config{
		Type: s.PriorityType, Age: s.WeightAge, Assoc: s.WeightAssoc, FairShare: s.WeightShare, JobSize: s.WeightJobSize,
		Partition: s.WeightPart, QOS: s.WeightQOS, Bid: s.WeightBid, TRES: s.WeightTRES, MaxAge: s.MaxAge, FavorSmall: s.FavorSmall,
		Flags: s.PriorityFlags, SchedulerParameters: s.Parameters,
	})
	if err != nil {
		p, _ = priority.Parse(priority.Config{Type: priority.FCFS})
	}
	return p
}

// schedPolicy fills in what ranks and limits jobs. The cache's lock is held.
func (t *tables) schedPolicy(c *schedCache, fixed *fixedView, s *sched.Snapshot) {
	if t.feature < FeatureSched {
		return
	}
	s.Priority, s.Reservations = fixed.params, t.Reservations()
	s.MaxTRES, s.MaxTRESGres, s.KillWait = t.maxTRES, t.maxTRESGres, t.cfg.KillWait
	for _, l := range t.licenses {
		s.Licenses = append(s.Licenses, sched.License{Name: l.name, Total: l.total})
	}
	if t.enforces() {
		s.Rules, s.Use = t.rules, lookup{&tables{uses: t.uses, charges: t.charges}}
	}
	if c.shares == nil || c.shares.version != t.chargeVersion || c.shares.db != t.db || c.shares.layout != t.layout {
		c.shares = t.shareView()
	}
	s.Shares = c.shares.of
}

// shareView is fair shares as of one usage tick, worked out when they are first asked for.
type shareView struct {
	version, layout uint64
	db              *accounting.DB
	once            sync.Once
	work            func() map[uint32]accounting.Share
	list            map[uint32]accounting.Share
}

func (t *tables) shareView() *shareView {
	v := &shareView{version: t.chargeVersion, layout: t.layout, db: t.db}
	use := lookup{&tables{uses: t.uses, charges: t.charges}}
	usage := func(id uint32) int64 { return use.Usage(partitions.Entity{Kind: partitions.OfAssociation, ID: id}).Raw }
	classic := slices.ContainsFunc(t.cfg.Sched.PriorityFlags, func(w string) bool { return strings.EqualFold(w, "NO_FAIR_TREE") })
	db, dampening := t.db, t.cfg.Sched.Dampening
	v.work = func() map[uint32]accounting.Share {
		if classic {
			return db.ClassicShare(usage, dampening)
		}
		return db.FairTree(usage)
	}
	return v
}

func (v *shareView) all() map[uint32]accounting.Share {
	v.once.Do(func() { v.list, v.work = v.work(), nil })
	return v.list
}

// of is the fair-share factor of an association: 1 for those without one.
func (v *shareView) of(assoc uint32) float64 {
	if s, ok := v.all()[assoc]; ok {
		return s.FairShare
	}
	return 1
}

// Shares are the fair shares of all associations, by id.
func (v *View) Shares() map[uint32]accounting.Share {
	if v.feature < FeatureSched {
		return nil
	}
	v.Sched()
	v.cache.mu.Lock()
	shares := v.cache.shares
	v.cache.mu.Unlock()
	if shares.version != v.chargeVersion || shares.db != v.db || shares.layout != v.layout {
		shares = v.shareView() // a later view has put its own there
	}
	return shares.all()
}

// estimates tells whether run times of users' last jobs have a part in ranking.
func (t *tables) estimates() bool {
	return slices.ContainsFunc(t.cfg.Sched.Parameters, func(w string) bool {
		w = strings.ToLower(w)
		return w == "estimates="+priority.CorrectedEstimates || w == "backfill=shortest"
	})
}

// estimate is how long a job of the class takes by its user's last ones, in ms; 0 = not known, or it does not matter.
func (t *tables) estimate(c *class) int64 {
	if c.shape == "" {
		return 0
	}
	h := t.History(c.spec.UID)
	var last []int64
	for _, ms := range []int64{h[1], h[0]} {
		if ms > 0 {
			last = append(last, ms)
		}
	}
	return priority.Estimate(last, t.effectiveLimit(c.spec.TimeLimit, c.spec.Partition))
}
