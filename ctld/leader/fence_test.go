package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// TestLeaseOverPromptly: with JobLease=5s a cut-off node's job starts elsewhere soon after lease and
// skew, and never before.
func TestLeaseOverPromptly(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.JobLease = 5 * time.Second
		l, _ := b.lead("c1")
		a, other := b.connect(l, "n1"), b.connect(l, "n2")
		a.beat()
		other.beat()
		time.Sleep(3 * time.Second)
		ids := b.submit(&job.Spec{NTasks: 4, Requeue: 1})
		list := a.launches()
		if len(list) == 0 {
			list, a, other = other.launches(), other, a
		}
		a.started(list)
		time.Sleep(10 * time.Second)
		b.want(ids[0], job.Running, 0)
		a.cancel()
		cut := time.Now()
		for b.job(ids[0]).Run == 0 {
			if time.Since(cut) > time.Minute {
				t.Fatal("not started elsewhere after a minute")
			}
			time.Sleep(10 * time.Millisecond)
		}
		// The last heartbeat came up to a second before the cut.
		lease := 5*time.Second + leaseSkew(5*time.Second)
		if took := time.Since(cut); took < lease-time.Second || took > lease+2*time.Second {
			t.Errorf("given up after %v, lease and skew are %v", took, lease)
		}
		if len(other.launches()) != 1 {
			t.Error("not started elsewhere")
		}
	})
}

// TestLeaseCountsFromElection: a new leader does not know when its predecessor renewed last.
func TestLeaseCountsFromElection(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.JobLease = 5 * time.Second
		l, r := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		time.Sleep(2 * time.Second)
		ids := b.submit(&job.Spec{NodeList: "n1", Requeue: 1})
		a.started(a.launches())
		a.cancel()
		time.Sleep(6 * time.Second) // NOT RESPONDING by now
		b.want(ids[0], job.Running, 0)
		r.lose()
		synctest.Wait()
		b.lead("c2")
		time.Sleep(7 * time.Second)
		if j := b.job(ids[0]); j.Run != 0 {
			t.Error("given up before the new leader's own lease and skew")
		}
		time.Sleep(2 * time.Second)
		if j := b.job(ids[0]); j.Run != 1 {
			t.Errorf("run %d, %v %s", j.Run, j.State, j.Reason)
		}
	})
}

// TestLeasedLaunchGoesBehindAnAck: the agent counts a lease from its last acknowledged heartbeat, so one
// that a majority stands behind comes first; a leader that was deposed and does not know it sends none.
func TestLeasedLaunchGoesBehindAnAck(t *testing.T) {
	beat := func(n uint64) *nodepb.AgentMessage {
		return &nodepb.AgentMessage{Of: &nodepb.AgentMessage_Heartbeat{Heartbeat: &nodepb.Heartbeat{Seq: n}}}
	}
	inBench(t, func(b *bench) {
		b.cfg.JobLease = time.Minute
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		b.submit(&job.Spec{NodeList: "n1", Requeue: 1}, &job.Spec{NodeList: "n1"})
		if list := a.launches(); len(list) != 1 || list[0].Key.JobId != 2 {
			t.Errorf("before an acknowledgement: %d launches", len(list))
		}
		a.say(beat(1))
		time.Sleep(100 * time.Millisecond)
		acked := false
		for _, m := range a.take() {
			acked = acked || m.GetHeartbeatAck() != nil
			if len(m.GetLaunch().GetLaunches()) > 0 && !acked {
				t.Error("the launch came before the acknowledgement")
			}
		}
		if !acked {
			t.Error("no acknowledgement")
		}
	})
	inBench(t, func(b *bench) {
		b.cfg.JobLease = time.Minute
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		b.submit(&job.Spec{NodeList: "n1", Requeue: 1})
		synctest.Wait()
		b.log.mu.Lock()
		b.log.leader = "c2"
		b.log.mu.Unlock()
		a.say(beat(1))
		time.Sleep(time.Minute)
		if n := len(a.launches()); n != 0 {
			t.Errorf("%d launches by a deposed leader", n)
		}
	})
}

