package leader

import (
	"context"
	"time"

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
	if have := view.Config(); have == nil || have.Digest != next.Digest || !lacksLeases(view, next) {
		return // reconfigure brings it, or it is there
	}
	for {
		_, err := l.propose(ctx, &logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: next}})
		if err == nil || !passes(err) || !l.pause(ctx, retryDelay) {
			return
		}
	}
}

// lacksLeases tells whether the state has other leases of partitions than the file.
func lacksLeases(view state.Viewer, file *logpb.SetConfig) bool {
	v, ok := view.(interface {
		File() ([]state.NodeConfig, []state.Partition)
	})
	if !ok {
		return false
	}
	_, parts := v.File()
	lease := make(map[string]int64, len(parts))
	for i := range parts {
		lease[parts[i].Name] = parts[i].JobLease
	}
	for _, p := range file.Partitions {
		if have, known := lease[p.Name]; known && have != p.JobLeaseMs {
			return true
		}
	}
	return false
}
