package robust

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// watch looks at the argv and the environment of all processes, again and again, for words that must not
// be there.
type watch struct {
	mu      sync.Mutex
	secrets map[string]string // what it is -> the bytes
	owners  map[string]uint32 // whose environment may have it
	found   map[string]bool
	polls   int
	seen    int
}

func (w *watch) add(what, bytes string, owner ...uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.secrets[what] = bytes
	if len(owner) > 0 {
		w.owners[what] = owner[0]
	}
}

// forms are the ways in which a secret may be written.
func forms(secret string) []string {
	return []string{secret, hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(secret)),
		base64.RawURLEncoding.EncodeToString([]byte(secret))}
}

// scan notes the secrets in some bytes; but is a uid in whose environment its own may be.
func (w *watch) scan(where string, data []byte, but int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for what, secret := range w.secrets {
		if owner, ok := w.owners[what]; ok && but >= 0 && int64(owner) == but {
			continue
		}
		for _, f := range forms(secret) {
			if len(f) >= 8 && bytes.Contains(data, []byte(f)) {
				w.found[what+" in "+where] = true
			}
		}
	}
}

func (w *watch) run(quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case <-time.After(5 * time.Millisecond):
		}
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, d := range dirs {
			pid, _ := strconv.Atoi(filepath.Base(d))
			if pid == os.Getpid() {
				continue
			}
			var st syscall.Stat_t
			if syscall.Stat(d, &st) != nil {
				continue
			}
			name, _ := os.ReadFile(d + "/comm")
			if data, err := os.ReadFile(d + "/cmdline"); err == nil {
				w.scan("argv of "+strings.TrimSpace(string(name)), data, -1)
				w.seen++
			}
			if data, err := os.ReadFile(d + "/environ"); err == nil {
				w.scan("environment of "+strings.TrimSpace(string(name))+" of uid "+fmt.Sprint(uidOf(d)), data, uidOf(d))
			}
		}
		w.polls++
	}
}

// uidOf is the real uid of a process: its folder in /proc is root's when it cannot be traced.
func uidOf(dir string) int64 {
	text, _ := os.ReadFile(dir + "/status")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Uid:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 1 << 40
}

// keySecrets are the private bytes of a PEM key file: its text and the seed at its end.
func (w *watch) keySecrets(t testing.TB, what, path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	if block == nil || len(block.Bytes) < 32 {
		t.Fatalf("%s holds no key", path)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	w.add(what+" (PEM)", lines[1])
	w.add(what+" (seed)", string(block.Bytes[len(block.Bytes)-32:]))
}

// TestSecuritySecrets runs a cluster with a join, a login host, wallets, and jobs with a secret in their script,
// environment and arguments, and looks for every key, token and word where others could read it.
func TestSecuritySecrets(t *testing.T) {
	long(t)
	g := guard(t, layout{controllers: 3, nodes: 2, partitions: []string{"PartitionName=batch Nodes=ALL Default=YES", "PartitionName=own Nodes=ALL SharedFS=NO"}})
	issuer := g.path("ca", authn.CAKeyFile)
	for _, n := range append(slices.Clone(g.names), "user") {
		path := g.path("etc", n+".conf")
		text, err := os.ReadFile(path)
		g.ok(errors.Join(err, os.WriteFile(path, append([]byte("IssuerKey="+issuer+"\n"), text...), 0o644)))
	}
	w := &watch{secrets: map[string]string{}, owners: map[string]uint32{}, found: map[string]bool{}}
	for what, secret := range g.secrets {
		w.add(what, secret)
		raw, _ := hex.DecodeString(secret)
		w.add(what+" (bytes)", string(raw))
	}
	w.keySecrets(t, "the CA's key", issuer)
	for _, n := range []string{"c1", "c2", "c3", "n1", "n2", loginHost} {
		w.keySecrets(t, "key of "+n, g.path("tls", n+".key"))
	}
	quit := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { w.run(quit) })
	g.up()
	within(t, 30*time.Second, "the level of join tokens", func() error {
		_, err := g.admin("gctl", "node", "tokens")
		return err
	})
	missed := g.decoys(w)
	g.joinSecretly(w)
	ids := g.secretJobs(w)
	g.callSecretly(w, ids)
	close(quit)
	watching.Wait()
	files, logs := g.scanFiles(w)
	missed(t)
	for f := range w.found {
		t.Errorf("%s", f)
	}
	figure(t, "security_secrets_known", float64(len(w.secrets)), "secrets", 20)
	figure(t, "security_secrets_argv_seen", float64(w.seen), "processes", 1000)
	figure(t, "security_secrets_files", float64(files), "files that others can read", 20)
	figure(t, "security_secrets_logs", float64(logs), "logs", 8)
	most(t, "security_secrets_found", float64(len(w.found)), "places", 0)
}

