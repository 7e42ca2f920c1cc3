package robust

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// Variables of the process that forbids a system call and becomes another program.
const (
	denyCall   = "ROBUST_DENY_CALL"   // number
	denyErrno  = "ROBUST_DENY_ERRNO"  // 0: the call says that it went well, and does nothing
	denyFirst  = "ROBUST_DENY_FIRST"  // only with this first argument; "" = always
	denyBecome = "ROBUST_DENY_BECOME" // the program
)

// init is the test binary started again with a system call that fails, or lies, for itself and all below it.
func init() {
	program := os.Getenv(denyBecome)
	if program == "" {
		return
	}
	runtime.LockOSThread()
	call, _ := strconv.ParseUint(os.Getenv(denyCall), 10, 32)
	errno, _ := strconv.ParseUint(os.Getenv(denyErrno), 10, 16)
	stop := func(err error) {
		fmt.Fprintln(os.Stderr, "forbid a call:", err)
		os.Exit(3)
	}
	if err := forbid(uint32(call), uint32(errno), os.Getenv(denyFirst)); err != nil {
		stop(err)
	}
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "ROBUST_DENY_") {
			env = append(env, e)
		}
	}
	stop(syscall.Exec(program, append([]string{program}, os.Args[1:]...), env))
}

// forbid installs a seccomp filter on this thread, which keeps it when it executes another program.
func forbid(call, errno uint32, first string) error {
	const offsetNr, offsetArg0 = 0, 16 // of struct seccomp_data; the low half of the first argument
	const load, equal, give = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	const deny, allow = 0x00050000, 0x7fff0000 // SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW
	f := []unix.SockFilter{{Code: load, K: offsetNr}}
	if first == "" {
		f = append(f, unix.SockFilter{Code: equal, K: call, Jf: 1})
	} else {
		n, err := strconv.ParseUint(first, 10, 32)
		if err != nil {
			return err
		}
		f = append(f, unix.SockFilter{Code: equal, K: call, Jf: 3}, unix.SockFilter{Code: load, K: offsetArg0}, unix.SockFilter{Code: equal, K: uint32(n), Jf: 1})
	}
	f = append(f, unix.SockFilter{Code: give, K: deny | errno}, unix.SockFilter{Code: give, K: allow})
	p := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&p)), 0, 0)
}

// TestSecurityPrivilegeDrop: setgroups, setresgid and setresuid of a job fail, or claim to have worked and did
// nothing: no byte of the user's is executed, and the node says why. With all of them right it runs.
func TestSecurityPrivilegeDrop(t *testing.T) {
	long(t)
	c := prepare(t, layout{controllers: 1, nodes: 1, set: []string{"SlurmdTimeout=300"}})
	self, err := os.Executable()
	c.ok(err)
	p := c.proc[launcher("n1")]
	good := p.make
	c.run("c1")
	c.run("n1")
	tries, ran := 0, 0
	type how struct {
		name  string
		call  uintptr
		first string
	}
	list := []how{{"", 0, ""}, {"setgroups", unix.SYS_SETGROUPS, ""}, {"setresgid", unix.SYS_SETRESGID, fmt.Sprint(userUID)}, {"setresuid", unix.SYS_SETRESUID, fmt.Sprint(userUID)}, {"", 0, ""}}
	for i, h := range list {
		for _, errno := range []syscall.Errno{syscall.EPERM, 0} {
			p.kill()
			endOrphans()
			p.make = good
			if h.name != "" {
				p.make = func() *exec.Cmd {
					cmd := good()
					cmd.Env = append(cmd.Env, denyBecome+"="+cmd.Path, fmt.Sprintf("%s=%d", denyCall, h.call), fmt.Sprintf("%s=%d", denyErrno, errno), denyFirst+"="+h.first)
					cmd.Path, cmd.Args[0] = self, self
					return cmd
				}
			}
			c.ok(p.start())
			c.user(0).any().UpdateNode(t.Context(), &ctldpb.UpdateNodeRequest{Names: "n1", Set: map[string]string{"State": "RESUME"}, Key: fmt.Sprint(i, errno)})
			c.waitReady(40 * time.Second)
			name := fmt.Sprintf("%s-%d-%d", h.name, i, errno)
			mark := c.path("work", "ran-"+name)
			spec := c.spec(name, ":")
			spec.Script = []byte("#!/bin/sh\nid > " + mark + "\n")
			id := c.submit(spec)
			if h.name == "" {
				within(t, 20*time.Second, "a job with all calls right", func() error {
					_, err := os.Stat(mark)
					return err
				})
				text, _ := os.ReadFile(mark)
				if !strings.Contains(string(text), fmt.Sprintf("uid=%d", userUID)) || !strings.Contains(string(text), fmt.Sprintf("gid=%d", userUID)) || strings.Contains(string(text), "(root)") {
					t.Errorf("it ran as %s", text)
				}
				break
			}
			tries++
			within(t, 30*time.Second, name+" is not started", func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				nodes, err := c.user(0).any().ListNodes(ctx, &ctldpb.ListNodesRequest{})
				if err != nil {
					return err
				}
				n, j := nodes.Nodes[0], c.jobByID(id)
				if n.Reason == "" && j.State == "PENDING" && j.Run == 0 || j.State == "RUNNING" {
					return fmt.Errorf("job %s in run %d, node %s %v %q", j.State, j.Run, n.State, n.Flags, n.Reason)
				}
				t.Logf("%s with errno %d: job %s in run %d (%s), node %v %q", h.name, errno, j.State, j.Run, j.Reason, n.Flags, n.Reason)
				return nil
			})
			_, err := c.user(0).any().Cancel(t.Context(), &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{fmt.Sprint(id)}}, Key: name})
			c.ok(err)
			time.Sleep(time.Second)
			if text, err := os.ReadFile(mark); err == nil {
				ran++
				t.Errorf("%s with errno %d: the user's script ran: %s", h.name, errno, text)
			}
		}
	}
	figure(t, "security_drop_failures", float64(tries), "failures", 6)
	most(t, "security_drop_ran", float64(ran), "scripts", 0)
}