// TestLeasesSwitchedOff: when leases go out of the configuration the next acknowledgement may be one that no
// majority stands behind. A run that still has its lease is renewed by it all the same, so it counts here too.
func TestLeasesSwitchedOff(t *testing.T) {
	inBench(t, func(b *bench) {
		beat := func(a *agent, n uint64) {
			a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Heartbeat{Heartbeat: &nodepb.Heartbeat{Seq: n}}})
		}
		b.cfg.JobLease = 5 * time.Second
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		time.Sleep(time.Second)
		beat(a, 1)
		time.Sleep(100 * time.Millisecond)
		ids := b.submit(&job.Spec{NodeList: "n1", Requeue: 1})
		a.started(a.launches())
		b.cfg.JobLease = 0
		time.Sleep(3 * time.Second)
		beat(a, 2) // timerLoop has not seen the run yet
		time.Sleep(100 * time.Millisecond)
		a.cancel()
		time.Sleep(5*time.Second + leaseSkew(5*time.Second) - 200*time.Millisecond)
		if j := b.job(ids[0]); j.Run != 0 {
			t.Error("given up while the lease lasts at the node")
		}
		time.Sleep(3 * time.Second)
		if j := b.job(ids[0]); j.Run == 0 {
			t.Error("not given up")
		}
	})
}

// TestReadAnsweredBySuccessor: a deposed leader's check may be answered by who came after it. That
// renews nothing.
func TestReadAnsweredBySuccessor(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.JobLease = time.Minute
		l, r := b.lead("c1")
		term := l.current()
		if !l.confirmed(term) {
			t.Error("a leader is not confirmed")
		}
		b.log.mu.Lock()
		b.log.term++ // it lost and won: the term is another
		b.log.mu.Unlock()
		if l.confirmed(term) {
			t.Error("confirmed in another term")
		}
		r.lose()
	})
}

// TestReboot: a node that comes back with another boot id has lost its runs; they start at once.
func TestReboot(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a, other := b.connect(l, "n1"), b.connect(l, "n2")
		other.beat()
		ids := b.submit(&job.Spec{NodeList: "n1"})
		a.started(a.launches())
		a.cancel()
		time.Sleep(time.Second)
		h := hello("n1", batch(ids[0], 0)) // its spool still has the folder
		h.BootId = "boot2"
		a = b.dial(l, "n1", h)
		a.read()
		list := a.launches()
		if j := b.job(ids[0]); j.Run != 1 || len(list) != 1 || list[0].Key.Run != 1 {
			t.Errorf("run %d, launches %v", j.Run, list)
		}
	})
}

// program is a fence program.
type program struct {
	mu    sync.Mutex
	names []string
	fails int
	block bool
}

func (p *program) calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.names)
}

func (p *program) fence(ctx context.Context, node string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names = append(p.names, node)
	if p.block {
		p.mu.Unlock()
		defer p.mu.Lock()
		<-ctx.Done()
		return ctx.Err()
	}
	if p.fails--; p.fails >= 0 {
		return errors.New("exit status 1")
	}
	return nil
}

// fenceBench has a job on a node that is cut off, and the moment it is DOWN at has come.
func fenceBench(b *bench, p *program) (l *Leader, other *agent, id uint32) {
	b.cfg.FenceProgram, b.cfg.FenceTimeout, b.cfg.SlurmdTimeout = "/usr/sbin/fence", 20*time.Second, 30*time.Second
	b.deps = func(d *Deps) { d.Fence = p.fence }
	l, _ = b.lead("c1")
	a := b.connect(l, "n1")
	other = b.connect(l, "n2")
	other.beat()
	ids := b.submit(&job.Spec{NodeList: "n1"})
	a.started(a.launches())
	a.cancel()
	time.Sleep(25 * time.Second)
	if len(p.calls()) != 0 {
		b.Errorf("fenced while it was only silent: %v", p.calls())
	}
	time.Sleep(7 * time.Second)
	return l, other, ids[0]
}

