package job

import (
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/gres"
)

// TRES is what a job asks for or holds, in trackable resources. Memory in bytes.
type TRES struct {
	CPUs    uint64
	Mem     int64
	Nodes   uint64
	Billing uint64
	Gres    []gres.Item // of all nodes together
}

// String writes them as Slurm does: cpu=4,mem=16G,node=1,billing=4,gres/gpu=2. What is zero is left out; a resource
// with types is written in sum and by type.
func (t TRES) String() string {
	var parts []string
	put := func(name string, n uint64) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", name, n))
		}
	}
	put("cpu", t.CPUs)
	if t.Mem > 0 {
		parts = append(parts, "mem="+FormatMem(t.Mem))
	}
	put("node", t.Nodes)
	put("billing", t.Billing)
	seen := make(map[string]bool)
	sum := gres.Sum(t.Gres)
	for _, item := range sum {
		if seen[item.Name] {
			continue
		}
		seen[item.Name] = true
		put("gres/"+item.Name, gres.Total(sum, item.Name))
		for _, typed := range sum {
			if typed.Name == item.Name && typed.Type != "" {
				put("gres/"+typed.Name+":"+typed.Type, typed.Count)
			}
		}
	}
	return strings.Join(parts, ",")
}

// TRES is what a request asks for on its least number of nodes. Billing is its CPUs.
func (r *Request) TRES() TRES {
	t := TRES{CPUs: uint64(r.CPUs), Nodes: uint64(r.MinNodes), Billing: uint64(r.CPUs), Gres: gres.Times(r.Gres, uint64(r.MinNodes))}
	switch {
	case r.MemPerNode > 0:
		t.Mem = multiply(r.MemPerNode, int64(r.MinNodes))
	case r.MemPerNode == 0:
		t.Mem = multiply(r.MemPerCPU, int64(r.CPUs))
	}
	return t
}

// multiply stops at the largest int64 that is still a whole number of MiB.
func multiply(a, b int64) int64 {
	const most = 1<<63 - 1 - (mib - 1)
	if b > 0 && a > most/b {
		return most
	}
	return a * b
}

// AllocTRES is what an allocation holds. Billing is its CPUs.
func AllocTRES(allocs []NodeAlloc) TRES {
	t := TRES{Nodes: uint64(len(allocs))}
	var all []gres.Item
	for _, a := range allocs {
		t.CPUs += uint64(a.CPUs)
		t.Mem += a.Mem
		all = gres.Sum(all, gres.Allocated(a.Gres))
	}
	t.Billing, t.Gres = t.CPUs, all
	return t
}
