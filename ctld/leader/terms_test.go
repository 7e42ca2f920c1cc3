package leader

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// TestOldFileUndoesNothing: a controller with another file that comes to lead leaves the cluster's
// configuration as it is.
func TestOldFileUndoesNothing(t *testing.T) {
	inBench(t, func(b *bench) {
		sets := func() int { return b.log.count(func(c *logpb.Command) bool { return c.GetSetConfig() != nil }) }
		_, r := b.lead("c1")
		r.lose()
		b.cfg = testConfig()
		b.cfg.Nodes[0].Weight = 5
		b.lead("c2")
		if n := sets(); n != 1 || b.log.store.View().Node("n1").Weight != 1 {
			t.Errorf("set %d times", n)
		}
	})
}

// TestUnusableConfiguration: a configuration that can never go into the log does not keep the
// controller from leading.
func TestUnusableConfiguration(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.Nodes[0].Reason = "d\xe9faut"
		l, _ := b.lead("c1")
		if l.current() == nil {
			t.Error("it tries for ever")
		}
	})
}

// TestSlurmdTimeoutOff: 0 calls no node down, however long it is silent; it takes no new jobs.
func TestSlurmdTimeoutOff(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.SlurmdTimeout = 0
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		time.Sleep(time.Minute)
		if s, f, _ := b.node("n1"); s != node.Idle || f != 0 {
			t.Errorf("a node that beats is %v %v", s, f)
		}
		a.cancel()
		time.Sleep(time.Hour)
		if s, f, _ := b.node("n1"); s != node.Idle || f&node.NotResponding == 0 {
			t.Errorf("a silent node is %v %v", s, f)
		}
	})
}

// TestLeaseOfFirstNode: only the node that the shepherd is on can end a lease by its silence.
func TestLeaseOfFirstNode(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.JobLease = time.Minute
		l, _ := b.lead("c1")
		a, second := b.connect(l, "n1"), b.connect(l, "n2")
		a.beat()
		second.beat()
		ids := b.submit(&job.Spec{MinNodes: 2, MaxNodes: 2, Requeue: 1})
		synctest.Wait()
		first := a
		if b.job(ids[0]).Allocs[0].Node == "n2" {
			first, second = second, a
		}
		first.started(first.launches())
		second.cancel()
		time.Sleep(4 * time.Minute) // longer than the lease, shorter than SlurmdTimeout
		if j := b.job(ids[0]); j.Run != 0 || j.State != job.Running {
			t.Errorf("run %d, %v %s while the batch host beats", j.Run, j.State, j.Reason)
		}
	})
}

// TestLeaseIsTheLaunchs: what is changed while a job runs does not change the lease its shepherd has.
func TestLeaseIsTheLaunchs(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.JobLease = 10 * time.Minute
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{NodeList: "n1", Requeue: -1})
		list := a.launches()
		if len(list) != 1 || b.job(ids[0]).Lease != 0 {
			t.Fatalf("launches %v, lease %d", list, b.job(ids[0]).Lease)
		}
		a.started(list)
		b.apply(&logpb.Command{Of: &logpb.Command_UpdateJob{UpdateJob: &logpb.UpdateJob{
			Job: &logpb.JobRef{JobId: ids[0]}, Set: map[string]string{"Requeue": "1"}, Caller: controllerItself}}})
		a.cancel()
		time.Sleep(time.Hour)
		if j := b.job(ids[0]); j.Run != 0 {
			t.Errorf("run %d, %v %s: its shepherd goes on", j.Run, j.State, j.Reason)
		}
	})
}

// TestReasonsComeBack: what the state has dropped is told again, though the planner's word is the same.
func TestReasonsComeBack(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		b.connect(l, "n2").beat()
		wide := func() *job.Spec { return &job.Spec{Exclusive: true, MinNodes: 2, MaxNodes: 2} }
		ids := b.submit(wide(), wide())
		synctest.Wait()
		a.started(a.launches())
		reason := func(id uint32) job.Reason {
			time.Sleep(time.Second)
			synctest.Wait()
			r, _ := l.Log.View().Reason(b.job(id))
			return r
		}
		if r := reason(ids[1]); r != job.ReasonResources {
			t.Fatalf("reason %q", r)
		}
		b.apply(&logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: []*logpb.JobRef{{JobId: ids[1]}}, Caller: controllerItself}}})
		again := b.submit(wide())
		if r := reason(again[0]); r != job.ReasonResources {
			t.Errorf("reason %q of a job like the one cancelled", r)
		}
	})
}