// decoys puts words where they must be found, so that a watch that sees nothing does not pass.
func (g *guarded) decoys(w *watch) (missed func(testing.TB)) {
	g.t.Helper()
	for _, d := range []string{"argv", "environ", "file"} {
		w.add("decoy in "+d, "decoy-of-the-"+d)
	}
	cmd := exec.Command("/bin/sh", "-c", "sleep 2; : decoy-of-the-argv")
	cmd.Env = []string{"X=decoy-of-the-environ"}
	g.ok(cmd.Start())
	g.ok(os.WriteFile(g.path("work", "decoy"), []byte("decoy-of-the-file"), 0o644))
	return func(t testing.TB) {
		cmd.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		got := map[string]bool{}
		for f := range w.found {
			if what, where, _ := strings.Cut(f, " in "); what == "decoy" {
				kind, _, _ := strings.Cut(where, " in ")
				got[kind] = true
				delete(w.found, f)
			}
		}
		if len(got) != 3 {
			t.Errorf("of the decoys only %v were found", got)
		}
		for _, d := range []string{"argv", "environ", "file"} {
			delete(w.secrets, "decoy in "+d)
		}
	}
}

// joinSecretly makes a join token and lets a daemon join with it.
func (g *guarded) joinSecretly(w *watch) {
	g.t.Helper()
	out, err := g.admin("gctl", "node", "token", "n2")
	g.ok(err)
	at := strings.Index(out, "tgj1.")
	if at < 0 {
		g.t.Fatalf("no token in %q", out)
	}
	token := strings.Fields(out[at:])[0]
	w.add("join token", strings.Split(token, ".")[2])
	file := g.path("ca", "join.token")
	g.ok(os.WriteFile(file, []byte(token+"\n"), 0o600))
	joined := g.path("ca", "joined")
	g.ok(os.Mkdir(joined, 0o700))
	// Whoever writes it on the command line is told so, and it is worth no more than before.
	cmd := exec.Command(filepath.Join(g.bin, "gnoded"), "join", "--controller", fmt.Sprintf("%s:%d", g.address(g.follower()), userPort), "--name", "n2",
		"--token-file", file, "--tls-dir", joined, "--allow-root", "--user", "root")
	if out, err := output(cmd); err != nil {
		g.t.Fatalf("join: %s %v", out, err)
	}
	w.keySecrets(g.t, "key that joined", filepath.Join(joined, "n2.key"))
}

// secretJobs runs jobs by gsub, with secrets in script, environment and arguments.
func (g *guarded) secretJobs(w *watch) (ids []string) {
	g.t.Helper()
	word := func() string { var b [12]byte; rand.Read(b[:]); return "sec" + hex.EncodeToString(b[:]) }
	for i := range 6 {
		inScript, inEnv := word(), word()
		w.add(fmt.Sprintf("word in script %d", i), inScript)
		w.add(fmt.Sprintf("word in environment %d", i), inEnv, userUID)
		dir := g.path("work", "private")
		g.ok(errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, userUID, userUID), os.Chmod(dir, 0o700)))
		script := filepath.Join(dir, fmt.Sprintf("s%d.sh", i))
		big := ""
		if i%2 == 1 {
			big = strings.Repeat("# so long that it goes as a blob\n", 400)
		}
		text := fmt.Sprintf("#!/bin/sh\nX=%s\n%ssleep 1\ntest \"$MY_SECRET\" = %s\n", inScript, big, inEnv)
		w.add(fmt.Sprintf("word in environment %d", i), inEnv, userUID)
		g.ok(errors.Join(os.WriteFile(script, []byte(text), 0o700), os.Chown(script, userUID, userUID)))
		args := []string{"--parsable", "-o", filepath.Join(dir, "out"), "--chdir", dir}
		if i%3 == 2 {
			args = append(args, "-p", "own")
		}
		cmd := exec.Command(filepath.Join(g.bin, "gsub"), append(args, script)...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + g.bin + ":/usr/bin:/bin", "GRID_CONF=" + g.path("etc", "user.conf"), "MY_SECRET=" + inEnv}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userUID, Gid: userUID}}
		out, err := output(cmd)
		g.ok(err)
		ids = append(ids, strings.TrimSpace(out))
	}
	for _, id := range ids {
		n, _ := strconv.Atoi(id)
		within(g.t, 40*time.Second, "job "+id, func() error {
			if j := g.jobByID(uint32(n)); j.State != "COMPLETED" {
				return fmt.Errorf("%s %s %v", j.State, j.Reason, j.Exit)
			}
			return nil
		})
	}
	return ids
}

