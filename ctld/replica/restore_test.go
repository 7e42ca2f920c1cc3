package replica

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
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
	all     []Voter
	// snapshotBytes is the configuration's; 0 = the default.
	snapshotBytes int64
}

func (p *product) voters(lns []net.Listener) (list []Voter) {
	for i, ln := range lns {
		list = append(list, Voter{Name: fmt.Sprintf("c%d", i+1), Addr: ln.Addr().String()})
	}
	return list
}

// start opens one member.
func (p *product) start(i int, ln net.Listener) *Replica {
	p.t.Helper()
	r, err := Open(p.t.Context(), Config{
		Name: fmt.Sprintf("c%d", i+1), Voters: p.all, Dir: p.dirs[i], Listener: ln, Dial: dialTCP, Bootstrap: true,
		Peers: func(string) (peerpb.PeerClient, error) { return nil, errCut },
		Now:   time.Now, Logger: quiet, HeartbeatTimeout: 100 * time.Millisecond, SnapshotBytes: p.snapshotBytes,
	}, fsm.New(state.New()))
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// open starts all on fresh ports and gives the leader.
func (p *product) open() *Replica {
	p.t.Helper()
	var lns []net.Listener
	for range p.dirs {
		lns = append(lns, listen(p.t, "127.0.0.1:0"))
	}
	p.members, p.all = nil, p.voters(lns)
	for i := range p.dirs {
		p.members = append(p.members, p.start(i, lns[i]))
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
				if got := r.View(); got.Index() != want.Index {
					continue // it has heard the leader already
				}
				if sum := hashOf(t, r); sum != want.SHA256 && r.View().Index() == want.Index {
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

// TestRestoreKeepsTheFolder: a folder that is there stays, since it may be where a file system is mounted or a
// link to a place on one. A restore that was killed between any two of its steps is told from a whole one.
func TestRestoreKeepsTheFolder(t *testing.T) {
	home := t.TempDir()
	src := &product{t: t, dirs: []string{filepath.Join(home, "src")}}
	r := src.open()
	must(t, r, configCommand())
	file := filepath.Join(home, "backup")
	var buf bytes.Buffer
	if _, err := r.SaveSnapshot(t.Context(), &buf); err != nil {
		t.Fatal(err)
	}
	src.close()
	if err := os.WriteFile(file, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	voters := []Voter{{Name: "a", Addr: "a"}}
	disk, dir := filepath.Join(home, "disk"), filepath.Join(home, "dir")
	for _, d := range []string{disk + "/lost+found", disk + "/.restore/snapshots/old"} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(disk, dir); err != nil {
		t.Fatal(err)
	}
	if _, err := RestoreDir(dir, voters, file, 0); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(dir); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", st, err)
	}
	names, err := filepath.Glob(disk + "/*")
	if hidden, _ := filepath.Glob(disk + "/.*"); err != nil || len(names) != 4 || len(hidden) != 0 {
		t.Errorf("in the folder: %v, %v, %v", names, hidden, err)
	}
	if err := checkFolder(dir); err != nil {
		t.Errorf("the restored folder: %v", err)
	}
	if err := os.Remove(filepath.Join(disk, logFile)); err != nil { // killed before its last step
		t.Fatal(err)
	}
	if err := checkFolder(dir); err == nil {
		t.Error("a folder that was restored by half is used")
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

// TestForgottenReplica: a controller that was not emptied before a cluster was restored has the longer log.
// The others do not take its state: it ends as soon as they speak to it, and begins again with theirs.
func TestForgottenReplica(t *testing.T) {
	root := t.TempDir()
	p := &product{t: t}
	for i := range 3 {
		p.dirs = append(p.dirs, filepath.Join(root, fmt.Sprint(i)))
	}
	lead := p.open()
	must(t, lead, configCommand())
	kept := must(t, lead, jobCommand("kept"))[0].JobID
	var out bytes.Buffer
	if _, err := lead.SaveSnapshot(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	var later []uint32
	for i := range 30 {
		later = append(later, must(t, lead, jobCommand(fmt.Sprint("later", i)))[0].JobID)
	}
	for _, r := range p.members {
		for r.View().Index() < lead.View().Index() {
			<-r.Changed(r.View().Index())
		}
	}
	p.close()
	file := filepath.Join(root, "backup")
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range p.dirs[:2] {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := RestoreDir(dir, []Voter{{"c1", "h1:1"}, {"c2", "h2:1"}, {"c3", "h3:1"}}, file, 1000); err != nil {
			t.Fatal(err)
		}
	}
	lead = p.open()
	defer p.close()
	if lead == p.members[2] {
		t.Fatal("the forgotten one leads")
	}
	for i := range 60 { // until the log is longer than the old one was
		if id := must(t, lead, jobCommand(fmt.Sprint("new", i)))[0].JobID; id <= later[29] {
			t.Fatalf("id %d is given again", id)
		}
	}
	if lead.View().Job(kept) == nil || lead.View().Job(later[0]) != nil {
		t.Error("the leader's state is not the restored one")
	}
	select {
	case err := <-p.members[2].Fatal():
		mention(t, err, p.dirs[2], "start again")
	case <-time.After(20 * time.Second):
		t.Fatal("the forgotten one goes on")
	}
	if err := p.members[2].Close(); err != nil {
		t.Fatal(err)
	}
	p.members[2] = p.start(2, listen(t, p.all[2].Addr))
	index := lead.View().Index()
	for end := time.Now().Add(10 * time.Second); hashOf(t, p.members[2]) != hashOf(t, lead); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the forgotten one is at %d of %d with another state", p.members[2].View().Index(), index)
		}
	}
}

// TestOtherHistory: a snapshot that cannot be of this replica's history is not taken once its own is applied, and ends it.
func TestOtherHistory(t *testing.T) {
	dir := t.TempDir()
	r, _, err := lone(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-r.Leadership()
	for i := range 10 {
		if _, err := r.Propose(t.Context(), submit(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	snaps, err := r.openSnapshots()
	if err != nil {
		t.Fatal(err)
	}
	install := func(index, term uint64) error {
		sink, err := snaps.Create(1, index, term, r.cfg.cluster(), 1, r.transport)
		if err != nil {
			t.Fatal(err)
		}
		return sink.Close()
	}
	if err := r.raft.Snapshot().Error(); err != nil {
		t.Errorf("its own: %v", err)
	}
	before := snapshotDirs(t, dir)
	for _, s := range [][2]uint64{{5, 1 << 30}, {r.raft.LastIndex(), 1 << 30}} {
		if err := install(s[0], s[1]); !errors.Is(err, ErrForeign) {
			t.Errorf("%d: %v", s, err)
		}
	}
	if n := snapshotDirs(t, dir); n != before {
		t.Errorf("%d snapshots, %d before", n, before)
	}
	select {
	case err := <-r.Fatal():
		mention(t, err, dir, "move", "another history")
	case <-time.After(5 * time.Second):
		t.Error("it goes on")
	}
	_ = r.Close()
}