// TestStaleBlobsLeave: a blob that no job has taken leaves after BlobAge, in a cluster without jobs too.
func TestStaleBlobsLeave(t *testing.T) {
	inBench(t, func(b *bench) {
		b.lead("c1")
		hash := b.blob([]byte("A=1\x00"))
		time.Sleep(time.Duration(state.BlobAge)*time.Millisecond - time.Minute)
		if _, ok := b.log.store.View().Blob(hash); !ok {
			t.Error("gone before BlobAge")
		}
		time.Sleep(3 * time.Minute)
		if _, ok := b.log.store.View().Blob(hash); ok {
			t.Error("still there")
		}
	})
}

// TestClipKeepsText: what is cut off an agent's words leaves valid text.
func TestClipKeepsText(t *testing.T) {
	for i := range 4 {
		if s := clip(strings.Repeat("x", i) + strings.Repeat("\u20ac", maxText)); !utf8.ValidString(s) || len(s) > maxText {
			t.Errorf("%d bytes, valid %v", len(s), utf8.ValidString(s))
		}
	}
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{NodeList: "n1"})
		list := a.launches()
		a.started(list)
		a.report(&nodepb.Report{Key: list[0].Key, Error: "x" + strings.Repeat("\u20ac", maxText)})
		if j := b.job(ids[0]); !j.State.Ended() {
			t.Errorf("the report was not taken: %v", j.State)
		}
	})
}

// TestStartThatFitsNoCommand: a job whose start no command can hold is held with the limit as its
// reason, and those behind it start.
func TestStartThatFitsNoCommand(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{Hold: true}, &job.Spec{Hold: true})
		huge := sched.Start{JobID: ids[0], Task: -1, Partition: "main"}
		for n := range 8000 {
			a := job.NodeAlloc{Node: fmt.Sprint("node", n), CPUs: 128, Tasks: 1}
			for c := range uint32(128) {
				a.CPUIDs = append(a.CPUIDs, c)
			}
			huge.Nodes = append(huge.Nodes, a)
		}
		d := &sched.Decision{Starts: []sched.Start{{JobID: ids[1], Task: -1}, huge}}
		hold := oversize(d)
		if len(d.Starts) != 1 || d.Starts[0].JobID != ids[1] || len(hold) != 2 {
			t.Fatalf("%d starts stay, %d commands", len(d.Starts), len(hold))
		}
		for _, c := range hold {
			b.apply(c)
		}
		v := b.log.store.View()
		if r, why := v.Reason(v.Job(ids[0])); r != job.ReasonHeldAdmin || !strings.Contains(why, "MaxCommand=1048576") || v.Job(ids[0]).Priority != 0 {
			t.Errorf("%s %q", r, why)
		}
		huge.Nodes = huge.Nodes[:4000]
		d = &sched.Decision{Starts: []sched.Start{huge}}
		if hold := oversize(d); len(hold) != 0 || len(d.Starts) != 1 || proto.Size(fsm.StartToLog(&huge))+startFrame > replica.MaxCommand {
			t.Errorf("one that fits: %d commands", len(hold))
		}
	})
}

// TestLeaseAfterReload: runs that have a lease are renewed by a proven leader only, also when
// JobLease was set to 0 since.
func TestLeaseAfterReload(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.JobLease = 10 * time.Minute
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		b.submit(&job.Spec{NodeList: "n1", Requeue: 1})
		a.started(a.launches())
		time.Sleep(timerInterval)
		b.cfg.JobLease = 0
		b.log.mu.Lock()
		b.log.leader = "c2"
		b.log.mu.Unlock()
		a.take()
		a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Heartbeat{Heartbeat: &nodepb.Heartbeat{Seq: 1}}})
		for _, m := range a.take() {
			if m.GetHeartbeatAck() != nil {
				t.Error("acknowledged by a deposed leader")
			}
		}
	})
}
