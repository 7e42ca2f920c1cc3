package leader

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

func TestJobsRun(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		if m := a.take(); len(m) == 0 || m[0].GetWelcome().GetTerm() != 1 || m[0].GetWelcome().GetLeader() != "c1" {
			t.Fatalf("no welcome: %v", m)
		}
		ids := b.submit(&job.Spec{NTasks: 2}, &job.Spec{}, &job.Spec{Array: "0-1"})
		list := a.launches()
		if len(list) != 3 { // 2+1+1 CPUs; the second task waits
			t.Fatalf("%d launches", len(list))
		}
		for _, x := range list {
			c, err := cred.UnmarshalLaunch(x.Credential)
			if err != nil || cred.Verify(b.key.Public().(ed25519.PublicKey), x.Credential, x.Signature) != nil {
				t.Fatalf("credential: %v", err)
			}
			if c.Payload != cred.PayloadDigest(x.Script, x.Args, x.Env) || c.Node != "n1" || c.JobID != x.Key.JobId || c.Cluster != "tg" || c.UID != 1000 {
				t.Errorf("credential %+v does not match its launch", c)
			}
		}
		b.want(ids[0], job.Running, job.Configuring)
		a.started(list)
		b.want(ids[0], job.Running, 0)
		a.report(&nodepb.Report{Key: list[0].Key, ExitCode: 3, EndMs: time.Now().UnixMilli()}, &nodepb.Report{Key: list[1].Key})
		b.want(ids[0], job.Failed, 0)
		b.want(ids[1], job.Completed, 0)
		var acks int
		var next []*nodepb.Launch
		for _, m := range a.take() {
			acks += len(m.GetAcks().GetKeys())
			next = append(next, m.GetLaunch().GetLaunches()...)
		}
		if acks != 2 || len(next) != 1 {
			t.Errorf("%d reports acknowledged, %d launches into the free CPUs", acks, len(next))
		}
		if b.job(ids[0]).Exit.Code != 3 {
			t.Errorf("exit %v", b.job(ids[0]).Exit)
		}
	})
}

func TestReportsAreAcknowledgedOnceApplied(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		b.submit(&job.Spec{})
		list := a.launches()
		a.started(list)
		gate := make(chan struct{})
		b.log.mu.Lock()
		b.log.gate = gate
		b.log.mu.Unlock()
		a.report(&nodepb.Report{Key: list[0].Key})
		time.Sleep(5 * time.Second)
		for _, m := range a.take() {
			if m.GetAcks() != nil {
				t.Fatal("acknowledged before the log held it")
			}
		}
		b.log.mu.Lock()
		b.log.gate = nil
		b.log.mu.Unlock()
		close(gate)
		time.Sleep(2 * ackDelay)
		for _, m := range a.take() {
			if len(m.GetAcks().GetKeys()) == 1 {
				return
			}
		}
		t.Error("never acknowledged")
	})
}

func TestHungAgentStopsNobodyElse(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		hung, well := b.connect(l, "n1"), b.connect(l, "n2")
		hung.beat()
		well.beat()
		ids := b.submit(&job.Spec{NodeList: "n1"}, &job.Spec{NodeList: "n2"})
		well.started(well.launches())
		b.want(ids[1], job.Running, 0)
		first := hung.launches()
		if len(first) != 1 {
			t.Fatal("no launch")
		}
		time.Sleep(19 * time.Second)
		if len(hung.launches()) != 0 {
			t.Error("sent again while it was to be left alone")
		}
		if n := l.Log.View().Node("n1"); n.Flags&node.Drain != 0 {
			t.Error("drained after one launch that was not answered")
		}
		time.Sleep(2 * time.Minute)
		again := hung.launches()
		if len(again) == 0 {
			t.Error("not sent again")
		}
		for _, x := range again {
			if keyOf(x.Key) != keyOf(first[0].Key) {
				t.Errorf("sent under another run: %v", x.Key)
			}
		}
		n := l.Log.View().Node("n1")
		if n.Flags&node.Drain == 0 || !strings.Contains(n.Reason, "ETIMEDOUT") || !strings.Contains(n.Reason, "3 times") {
			t.Errorf("after three: flags %v, reason %q", n.Flags, n.Reason)
		}
		more := b.submit(&job.Spec{})
		well.started(well.launches())
		b.want(more[0], job.Running, 0)
	})
}

