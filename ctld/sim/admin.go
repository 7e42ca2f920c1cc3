package sim

import (
	"crypto/sha256"
	"fmt"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// replicas is how many there are beside the truth.
const replicas = 3

// begin makes the hosts and replicas and puts the first configuration into the log.
func (s *sim) begin() {
	s.truth = fsm.New(state.New())
	s.view = s.truth.View()
	s.users.keys = map[userKey]given{}
	for i := range replicas {
		s.replicas = append(s.replicas, &replica{name: i, f: fsm.New(state.New())})
	}
	s.swarm = newSwarm(s)
	for i := range s.swarm.hosts {
		h := &host{name: fmt.Sprint("n", i+1), cpus: 4, mem: 8 << 30, gres: "gpu:a100:2,shard:8", up: true, agent: true,
			claims: map[runKey]bool{}, refused: map[runKey]*logpb.Launched{}, done: map[runKey]bool{}}
		if i%3 == 2 {
			h.cpus, h.gres = 8, "gpu:a100:1,gpu:h100:2"
		}
		s.hosts = append(s.hosts, h)
	}
	s.elect()
	s.propose(nil, s.config(false))
	for level := uint32(2); level <= s.swarm.level; level++ {
		s.propose(nil, raise(level))
	}
	if s.swarm.level >= state.FeatureSched {
		s.propose(nil, s.config(false))
	}
	s.commit(len(s.pipe))
}

func raise(level uint32) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: min(level, fsm.Version)}}}
}

// config is the configuration; a changed one has fewer nodes, or others of their resources.
func (s *sim) config(changed bool) *logpb.Command {
	cfg := state.Config{Cluster: "sim", FirstJobID: 1, JobRequeue: true, MaxBatchRequeue: s.swarm.requeues, ReturnToService: s.swarm.service,
		RequeueDelay: 20_000, MaxArraySize: 1001, KillWait: killWait, MaxJobCount: 500, MaxSubmitPerUser: 200, Sched: s.schedConfig()}
	var nodes []state.NodeConfig
	var names []string
	for i, h := range s.hosts {
		if changed && i > 0 && s.dice.in(len(s.hosts)) {
			continue
		}
		c := state.NodeConfig{Name: h.name, Weight: uint32(1 + i%2), Inventory: node.Inventory{CPUs: h.cpus, Mem: h.mem, Gres: h.gres}}
		if i%2 == 0 {
			c.Features = []string{"big"}
		}
		if changed && s.dice.in(3) {
			switch s.dice.below(4) {
			case 0:
				c.Inventory.CPUs = 2
			case 1:
				c.Inventory.Gres = pick(s, "gpu:a100:1", "gpu:h100:2,gpu:a100:1", "shard:4")
			case 2:
				c.Features = []string{"big", "fast"}
			default:
				c.State = pick(s, "DRAIN", "DOWN", "")
				c.Reason = "file"
			}
		}
		nodes, names = append(nodes, c), append(names, h.name)
	}
	parts := []state.Partition{
		{Name: "p", Default: true, Nodes: names, State: "UP", MaxTime: job.Unlimited, DefaultTime: 600_000},
		{Name: "q", Nodes: names[:1+len(names)/2], State: "UP", MaxTime: 60_000, PriorityTier: 2, JobLease: s.swarm.lease},
		{Name: "r", Nodes: names[len(names)/2:], State: "UP", MaxTime: 3600_000, OverSubscribe: s.swarm.share, JobLease: -1},
	}
	if changed && s.dice.in(3) {
		parts = parts[:2]
	}
	return &logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: fsm.ConfigToLog(&cfg, nodes, parts)}}
}

func (s *sim) nodeUpdate(state string) {
	u := &logpb.NodeUpdate{Nodes: []string{s.someHost().name}, State: state, Reason: "maintenance", Caller: caller(!s.dice.in(8), 0)}
	if s.dice.in(4) {
		u.Nodes = append(u.Nodes, s.someHost().name)
	}
	if state == "" {
		u.Reason, u.Set = "", map[string]string{pick(s, "Weight", "Comment"): "3"}
		if s.dice.in(3) {
			u.Set = map[string]string{"Features": pick(s, "big", "fast", "")}
		}
	}
	s.propose(nil, &logpb.Command{Of: &logpb.Command_NodeUpdate{NodeUpdate: u}})
}

