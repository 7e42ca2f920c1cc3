package fsm

import (
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

func schedFromLog(m *logpb.ConfigSched) state.SchedConfig {
	if m == nil {
		return state.SchedConfig{}
	}
	c := state.SchedConfig{
		PriorityType: m.PriorityType, WeightAge: m.WeightAge, WeightAssoc: m.WeightAssoc, WeightShare: m.WeightFairShare,
		WeightJobSize: m.WeightJobSize, WeightPart: m.WeightPartition, WeightQOS: m.WeightQos, WeightTRES: m.WeightTres,
		WeightBid: m.WeightBid, MaxAge: m.MaxAgeMs, HalfLife: m.HalfLifeMs, CalcPeriod: m.CalcPeriodMs, FavorSmall: m.FavorSmall,
		PriorityFlags: m.PriorityFlags, UsageReset: m.UsageReset, Dampening: m.Dampening, Enforce: m.Enforce,
		PreemptType: m.PreemptType, PreemptMode: m.PreemptMode, PreemptExempt: m.PreemptExemptMs, PreemptParameters: m.PreemptParameters,
		Parameters: m.SchedulerParameters, Licenses: m.Licenses, Dependencies: m.DependencyParameters,
		Topology: m.Topology, BlockSizes: m.BlockSizes,
	}
	for _, s := range m.Switches {
		c.Switches = append(c.Switches, state.Switch{Name: s.Name, Switches: s.Switches, Nodes: s.Nodes})
	}
	return c
}

func schedToLog(c *state.SchedConfig) *logpb.ConfigSched {
	m := &logpb.ConfigSched{
		PriorityType: c.PriorityType, WeightAge: c.WeightAge, WeightAssoc: c.WeightAssoc, WeightFairShare: c.WeightShare,
		WeightJobSize: c.WeightJobSize, WeightPartition: c.WeightPart, WeightQos: c.WeightQOS, WeightTres: c.WeightTRES,
		WeightBid: c.WeightBid, MaxAgeMs: c.MaxAge, HalfLifeMs: c.HalfLife, CalcPeriodMs: c.CalcPeriod, FavorSmall: c.FavorSmall,
		PriorityFlags: c.PriorityFlags, UsageReset: c.UsageReset, Dampening: c.Dampening, Enforce: c.Enforce,
		PreemptType: c.PreemptType, PreemptMode: c.PreemptMode, PreemptExemptMs: c.PreemptExempt, PreemptParameters: c.PreemptParameters,
		SchedulerParameters: c.Parameters, Licenses: c.Licenses, DependencyParameters: c.Dependencies,
		Topology: c.Topology, BlockSizes: c.BlockSizes,
	}
	for _, s := range c.Switches {
		m.Switches = append(m.Switches, &logpb.ConfigSwitch{Name: s.Name, Switches: s.Switches, Nodes: s.Nodes})
	}
	return m
}
