package replica

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// product is replicas of the product's state machine on disk.
type product struct {
	t       *testing.T
	dirs    []string
	members []*Replica
	// snapshotBytes is the configuration's; 0 = the default.
	snapshotBytes int64
}

func (p *product) voters(lns []net.Listener) (list []Voter) {
	for i, ln := range lns {
		list = append(list, Voter{Name: fmt.Sprintf("c%d", i+1), Addr: ln.Addr().String()})
	}
	return list
}

// open starts all on fresh ports and gives the leader.
func (p *product) open() *Replica {
	p.t.Helper()
	var lns []net.Listener
	for range p.dirs {
		lns = append(lns, listen(p.t, "127.0.0.1:0"))
	}
	p.members = nil
	for i, dir := range p.dirs {
		r, err := Open(p.t.Context(), Config{
			Name: fmt.Sprintf("c%d", i+1), Voters: p.voters(lns), Dir: dir, Listener: lns[i], Dial: dialTCP, Bootstrap: true,
			Peers: func(string) (peerpb.PeerClient, error) { return nil, errCut },
			Now:   time.Now, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), HeartbeatTimeout: 100 * time.Millisecond, SnapshotBytes: p.snapshotBytes,
		}, fsm.New(state.New()))
		if err != nil {
			p.t.Fatal(err)
		}
		p.members = append(p.members, r)
	}
	for end := time.Now().Add(100 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, r := range p.members {
			if _, self := r.Leader(); self {
				return r
			}
		}
	}
	p.t.Fatal("no leader in 100 s")
	return nil
}

func (p *product) close() {
	for _, r := range p.members {
		if err := r.Close(); err != nil {
			p.t.Error(err)
		}
	}
}

// jobCommand is a submission that the product takes.
func jobCommand(key string) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Key: key, Digest: make([]byte, 32), Spec: &logpb.JobSpec{
		Name: "j", Partition: "p", MinNodes: 1, MaxNodes: 1, Ntasks: 1, CpusPerTask: 1, Uid: 1000, Gid: 1000, User: "u", WorkDir: "/",
	}}}}
}

func configCommand() *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: &logpb.SetConfig{FirstJobId: 1, MaxJobCount: 2000000, MaxArraySize: 10,
		Nodes:      []*logpb.ConfigNode{{Name: "n1", Cpus: 4, Mem: 1 << 30}},
		Partitions: []*logpb.ConfigPartition{{Name: "p", IsDefault: true, Nodes: []string{"n1"}, State: "UP"}}}}}
}

