package shepherd

import (
	"math"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// The stages of a start, for what is said when one fails.
const (
	stageOther  uint32 = iota
	stageGroup         // joining control groups
	stageIDs           // giving up root
	stageDir           // work directory
	stageStdin         // opening the user's files
	stageStdout        //
	stageStderr        //
	stageHand          // handing standard error to the parent
	stageExec          // executing the script
)

// fallbackDir is where a script runs whose work directory cannot be entered, as with Slurm.
const fallbackDir = "/tmp"

// softFiles is the soft limit of open files that a job starts with. The Go runtime raises its own
// and the original is lost; programs that use select break above this number.
const softFiles = 1024

// taskPID is the one variable that only the node can know.
const taskPID = "SLURM_TASK_PID="

// program is a list of calls with the memory that they point to.
type program struct {
	ops  []op
	keep []any
}

func (p *program) add(o op) { p.ops = append(p.ops, o) }

// str gives the address of a zero-terminated copy.
func (p *program) str(s string) uintptr {
	b := append([]byte(s), 0)
	p.keep = append(p.keep, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

// ids gives the address of a list of ids; 0 for an empty one.
func (p *program) ids(ids []uint32) uintptr {
	if len(ids) == 0 {
		return 0
	}
	p.keep = append(p.keep, ids)
	return uintptr(unsafe.Pointer(&ids[0]))
}

// list gives the address of a zero-terminated list of addresses.
func (p *program) list(of []uintptr) uintptr {
	of = append(of, 0)
	p.keep = append(p.keep, of)
	return uintptr(unsafe.Pointer(&of[0]))
}

func ptr[T any](p *program, v *T) uintptr {
	p.keep = append(p.keep, v)
	return uintptr(unsafe.Pointer(v))
}

// files are descriptors that the parent opened for the child; -1 = the child opens the path itself.
type files struct{ out, err int }

const atCWD = ^uintptr(99) // AT_FDCWD, -100

// compose lists what the child does, in this order: it joins the groups while it is still root and
// alone, gives up root and looks whether that is so, and only then touches what is the user's.
func compose(p *launch.Plan, f files, status int) *program {
	c := &program{ops: make([]op, 0, 48), keep: make([]any, 0, 64)}
	c.add(op{call: unix.SYS_SETSID})
	for _, file := range p.Group.Joins() {
		c.add(op{call: unix.SYS_OPENAT, arg: [5]uintptr{atCWD, c.str(file), unix.O_WRONLY | unix.O_CLOEXEC}, note: stageGroup})
		c.add(op{call: unix.SYS_WRITE, kind: useLast, arg: [5]uintptr{0, c.str("0"), 1}, note: stageGroup})
	}
	if !p.Rootless && protected() {
		c.add(op{call: unix.SYS_OPENAT, arg: [5]uintptr{atCWD, c.str(oomAdj), unix.O_WRONLY | unix.O_CLOEXEC}})
		c.add(op{call: unix.SYS_WRITE, kind: useLast, arg: [5]uintptr{0, c.str("0"), 1}})
	}
	// Whoever has the launcher's session keyring has the keys of every job before. Kernels may lack keys.
	c.add(op{call: unix.SYS_KEYCTL, kind: maybe, arg: [5]uintptr{unix.KEYCTL_JOIN_SESSION_KEYRING, 0}})
	c.add(op{call: unix.SYS_UMASK, arg: [5]uintptr{uintptr(p.Umask)}})
	if !p.Rootless {
		c.dropRoot(p)
	}
	c.add(op{call: unix.SYS_CHDIR, kind: soft, skip: 1, arg: [5]uintptr{c.str(p.WorkDir)}, note: stageDir})
	c.add(op{call: unix.SYS_CHDIR, arg: [5]uintptr{c.str(fallbackDir)}, note: stageDir})
	c.openFiles(p, f)
	c.handStderr(status)
	c.reset()
	c.exec(p)
	return c
}

// oomAdj is where the kernel keeps how much a process is protected when memory runs out.
const oomAdj = "/proc/self/oom_score_adj"

// protected tells whether we are spared when memory runs out, as a service manager may arrange for
// the launcher: a job must not inherit that.
var protected = sync.OnceValue(func() bool {
	f, err := openPlain(oomAdj, unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	var sign [1]byte
	n, _ := f.Read(sign[:])
	return n == 1 && sign[0] == '-'
})

// dropRoot gives up root: groups, then gid, then uid, each compared with what the kernel then says.
func (c *program) dropRoot(p *launch.Plan) {
	check := func(call uintptr, got, want []uint32, args [5]uintptr, size bool) {
		c.add(op{call: call, kind: compare, arg: args, got: got, want: want, size: size, note: stageIDs})
	}
	gid, uid := uintptr(p.GID), uintptr(p.UID)
	c.add(op{call: unix.SYS_SETGROUPS, arg: [5]uintptr{uintptr(len(p.Groups)), c.ids(p.Groups)}, note: stageIDs})
	c.add(op{call: unix.SYS_SETRESGID, arg: [5]uintptr{gid, gid, gid}, note: stageIDs})
	c.add(op{call: unix.SYS_SETRESUID, arg: [5]uintptr{uid, uid, uid}, note: stageIDs})

	groups := make([]uint32, len(p.Groups)+1)
	check(unix.SYS_GETGROUPS, groups, p.Groups, [5]uintptr{uintptr(len(groups)), c.ids(groups)}, true)
	for _, id := range []struct {
		call uintptr
		want uint32
	}{{unix.SYS_GETRESGID, p.GID}, {unix.SYS_GETRESUID, p.UID}} {
		got := make([]uint32, 3)
		at := c.ids(got)
		check(id.call, got, []uint32{id.want, id.want, id.want}, [5]uintptr{at, at + 4, at + 8}, false)
	}
}

// openFiles gives the child its standard files. Paths are the user's and may be links: it is the
// user that follows them.
func (c *program) openFiles(p *launch.Plan, f files) {
	in := p.StdIn
	if in == "" {
		in = "/dev/null"
	}
	c.open(in, unix.O_RDONLY, 0, stageStdin)
	write := unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC
	if p.Append {
		write = unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND
	}
	out := p.StdOut
	if out == "" {
		out = "/dev/null"
	}
	if f.out >= 0 {
		c.dup(f.out, 1)
	} else {
		c.open(out, write, 1, stageStdout)
	}
	switch {
	case f.err >= 0:
		c.dup(f.err, 2)
	case p.StdErr == "" || p.StdErr == p.StdOut:
		c.dup(1, 2)
	default:
		c.open(p.StdErr, write, 2, stageStderr)
	}
}

// open does not wait: our parent, who starts the jobs of others too, stands still until we have executed
// the script. A pipe without anybody at its other end is an error (ENXIO, output) or empty (input).
func (c *program) open(path string, flags int, fd uintptr, stage uint32) {
	c.add(op{call: unix.SYS_OPENAT, note: stage,
		arg: [5]uintptr{atCWD, c.str(path), uintptr(flags | unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK), 0o666}})
	c.add(op{call: unix.SYS_DUP3, kind: useLast, arg: [5]uintptr{0, fd, 0}, note: stage})
	c.add(op{call: unix.SYS_FCNTL, arg: [5]uintptr{fd, unix.F_SETFL, uintptr(flags & unix.O_APPEND)}, note: stage})
}

func (c *program) dup(from int, to uintptr) {
	c.add(op{call: unix.SYS_DUP3, arg: [5]uintptr{uintptr(from), to, 0}})
}

// handed is the op number in the message that carries the descriptor.
const handed = -1

// handStderr sends standard error to the parent, which writes notes about the job there.
func (c *program) handStderr(status int) {
	m := &message{op: handed}
	rights := unix.UnixRights(2)
	iov := &unix.Iovec{Base: (*byte)(unsafe.Pointer(m))}
	iov.SetLen(int(unsafe.Sizeof(*m)))
	head := &unix.Msghdr{Iov: iov, Control: &rights[0]}
	head.SetIovlen(1)
	head.SetControllen(len(rights))
	c.keep = append(c.keep, m, rights, iov)
	c.add(op{call: unix.SYS_SENDMSG, arg: [5]uintptr{uintptr(status), ptr(c, head), 0}, note: stageHand})
}

// reset gives the job the descriptors, signals and limits that a fresh login would have.
func (c *program) reset() {
	// What the launcher was started with may have come this far: only 0, 1 and 2 go on.
	c.add(op{call: unix.SYS_CLOSE_RANGE, arg: [5]uintptr{3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC}})
	zero := ptr(c, new([64]byte))
	const setSize, sigSetMask = 8, 2
	for _, sig := range ignoredSignals() {
		c.add(op{call: unix.SYS_RT_SIGACTION, arg: [5]uintptr{sig, zero, 0, setSize}})
	}
	c.add(op{call: unix.SYS_RT_SIGPROCMASK, arg: [5]uintptr{sigSetMask, zero, 0, setSize}})
	var now syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now) == nil {
		limit := &syscall.Rlimit{Cur: min(softFiles, now.Max), Max: now.Max}
		c.add(op{call: unix.SYS_PRLIMIT64, arg: [5]uintptr{0, syscall.RLIMIT_NOFILE, ptr(c, limit), 0}})
	}
}

// ignoredSignals lists the signals that we were started to ignore: others have their default in the
// child already, or get it when it executes.
var ignoredSignals = sync.OnceValue(func() []uintptr {
	const setSize, ignore = 8, 1
	var list []uintptr
	for sig := uintptr(1); sig <= 64; sig++ {
		var now [4]uintptr // handler, flags, restorer, mask
		_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&now)), setSize, 0, 0)
		if e == 0 && now[0] == ignore {
			list = append(list, sig)
		}
	}
	return list
})

// exec runs the script with the environment as given, and the task's process number.
func (c *program) exec(p *launch.Plan) {
	argv := []uintptr{c.str(p.Script)}
	for _, a := range p.Args {
		argv = append(argv, c.str(a))
	}
	env := make([]uintptr, 0, len(p.Env)+1)
	for _, e := range p.Env {
		if len(e) >= len(taskPID) && string(e[:len(taskPID)]) == taskPID {
			continue
		}
		env = append(env, c.str(string(e)))
	}
	pid := make([]byte, len(taskPID)+pidDigits+1)
	copy(pid, taskPID)
	c.keep = append(c.keep, pid)
	at := uintptr(unsafe.Pointer(&pid[0]))
	env = append(env, at)
	c.add(op{call: unix.SYS_GETPID, kind: putPID, arg: [5]uintptr{at + uintptr(len(taskPID))}})
	c.add(op{call: unix.SYS_EXECVE, kind: finish, note: stageExec,
		arg: [5]uintptr{argv[0], c.list(argv), c.list(env)}})
}
