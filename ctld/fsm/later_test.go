package fsm_test

import (
	"crypto/sha256"
	"fmt"

	"github.com/tensorgrid/tensorgrid/api/logpb"
)

// laterCommand makes commands of feature levels above the first. The level is raised by the first.
func laterCommand(g *generator) *logpb.Command {
	id, secret := fmt.Sprint("t", g.pick("token", 3)), sha256.Sum256([]byte{byte(g.pick("secret", 8) / 7)})
	role := one(g, "role", "node", "node", "node", "login")
	switch {
	case g.a.View().Feature() < 2:
		return &logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: one[uint32](g, "level", 2, 2, 3)}}}
	case g.pick("sched", 3) > 0:
		return schedCommand(g)
	case g.pick("mark", 5) == 0:
		return one(g, "which", &logpb.Command{Of: &logpb.Command_HashMark{HashMark: &logpb.HashMark{}}},
			&logpb.Command{Of: &logpb.Command_HashCheck{HashCheck: &logpb.HashCheck{Index: 7, Sha256: secret[:], Leader: "c1"}}})
	case g.pick("controller", 4) == 0:
		return &logpb.Command{Of: &logpb.Command_SetController{SetController: &logpb.SetController{Name: one(g, "name", "c4", "c5", ""), Address: "10.0.0.4",
			Port: 6817, RaftPort: 6816, UserPort: uint32(g.pick("port", 2)) * 6819, Remove: g.pick("remove", 3) == 0}}}
	case g.pick("create", 3) == 0:
		life := one[int64](g, "life", 60_000, 3600_000, 5*24*3600_000, 20*24*3600_000, 40*24*3600_000, -1)
		return &logpb.Command{Of: &logpb.Command_CreateJoinToken{CreateJoinToken: &logpb.CreateJoinToken{Id: id, SecretSha256: secret[:], Role: role,
			Names: one(g, "names", "n[1-3]", "n1", "login1,n2", "n[1-"), ExpiresMs: g.now + life, Uses: uint32(g.pick("uses", 3)), Caller: g.caller()}}}
	case g.pick("revoke", 6) == 0:
		return &logpb.Command{Of: &logpb.Command_RevokeJoinToken{RevokeJoinToken: &logpb.RevokeJoinToken{Id: id, Caller: g.caller()}}}
	}
	use := &logpb.UseJoinToken{Id: id, SecretSha256: secret[:], Role: role, Name: one(g, "name", "n1", "n2", "n3", "login1", "n9")}
	for k := range g.a.View().JoinTokens() {
		if g.pick("fits", 2) == 0 {
			use.Id, use.SecretSha256, use.Role = k.ID, k.Secret[:], k.Role
		}
	}
	return &logpb.Command{Of: &logpb.Command_UseJoinToken{UseJoinToken: use}}
}

// laterConfig fills fields of a configuration that came with feature levels above the first.
func laterConfig(g *generator, s *logpb.SetConfig) {
	for _, p := range s.Partitions {
		p.JobLeaseMs = one[int64](g, "lease", 0, 0, -1, 5000)
	}
	schedConfig(g, s)
}

// later makes a generator use the feature levels above the first, and levelOf is the version of its
// next entry.
func later(g *generator) { g.later, g.inConfig = laterCommand, laterConfig }

func levelOf(g *generator) uint32 { return g.a.View().Feature() }

// laterSamples has one of each command of the feature levels above the first.
func laterSamples() []*logpb.Command {
	secret := sha256.Sum256([]byte{0})
	admin := &logpb.Caller{User: "root", Operator: true}
	return append([]*logpb.Command{
		{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: 2}}},
		{Of: &logpb.Command_HashMark{HashMark: &logpb.HashMark{}}},
		{Of: &logpb.Command_HashCheck{HashCheck: &logpb.HashCheck{Index: 7, Sha256: secret[:], Leader: "c1"}}},
		{Of: &logpb.Command_SetController{SetController: &logpb.SetController{Name: "c4", Address: "10.0.0.4", Port: 6817, RaftPort: 6816, UserPort: 6819}}},
		{Of: &logpb.Command_SetController{SetController: &logpb.SetController{Name: "c5", Remove: true}}},
		{Of: &logpb.Command_CreateJoinToken{CreateJoinToken: &logpb.CreateJoinToken{Id: "t0", SecretSha256: secret[:], Role: "node", Names: "n[1-3]", ExpiresMs: 3600_000, Caller: admin}}},
		{Of: &logpb.Command_CreateJoinToken{CreateJoinToken: &logpb.CreateJoinToken{Id: "t1", SecretSha256: secret[:], Role: "login", Names: "login1,n2", ExpiresMs: 3600_000, Uses: 1, Caller: admin}}},
		{Of: &logpb.Command_UseJoinToken{UseJoinToken: &logpb.UseJoinToken{Id: "t0", SecretSha256: secret[:], Role: "node", Name: "n2"}}},
		{Of: &logpb.Command_RevokeJoinToken{RevokeJoinToken: &logpb.RevokeJoinToken{Id: "t1", Caller: admin}}},
		{Of: &logpb.Command_SetConfig{SetConfig: &logpb.SetConfig{Partitions: []*logpb.ConfigPartition{{Name: "p", IsDefault: true, JobLeaseMs: 5000}}}}},
	}, schedSamples()...)
}
