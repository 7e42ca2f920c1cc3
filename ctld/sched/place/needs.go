package place

import (
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Needs says in words what the shape takes, as "2 CPUs and 4G of memory on each of 3 nodes".
func (s *Shape) Needs() string {
	tasks := max(s.perNode, 1)
	if s.tasks > 0 {
		tasks = max(s.tasks/uint32(max(s.minNodes, 1)), 1)
		if s.perNode > 0 {
			tasks = min(tasks, s.perNode)
		}
	}
	if s.over {
		tasks = 1
	}
	together := s.tasks > 1 && s.maxNodes != 1 && s.perNode == 0 && !s.over
	parts := []string{plural(int(s.leastCPUs(tasks)), "CPU")}
	switch {
	case s.exclusive:
		parts = []string{"all CPUs"}
	case together:
		parts = []string{plural(int(s.tasks)*int(s.cpus), "CPU")}
	}
	switch {
	case s.memNode == job.WholeNode:
		parts = append(parts, "all memory")
	case s.memNode > 0:
		parts = append(parts, job.FormatMem(s.memNode)+" of memory")
	case s.memCPU > 0:
		parts = append(parts, job.FormatMem(s.memCPU)+" of memory a CPU")
	}
	for _, g := range s.gres {
		name := g.Name
		if g.Type != "" {
			name += ":" + g.Type
		}
		parts = append(parts, strconv.FormatUint(g.Count, 10)+" "+name)
	}
	text := strings.Join(parts[:len(parts)-1], ", ")
	if text != "" {
		text += " and "
	}
	text += parts[len(parts)-1]
	switch {
	case s.minNodes > 1 && together:
		text += " on " + plural(s.minNodes, "node")
	case s.minNodes > 1:
		text += " on each of " + plural(s.minNodes, "node")
	case !together:
		text += " on one node"
	}
	return text + s.layout()
}

// layout says how the nodes must lie.
func (s *Shape) layout() string {
	var parts []string
	if s.contiguous && s.maxNodes > 1 {
		parts = append(parts, "side by side")
	}
	if s.switches > 0 {
		if s.switches == 1 {
			parts = append(parts, "at one switch")
		} else {
			parts = append(parts, "at no more than "+strconv.Itoa(s.switches)+" switches")
		}
	}
	if s.segment > 1 {
		parts = append(parts, "in segments of "+strconv.Itoa(s.segment))
	}
	if len(parts) == 0 {
		return ""
	}
	return " " + strings.Join(parts, ", ")
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.Itoa(n) + " " + word + "s"
}
