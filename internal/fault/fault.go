// Package fault lets tests break a program at named points and shift its clock. Without the build tag
// "faults" every function does nothing and costs nothing.
//
// With the tag, the folder named by $GRID_FAULTS is looked at each time a point is passed. A file with
// the point's name says what happens there, and is read anew each time:
//
//	kill           the process is killed (SIGKILL) at this point
//	kill 7         ... the seventh time it is passed
//	sleep 2s       it stands still for that long
//	error ENOSPC   the point gives that errno
//	error ENOSPC 3 ... for the next three times
//
// Besides points: "clock" holds what is added to the wall clock ("+3h", "-90s"), "bootid" replaces the
// host's boot id.
package fault

// Folder is the variable that names the folder with the orders.
const Folder = "GRID_FAULTS"