// TestFenceProgram: it is run for a node that is DOWN and has runs, again when it fails, and its word
// frees them.
func TestFenceProgram(t *testing.T) {
	inBench(t, func(b *bench) {
		p := &program{fails: 2}
		_, _, id := fenceBench(b, p)
		if fmt.Sprint(p.calls()) != "[n1]" || b.job(id).Run != 0 {
			t.Errorf("calls %v, run %d", p.calls(), b.job(id).Run)
		}
		time.Sleep(30 * time.Second)
		if fmt.Sprint(p.calls()) != "[n1 n1 n1]" || b.job(id).Run != 1 {
			t.Errorf("calls %v, run %d", p.calls(), b.job(id).Run)
		}
		time.Sleep(time.Hour)
		if len(p.calls()) != 3 {
			t.Errorf("run again although nothing waits: %v", p.calls())
		}
	})
}

// TestFenceProgramHangs: it is ended after FenceTimeout and tried again; it holds nothing else up.
func TestFenceProgramHangs(t *testing.T) {
	inBench(t, func(b *bench) {
		p := &program{block: true}
		l, other, id := fenceBench(b, p)
		more := b.submit(&job.Spec{NodeList: "n2"})
		other.started(other.launches())
		b.want(more[0], job.Running, 0)
		time.Sleep(15 * time.Second)
		if len(p.calls()) != 1 {
			t.Errorf("two at a time: %v", p.calls())
		}
		time.Sleep(30 * time.Second)
		if len(p.calls()) != 2 || b.job(id).Run != 0 {
			t.Errorf("calls %v, run %d", p.calls(), b.job(id).Run)
		}
		// The node comes back, with its run: there is nothing to fence any more.
		a := b.connect(l, "n1", batch(id, 0))
		a.beat()
		time.Sleep(time.Hour)
		b.want(id, job.Running, 0)
		if len(p.calls()) > 3 {
			t.Errorf("%d calls for a node that is back", len(p.calls()))
		}
	})
}

// TestFencedNodeIsBackAlready: the program takes so long that the node has booted and runs something
// else when it ends. That is not touched.
func TestFencedNodeIsBackAlready(t *testing.T) {
	inBench(t, func(b *bench) {
		p := &program{}
		let := make(chan struct{})
		b.cfg.FenceProgram, b.cfg.FenceTimeout, b.cfg.SlurmdTimeout = "/usr/sbin/fence", time.Hour, 30*time.Second
		b.deps = func(d *Deps) {
			d.Fence = func(ctx context.Context, node string) error { <-let; return p.fence(ctx, node) }
		}
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		ids := b.submit(&job.Spec{NodeList: "n1"})
		a.started(a.launches())
		a.cancel()
		time.Sleep(40 * time.Second)
		h := hello("n1")
		h.BootId = "boot2"
		a = b.dial(l, "n1", h)
		a.read()
		a.beat()
		more := b.submit(&job.Spec{NodeList: "n1"})
		a.started(a.launches())
		b.want(more[0], job.Running, 0)
		b.want(ids[0], job.Running, 0)
		close(let)
		time.Sleep(time.Minute)
		b.want(more[0], job.Running, 0)
		if x, y := b.job(ids[0]).Run, b.job(more[0]).Run; x != 1 || y != 0 {
			t.Errorf("runs %d and %d", x, y)
		}
	})
}