// callSecretly calls by token and wallet from the command line, and as those who are refused.
func (g *guarded) callSecretly(w *watch, ids []string) {
	g.t.Helper()
	wallet := g.path("work", "wallet.key")
	g.ok(errors.Join(os.WriteFile(wallet, []byte(g.secrets["wallet of games"]+"\n"), 0o600), os.Chown(wallet, userUID, userUID)))
	for _, args := range [][]string{{"gqueue"}, {"gctl", "show", "job", ids[0]}, {"gcancel", ids[0]}} {
		cmd := exec.Command(filepath.Join(g.bin, args[0]), args[1:]...)
		cmd.Env = []string{"PATH=" + g.bin + ":/usr/bin:/bin", "GRID_CONF=" + g.path("etc", "user.conf"), "GRID_WALLET=" + wallet}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userUID, Gid: userUID}}
		output(cmd) // refusals are what is wanted of some of them
	}
	lead := g.leader()
	for i, uid := range []uint32{userUID, otherUID} {
		token := g.token(uid, authn.ClassJobs)
		w.add(fmt.Sprintf("token %d", i), string(token))
		w.add(fmt.Sprintf("token %d, its signature", i), string(token[len(token)-400:]))
		conn := g.withTLS(lead, userPort, g.userTLS())
		ctx, cancel := context.WithTimeout(g.t.Context(), 10*time.Second)
		ctx = metadata.AppendToOutgoingContext(ctx, "grid-token-bin", string(token))
		n, _ := strconv.Atoi(ids[0])
		_, err := ctldpb.NewControllerClient(conn).GetScript(ctx, &ctldpb.GetScriptRequest{JobId: uint32(n)})
		if (err == nil) != (uid == userUID) {
			g.t.Errorf("uid %d reads the script: %v", uid, err)
		}
		ctldpb.NewControllerClient(conn).UpdateNode(ctx, &ctldpb.UpdateNodeRequest{Names: "n1", Set: map[string]string{"Reason": "x"}})
		cancel()
	}
}

// scanFiles looks at what others may read below the cluster's folder, and at all logs whatever their mode.
func (g *guarded) scanFiles(w *watch) (readable, logs int) {
	g.t.Helper()
	open := map[string]bool{} // folders that others get into
	filepath.WalkDir(g.dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return nil
		}
		mode := info.Mode()
		isLog := strings.HasSuffix(p, ".log") || strings.Contains(filepath.Base(p), "audit.log")
		if e.IsDir() {
			open[p] = p == g.dir || open[filepath.Dir(p)] && mode&0o011 != 0
			return nil
		}
		reachable := open[filepath.Dir(p)] && mode.Perm()&0o044 != 0
		if !mode.IsRegular() || !reachable && !isLog {
			return nil
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return nil
		}
		if isLog {
			logs++
		}
		if reachable {
			readable++
		}
		rel, _ := filepath.Rel(g.dir, p)
		w.scan(fmt.Sprintf("%s (mode %v)", rel, mode), data, -1)
		return nil
	})
	return readable, logs
}

// auditLines reads the audit logs of all controllers.
func (g *guarded) auditLines() (lines []map[string]any) {
	g.t.Helper()
	for _, n := range g.names {
		data, err := os.ReadFile(g.path("state", n, "audit.log"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		g.ok(err)
		for line := range bytes.Lines(data) {
			var m map[string]any
			if err := json.Unmarshal(line, &m); err != nil {
				g.t.Errorf("%s: line %q: %v", n, line, err)
				continue
			}
			lines = append(lines, m)
		}
	}
	return lines
}