func must(t *testing.T, r *Replica, cmds ...*logpb.Command) []fsm.Result {
	t.Helper()
	res, err := r.Propose(t.Context(), cmds...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range res {
		if res[i].Refused != nil {
			t.Fatalf("refused: %+v", res[i].Refused)
		}
	}
	return res
}

// backup runs a controller with some jobs and saves its state to a file.
func backup(t *testing.T) (file string, saved Saved, ids []uint32) {
	t.Helper()
	p := &product{t: t, dirs: []string{filepath.Join(t.TempDir(), "r")}}
	r := p.open()
	defer p.close()
	must(t, r, configCommand())
	for i := range 20 {
		ids = append(ids, must(t, r, jobCommand(fmt.Sprint(i)))[0].JobID)
	}
	var out bytes.Buffer
	saved, err := r.SaveSnapshot(t.Context(), &out)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(out.Bytes()); sum != saved.SHA256 || saved.Bytes != int64(out.Len()) || saved.Time == 0 || saved.Index == 0 {
		t.Fatalf("%+v for %d bytes", saved, out.Len())
	}
	if sum, err := fsm.Hash(r.View().(*state.View)); err != nil || sum != saved.SHA256 {
		t.Errorf("the hash of the state is %x (%v), that of the backup %x", sum, err, saved.SHA256)
	}
	file = filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, saved, ids
}

func hashOf(t *testing.T, r *Replica) [32]byte {
	t.Helper()
	sum, err := fsm.Hash(r.View().(*state.View))
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestBackupAndRestore: three replicas restored from one file have equal states, lead on from there, and
// give no id again.
func TestBackupAndRestore(t *testing.T) {
	file, saved, ids := backup(t)
	root := t.TempDir()
	p := &product{t: t}
	for i := range 3 {
		p.dirs = append(p.dirs, filepath.Join(root, fmt.Sprint(i)))
	}
	voters := []Voter{{"c1", "h1:1"}, {"c2", "h2:1"}, {"c3", "h3:1"}}
	var want Saved
	for i, dir := range p.dirs {
		got, err := RestoreDir(dir, voters, file, 10000)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && got != want {
			t.Errorf("%+v, the first was %+v", got, want)
		}
		if want = got; want.Index != saved.Index || want.SHA256 == saved.SHA256 {
			t.Errorf("%+v", want)
		}
	}
	for round := range 2 {
		lead := p.open()
		if round == 0 {
			for _, r := range p.members {
				if hashOf(t, r) != want.SHA256 && r != lead {
					t.Errorf("%s begins with another state", r.cfg.Name)
				}
			}
		}
		for _, id := range ids {
			if lead.View().Job(id) == nil {
				t.Errorf("job %d is not there", id)
			}
		}
		if again := must(t, lead, jobCommand("3"))[0]; !again.Duplicate || again.JobID != ids[3] {
			t.Errorf("the same key again: %+v", again)
		}
		if next := must(t, lead, jobCommand(fmt.Sprint("new", round)))[0]; next.JobID != ids[19]+10001+uint32(round) {
			t.Errorf("the next id is %d after %d", next.JobID, ids[19])
		}
		index := lead.View().Index()
		for _, r := range p.members {
			for r.View().Index() < index {
				<-r.Changed(r.View().Index())
			}
			if hashOf(t, r) != hashOf(t, lead) {
				t.Errorf("%s has another state", r.cfg.Name)
			}
		}
		p.close()
	}
}

func TestRestoreRefuses(t *testing.T) {
	file, _, ids := backup(t)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	voters := []Voter{{"c1", "h1:1"}}
	dir := filepath.Join(t.TempDir(), "r")
	for name, bad := range map[string][]byte{"empty": nil, "cut": data[:len(data)-3], "longer": append(bytes.Clone(data), 0), "turned": append([]byte{data[0] ^ 1}, data[1:]...)} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := RestoreDir(dir, voters, path, 0); !errors.Is(err, fsm.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := RestoreDir(dir, nil, file, 0); err == nil {
		t.Error("restored without controllers")
	}
	if _, err := RestoreDir(dir, voters, file, state.MaxJobID); err == nil {
		t.Error("more ids skipped than there are")
	}
	if left, err := filepath.Glob(dir + "*"); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := RestoreDir(dir, voters, file, 0); err != nil {
		t.Fatal(err)
	}
	_, err = RestoreDir(dir, voters, file, 0)
	if !errors.Is(err, ErrNotEmpty) {
		t.Errorf("restored over a replica: %v", err)
	}
	mention(t, err, dir)
	p := &product{t: t, dirs: []string{dir}}
	lead := p.open()
	defer p.close()
	if lead.View().Job(ids[0]) == nil {
		t.Error("the refused restore has changed the folder")
	}
}

// TestSaveSnapshotEnds: a reader that goes away or fails ends the saving.
func TestSaveSnapshotEnds(t *testing.T) {
	p := &product{t: t, dirs: []string{filepath.Join(t.TempDir(), "r")}}
	r := p.open()
	must(t, r, configCommand())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.SaveSnapshot(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	full := errors.New("full")
	if _, err := r.SaveSnapshot(t.Context(), writerFunc(func([]byte) (int, error) { return 0, full })); !errors.Is(err, full) {
		t.Errorf("a writer that fails: %v", err)
	}
	p.close()
	if _, err := r.SaveSnapshot(t.Context(), io.Discard); err == nil {
		t.Error("saved from a closed replica")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
