package ginfo

import (
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

// groupJSON is one line of sinfo in the shape of the data parser; the fields that clients read.
type groupJSON struct {
	Cluster string `json:"cluster"`
	Node    struct {
		State []string `json:"state"`
	} `json:"node"`
	Nodes struct {
		Allocated int      `json:"allocated"`
		Idle      int      `json:"idle"`
		Other     int      `json:"other"`
		Total     int      `json:"total"`
		Hostnames []string `json:"hostnames"`
		Nodes     []string `json:"nodes"`
	} `json:"nodes"`
	CPUs struct {
		Allocated uint32 `json:"allocated"`
		Idle      uint32 `json:"idle"`
		Other     uint32 `json:"other"`
		Total     uint32 `json:"total"`
	} `json:"cpus"`
	Memory struct {
		Minimum   int64 `json:"minimum"`
		Maximum   int64 `json:"maximum"`
		Allocated int64 `json:"allocated"`
	} `json:"memory"`
	Gres struct {
		Total string `json:"total"`
		Used  string `json:"used"`
	} `json:"gres"`
	Features struct {
		Total  string `json:"total"`
		Active string `json:"active"`
	} `json:"features"`
	Reason struct {
		Description string        `json:"description"`
		Time        render.Number `json:"time"`
		User        string        `json:"user"`
	} `json:"reason"`
	Partition struct {
		Name      string   `json:"name"`
		State     []string `json:"state"`
		IsDefault bool     `json:"default"`
		Nodes     struct {
			Configured string `json:"configured"`
			Total      uint32 `json:"total"`
		} `json:"nodes"`
		Maximums struct {
			Time  render.Number `json:"time"`
			Nodes render.Number `json:"nodes"`
		} `json:"maximums"`
	} `json:"partition"`
}

func newGroupJSON(g *group, cluster string) groupJSON {
	var j groupJSON
	j.Cluster = cluster
	j.Nodes.Allocated, j.Nodes.Idle, j.Nodes.Other = g.classes()
	j.Nodes.Total = len(g.nodes)
	j.Nodes.Hostnames, j.Nodes.Nodes = []string{}, []string{}
	j.Node.State = []string{}
	j.CPUs.Allocated, j.CPUs.Idle, j.CPUs.Other, j.CPUs.Total = g.cpuClasses()
	for i, n := range g.nodes {
		j.Nodes.Nodes = append(j.Nodes.Nodes, n.Name)
		j.Nodes.Hostnames = append(j.Nodes.Hostnames, render.Or(n.Hostname, n.Name))
		if i == 0 {
			j.Memory.Minimum = n.Mem >> 20
			j.Node.State = append([]string{n.State}, n.Flags...)
			j.Gres.Total, j.Gres.Used = n.Gres, n.GresUsed
			j.Features.Total, j.Features.Active = n.Features, n.ActiveFeatures
			j.Reason.Description, j.Reason.User, j.Reason.Time = n.Reason, n.ReasonUser, render.Stamp(n.ReasonMs)
		}
		j.Memory.Minimum, j.Memory.Maximum = min(j.Memory.Minimum, n.Mem>>20), max(j.Memory.Maximum, n.Mem>>20)
		j.Memory.Allocated += n.MemAlloc >> 20
	}
	fillPartition(&j, g.part)
	return j
}

func fillPartition(j *groupJSON, p *ctldpb.Partition) {
	j.Partition.State = []string{}
	if p == nil {
		return
	}
	j.Partition.Name, j.Partition.IsDefault = p.Name, p.IsDefault
	j.Partition.State = append(j.Partition.State, strings.ToUpper(p.State))
	j.Partition.Nodes.Configured, j.Partition.Nodes.Total = p.Nodes, p.TotalNodes
	j.Partition.Maximums.Time = render.Minutes(p.MaxTimeMs)
	j.Partition.Maximums.Nodes = render.NumIf(p.MaxNodes)
	j.Partition.Maximums.Nodes.Infinite = p.MaxNodes == 0
}