// TestBlackHole: an agent that takes everything and answers nothing, heartbeats apart, costs the
// others nothing; what was not sent to it goes elsewhere, what was is never given out twice.
func TestBlackHole(t *testing.T) {
	inBench(t, func(b *bench) {
		n := b.cfg.Nodes[0]
		var names []string
		b.cfg.Nodes = nil
		for i := range 10 {
			n.Name = fmt.Sprint("n", i)
			b.cfg.Nodes = append(b.cfg.Nodes, n)
			names = append(names, n.Name)
		}
		b.cfg.Partitions[0].Nodes = names
		l, _ := b.lead("c1")
		var hole *agent
		for i, name := range names {
			a := b.connect(l, name)
			a.beat()
			if i == 0 {
				hole = a
				continue
			}
			go a.work()
		}
		var specs []*job.Spec
		for range 4 {
			specs = append(specs, &job.Spec{NodeList: "n0"})
		}
		for range 50 {
			specs = append(specs, &job.Spec{})
		}
		ids := b.submit(specs...)
		time.Sleep(5 * time.Second)
		for _, id := range ids[4:] {
			b.want(id, job.Completed, 0)
		}
		for _, id := range ids[:4] {
			if j := b.job(id); j.Run != 0 || j.Allocs[0].Node != "n0" {
				t.Errorf("job %d: run %d on %v", id, j.Run, j.Allocs)
			}
		}
		if len(hole.launches()) != 4 {
			t.Error("not sent")
		}
		time.Sleep(2 * time.Minute)
		if s, f, why := b.node("n0"); f&node.Drain == 0 {
			t.Errorf("%v %v %s", s, f, why)
		}
	})
}

// work takes launches and ends them 10 ms later, until the session ends.
func (a *agent) work() {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-tick.C:
		}
		a.mu.Lock()
		got := a.got
		a.got = nil
		a.mu.Unlock()
		var results []*nodepb.LaunchResult
		var reports []*nodepb.Report
		for _, m := range got {
			for _, x := range m.GetLaunch().GetLaunches() {
				results = append(results, &nodepb.LaunchResult{Key: x.Key, Ok: true})
				reports = append(reports, &nodepb.Report{Key: x.Key})
			}
		}
		if len(results) > 0 {
			a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Launched{Launched: &nodepb.LaunchResults{Results: results}}})
			a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Reports{Reports: &nodepb.Reports{Reports: reports}}})
		}
	}
}

// TestUnsentGoesElsewhere: a job whose launch this term has never sent starts elsewhere when its node
// falls silent; one that was sent, or that an earlier term may have sent, waits for proof.
func TestUnsentGoesElsewhere(t *testing.T) {
	inBench(t, func(b *bench) {
		l, r := b.lead("c1")
		a, other := b.connect(l, "n1"), b.connect(l, "n2")
		other.beat()
		time.Sleep(time.Second) // the state's time goes beyond that of the term's beginning
		sent := b.submit(&job.Spec{NTasks: 2, NodeList: "n1"})
		if len(a.launches()) != 1 {
			t.Fatal("not sent")
		}
		a.cancel()
		synctest.Wait()
		never := b.submit(&job.Spec{NTasks: 2, NodeList: "n1", Requeue: 1})
		synctest.Wait()
		if j := b.job(never[0]); j.State != job.Running {
			t.Fatalf("%v %s", j.State, j.Reason)
		}
		time.Sleep(7 * time.Second)
		if x, y := b.job(sent[0]), b.job(never[0]); x.Run != 0 || y.Run != 1 {
			t.Errorf("sent: run %d; never sent: run %d", x.Run, y.Run)
		}
		// It is not sent any more under the run that was given up, should the agent come back.
		a = b.connect(l, "n1")
		for _, x := range a.launches() {
			if x.Key.JobId == never[0] && x.Key.Run == 0 {
				t.Error("sent after it was given up")
			}
		}
		a.beat()
		time.Sleep(5 * time.Second)
		a.cancel()
		synctest.Wait()
		third := b.submit(&job.Spec{NTasks: 1, NodeList: "n1"})
		synctest.Wait()
		r.lose()
		synctest.Wait()
		b.lead("c2")
		time.Sleep(20 * time.Second)
		if j := b.job(third[0]); j.Run != 0 {
			t.Errorf("an earlier term's launch: run %d", j.Run)
		}
	})
}

