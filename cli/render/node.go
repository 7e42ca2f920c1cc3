package render

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// nodeFlagRank orders states as Slurm's flag bits do: "-t" puts the highest first.
var nodeFlagRank = map[string]int{
	"RESERVED": 1 << 4, "CLOUD": 1 << 7, "DRAIN": 1 << 9, "COMPLETING": 1 << 10, "NOT_RESPONDING": 1 << 11,
	"POWERED_DOWN": 1 << 12, "FAIL": 1 << 13, "POWERING_UP": 1 << 14, "MAINTENANCE": 1 << 15, "REBOOT_REQUESTED": 1 << 16,
	"PLANNED": 1 << 22, "INVALID_REG": 1 << 23,
}

var nodeBaseRank = map[string]int{"UNKNOWN": 0, "DOWN": 1, "IDLE": 2, "ALLOCATED": 3, "ERROR": 4, "MIXED": 5, "FUTURE": 6}

// NodeRank orders node states.
func NodeRank(n *ctldpb.Node) int {
	r := nodeBaseRank[n.State]
	for _, f := range n.Flags {
		r |= nodeFlagRank[f]
	}
	return r
}

// NodeState gives sinfo's long and compact state, with the suffixes of a node that is in maintenance but busy, down or
// drained, and of one that does not respond.
func NodeState(n *ctldpb.Node) (long, short string) {
	has := func(f string) bool { return slices.Contains(n.Flags, f) }
	busy := n.State == "ALLOCATED" || n.State == "MIXED" || has("COMPLETING") || n.CpusAlloc > 0
	maintenance := has("MAINTENANCE")
	switch {
	case has("DRAIN") && busy:
		long, short = "draining", "drng"
	case has("DRAIN"):
		long, short = "drained", "drain"
	case has("FAIL") && busy:
		long, short = "failing", "failg"
	case has("FAIL"):
		long, short = "fail", "fail"
	case n.State == "DOWN":
		long, short = "down", "down"
	case n.State == "ALLOCATED" && has("COMPLETING"):
		long, short = "allocated+", "alloc+"
	case has("COMPLETING"):
		long, short = "completing", "comp"
	case maintenance && !busy:
		long, short, maintenance = "maint", "maint", false
	case has("RESERVED") && n.State == "IDLE":
		long, short = "reserved", "resv"
	case has("PLANNED") && n.State == "IDLE":
		long, short = "planned", "plnd"
	case has("PLANNED") && n.State == "MIXED":
		long, short = "mixed-", "mix-"
	default:
		long, short = baseNodeState(n.State)
	}
	if maintenance {
		long, short = long+"$", short+"$"
	}
	if has("NOT_RESPONDING") {
		return long + "*", short + "*"
	}
	return long, short
}

func baseNodeState(s string) (long, short string) {
	switch s {
	case "IDLE":
		return "idle", "idle"
	case "MIXED":
		return "mixed", "mix"
	case "ALLOCATED":
		return "allocated", "alloc"
	case "FUTURE":
		return "future", "futr"
	case "UNKNOWN", "":
		return "unknown", "unk"
	}
	return strings.ToLower(s), strings.ToLower(s)
}

// NodeStateFull is scontrol's form: "IDLE+DRAIN", with an asterisk when it does not respond.
func NodeStateFull(n *ctldpb.Node) string {
	s := n.State
	for _, f := range n.Flags {
		if f == "NOT_RESPONDING" {
			s += "*"
		}
	}
	for _, f := range n.Flags {
		if f != "NOT_RESPONDING" {
			s += "+" + f
		}
	}
	if slices.Contains(n.Flags, "NOT_RESPONDING") {
		s += "+NOT_RESPONDING"
	}
	return s
}

// NodeClass sorts a node into A, I or O of the A/I/O/T columns.
func NodeClass(n *ctldpb.Node) byte {
	has := func(f string) bool { return slices.Contains(n.Flags, f) }
	switch {
	case n.State == "ALLOCATED" || n.State == "MIXED" || has("COMPLETING"):
		return 'A'
	case n.State != "IDLE" || has("DRAIN") || has("NOT_RESPONDING") || has("FAIL") || has("MAINTENANCE"):
		return 'O'
	}
	return 'I'
}

// MiB prints bytes as whole mebibytes.
func MiB(bytes int64) string { return fmt.Sprint(bytes >> 20) }