func (s *sim) someHost() *host { return s.hosts[s.dice.below(len(s.hosts))] }

// fenced is an operator who takes a host's power, says so, and keeps it off until that is in the log.
func (s *sim) fenced() {
	h := s.someHost()
	s.off(h)
	h.kept = true
	s.propose(func([]fsm.Result) { h.kept = false }, &logpb.Command{Of: &logpb.Command_NodeUpdate{NodeUpdate: &logpb.NodeUpdate{
		Nodes: []string{h.name}, Set: map[string]string{"Fenced": "yes"}, Caller: caller(true, 0)}}})
}

func (s *sim) partition() {
	set := map[string]string{}
	switch s.dice.below(5) {
	case 0:
		set["State"] = pick(s, "UP", "UP", "DOWN", "DRAIN", "INACTIVE")
	case 1:
		set["MaxTime"] = pick(s, "1", "10", "UNLIMITED")
	case 2:
		set["OverSubscribe"] = pick(s, "NO", "EXCLUSIVE")
	case 3:
		set["MaxNodes"] = pick(s, "1", "2", "UNLIMITED")
	default:
		set["JobLease"] = pick(s, "", "0", "5", "60")
	}
	s.propose(nil, &logpb.Command{Of: &logpb.Command_PartitionUpdate{PartitionUpdate: &logpb.PartitionUpdate{Name: pick(s, "p", "q", "r"), Set: set, Caller: caller(true, 0)}}})
}

// purge lets old records go; now and then a day passes first, after which keys may go too.
func (s *sim) purge() {
	if s.on("longago") && s.dice.in(40) && !s.quiesced {
		s.note("a day passes")
		s.now += state.KeyAge
		s.due()
	}
	s.propose(nil, &logpb.Command{Of: &logpb.Command_Purge{Purge: &logpb.Purge{
		EndedBeforeMs: s.view.Time() - int64(s.dice.below(600_000)), Keep: uint32(s.dice.below(maxJobs)), Max: pick(s, uint32(0), 3, 20)}}})
}

// token makes, uses and revokes join tokens, as long as the level knows them.
func (s *sim) token() {
	if s.view.Feature() < state.FeatureMembers {
		return
	}
	id, secret := fmt.Sprint("t", s.dice.below(3)), sha256.Sum256([]byte{byte(s.dice.below(2))})
	switch s.dice.below(5) {
	case 0:
		s.propose(nil, &logpb.Command{Of: &logpb.Command_CreateJoinToken{CreateJoinToken: &logpb.CreateJoinToken{Id: id, SecretSha256: secret[:], Role: "node",
			Names: "n[1-3]", ExpiresMs: s.view.Time() + int64(s.dice.below(3600_000)), Uses: uint32(s.dice.below(3)), Caller: caller(true, 0)}}})
	case 1:
		s.propose(nil, &logpb.Command{Of: &logpb.Command_RevokeJoinToken{RevokeJoinToken: &logpb.RevokeJoinToken{Id: id, Caller: caller(true, 0)}}})
	default:
		s.propose(nil, &logpb.Command{Of: &logpb.Command_UseJoinToken{UseJoinToken: &logpb.UseJoinToken{Id: id, SecretSha256: secret[:], Role: "node", Name: pick(s, "n1", "n2", "n3", "n4")}}})
	}
}

func (s *sim) controller() {
	if s.view.Feature() < state.FeatureMembers {
		return
	}
	s.propose(nil, &logpb.Command{Of: &logpb.Command_SetController{SetController: &logpb.SetController{Name: pick(s, "c4", "c5"), Address: "10.0.0.4",
		Port: 6817, RaftPort: 6816, Remove: s.dice.in(3)}}})
}
