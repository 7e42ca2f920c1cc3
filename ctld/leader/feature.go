package leader

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// featureInterval is how often the leader looks whether all members know more than the state uses, and
// featureWait how long they have to answer.
const (
	featureInterval = time.Second
	featureWait     = 2 * time.Second
)

// featureLoop raises the feature level once every member runs a program that knows the next one. It
// never falls again: from then on an older program cannot read the log.
func (l *Leader) featureLoop(t *term) {
	if l.Peers == nil {
		return
	}
	// A leader that ended between the level and the configuration leaves the second to its successor.
	if l.Log.View().Feature() >= state.FeatureMembers {
		l.complete(t.ctx)
	}
	for l.Log.View().Feature() < fsm.Version {
		if l.raise(t.ctx) {
			continue
		}
		if !l.pause(t.ctx, featureInterval) {
			return
		}
	}
}

// raise raises the level by one; false: not now.
func (l *Leader) raise(ctx context.Context) bool {
	level := l.Log.View().Feature() + 1
	asking, cancel := context.WithTimeout(ctx, featureWait)
	defer cancel()
	known, err := l.Peers.FeatureMax(asking)
	if err != nil || len(known) == 0 {
		return false
	}
	for _, newest := range known {
		if newest < level {
			return false
		}
	}
	if _, err := l.propose(ctx, &logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: level}}}); err != nil {
		return false
	}
	l.Logger.Info("feature level raised: no older version can join any more", "level", level)
	l.complete(ctx)
	return l.Log.View().Feature() >= level
}

// complete puts the configuration into the state again after the level has risen: the state could not
// take all of it before. That changes nothing else where the file is the one that the state has.
func (l *Leader) complete(ctx context.Context) {
	next, view := SetConfig(l.Config()), l.Log.View()
	if have := view.Config(); have == nil || have.Digest != next.Digest || !lacksLater(view, next) {
		return // reconfigure brings it, or it is there
	}
	for {
		_, err := l.propose(ctx, &logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: next}})
		if err == nil || !passes(err) || !l.pause(ctx, retryDelay) {
			return
		}
	}
}

// lacksLater tells whether the state has other leases of partitions than the file, or else of what a level above the
// first brought to a configuration and the present one takes.
func lacksLater(view state.Viewer, file *logpb.SetConfig) bool {
	v, ok := view.(interface {
		File() ([]state.NodeConfig, []state.Partition)
	})
	if !ok {
		return false
	}
	nodes, parts := v.File()
	have := fsm.ConfigToLog(view.Config(), nodes, parts)
	takes := view.Feature() >= state.FeatureSched
	if have.Sched == nil {
		have.Sched = &logpb.ConfigSched{}
	}
	if takes && file.Sched != nil && !proto.Equal(have.Sched, file.Sched) {
		return true
	}
	known := make(map[string]*logpb.ConfigPartition, len(parts))
	for _, p := range have.Partitions {
		known[p.Name] = p
	}
	for _, p := range file.Partitions {
		if h := known[p.Name]; h != nil && (h.JobLeaseMs != p.JobLeaseMs || takes && !sameLater(h, p)) {
			return true
		}
	}
	return false
}

// sameLater tells whether two partitions say the same of what FeatureSched brought.
func sameLater(a, b *logpb.ConfigPartition) bool {
	return a.Qos == b.Qos && slices.Equal(a.DenyQos, b.DenyQos) && a.PreemptMode == b.PreemptMode && a.GraceMs == b.GraceMs &&
		slices.Equal(a.TresBillingWeights, b.TresBillingWeights) && a.ExclusiveUser == b.ExclusiveUser && a.Lln == b.Lln &&
		a.MaxCpusPerNode == b.MaxCpusPerNode && a.ReqResv == b.ReqResv
}
