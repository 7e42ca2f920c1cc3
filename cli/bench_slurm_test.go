package main_test

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The rival of the launch benchmark: Debian's Slurm on loopback, in a folder of its own, tracking by
// process group, no accounting, and the scheduler settings that gave it the highest job rate of those
// tried ("eager": start all that fits as soon as possible).

// rival is a running Slurm.
type rival struct {
	dir string
	env []string
}

const slurmConf = `ClusterName=bench
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
PriorityType=priority/basic
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
MaxJobCount=300000
MaxArraySize=200001
MessageTimeout=60
PropagateResourceLimits=NONE
SchedulerParameters=defer,batch_sched_delay=0,default_queue_depth=20000,sched_interval=1,sched_min_interval=200000,bf_interval=30,bf_continue
NodeName=n1 NodeHostname=%[1]s NodeAddr=127.0.0.1 CPUs=%[5]d RealMemory=100000
PartitionName=main Nodes=n1 Default=YES MaxTime=INFINITE State=UP
`

// slurmRate is its jobs a second for the same no-op jobs; ok is false when it is not installed
// (make bench-slurm-install).
func slurmRate(t *testing.T, slots int) (rate float64, ok bool) {
	t.Helper()
	for _, p := range []string{"/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/sbatch"} {
		if _, err := os.Stat(p); err != nil {
			return 0, false
		}
	}
	r := startRival(t, slots)
	script := filepath.Join(r.dir, "noop.sh")
	if err := os.WriteFile(script, []byte(noop), 0o755); err != nil {
		t.Fatal(err)
	}
	const jobs = 300
	from := time.Now()
	id := strings.TrimSpace(r.run(t, "sbatch", "--parsable", "-o", "/dev/null", "-a", fmt.Sprintf("0-%d", jobs-1), script))
	wait(t, "Slurm's jobs over", 3*time.Minute, func() bool { return r.run(t, "squeue", "-h", "-j", id+",1", "-o", "%i") == "" })
	return jobs / time.Since(from).Seconds(), true
}

func startRival(t *testing.T, slots int) *rival {
	t.Helper()
	dir, err := os.MkdirTemp("", "grid-slurm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	key := make([]byte, 128)
	rand.Read(key)
	conf := fmt.Sprintf(slurmConf, host, dir, freePort(t), freePort(t), slots)
	for name, text := range map[string]string{"munge.key": string(key), "slurm.conf": conf, "cgroup.conf": "CgroupAutomount=no\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	os.Mkdir(filepath.Join(dir, "state"), 0o755)
	r := &rival{dir: dir, env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "USER=root", "LANG=C", "SLURM_CONF=" + filepath.Join(dir, "slurm.conf")}}
	in := func(n string) string { return filepath.Join(dir, n) }
	r.daemon(t, "/usr/sbin/munged", "-F", "--force", "--num-threads=10", "--key-file="+in("munge.key"), "--socket="+in("munge.socket"),
		"--pid-file="+in("munged.pid"), "--seed-file="+in("munge.seed"), "--log-file="+in("munged.log"))
	wait(t, "munged up", 20*time.Second, func() bool { _, err := os.Stat(in("munge.socket")); return err == nil })
	r.daemon(t, "/usr/sbin/slurmctld", "-D", "-f", in("slurm.conf"))
	wait(t, "slurmctld up", 30*time.Second, func() bool {
		cmd := exec.Command("/usr/bin/scontrol", "ping")
		cmd.Env = r.env
		out, _ := cmd.Output()
		return strings.Contains(string(out), "is UP")
	})
	r.daemon(t, "/usr/sbin/slurmd", "-D", "-N", "n1", "-f", in("slurm.conf"))
	wait(t, "slurmd idle", 60*time.Second, func() bool { return strings.TrimSpace(r.run(t, "sinfo", "-h", "-o", "%t")) == "idle" })
	return r
}

// freePort is a port that nobody listens on now.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// daemon starts one of its daemons; it ends with the test.
func (r *rival) daemon(t *testing.T, path string, args ...string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = r.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		done := make(chan struct{})
		go func() { cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			cmd.Process.Kill()
			<-done
		}
	})
}

func (r *rival) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command("/usr/bin/"+name, args...)
	cmd.Env, cmd.Dir = r.env, r.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}
