package leader

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

func synctestSleep() { time.Sleep(time.Second) }

func (b *bench) node(name string) (node.State, node.Flags, string) {
	synctest.Wait()
	n := b.log.store.View().Node(name)
	return n.State, n.Flags, n.Reason
}

func TestSilence(t *testing.T) {
	inBench(t, func(b *bench) {
		l, r := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		well := b.connect(l, "n2")
		well.beat()
		time.Sleep(time.Hour)
		if s, f, _ := b.node("n1"); s != node.Idle || f != 0 {
			t.Errorf("a node that beats is %v %v", s, f)
		}
		a.cancel()
		time.Sleep(4 * time.Second)
		if _, f, _ := b.node("n1"); f != 0 {
			t.Error("silent too early")
		}
		time.Sleep(4 * time.Second)
		if _, f, _ := b.node("n1"); f&node.NotResponding == 0 {
			t.Error("not called silent")
		}
		// A new leader gives a full window.
		r.lose()
		time.Sleep(2 * time.Second)
		l2, _ := b.lead("c2")
		well = b.connect(l2, "n2")
		well.beat()
		time.Sleep(b.cfg.SlurmdTimeout - 2*time.Second)
		if s, _, _ := b.node("n1"); s == node.Down {
			t.Error("down before the new leader's window is over")
		}
		time.Sleep(5 * time.Second)
		if s, _, why := b.node("n1"); s != node.Down || why != "Not responding" {
			t.Errorf("after the window: %v %q", s, why)
		}
		if s, f, _ := b.node("n2"); s != node.Idle || f != 0 {
			t.Errorf("the other node is %v %v", s, f)
		}
		// It comes back.
		b.connect(l2, "n1").beat()
		if s, f, _ := b.node("n1"); s != node.Idle || f != 0 {
			t.Errorf("back: %v %v", s, f)
		}
	})
}

// An agent that stalls and goes on over the same session is used again.
func TestStalledAgentComesBack(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		time.Sleep(10 * time.Second)
		if _, f, _ := b.node("n1"); f&node.NotResponding == 0 {
			t.Fatal("not called silent")
		}
		a.beat()
		time.Sleep(3 * time.Second)
		if _, f, _ := b.node("n1"); f != 0 {
			t.Errorf("flags %v", f)
		}
		if info, ok := l.NodeInfo("n1"); !ok || info.Load != 0.5 || !info.Connected {
			t.Errorf("info %+v", info)
		}
	})
}

func TestProblemDrains(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Heartbeat{Heartbeat: &nodepb.Heartbeat{Seq: 7, Problem: "spool: no space left on device (ENOSPC)"}}})
		if _, f, why := b.node("n1"); f&node.Drain == 0 || !strings.Contains(why, "ENOSPC") {
			t.Errorf("flags %v, reason %q", f, why)
		}
		acked := false
		for _, m := range a.take() {
			acked = acked || m.GetHeartbeatAck().GetSeq() == 7
		}
		if !acked {
			t.Error("the heartbeat was not acknowledged")
		}
		a.beat()
		time.Sleep(2 * time.Second)
		if _, f, why := b.node("n1"); f&node.Drain != 0 || why != "" {
			t.Errorf("without a complaint: flags %v, reason %q", f, why)
		}
		// What an administrator said stays, whatever the agent thinks of its node.
		b.apply(&logpb.Command{Of: &logpb.Command_NodeUpdate{NodeUpdate: &logpb.NodeUpdate{
			Nodes: []string{"n1"}, State: "DRAIN", Reason: "fan", Caller: &logpb.Caller{User: "root", Operator: true}}}})
		time.Sleep(2 * time.Second)
		if _, f, why := b.node("n1"); f&node.Drain == 0 || why != "fan" {
			t.Errorf("an administrator's drain: flags %v, reason %q", f, why)
		}
	})
}

func TestBeginTime(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{Begin: time.Now().Add(time.Minute).UnixMilli()})
		time.Sleep(59 * time.Second)
		b.want(ids[0], job.Pending, 0)
		time.Sleep(time.Second)
		b.want(ids[0], job.Running, job.Configuring)
	})
}

func TestReasonsAreProposedOnce(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		b.connect(l, "n2").beat()
		ids := b.submit(&job.Spec{Exclusive: true, MinNodes: 2, MaxNodes: 2}, &job.Spec{Exclusive: true, MinNodes: 2, MaxNodes: 2})
		synctest.Wait()
		a.started(a.launches())
		if r, _ := l.Log.View().Reason(b.job(ids[1])); r != job.ReasonResources {
			t.Errorf("reason %q", r)
		}
		plans := func() int {
			return b.log.count(func(c *logpb.Command) bool { return c.GetPlan() != nil })
		}
		before := plans()
		b.submit(&job.Spec{Hold: true})
		time.Sleep(time.Minute)
		if n := plans() - before; n != 0 {
			t.Errorf("%d plans with nothing new", n)
		}
	})
}