// A node whose launcher believes no credential (its clock was set, its CA is another) does not eat the
// queue: each refusal sends the job back at once, so the node has to be left alone.
func TestRefusedCredentials(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		bad, well := b.connect(l, "n1"), b.connect(l, "n2")
		bad.beat()
		well.beat()
		b.submit(&job.Spec{NodeList: "n1", Requeue: 1})
		tries := 0
		for range 3 * 60 * 10 {
			time.Sleep(100 * time.Millisecond)
			bad.beat()
			var results []*nodepb.LaunchResult
			for _, x := range bad.launches() {
				tries++
				results = append(results, &nodepb.LaunchResult{Key: x.Key, Error: "credential is valid from tomorrow on", Cause: nodepb.LaunchResult_CREDENTIAL})
			}
			if results != nil {
				bad.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Launched{Launched: &nodepb.LaunchResults{Results: results}}})
			}
		}
		if tries == 0 || tries > launchStrikes {
			t.Errorf("%d launches in three minutes, want 1 to %d", tries, launchStrikes)
		}
		n := l.Log.View().Node("n1")
		if n.Flags&node.Drain == 0 || !strings.Contains(n.Reason, "credentials refused") || !strings.Contains(n.Reason, "valid from tomorrow") {
			t.Errorf("after %d: flags %v, reason %q", tries, n.Flags, n.Reason)
		}
		more := b.submit(&job.Spec{})
		well.started(well.launches())
		b.want(more[0], job.Running, 0)
	})
}

// An agent that does not even read keeps only its own session.
func TestBlockedStreamStopsNobodyElse(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		b.dial(l, "n1", hello("n1"))
		well := b.connect(l, "n2")
		ids := b.submit(&job.Spec{}, &job.Spec{}, &job.Spec{NodeList: "n2"})
		well.started(well.launches())
		b.want(ids[2], job.Running, 0)
	})
}

func TestFailoverLaunchesNothingTwice(t *testing.T) {
	inBench(t, func(b *bench) {
		l1, r1 := b.lead("c1")
		a := b.connect(l1, "n1")
		ids := b.submit(&job.Spec{}, &job.Spec{})
		list := a.launches()
		a.started(list[:1]) // the other's answer is lost
		r1.lose()
		l2, _ := b.lead("c2")
		synctest.Wait()
		refused := false
		for _, m := range a.take() {
			refused = refused || m.GetNotLeader().GetLeader() == "c2" && m.GetNotLeader().GetAddress() == "c2:6817"
		}
		if !refused {
			t.Error("the old leader did not say who leads")
		}
		a2 := b.connect(l2, "n1", batch(ids[0], 0), batch(ids[1], 0))
		a2.beat()
		time.Sleep(2 * time.Minute)
		if n := len(a2.launches()); n != 0 {
			t.Errorf("%d launches after the failover", n)
		}
		b.want(ids[0], job.Running, 0)
		b.want(ids[1], job.Running, 0)
		a2.report(&nodepb.Report{Key: batch(ids[0], 0)}, &nodepb.Report{Key: batch(ids[1], 0)})
		b.want(ids[0], job.Completed, 0)
		b.want(ids[1], job.Completed, 0)
	})
}

// The new leader sends what the old one had planned but not sent.
func TestFailoverSendsWhatIsMissing(t *testing.T) {
	inBench(t, func(b *bench) {
		l1, r1 := b.lead("c1")
		a := b.dial(l1, "n1", hello("n1"))
		synctest.Wait() // the welcome is not read: no launch reaches the agent
		a.take()
		b.submit(&job.Spec{})
		r1.lose()
		a.cancel()
		l2, _ := b.lead("c2")
		a2 := b.connect(l2, "n1")
		if list := a2.launches(); len(list) != 1 || list[0].Key.Run != 0 {
			t.Errorf("launches %v", list)
		}
	})
}

func TestLostRunIsQueuedAgain(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		ids := b.submit(&job.Spec{})
		a.started(a.launches())
		a.cancel()
		synctest.Wait()
		a = b.connect(l, "n1") // same boot, and no trace of the run
		synctest.Wait()
		if j := b.job(ids[0]); j.Run != 1 {
			t.Errorf("run %d, state %v", j.Run, j.State)
		}
		if list := a.launches(); len(list) == 1 && list[0].Key.Run != 1 {
			t.Error("the lost run was sent again")
		}
	})
}

func TestForget(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1", batch(77, 0))
		var forgotten []*nodepb.StepKey
		for _, m := range a.take() {
			forgotten = append(forgotten, m.GetForget().GetKeys()...)
		}
		if len(forgotten) != 1 || forgotten[0].JobId != 77 {
			t.Errorf("forgotten %v", forgotten)
		}
	})
}

