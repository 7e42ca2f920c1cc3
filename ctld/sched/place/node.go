// Package place finds nodes for a job: what a request takes of a node (Shape), what a node has
// free at one moment (Room), and which nodes are chosen (Choose). It is pure: it knows no clock, no
// queue and no snapshot, and the same input gives the same nodes.
package place

// Node is one node's capacity and what is free now. Memory in bytes. Nodes are known by their
// position in the caller's list, which is the order of the configuration.
type Node struct {
	Name     string
	Weight   uint32 // lower ones are used first
	Up       bool   // may take new work: registered, responding, not drained or down
	CPUs     uint32
	Mem      int64
	TmpDisk  int64
	Sockets  uint32 // 0 = not known
	Cores    uint32 // of a socket; 0 = not known
	Threads  uint32 // of a core; 0 = not known
	Features []string
	Gres     []Gres

	FreeCPUs uint32
	FreeMem  int64
	CPUUsed  []bool   // by abstract CPU number
	Runs     int      // runs that hold something here
	Busy     bool     // something runs here
	Excl     bool     // an exclusive run holds it
	Owner    int64    // uid+1 of the user who has it by exclusive=user; 0 or less: nobody
	Users    []uint32 // uids with runs here, ascending
}

// Gres is one resource of a node.
type Gres struct {
	Name  string
	Type  string
	Total uint64
	Used  []bool // by index; nil for resources without devices
	Taken uint64
}