func TestTimeLimitBackup(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{TimeLimit: 60000})
		a.started(a.launches())
		time.Sleep(115 * time.Second) // the shepherd should have ended it at 60 s, killed at 90 s
		b.want(ids[0], job.Running, 0)
		time.Sleep(15 * time.Second)
		b.want(ids[0], job.Timeout, job.Completing)
		kills := a.kills()
		if len(kills) != 1 || kills[0].Why != nodepb.Kill_TIME_LIMIT || !strings.HasSuffix(kills[0].Note, "DUE TO TIME LIMIT ***") {
			t.Errorf("kills %v", kills)
		}
	})
}

func TestLeaseOver(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.JobLease = 10 * time.Minute
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{NodeList: "n1", Requeue: 1})
		time.Sleep(2 * time.Second) // it goes out behind an acknowledgement
		a.started(a.launches())
		a.cancel()
		time.Sleep(10 * time.Minute)
		if j := b.job(ids[0]); j.Run != 0 || j.Reason != job.ReasonFencing {
			t.Errorf("before the lease is over: run %d, %v, %s", j.Run, j.State, j.Reason)
		}
		time.Sleep(20 * time.Second)
		if j := b.job(ids[0]); j.Run != 1 {
			t.Errorf("after the lease: run %d, %v %s", j.Run, j.State, j.Reason)
		}
	})
}

// A leader that was deposed and does not know it renews no lease.
func TestDeposedLeaderRenewsNothing(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.JobLease = 10 * time.Minute
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		acks := func() (n int) {
			for _, m := range a.take() {
				if m.GetHeartbeatAck() != nil {
					n++
				}
			}
			return n
		}
		beat := &nodepb.AgentMessage{Of: &nodepb.AgentMessage_Heartbeat{Heartbeat: &nodepb.Heartbeat{Seq: 1}}}
		a.take()
		a.say(beat)
		if acks() != 1 {
			t.Error("not acknowledged by a leader that is one")
		}
		b.log.mu.Lock()
		b.log.leader = "c2"
		b.log.mu.Unlock()
		a.say(beat)
		time.Sleep(time.Minute)
		if acks() != 0 {
			t.Error("acknowledged by a deposed leader")
		}
	})
}

func TestPurge(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{})
		list := a.launches()
		a.started(list)
		a.report(&nodepb.Report{Key: list[0].Key})
		b.want(ids[0], job.Completed, 0)
		time.Sleep(23 * time.Hour)
		if b.job(ids[0]) == nil {
			t.Error("gone before MinJobAge")
		}
		time.Sleep(2 * time.Hour)
		if b.job(ids[0]) != nil {
			t.Error("still there after MinJobAge")
		}
	})
}

func TestPlansAreSplit(t *testing.T) {
	d := &sched.Decision{Base: 3}
	for i := range 1000 {
		s := sched.Start{JobID: uint32(i + 1), Task: -1, Partition: "main"}
		for n := range 16 {
			a := job.NodeAlloc{Node: fmt.Sprint("node", n), CPUs: 64, Mem: 1 << 40, Tasks: 64}
			for c := range uint32(64) {
				a.CPUIDs = append(a.CPUIDs, c)
			}
			s.Nodes = append(s.Nodes, a)
		}
		d.Starts = append(d.Starts, s)
	}
	cmds := planCommands(d)
	starts := 0
	for _, c := range cmds {
		if n := proto.Size(c); n > replica.MaxCommand {
			t.Errorf("a command of %d bytes, limit %d", n, replica.MaxCommand)
		}
		if c.GetPlan().GetBase() != 3 {
			t.Error("a part without its base")
		}
		starts += len(c.GetPlan().GetStarts())
	}
	if len(cmds) < 2 || starts != 1000 {
		t.Errorf("%d starts in %d commands", starts, len(cmds))
	}
}

func TestOldNumbersWait(t *testing.T) {
	m := &planMemory{classes: map[string]told{}, jobs: map[uint32]sched.Reason{}}
	at := time.Unix(100, 0)
	tell := func(reason job.Reason, detail string) (int, bool) {
		d := &sched.Decision{Classes: []sched.ClassReason{{Class: "a", Reason: reason, Detail: detail}}}
		later := m.filter(d, at)
		return len(planCommands(d)), later
	}
	for _, tt := range []struct {
		after  time.Duration
		reason job.Reason
		detail string
		cmds   int
		later  bool
	}{
		{0, job.ReasonResources, "1 node", 1, false},
		{time.Second, job.ReasonResources, "1 node", 0, false},
		{time.Second, job.ReasonResources, "2 nodes", 0, true},
		{time.Second, job.ReasonPriority, "2 nodes", 1, false},
		{reasonQuiet, job.ReasonPriority, "3 nodes", 1, false},
	} {
		at = at.Add(tt.after)
		if n, later := tell(tt.reason, tt.detail); n != tt.cmds || later != tt.later {
			t.Errorf("%s %q: %d commands, later %v", tt.reason, tt.detail, n, later)
		}
	}
}
