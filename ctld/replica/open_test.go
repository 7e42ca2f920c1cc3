package replica

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// TestOpenProduct drives the product's own state machine through a log on disk, a snapshot and a
// restart.
func TestOpenProduct(t *testing.T) {
	dir := t.TempDir()
	open := func() *Replica {
		ln := listen(t, "127.0.0.1:0")
		r, err := Open(t.Context(), Config{
			Name: "c1", Voters: []Voter{{Name: "c1", Addr: ln.Addr().String()}}, Dir: dir,
			Listener: ln, Dial: dialTCP,
			Peers: func(string) (peerpb.PeerClient, error) { return nil, errCut },
			Now:   time.Now, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			HeartbeatTimeout: 20 * time.Millisecond,
		}, fsm.New(state.New()))
		if err != nil {
			t.Fatal(err)
		}
		<-r.Leadership()
		return r
	}
	propose := func(r *Replica, c *logpb.Command) fsm.Result {
		res, err := r.Propose(t.Context(), c)
		if err != nil || len(res) != 1 {
			t.Fatalf("%d results, %v", len(res), err)
		}
		return res[0]
	}
	one := func(key string) *logpb.Command {
		return &logpb.Command{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Key: key, Digest: make([]byte, 32), Spec: &logpb.JobSpec{
			Name: "j", Partition: "p", MinNodes: 1, MaxNodes: 1, Ntasks: 1, CpusPerTask: 1, Uid: 1000, Gid: 1000, User: "u", WorkDir: "/",
		}}}}
	}
	r := open()
	config := &logpb.SetConfig{FirstJobId: 1, MaxJobCount: 100, MaxArraySize: 10,
		Nodes:      []*logpb.ConfigNode{{Name: "n1", Cpus: 4, Mem: 1 << 30}},
		Partitions: []*logpb.ConfigPartition{{Name: "p", IsDefault: true, Nodes: []string{"n1"}, State: "UP"}}}
	propose(r, &logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: config}})
	first := propose(r, one("k1"))
	if first.JobID == 0 {
		t.Fatalf("refused: %+v", first.Refused)
	}
	if err := r.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	second := propose(r, one("k2"))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = open()
	defer r.Close()
	v, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v.Job(first.JobID) == nil || v.Job(second.JobID) == nil {
		t.Error("an acknowledged job is gone after a restart")
	}
	if again := propose(r, one("k1")); !again.Duplicate || again.JobID != first.JobID {
		t.Errorf("the same key again: %+v", again)
	}
}
