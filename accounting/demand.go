package accounting

import (
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

const mib = int64(1) << 20

// AllocTRES is what an allocation holds, licenses included: cpu, mem, node, gres/x, gres/x:type, license/x. Billing is
// not in it, as it takes a partition's weights.
func AllocTRES(allocs []job.NodeAlloc, licenses []job.License) TRES {
	var cpus, mem int64
	var items []gres.Item
	for i := range allocs {
		cpus += int64(allocs[i].CPUs)
		mem = addSaturating(mem, mebibytes(allocs[i].Mem))
		if len(allocs[i].Gres) > 0 {
			items = append(items, gres.Allocated(allocs[i].Gres)...)
		}
	}
	return compose(cpus, mem, int64(len(allocs)), items, licenses)
}

// PerNode is the most of each resource that an allocation holds on any of its nodes.
func PerNode(allocs []job.NodeAlloc) TRES {
	var most TRES
	for i := range allocs {
		most = merge(most, AllocTRES(allocs[i:i+1], nil).without("node"), func(a, b int64) int64 { return max(a, b) })
	}
	return most
}

// RequestTRES is the least that a request will get: on its least number of nodes, with the partition's default memory
// (bytes a node, or bytes a CPU; 0 = none) where it names none. Memory that is all of a node's counts as 0.
func RequestTRES(s *job.Spec, r *job.Request, licenses []job.License, defMemNode, defMemCPU int64) TRES {
	cpus, nodes := int64(r.CPUs), int64(r.MinNodes)
	mem := int64(0)
	switch {
	case r.MemPerNode > 0:
		mem = multiplySaturating(mebibytes(r.MemPerNode), nodes)
	case r.MemPerNode == job.WholeNode:
	case r.MemPerCPU > 0:
		mem = mebibytes(multiplySaturating(r.MemPerCPU, cpus))
	case defMemNode > 0:
		mem = multiplySaturating(mebibytes(defMemNode), nodes)
	case defMemCPU > 0:
		mem = mebibytes(multiplySaturating(defMemCPU, cpus))
	}
	return compose(cpus, mem, nodes, gres.Times(r.Gres, uint64(nodes)), licenses)
}

// RequestPerNode is the least that a request will get on each of its nodes: one task, or what --ntasks-per-node and
// --mincpus ask for.
func RequestPerNode(s *job.Spec, r *job.Request, defMemNode, defMemCPU int64) TRES {
	tasks := uint32(1)
	if s.NTasks == 0 {
		tasks = max(s.NTasksPerNode, 1)
	} else if r.MaxNodes > 0 {
		tasks = (r.Tasks-1)/r.MaxNodes + 1
	}
	one := *r
	one.MinNodes, one.CPUs = 1, r.CPUsFor(tasks)
	return RequestTRES(s, &one, nil, defMemNode, defMemCPU).without("node")
}

func mebibytes(bytes int64) int64 {
	if bytes <= 0 {
		return 0
	}
	return (bytes-1)/mib + 1
}

// compose puts a vector together; what is 0 is left out.
func compose(cpus, mem, nodes int64, items []gres.Item, licenses []job.License) TRES {
	t := make(TRES, 0, 3+2*len(items)+len(licenses))
	put := func(name string, n int64) {
		if n <= 0 {
			return
		}
		for i := range t {
			if t[i].Name == name {
				t[i].N = addSaturating(t[i].N, n)
				return
			}
		}
		t = append(t, Amount{name, n})
	}
	put("cpu", cpus)
	put("mem", mem)
	put("node", nodes)
	for _, it := range items {
		n := int64(min(it.Count, 1<<62))
		put("gres/"+it.Name, n)
		if it.Type != "" {
			put("gres/"+it.Name+":"+it.Type, n)
		}
	}
	for _, l := range licenses {
		put("license/"+l.Name, int64(min(l.Count, 1<<62)))
	}
	slices.SortFunc(t, func(a, b Amount) int { return strings.Compare(a.Name, b.Name) })
	return t
}
