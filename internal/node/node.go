// Package node holds what a node is: its inventory, states and flags.
package node

// State is a node's base state.
type State uint8

// Base states, as Slurm's; Idle, Mixed and Allocated follow from what is allocated.
const (
	Unknown State = iota
	Down
	Idle
	Allocated
	Mixed
	Future
)

// Flags qualify a node's state.
type Flags uint32

// Node flags, as Slurm's.
const (
	Drain Flags = 1 << iota
	Completing
	NotResponding
	Fail
	Maint
	Reserved
	InvalidReg // registered with less than configured
	Planned
)

// Inventory is what a node has. Memory and disk in bytes.
type Inventory struct {
	CPUs           uint32
	Boards         uint32
	Sockets        uint32
	CoresPerSocket uint32
	ThreadsPerCore uint32
	Mem            int64
	TmpDisk        int64
	Gres           string // "gpu:a100:4,shard:16"
	OS             string
	Arch           string
	Hostname       string
}