// TestStaleWordsOfAnEarlierRun: answers, reports and the ends of kills of a run that is over say nothing
// of the next one.
func TestStaleWordsOfAnEarlierRun(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{NodeList: "n1"})
		first := a.launches()
		a.started(first)
		a.cancel()
		time.Sleep(time.Second)
		h := hello("n1")
		h.BootId = "boot2"
		a = b.dial(l, "n1", h)
		a.read()
		a.beat()
		second := a.launches()
		if len(second) != 1 || second[0].Key.Run != 1 {
			t.Fatalf("launches %v", second)
		}
		a.started(second)
		old := first[0].Key
		a.report(&nodepb.Report{Key: old, ExitCode: 3}, &nodepb.Report{Key: old, Lost: true})
		a.killResult(old, false)
		a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Launched{Launched: &nodepb.LaunchResults{Results: []*nodepb.LaunchResult{
			{Key: old, Error: "no", Cause: nodepb.LaunchResult_NODE}}}}})
		b.apply(&logpb.Command{Of: &logpb.Command_JobTimer{JobTimer: &logpb.JobTimer{JobId: ids[0], Run: 0, What: "lease_over"}}})
		b.apply(&logpb.Command{Of: &logpb.Command_JobTimer{JobTimer: &logpb.JobTimer{JobId: ids[0], Run: 0, What: "time_limit"}}})
		time.Sleep(time.Second)
		b.want(ids[0], job.Running, 0)
		if s, f, why := b.node("n1"); s != node.Idle || f != 0 {
			t.Errorf("the node is %v %v %s", s, f, why)
		}
		acked := 0
		for _, m := range a.take() {
			for _, k := range m.GetAcks().GetKeys() {
				if keyOf(k) == keyOf(old) {
					acked++
				}
			}
		}
		if acked == 0 {
			t.Error("the old report is not acknowledged: the agent would repeat it for ever")
		}
		a.report(&nodepb.Report{Key: second[0].Key, ExitCode: 0})
		b.want(ids[0], job.Completed, 0)
	})
}

// TestAgentWaitsForElection: an agent that comes while there is no leader is told who leads as soon as
// there is one, here or elsewhere, and is not sent away meanwhile.
func TestAgentWaitsForElection(t *testing.T) {
	inBench(t, func(b *bench) {
		l1, r1 := b.leader("c1")
		l2, _ := b.leader("c2")
		a, other := b.connect(l1, "n1"), b.connect(l2, "n2")
		time.Sleep(time.Second)
		if len(a.take())+len(other.take()) != 0 {
			t.Error("answered while nobody leads")
		}
		r1.win(b.ctx)
		time.Sleep(2 * lookForLeader)
		if m := a.take(); len(m) != 1 || m[0].GetWelcome().GetLeader() != "c1" {
			t.Errorf("who came to lead said %v", m)
		}
		if m := other.take(); len(m) != 1 || m[0].GetNotLeader().GetLeader() != "c1" {
			t.Errorf("the other said %v", m)
		}
	})
	inBench(t, func(b *bench) {
		l, _ := b.leader("c1")
		a := b.connect(l, "n1")
		time.Sleep(awaitLeader + time.Second)
		if m := a.take(); len(m) != 1 || m[0].GetNotLeader() == nil || m[0].GetNotLeader().GetLeader() != "" {
			t.Errorf("without a leader: %v", m)
		}
	})
}

// TestWelcomeNamesControllers: agents learn of controllers that their file does not name.
func TestWelcomeNamesControllers(t *testing.T) {
	inBench(t, func(b *bench) {
		b.deps = func(d *Deps) {
			d.Controllers = func() []*nodepb.ControllerAddress {
				return []*nodepb.ControllerAddress{{Name: "c4", Address: "c4:6817"}}
			}
		}
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		if m := a.take(); len(m) != 1 || len(m[0].GetWelcome().GetControllers()) != 1 {
			t.Errorf("welcome %v", m)
		}
	})
}