func cancelCmd(id uint32, signal int32) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: []*logpb.JobRef{{JobId: id}}, Signal: signal,
		Caller: &logpb.Caller{Uid: 1000, User: "ada"}}}}
}

func (a *agent) kills() (list []*nodepb.Kill) {
	for _, m := range a.take() {
		list = append(list, m.GetKill().GetKills()...)
	}
	return list
}

func TestKill(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{})
		list := a.launches()
		a.started(list)
		b.apply(cancelCmd(ids[0], 0))
		kills := a.kills()
		if len(kills) != 1 || kills[0].How != nodepb.Kill_TERMINATE || kills[0].Why != nodepb.Kill_CANCEL || kills[0].KillWaitMs != 30000 ||
			!strings.HasPrefix(kills[0].Note, "*** JOB 1 ON n1 CANCELLED AT ") {
			t.Fatalf("kills %v", kills)
		}
		a.killResult(list[0].Key, true)
		time.Sleep(39 * time.Second)
		if len(a.kills()) != 0 {
			t.Error("killed again before its time")
		}
		time.Sleep(2 * time.Second)
		if kills = a.kills(); len(kills) != 1 || kills[0].How != nodepb.Kill_KILL {
			t.Errorf("after KillWait: %v", kills)
		}
		a.report(&nodepb.Report{Key: list[0].Key, Signal: 15, KilledFor: nodepb.Kill_CANCEL})
		b.want(ids[0], job.Cancelled, 0)
		time.Sleep(5 * time.Minute)
		if len(a.kills()) != 0 {
			t.Error("killed after its report")
		}
	})
}

// A run that the agent does not have is over once its end was asked.
func TestKillOfWhatIsNotThere(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		ids := b.submit(&job.Spec{})
		a.launches()
		b.apply(cancelCmd(ids[0], 0))
		if len(a.kills()) != 1 {
			t.Fatal("no kill")
		}
		a.killResult(batch(ids[0], 0), false)
		b.want(ids[0], job.Cancelled, 0)
	})
}

func TestSignalsAndLimits(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		ids := b.submit(&job.Spec{TimeLimit: 3600000})
		list := a.launches()
		a.started(list)
		b.apply(cancelCmd(ids[0], 10))
		kills := a.kills()
		if len(kills) != 1 || kills[0].How != nodepb.Kill_SIGNAL || kills[0].Signal != 10 || !kills[0].StepsOnly {
			t.Fatalf("kills %v", kills)
		}
		a.killResult(list[0].Key, true)
		if n := len(b.job(ids[0]).Signals); n != 0 {
			t.Errorf("%d signals left that the agent knows of", n)
		}
		a.cancel()
		synctest.Wait()
		a = b.connect(l, "n1", list[0].Key)
		var limits []*nodepb.StepLimit
		for _, m := range a.take() {
			limits = append(limits, m.GetLimits().GetLimits()...)
		}
		if len(limits) != 1 || limits[0].TimeLimitMs != 3600000 {
			t.Errorf("limits of a run that was held: %v", limits)
		}
	})
}

func TestNotLeader(t *testing.T) {
	inBench(t, func(b *bench) {
		follower, _ := b.leader("c2")
		b.lead("c1")
		a := b.connect(follower, "n1")
		m := a.take()
		if len(m) != 1 || m[0].GetNotLeader().GetAddress() != "c1:6817" {
			t.Errorf("a follower said %v", m)
		}
		if err := <-a.err; err != nil {
			t.Error(err)
		}
	})
}

func TestSessionsThatAreRefused(t *testing.T) {
	long := hello("n1")
	long.Held = make([]*nodepb.StepKey, maxHeld+1)
	other := hello("n1")
	other.Cluster = "elsewhere"
	for _, tt := range []struct {
		name, cert string
		hello      *nodepb.Hello
		code       codes.Code
	}{
		{"another node's name", "n2", hello("n1"), codes.PermissionDenied},
		{"another cluster", "n1", other, codes.PermissionDenied},
		{"node not configured", "n9", hello("n9"), codes.FailedPrecondition},
		{"no hello", "n1", nil, codes.InvalidArgument},
		{"too many runs", "n1", long, codes.InvalidArgument},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBench(t, func(b *bench) {
				l, _ := b.lead("c1")
				a := b.dial(l, tt.cert, tt.hello)
				if err := <-a.err; status.Code(err) != tt.code {
					t.Errorf("error %v, want %v", err, tt.code)
				}
			})
		})
	}
}

