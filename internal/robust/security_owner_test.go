package robust

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	vocab "github.com/tensorgrid/tensorgrid/internal/job"
)

// someone calls the Controller service in some way.
type someone struct {
	name   string
	api    ctldpb.ControllerClient
	header []string
	looks  bool // may read what the owner alone may read
	steers bool // may change the owner's job
}

func (s someone) ctx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, s.header...)
}

// everyone lists those who may try something with a job of the user's.
func (g *guarded) everyone() []someone {
	at := g.follower() // what it passes on is authorised again
	local := func(uid uint32) ctldpb.ControllerClient {
		return ctldpb.NewControllerClient(g.socketAs(uid, g.path("run", at+".sock")))
	}
	list := []someone{
		{"the owner", local(userUID), nil, true, true}, {"another user", local(otherUID), nil, false, false},
		{"the agent's account", local(agentUID), nil, false, false}, {"the shepherds' account", local(stepUID), nil, false, false},
		{"an operator", local(operatorUID), nil, true, true}, {"an admin", local(adminUID), nil, true, true},
	}
	remote := ctldpb.NewControllerClient(g.withTLS(at, userPort, g.userTLS()))
	for _, tt := range []struct {
		name          string
		uid           uint32
		class         authn.Class
		looks, steers bool
	}{
		{"the owner's token to read", userUID, authn.ClassRead, true, false}, {"the owner's token for jobs", userUID, authn.ClassJobs, true, true},
		{"another user's token", otherUID, authn.ClassAdmin, false, false}, {"an operator's token to read", operatorUID, authn.ClassRead, true, false},
		{"an operator's token for jobs", operatorUID, authn.ClassJobs, true, true},
	} {
		list = append(list, someone{tt.name, remote, []string{"grid-token-bin", string(g.token(tt.uid, tt.class))}, tt.looks, tt.steers})
	}
	for name, key := range map[string]*authn.WalletKey{"another user's wallet": g.mapped, "nobody's wallet": g.stranger} {
		list = append(list, someone{name, ctldpb.NewControllerClient(g.withTLS(at, userPort, g.userTLS(), authn.WalletDialOptions(key, g.name, time.Now)...)), nil, false, false})
	}
	return list
}

