package main_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// The user cases run as an ordinary user against a real cluster: when the test is root, it starts
// the cluster and runs itself again as that user; otherwise the cluster is rootless.

// TestCases runs testdata/cases, all scripts at once, on one cluster of four nodes.
func TestCases(t *testing.T) {
	runCases(t, "cases", "--nodes", "4", "--cpus", "4", "--mem", "2000", "--sim", "a100:4", "--set", "PartitionName=debug Nodes=ALL")
}

// TestNodeCases runs testdata/nodes one after the other: they change nodes.
func TestNodeCases(t *testing.T) {
	runCases(t, "nodes", "--nodes", "2", "--cpus", "2", "--mem", "1000", "--controllers", "3")
}

// TestSchedulerCases runs testdata/sched one after the other, with associations, limits and weights in force: the user is in
// the account lab.
func TestSchedulerCases(t *testing.T) {
	runCases(t, "sched", "--nodes", "3", "--cpus", "4", "--mem", "1000", "--set", "AccountingStorageEnforce=associations,limits,qos",
		"--set", "PriorityType=priority/multifactor", "--set", "PriorityWeightAge=1000", "--set", "PriorityWeightFairshare=10000",
		"--set", "PriorityWeightQOS=1000", "--set", "Licenses=lic:2")
}

// TestAdminCases runs testdata/admin: what administrators do to the cluster itself, on three controllers.
func TestAdminCases(t *testing.T) {
	if os.Getenv("CASES_FOLDER") == "admin" {
		runScripts(t, "admin")
		return
	}
	if testing.Short() || os.Getenv("CASES_FOLDER") != "" {
		t.Skip("starts a cluster; not with -short")
	}
	me := "nobody"
	if os.Geteuid() != 0 {
		me = strconv.Itoa(os.Getuid())
	}
	c := startCluster(t, "--nodes", "2", "--cpus", "2", "--mem", "1000", "--controllers", "3", "--set", "Admins="+me, "--set", "LoginNodes=login1")
	c.layOut(t)
	c.runAsUser(t, "admin")
}

// layOut prepares what scripts cannot make: a fourth controller's certificate and grid.conf, and the grid.conf of a
// login host that has no controller's socket.
func (c *cluster) layOut(t *testing.T) {
	t.Helper()
	adm := filepath.Join(filepath.Dir(c.dir), "adm")
	if err := os.MkdirAll(filepath.Join(adm, "tls"), 0o755); err != nil {
		t.Fatal(err)
	}
	issue := exec.Command(filepath.Join(c.bin, "gctl"), "pki", "issue", "--dir", filepath.Join(c.dir, "ca"), "--role=ctld", "--out", filepath.Join(adm, "tls"), "c4")
	if out, err := issue.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(c.dir, "grid.conf"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(c.dir, "tls", "ca.pem"))
	if err == nil {
		err = os.WriteFile(filepath.Join(adm, "tls", "ca.pem"), ca, 0o644)
	}
	ports := freePorts(t, 3)
	conf := regexp.MustCompile(`(?m)^(TLSDir|IssuerKey|SlurmdSpoolDir)=.*\n`).ReplaceAllString(string(text), "") + "TLSDir=" + filepath.Join(adm, "tls") + "\n"
	fourth := fmt.Sprintf("%sControllerName=c4 Address=127.0.0.1 Port=%d RaftPort=%d UserPort=%d Socket=%s StateDir=%s\n",
		conf, ports[0], ports[1], ports[2], filepath.Join(adm, "c4.sock"), filepath.Join(adm, "c4"))
	remote := regexp.MustCompile(`Socket=\S+`).ReplaceAllString(conf, "Socket=/does/not/exist") +
		fmt.Sprintf("LoginSocket=%s\nSlurmdSpoolDir=%s\n", filepath.Join(adm, "run", "login.sock"), filepath.Join(adm, "spool", "%n"))
	if err = errors.Join(err, os.WriteFile(filepath.Join(adm, "c4.conf"), []byte(fourth), 0o644),
		os.WriteFile(filepath.Join(adm, "remote.conf"), []byte(remote), 0o644)); err != nil {
		t.Fatal(err)
	}
	user := regexp.MustCompile(`ControllerName=c2 .*UserPort=(\d+)`).FindSubmatch(text)
	if user == nil {
		t.Fatalf("no UserPort in\n%s", text)
	}
	t.Setenv("ADM", adm)
	t.Setenv("C4", fmt.Sprintf("Address=127.0.0.1 Port=%d RaftPort=%d UserPort=%d", ports[0], ports[1], ports[2]))
	t.Setenv("USERPORT", string(user[1]))
	for _, p := range []string{adm, filepath.Join(adm, "tls"), filepath.Join(adm, "tls", "c4.key")} {
		c.own(t, p)
	}
}

