package server

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/conf"
)

func (f *fixture) rewrite(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.conf, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func TestReconfigure(t *testing.T) {
	f := newFixture(t, "")
	var told *conf.Config
	f.srv.OnConfig = func(c *conf.Config) { told = c }
	do := func(dry bool) *ctldpb.ReconfigureResponse {
		t.Helper()
		resp, err := f.srv.Reconfigure(f.as(olga), &ctldpb.ReconfigureRequest{DryRun: dry})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	if r := do(false); len(r.Changed)+len(r.NeedsRestart)+len(r.Problems) != 0 {
		t.Errorf("nothing changed: %v", r)
	}
	f.rewrite("KillWait=x\n" + testConf + "NodeName=n1 CPUs=2\nPartitionName=p Nodes=nosuch\n")
	before := f.log.View().Config().Digest
	if r := do(false); len(r.Problems) < 3 || !strings.Contains(strings.Join(r.Problems, "\n"), "grid.conf:1:") {
		t.Errorf("problems: %q", r.Problems)
	}
	if f.log.View().Config().Digest != before {
		t.Error("a broken file changed the state")
	}
	f.rewrite(strings.Replace(testConf, "Operators=olga", "Operators=olga,bob\nKillWait=11\nTLSDir=/elsewhere", 1) + "PartitionName=extra Nodes=g1\n")
	if r := do(true); !strings.Contains(strings.Join(r.Changed, "\n"), "KillWait") || f.log.View().Partition("extra") != nil {
		t.Errorf("dry run: %v", r)
	}
	r := do(false)
	if got := strings.Join(r.Changed, "\n"); !strings.Contains(got, "KillWait") || !strings.Contains(got, "extra") ||
		!strings.Contains(strings.Join(r.NeedsRestart, "\n"), "TLSDir") {
		t.Errorf("changed %q, restart %q", r.Changed, r.NeedsRestart)
	}
	if f.log.View().Partition("extra") == nil || f.log.View().Config().KillWait != 11000 || told == nil || told.KillWait != 11*time.Second {
		t.Error("the new configuration is not in force")
	}
	// bob is an operator from now on.
	if !f.srv.Auth.Person(bob, 100, 0).IsOperator() {
		t.Error("the new operator has no rights")
	}
	show, err := f.srv.ShowConfig(f.as(ann), &ctldpb.ShowConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, l := range show.Lines {
		found = found || l.Key == "KillWait" && strings.HasPrefix(l.Value, "11")
	}
	if !found {
		t.Errorf("ShowConfig has no KillWait of 11: %v", show.Lines)
	}
}

func TestFollowersTakeTheNewFile(t *testing.T) {
	f, s, _ := pair(t)
	f.rewrite(strings.Replace(testConf, "Operators=olga", "Operators=olga\nKillWait=12", 1))
	ctx, cancel := context.WithCancel(context.Background())
	loaded := make(chan *conf.Config, 4)
	s.OnConfig = func(c *conf.Config) { loaded <- c }
	done := make(chan struct{})
	go func() { s.Follow(ctx); close(done) }()
	if _, err := f.srv.Reconfigure(f.as(0), &ctldpb.ReconfigureRequest{}); err != nil {
		t.Fatal(err)
	}
	if c := <-loaded; c.KillWait != 12*time.Second || s.Config().KillWait != 12*time.Second {
		t.Errorf("the follower runs with %v", c.KillWait)
	}
	cancel()
	<-done
}

type statusPeer struct {
	peerpb.PeerClient
	err error
}

func (p statusPeer) Status(context.Context, *peerpb.StatusRequest, ...grpc.CallOption) (*peerpb.StatusResponse, error) {
	return &peerpb.StatusResponse{Role: "follower"}, p.err
}

type statusPeers map[string]error

func (p statusPeers) Peer(name string) (peerpb.PeerClient, error) {
	return statusPeer{err: p[name]}, nil
}

func TestPing(t *testing.T) {
	f := newFixture(t, "ControllerName=c2 Address=127.0.0.1 Port=7001 RaftPort=7002\nControllerName=c3 Address=127.0.0.1 Port=7003 RaftPort=7004\n")
	f.srv.Peers = statusPeers{"c3": errors.New("connection refused")}
	resp, err := f.srv.Ping(f.as(ann), &ctldpb.PingRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Controller != "c1" || resp.Role != "leader" || resp.Cluster != "test" || len(resp.Peers) != 3 {
		t.Fatalf("%v", resp)
	}
	if p := resp.Peers; !p[0].Up || !p[1].Up || p[1].Role != "follower" || p[2].Up || p[2].Error != "connection refused" {
		t.Errorf("peers %v", p)
	}
}

type fakeOutput struct {
	text    string
	running int // reads after which the job has ended
}

func (o *fakeOutput) ReadOutput(_ context.Context, node string, jobID, run uint32, stderr bool, offset, max int64) ([]byte, bool, bool, error) {
	if node != "n1" || stderr || run != 0 {
		return nil, false, false, errors.New("no such file")
	}
	o.running--
	if offset >= int64(len(o.text)) {
		return nil, true, o.running > 0, nil
	}
	return []byte(o.text[offset:min(int(offset)+7, len(o.text))]), false, o.running > 0, nil
}

type outputStream struct {
	grpc.ServerStream
	ctx  context.Context
	data []byte
	ends int
}

func (s *outputStream) Context() context.Context { return s.ctx }
func (s *outputStream) Send(r *ctldpb.JobOutputResponse) error {
	s.data = append(s.data, r.Data...)
	if r.End {
		s.ends++
	}
	return nil
}

func TestJobOutput(t *testing.T) {
	f, follower, _ := pair(t)
	f.register("n1")
	id := f.submit(ann, nil)
	f.start(id, -1, "n1")
	text := "some lines of output\nand more\n"
	for name, s := range map[string]*Server{"leader": f.srv, "follower": follower} {
		for _, follow := range []bool{false, true} {
			f.srv.Output = &fakeOutput{text: text, running: 8}
			out := &outputStream{ctx: f.as(ann)}
			if err := s.JobOutput(&ctldpb.JobOutputRequest{JobId: "1", Run: -1, Follow: follow}, out); err != nil {
				t.Fatal(err)
			}
			if string(out.data) != text || out.ends != 1 {
				t.Errorf("%s, follow %v: %q, %d ends", name, follow, out.data, out.ends)
			}
		}
	}
	out := &outputStream{ctx: f.as(bob)}
	wantRefusal(t, f.srv.JobOutput(&ctldpb.JobOutputRequest{JobId: "1", Run: -1}, out), "ESLURM_ACCESS_DENIED")
	wantRefusal(t, follower.JobOutput(&ctldpb.JobOutputRequest{JobId: "1", Run: -1}, out), "ESLURM_ACCESS_DENIED")
	out.ctx = f.as(ann)
	wantRefusal(t, f.srv.JobOutput(&ctldpb.JobOutputRequest{JobId: "1", Run: 5}, out), "ESLURM_NO_OUTPUT", "no such file")
	wantRefusal(t, f.srv.JobOutput(&ctldpb.JobOutputRequest{JobId: "1", Run: -1, Offset: -1}, out), codeInvalid)
}
