// Package cred makes and checks the launch credential: the one thing that lets a node's root
// part start a process for somebody. The signature covers every byte that the launcher acts on.
package cred

import "github.com/tensorgrid/tensorgrid/internal/job"

// Launch is what a controller signs for one run of one step on one node.
// Times are Unix milliseconds UTC, memory bytes.
type Launch struct {
	Cluster   string
	Node      string // the one node that may use it
	JobID     uint32
	Run       uint32
	Step      uint32
	UID       uint32
	GID       uint32
	Groups    []uint32
	User      string
	Home      string
	Shell     string
	NotBefore int64
	Expires   int64
	Alloc     job.NodeAlloc // this node's share
	NodeList  string        // of the whole allocation, folded
	NodeIndex uint32
	NumNodes  uint32
	WorkDir   string
	StdIn     string // expanded paths
	StdOut    string
	StdErr    string
	Append    bool
	Umask     uint32
	TimeLimit int64 // ms from start; job.Unlimited = none
	KillWait  int64 // ms
	Signal    string
	SharedFS  bool
	Requeue   bool
	Lease     int64    // ms; 0 = never ended by lease
	Payload   [32]byte // SHA-256 over script, args and environment, see PayloadDigest
	JobName   string
	Partition string
	Account   string
	Restarts  uint32
}
