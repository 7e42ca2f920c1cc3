package server

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// maxDiffering bounds the keys that one line of the log names.
const maxDiffering = 20

// keysOfControllers are not in the state: each controller takes them from its file, when it starts and when
// its file is the one that the cluster was reconfigured with.
const keysOfControllers = "keys that each controller takes from its own file, such as Admins, Operators, LoginNodes, Wallets, PrivateData, CertLife, FenceProgram"

// differing names the keys in which a file differs from what the cluster runs under, as far as the
// state holds them: keys that only controllers themselves go by are not in it.
func differing(view state.Viewer, file *conf.Config) string {
	var keys []string
	note := func(key string, same bool) {
		if !same {
			keys = append(keys, key)
		}
	}
	cfg := view.Config()
	note("ClusterName", cfg.Cluster == file.ClusterName)
	note("FirstJobId", cfg.FirstJobID == file.FirstJobId)
	note("MaxJobCount", cfg.MaxJobCount == file.MaxJobCount)
	note("MaxArraySize", cfg.MaxArraySize == file.MaxArraySize)
	note("MaxBatchRequeue", cfg.MaxBatchRequeue == file.MaxBatchRequeue)
	note("MaxSubmitPerUser", cfg.MaxSubmitPerUser == file.MaxSubmitPerUser)
	note("ReturnToService", cfg.ReturnToService == file.ReturnToService)
	note("KillWait", cfg.KillWait == file.KillWait.Milliseconds())
	note("RequeueDelay", cfg.RequeueDelay == file.RequeueDelay.Milliseconds())
	note("OverTimeLimit", cfg.OverTimeLimit == file.OverTimeLimit.Milliseconds())
	note("JobRequeue", cfg.JobRequeue == file.JobRequeue)
	note("JobFileAppend", cfg.JobFileAppend == file.JobFileAppend)
	for i := range file.Nodes {
		n := &file.Nodes[i]
		if have := view.Node(n.Name); have == nil || have.Removed {
			keys = append(keys, "NodeName="+n.Name)
		} else {
			note("NodeName="+n.Name+" (inventory)", inventory(n) == have.Config)
		}
	}
	for n := range view.Nodes() {
		note("NodeName="+n.Name+" (not in the file)", n.Removed || file.Node(n.Name) != nil)
	}
	named := map[string]bool{}
	for i := range file.Partitions {
		p := &file.Partitions[i]
		named[p.Name] = true
		have := view.Partition(p.Name)
		note("PartitionName="+p.Name, have != nil && slices.Equal(have.Nodes, p.Nodes) && slices.Equal(have.AllowGroups, p.AllowGroups) &&
			slices.Equal(have.AllowAccounts, p.AllowAccounts) && slices.Equal(have.DenyAccounts, p.DenyAccounts) && slices.Equal(have.AllowQOS, p.AllowQOS))
	}
	for p := range view.Partitions() {
		note("PartitionName="+p.Name+" (not in the file)", named[p.Name])
	}
	switch n := len(keys); {
	case n == 0:
		return keysOfControllers
	case n > maxDiffering:
		keys = append(keys[:maxDiffering], fmt.Sprintf("and %d more", n-maxDiffering))
	}
	return strings.Join(keys, ", ")
}

// inventory is what the file says that a node has.
func inventory(n *conf.Node) node.Inventory {
	return node.Inventory{CPUs: n.CPUs, Boards: n.Boards, Sockets: n.Sockets, CoresPerSocket: n.CoresPerSocket,
		ThreadsPerCore: n.ThreadsPerCore, Mem: n.RealMemory, TmpDisk: n.TmpDisk, Gres: n.Gres}
}
