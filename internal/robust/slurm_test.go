package robust

import (
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The baseline of make robust-failover: Debian's Slurm on loopback, whose controller is killed in the same
// way while the same number of clients submit.

// peerConf is a small site: no accounting, tracking by process group, the controller's state on a real disk.
const peerConf = `ClusterName=peer
SlurmctldHost=%[1]s(127.0.0.1)
SlurmctldPort=%[3]d
SlurmdPort=%[4]d
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=%[2]s/munge.socket
CredType=cred/munge
StateSaveLocation=%[2]s/state
SlurmdSpoolDir=%[2]s/spool
SlurmctldPidFile=%[2]s/slurmctld.pid
SlurmdPidFile=%[2]s/slurmd.pid
SlurmctldLogFile=%[2]s/slurmctld.log
SlurmdLogFile=%[2]s/slurmd.log
SlurmctldDebug=error
SlurmdDebug=error
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
MaxJobCount=100000
SchedulerParameters=defer
NodeName=n1 NodeHostname=%[1]s NodeAddr=127.0.0.1 CPUs=16 RealMemory=100000
PartitionName=main Nodes=n1 Default=YES MaxTime=INFINITE State=UP
`

// peer is a running Slurm.
type peer struct {
	t   *testing.T
	dir string
	env []string
	ctl *process
}

func startPeer(t *testing.T) *peer {
	for _, p := range []string{"/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/bin/sbatch"} {
		if _, err := os.Stat(p); err != nil {
			t.Skipf("%s is not there: Slurm is not measured beside (make bench-slurm-install)", p)
		}
	}
	dir, err := os.MkdirTemp("", "grid-peer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, name := range []string{"slurmctld.out", "slurmctld.log", "munged.log"} {
			if text, err := os.ReadFile(filepath.Join(dir, name)); t.Failed() && err == nil {
				t.Logf("%s: %.2000s", name, text)
			}
		}
		os.RemoveAll(dir)
	})
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	key := make([]byte, 128)
	rand.Read(key)
	files := map[string]string{"munge.key": string(key), "slurm.conf": fmt.Sprintf(peerConf, host, dir, freePort(t), freePort(t)), "cgroup.conf": "CgroupAutomount=no\n"}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	os.Mkdir(filepath.Join(dir, "state"), 0o755)
	p := &peer{t: t, dir: dir, env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "USER=root", "LANG=C", "SLURM_CONF=" + filepath.Join(dir, "slurm.conf")}}
	in := func(n string) string { return filepath.Join(dir, n) }
	munged := p.daemon("munged", "/usr/sbin/munged", "-F", "--force", "--num-threads=10", "--key-file="+in("munge.key"), "--socket="+in("munge.socket"),
		"--pid-file="+in("munged.pid"), "--seed-file="+in("munge.seed"), "--log-file="+in("munged.log"))
	p.ctl = p.daemon("slurmctld", "/usr/sbin/slurmctld", "-D", "-f", in("slurm.conf"))
	if err := munged.start(); err != nil {
		t.Fatal(err)
	}
	within(t, 20*time.Second, "munged is up", func() error { _, err := os.Stat(in("munge.socket")); return err })
	p.up()
	return p
}

// freePort is a port on all addresses, below those that the kernel gives to connections.
func freePort(t *testing.T) int {
	for range 100 {
		port := 10000 + mrand.IntN(20000)
		if ln, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			ln.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func (p *peer) daemon(name, path string, args ...string) *process {
	d := &process{name: name, log: filepath.Join(p.dir, name+".out"), faults: p.dir, make: func() *exec.Cmd {
		cmd := exec.Command(path, args...)
		cmd.Env = append([]string(nil), p.env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}}
	p.t.Cleanup(d.kill)
	return d
}

// up starts the controller and waits until it answers.
func (p *peer) up() {
	p.t.Helper()
	if err := p.ctl.start(); err != nil {
		p.t.Fatal(err)
	}
	within(p.t, 60*time.Second, "slurmctld is up", func() error {
		out, err := p.run("scontrol", "ping")
		if err == nil && !strings.Contains(out, "is UP") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}

func (p *peer) run(name string, args ...string) (string, error) {
	cmd := exec.Command("/usr/bin/"+name, args...)
	cmd.Env, cmd.Dir = p.env, p.dir
	return output(cmd)
}

// TestSlurm measures what Slurm loses: its controller is killed with -9 while 1,000 held jobs are submitted
// by the same number of clients, and started again. It has no target; ours stand in TestFailover.
func TestSlurm(t *testing.T) {
	long(t)
	p := startPeer(t)
	const jobs = 1000
	var next, acked atomic.Int64
	var mu sync.Mutex
	told := map[string][]string{} // id -> names that were told it
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > jobs {
					return
				}
				name := fmt.Sprintf("j%d", i)
				for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
					out, err := p.run("sbatch", "--parsable", "-H", "-J", name, "-o", "/dev/null", "--wrap", "true")
					id := strings.TrimSpace(out)
					if _, bad := strconv.Atoi(id); err == nil && bad == nil {
						mu.Lock()
						told[id] = append(told[id], name)
						mu.Unlock()
						acked.Add(1)
						break
					}
				}
			}
		})
	}
	for acked.Load() < jobs/2 {
		time.Sleep(10 * time.Millisecond)
	}
	p.ctl.kill()
	p.up()
	wg.Wait()
	list, err := p.run("squeue", "-h", "-t", "all", "-o", "%i %j")
	if err != nil {
		t.Fatal(err)
	}
	there, names := map[string]bool{}, map[string]int{}
	for line := range strings.Lines(list) {
		id, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		there[id+" "+name] = true
		names[name]++
	}
	lost, reused, doubled := 0, 0, 0
	for id, who := range told {
		reused += len(who) - 1
		for _, name := range who {
			if !there[id+" "+name] {
				lost++
			}
		}
	}
	for _, n := range names {
		doubled += max(0, n-1)
	}
	fmt.Printf("figure slurm_lost %d jobs (of %d acknowledged, one kill)\n", lost, acked.Load())
	fmt.Printf("figure slurm_ids_reused %d ids\n", reused)
	fmt.Printf("figure slurm_doubled %d jobs\n", doubled)
}