func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func runCases(t *testing.T, folder string, flags ...string) {
	if testing.Short() {
		t.Skip("starts a cluster; not with -short")
	}
	if os.Getenv("CASES_FOLDER") == folder {
		runScripts(t, folder)
		return
	}
	if os.Getenv("CASES_FOLDER") != "" {
		t.Skip("the other folder")
	}
	c := startCluster(t, append(flags, "--set", "RequeueDelay=1", "--set", "KillWait=2")...)
	if folder == "sched" {
		for _, args := range [][]string{{"add", "account", "lab"}, {"add", "user", c.user.Username, "account=lab"}} {
			if out, err := c.command(t.Context(), c.dir, "gacctmgr", append([]string{"-i"}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("gacctmgr %v: %v\n%s", args, err, out)
			}
		}
	}
	c.runAsUser(t, folder)
}

// runScripts is the user's side.
func runScripts(t *testing.T, folder string) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", folder),
		WorkdirRoot:         os.Getenv("CASES_WORK"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			for _, v := range []string{"GRID_CONF", "PATH", "USER", "ADM", "C4", "USERPORT"} {
				e.Setenv(v, os.Getenv(v))
			}
			if folder == "sched" {
				e.Defer(clearQueue)
			}
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Getenv("CASES_ROOT") == "1", nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"setid": cmdSetID, "limit": cmdLimit, "mem": cmdMem, "array": cmdArray, "refusedarray": cmdRefusedArray,
			"code": cmdCode, "until": cmdUntil, "untilfile": cmdUntilFile, "ends": cmdEnds, "crlf": cmdCRLF,
			"restart": cmdRestart, "addfourth": cmdAddFourth, "revoke": cmdRevoke,
		},
	})
}

// clearQueue ends what a script has left, so that one that fails does not spoil the next.
func clearQueue() {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		exec.Command("scancel", "-u", os.Getenv("USER")).Run()
		resv, _ := exec.Command("scontrol", "-o", "show", "reservation").Output()
		for _, m := range regexp.MustCompile(`ReservationName=(\S+)`).FindAllSubmatch(resv, -1) {
			exec.Command("scontrol", "delete", "reservationname="+string(m[1])).Run()
		}
		jobs, err := exec.Command("squeue", "-h").Output()
		if err == nil && len(jobs) == 0 && !strings.Contains(string(resv), "ReservationName") {
			return
		}
	}
}

// submitHeld submits a held job and gives its id.
func submitHeld(ts *testscript.TestScript, args ...string) string {
	ts.Check(ts.Exec("sbatch", append([]string{"--parsable", "-H"}, args...)...))
	return strings.TrimSpace(ts.ReadFile("stdout"))
}

// field gives what squeue shows of a job in one format.
func field(ts *testscript.TestScript, id, format string) string {
	ts.Check(ts.Exec("squeue", "-h", "-j", id, "-o", format))
	return strings.TrimRight(ts.ReadFile("stdout"), "\n")
}

// want ends the script when two texts differ.
func want(ts *testscript.TestScript, what, got, want string) {
	if got != want {
		ts.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

// setid VAR: the id that the last command printed.
func cmdSetID(ts *testscript.TestScript, neg bool, args []string) {
	id := regexp.MustCompile(`\d+`).FindString(ts.ReadFile("stdout"))
	if id == "" {
		ts.Fatalf("no id in %q", ts.ReadFile("stdout"))
	}
	ts.Setenv(args[0], id)
}

// limit GIVEN SHOWN
func cmdLimit(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "-t "+args[0], field(ts, submitHeld(ts, "-t", args[0], "--wrap", "true"), "%l"), args[1])
}

// mem GIVEN SHOWN
func cmdMem(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "--mem="+args[0], field(ts, submitHeld(ts, "--mem="+args[0], "--wrap", "true"), "%m"), args[1])
}