// TestSecurityOwner: what is a user's is steered, read and spoken for by that user, operators and admins alone.
func TestSecurityOwner(t *testing.T) {
	long(t)
	g := guard(t, layout{controllers: 3, nodes: 2, partitions: []string{"PartitionName=batch Nodes=ALL Default=YES", "PartitionName=own Nodes=ALL SharedFS=NO"}})
	g.up()
	checks, wrong := 0, 0
	check := func(who, what string, done, may bool, err error) {
		t.Helper()
		if checks++; done != may {
			wrong++
			t.Errorf("%s: %s: done %v, may %v (%v)", who, what, done, may, err)
		}
	}
	const secret = "the-owners-secret-word"
	for i, s := range g.everyone() {
		spec := g.spec(fmt.Sprintf("o%d", i), "echo "+secret+"; /bin/sleep 600")
		spec.Partition, spec.StdOut, spec.WorkDir, spec.Comment = "own", "", "", "before"
		spec.Script = []byte("#!/bin/sh\necho " + secret + "\nexec sleep 600\n")
		env, err := g.user(userUID).any().PutBlob(t.Context(), &ctldpb.PutBlobRequest{Data: []byte("SECRET=" + secret + "\x00PATH=/usr/bin:/bin\x00")})
		g.ok(err)
		spec.EnvHash, spec.WorkDir = env.Hash, "/"
		id := g.submit(spec)
		name := fmt.Sprint(id)
		state := func() *ctldpb.Job { return g.jobByID(id) }
		within(t, 20*time.Second, "job runs", func() error {
			if s := state().State; s != "RUNNING" {
				return errors.New(s)
			}
			return nil
		})
		for _, env := range []bool{false, true} {
			res, err := s.api.GetScript(s.ctx(t), &ctldpb.GetScriptRequest{JobId: id, Env: env})
			check(s.name, fmt.Sprintf("reads script or environment (%v)", env), bytes.Contains(res.GetData(), []byte(secret)), s.looks, err)
		}
		out, err := readOutput(s, t, name)
		check(s.name, "reads the output", strings.Contains(out, secret), s.looks, err)
		list, err := s.api.ListJobs(s.ctx(t), &ctldpb.ListJobsRequest{JobIds: []string{name}, Detail: true})
		if err == nil {
			page, err := list.Recv()
			check(s.name, "sees a script in the list", strings.Contains(page.String(), secret), false, err)
		}
		rs, err := s.api.UpdateJob(s.ctx(t), &ctldpb.UpdateJobRequest{JobIds: []string{name}, Set: map[string]string{"Comment": "after"}, Key: fmt.Sprint("u", i)})
		check(s.name, "changes the job", err == nil && allDone(rs) && state().Spec.Comment == "after", s.steers, errors.Join(err, fmt.Errorf("%v", rs)))
		rs, err = s.api.Control(s.ctx(t), &ctldpb.ControlRequest{Op: ctldpb.ControlRequest_REQUEUE_HOLD, JobIds: []string{name}, Key: fmt.Sprint("c", i)})
		check(s.name, "requeues the job", err == nil && allDone(rs), s.steers, errors.Join(err, fmt.Errorf("%v", rs)))
		rs, err = s.api.Cancel(s.ctx(t), &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{name}}, Key: fmt.Sprint("k", i)})
		check(s.name, "cancels the job", err == nil && allDone(rs), s.steers, errors.Join(err, fmt.Errorf("%v", rs)))
		if !s.steers {
			if got := state(); got.State != "RUNNING" || got.Run != 0 || got.Spec.Comment != "before" {
				t.Errorf("%s has left the job %s in run %d, comment %q", s.name, got.State, got.Run, got.Spec.Comment)
			}
			_, err := g.user(0).any().Cancel(t.Context(), &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{name}}, Key: fmt.Sprint("root", i)})
			g.ok(err)
		}
		for _, uid := range []uint32{userUID, operatorUID, adminUID} { // speaking for somebody else is root's
			spec := g.spec(fmt.Sprintf("for%d-%d", i, uid), ":")
			spec.Hold = true
			res, err := s.api.Submit(s.ctx(t), &ctldpb.SubmitRequest{Key: spec.Name, Spec: spec, Uid: uid})
			as := err == nil && g.jobByID(res.JobId).Uid == uid
			own := s.name == "the owner" && uid == userUID || s.name == "the owner's token for jobs" && uid == userUID || strings.HasPrefix(s.name, "an operator") && s.steers && uid == operatorUID || s.name == "an admin" && uid == adminUID
			check(s.name, fmt.Sprintf("submits as uid %d", uid), as, own, err)
		}
	}
	figure(t, "security_owner_checks", float64(checks), "checks", 100)
	most(t, "security_owner_wrong", float64(wrong), "checks", 0)
}

func allDone(rs *ctldpb.JobResults) bool {
	for _, r := range rs.GetResults() {
		if r.Code != "" {
			return false
		}
	}
	return len(rs.GetResults()) > 0
}

func (c *cluster) jobByID(id uint32) *ctldpb.Job {
	c.t.Helper()
	for _, j := range c.allJobs() {
		if j.JobId == id {
			return j
		}
	}
	c.t.Fatalf("job %d is not known", id)
	return nil
}

func readOutput(s someone, t testing.TB, id string) (string, error) {
	stream, err := s.api.JobOutput(s.ctx(t), &ctldpb.JobOutputRequest{JobId: id, Run: -1})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for {
		m, err := stream.Recv()
		if err != nil {
			return b.String(), err
		}
		if b.Write(m.Data); m.End {
			return b.String(), nil
		}
	}
}