func TestNewerSessionEndsOlder(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		older := b.connect(l, "n1")
		newer := b.connect(l, "n1")
		if err := <-older.err; status.Code(err) != codes.Aborted {
			t.Errorf("the older session ended with %v", err)
		}
		b.submit(&job.Spec{})
		if len(newer.launches()) != 1 || len(older.launches()) != 0 {
			t.Error("the launch did not go to the newer session alone")
		}
	})
}

func TestBatchesAreBounded(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.Nodes[0].CPUs, b.cfg.Nodes[0].CoresPerSocket = 300, 300
		b.cfg.Nodes[0].RealMemory = 300 << 30
		l, _ := b.lead("c1")
		h := hello("n1")
		h.Inventory.Cpus, h.Inventory.Mem = 300, 300<<30
		a := b.dial(l, "n1", h)
		a.read()
		b.submit(&job.Spec{Array: "0-299", NodeList: "n1"})
		var sent []*nodepb.Launch
		for _, m := range a.take() {
			if n := len(m.GetLaunch().GetLaunches()); n > maxBatch {
				t.Errorf("a batch of %d, limit %d", n, maxBatch)
			}
			sent = append(sent, m.GetLaunch().GetLaunches()...)
		}
		if len(sent) != maxOutstanding {
			t.Errorf("%d launches unanswered, limit %d", len(sent), maxOutstanding)
		}
		a.started(sent)
		if n := len(a.launches()); n != 300-maxOutstanding {
			t.Errorf("%d launches after the answers, want %d", n, 300-maxOutstanding)
		}
	})
}

func TestLargeLaunchesGoAlone(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		hash := b.blob(bytes.Repeat([]byte("#"), 700<<10))
		b.submit(&job.Spec{ScriptHash: hash}, &job.Spec{ScriptHash: hash}, &job.Spec{})
		total := 0
		for _, m := range a.take() {
			size := 0
			for _, x := range m.GetLaunch().GetLaunches() {
				size, total = size+len(x.Script), total+1
			}
			if size > maxBatchBytes {
				t.Errorf("a batch of %d bytes", size)
			}
		}
		if total != 3 {
			t.Errorf("%d launches", total)
		}
	})
}

func TestReadOutput(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		if _, err := l.ReadOutput(b.ctx, "n1", 1, 0, false, 0, 10); !errors.Is(err, ErrNoAgent) {
			t.Errorf("without an agent: %v", err)
		}
		a := b.connect(l, "n1")
		a.take()
		type answer struct {
			c   Chunk
			err error
		}
		answers := make(chan answer, maxReads)
		for range maxReads {
			go func() {
				c, err := l.ReadOutput(b.ctx, "n1", 1, 0, true, 5, 0)
				answers <- answer{c, err}
			}()
		}
		synctest.Wait()
		if _, err := l.ReadOutput(b.ctx, "n1", 1, 0, true, 5, 0); !errors.Is(err, ErrManyReads) {
			t.Errorf("read %d: %v", maxReads+1, err)
		}
		asked := a.take()
		if len(asked) != maxReads || asked[0].GetReadOutput().GetMax() != maxReadLen || asked[0].GetReadOutput().GetOffset() != 5 {
			t.Fatalf("asked %d times: %v", len(asked), asked[0])
		}
		a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Output{Output: &nodepb.OutputChunk{Id: asked[0].GetReadOutput().GetId(), Data: []byte("hi"), Eof: true}}})
		a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Output{Output: &nodepb.OutputChunk{Id: asked[1].GetReadOutput().GetId(), Error: "no such file"}}})
		synctest.Wait()
		a.cancel() // the others get no answer
		synctest.Wait()
		seen := map[string]int{}
		for range maxReads {
			x := <-answers
			seen[fmt.Sprintf("%s %v %v", x.c.Data, x.c.EOF, x.err)]++
		}
		if seen["hi true <nil>"] != 1 || seen[" false no such file"] != 1 || seen[" false "+ErrNoAgent.Error()] != maxReads-2 {
			t.Errorf("answers %v", seen)
		}
	})
}

func TestReadOutputGivesUp(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		b.connect(l, "n1")
		ctx, cancel := context.WithTimeout(b.ctx, time.Second)
		defer cancel()
		if _, err := l.ReadOutput(ctx, "n1", 1, 0, false, 0, 10); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
