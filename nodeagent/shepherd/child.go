package shepherd

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Between fork and exec only raw system calls may run: the child has one thread and none of the Go
// runtime. So the parent prepares a list of calls, and the child works it off.

// op is one system call of the child.
type op struct {
	call uintptr
	arg  [5]uintptr
	kind opKind
	skip int // soft: how many of the next ops are left out when the call succeeds
	got  []uint32
	want []uint32
	size bool // the call's result must be len(want)
	note uint32
}

type opKind uint8

const (
	hard    opKind = iota // a failure ends the child
	soft                  // a failure is told to the parent, and the next op is the way round it
	useLast               // like hard; argument 0 is what the last call returned
	compare               // the call filled got, which must be want
	putPID                // the call is getpid: its digits go where arg 0 points
	finish                // execve: a failure ends the child with the errno as its exit code
	maybe                 // a failure is no matter
)

//go:linkname runtimeBeforeFork syscall.runtime_BeforeFork
func runtimeBeforeFork()

//go:linkname runtimeAfterFork syscall.runtime_AfterFork
func runtimeAfterFork()

// cloneArgs is struct clone_args of the kernel, version 2.
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal    uint64
	stack, stackSize, tls, setTID, setTIDSize, group uint64
}

// The child borrows our memory and this thread waits until it has executed its script or died
// (VM, VFORK), as Go's own ForkExec does: copying a runtime's page tables costs more than the rest.
// Its signals have no handlers from the start: none of the runtime's may run there.
const cloneFlags = unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_CLEAR_SIGHAND

// clone3 is the kernel's; a negative result is an errno.
func clone3(args unsafe.Pointer, size uintptr) (result uintptr)

// maxErrno: results above it are errnos, negated.
const maxErrno = ^uintptr(4095)

// failed is the exit code of a child that could not get as far as exec.
const failed = 255

// fork makes a child that works off ops and says on the descriptor status what failed. group is the
// descriptor of the version 2 group that the child is born into, or -1. The caller holds
// syscall.ForkLock. With sibling the child is our parent's and not ours: the kernel then takes the
// signal of its end from us, which is SIGCHLD since we were executed.
//
//go:noinline
//go:norace
//go:nocheckptr
func fork(ops []op, status, group int, sibling bool) (pid int, errno syscall.Errno) {
	args := &cloneArgs{flags: cloneFlags, exitSignal: uint64(syscall.SIGCHLD)}
	if sibling {
		args.flags, args.exitSignal = cloneFlags|unix.CLONE_PARENT, 0
	}
	if group >= 0 {
		args.flags |= unix.CLONE_INTO_CGROUP
		args.group = uint64(group)
	}
	runtimeBeforeFork()
	r := clone3(unsafe.Pointer(args), unsafe.Sizeof(*args))
	if r != 0 {
		runtimeAfterFork()
		if r > maxErrno {
			return 0, syscall.Errno(-r)
		}
		return int(r), 0
	}
	child(ops, status)
	return 0, 0 // not reached
}

// message is what the child tells the parent: which op, and its errno.
type message struct{ op, errno int32 }

// child works off the list. It never returns.
//
//go:nosplit
//go:norace
//go:nocheckptr
func child(ops []op, status int) {
	var last uintptr
	for i := 0; i < len(ops); i++ {
		o := &ops[i]
		a0 := o.arg[0]
		if o.kind == useLast {
			a0 = last
		}
		r, _, e := syscall.RawSyscall6(o.call, a0, o.arg[1], o.arg[2], o.arg[3], o.arg[4], 0)
		if e != 0 && o.kind == maybe {
			continue
		}
		if e != 0 {
			tell(status, i, e)
			switch o.kind {
			case soft:
				continue
			case finish:
				exit(int(e))
			}
			exit(failed)
		}
		last = r
		switch o.kind {
		case soft:
			i += o.skip
		case putPID:
			digits(o.arg[0], r)
		case compare:
			if !same(o, r) {
				tell(status, i, syscall.EPERM)
				exit(failed)
			}
		}
	}
	exit(failed)
}

// same tells whether the ids that the kernel gives are those that were asked for.
//
//go:nosplit
//go:norace
//go:nocheckptr
func same(o *op, result uintptr) bool {
	if o.size && result != uintptr(len(o.want)) {
		return false
	}
	for j := range o.want {
		if o.got[j] != o.want[j] {
			return false
		}
	}
	return true
}

//go:nosplit
//go:norace
//go:nocheckptr
func tell(status, i int, e syscall.Errno) {
	m := message{int32(i), int32(e)}
	syscall.RawSyscall(syscall.SYS_WRITE, uintptr(status), uintptr(unsafe.Pointer(&m)), unsafe.Sizeof(m))
}

//go:nosplit
//go:norace
//go:nocheckptr
func exit(code int) {
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
}

// digits writes a number and a zero byte at the address.
//
//go:nosplit
//go:norace
//go:nocheckptr
func digits(at uintptr, n uintptr) {
	size := uintptr(1)
	for m := n; m >= 10; m /= 10 {
		size++
	}
	p := (*[pidDigits + 1]byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at)))
	p[size] = 0
	for size > 0 {
		size--
		p[size] = byte('0' + n%10)
		n /= 10
	}
}

// pidDigits is the most digits that a process number has (the kernel's limit is 2^22).
const pidDigits = 10