// TestSecurityNodeForAnother: a node's certificate opens no session for another node, and what its session
// says of another node's run changes nothing.
func TestSecurityNodeForAnother(t *testing.T) {
	long(t)
	g := guard(t, layout{controllers: 3, nodes: 2})
	g.up()
	spec := g.spec("victim", "/bin/sleep 600")
	spec.NodeList = "n1"
	id := g.submit(spec)
	within(t, 20*time.Second, "job runs", func() error {
		if s := g.jobByID(id).State; s != "RUNNING" {
			return errors.New(s)
		}
		return nil
	})
	lead := g.leader()
	session := func(cert string, hello *nodepb.Hello) (nodepb.Node_SessionClient, error) {
		conn := g.withTLS(lead, ctldPort, g.identity(cert).Client())
		st, err := nodepb.NewNodeClient(conn).Session(t.Context())
		if err == nil {
			err = st.Send(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Hello{Hello: hello}})
		}
		if err == nil {
			_, err = st.Recv()
		}
		return st, err
	}
	hello := func(node string) *nodepb.Hello {
		return &nodepb.Hello{Node: node, Cluster: g.name, BootId: "5f0f5b3c-0000-4000-8000-000000000000", Inventory: &nodepb.Inventory{Cpus: 16, Boards: 1, Sockets: 1, CoresPerSocket: 16, ThreadsPerCore: 1, Mem: 64000 << 20},
			Held: []*nodepb.StepKey{{JobId: id, Step: vocab.BatchStep}}, NowMs: time.Now().UnixMilli()}
	}
	for _, cert := range []string{"n2", loginHost, "c1"} {
		if _, err := session(cert, hello("n1")); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s's certificate opens a session for n1: %v", cert, err)
		}
	}
	// n2's agent is out of the way; its certificate speaks for it, and of n1's run.
	g.proc["n2"].breakIt(true)
	g.proc["n2"].kill()
	st, err := session("n2", hello("n2"))
	g.ok(err)
	key := &nodepb.StepKey{JobId: id, Step: vocab.BatchStep}
	end := time.Now().UnixMilli()
	for _, m := range []*nodepb.AgentMessage{
		{Of: &nodepb.AgentMessage_Reports{Reports: &nodepb.Reports{Reports: []*nodepb.Report{
			{Key: key, Node: "n1", ExitCode: 7, EndMs: end}, {Key: key, Node: "n2", ExitCode: 7, EndMs: end}, {Key: key, Node: "n1", Lost: true, EndMs: end}}}}},
		{Of: &nodepb.AgentMessage_Launched{Launched: &nodepb.LaunchResults{Results: []*nodepb.LaunchResult{{Key: key, Error: "no", Cause: nodepb.LaunchResult_NODE}}}}},
		{Of: &nodepb.AgentMessage_Killed{Killed: &nodepb.KillResults{Results: []*nodepb.KillResult{{Key: key, Found: false}}}}},
		{Of: &nodepb.AgentMessage_Heartbeat{Heartbeat: &nodepb.Heartbeat{Seq: 1, SentMs: end}}},
	} {
		g.ok(st.Send(m))
	}
	for acks := 0; acks < 3; { // it has dealt with them
		m, err := st.Recv()
		if err != nil {
			t.Fatalf("the session: %v", err)
		}
		acks += len(m.GetAcks().GetKeys())
		if m.GetLaunch() != nil {
			t.Error("a launch came")
		}
	}
	time.Sleep(time.Second)
	if j := g.jobByID(id); j.State != "RUNNING" || j.Run != 0 || j.BatchHost != "n1" {
		t.Errorf("n2's word about n1's run made it %s in run %d on %s", j.State, j.Run, j.BatchHost)
	}
	if got := len(g.events("victim")); got != 1 {
		t.Errorf("the job wrote %d lines", got)
	}
	figure(t, "security_node_for_another", 3, "sessions refused", 3)
}