// array SPEC SHOWN
func cmdArray(ts *testscript.TestScript, neg bool, args []string) {
	id := submitHeld(ts, "-a", args[0], "--wrap", "true")
	want(ts, "-a "+args[0], field(ts, id, "%i"), id+"_"+args[1])
	ts.Check(ts.Exec("scancel", id))
}

// refusedarray SPEC
func cmdRefusedArray(ts *testscript.TestScript, neg bool, args []string) {
	exitCode(ts, 1, "sbatch", "--array="+args[0], "--wrap", "true")
	if s := ts.ReadFile("stderr"); !strings.Contains(s, "Batch job submission failed: Invalid job array specification") {
		ts.Fatalf("-a %s: stderr is %q", args[0], s)
	}
}

// code N COMMAND...: it must exit with N.
func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	exitCode(ts, n, args[1:]...)
}

func exitCode(ts *testscript.TestScript, n int, args ...string) {
	err := ts.Exec(args[0], args[1:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != n {
		ts.Fatalf("%q: exit code %d, want %d", args, got, n)
	}
}

// until SECONDS REGEXP COMMAND...: again until stdout matches.
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	until(ts, args[0], args[1], func() string {
		if err := ts.Exec(args[2], args[3:]...); err != nil {
			return ""
		}
		return ts.ReadFile("stdout")
	})
}

// untilfile SECONDS REGEXP FILE
func cmdUntilFile(ts *testscript.TestScript, neg bool, args []string) {
	until(ts, args[0], args[1], func() string {
		b, err := os.ReadFile(ts.MkAbs(args[2]))
		if err != nil {
			return ""
		}
		return string(b)
	})
}

// until polls: the condition lies in another process, there is nothing to wait on.
func until(ts *testscript.TestScript, seconds, pattern string, text func() string) {
	n, err := strconv.Atoi(seconds)
	ts.Check(err)
	re := regexp.MustCompile("(?m)" + pattern)
	last := ""
	for end := time.Now().Add(time.Duration(n) * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if last = text(); re.MatchString(last) {
			return
		}
	}
	ts.Fatalf("after %s s nothing matches %q; the last was:\n%s", seconds, pattern, last)
}

// ends COMMAND STATE EXITCODE
func cmdEnds(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(ts.Exec("sbatch", "--parsable", "-o", "/dev/null", "--wrap", args[0]))
	id := strings.TrimSpace(ts.ReadFile("stdout"))
	until(ts, "60", `JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT)`, func() string {
		ts.Check(ts.Exec("scontrol", "show", "job", id))
		return ts.ReadFile("stdout")
	})
	show := ts.ReadFile("stdout")
	for _, w := range []string{"JobState=" + args[1] + " ", "ExitCode=" + args[2]} {
		if !strings.Contains(show, w) {
			ts.Fatalf("%q: no %q in\n%s", args[0], w, show)
		}
	}
}

// crlf FILE gets DOS line ends.
func cmdCRLF(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.ReplaceAll(ts.ReadFile(args[0]), "\n", "\r\n")), 0o644))
}

// restart DAEMON: it is killed with -9, and comes back.
func cmdRestart(ts *testscript.TestScript, neg bool, args []string) {
	ask := filepath.Join(os.Getenv("CASES_WORK"), "restart-"+args[0])
	ts.Check(os.WriteFile(ask, nil, 0o600))
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(ask); errors.Is(err, os.ErrNotExist) {
			return
		}
	}
	ts.Fatalf("%s did not come back", args[0])
}

// addfourth: c4, which was started just now, is taken in and made a voter.
func cmdAddFourth(ts *testscript.TestScript, neg bool, args []string) {
	add := append([]string{"controller", "add", "c4", "--promote", "--timeout=60s"}, strings.Fields(os.Getenv("C4"))...)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		err := ts.Exec("gctl", add...)
		if err == nil {
			return
		}
		if !strings.Contains(ts.ReadFile("stderr"), "does not answer at") || time.Now().After(end) {
			ts.Fatalf("%v", err)
		}
	}
}

// revoke NAMES: the token for these names is taken back.
func cmdRevoke(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(ts.Exec("gctl", "node", "tokens"))
	id := regexp.MustCompile(`(?m)^(\S+) +node +` + args[0] + ` `).FindStringSubmatch(ts.ReadFile("stdout"))
	if id == nil {
		ts.Fatalf("no token for %s in\n%s", args[0], ts.ReadFile("stdout"))
	}
	ts.Check(ts.Exec("gctl", "node", "revoke", id[1]))
}
