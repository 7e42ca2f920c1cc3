package gsub

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// resolveGPUs turns the ways to ask for GPUs (in all, per node, per task) and what hangs on their number
// into resources of each node, which is what the planner places. What cannot be the same on each node is refused.
func (r *request) resolveGPUs() error {
	items, err := gres.Parse(r.spec.Gres)
	if err != nil {
		return &refusal{text: gres.Invalid, why: err.Error()}
	}
	asked := r.gpu["gpus"] != "" || r.gpu["gpus-per-node"] != "" || r.gpu["gpus-per-task"] != ""
	if asked && gres.Total(items, "gpu") > 0 {
		return &refusal{text: gres.Invalid, why: "--gres=gpu and --gpus, --gpus-per-node or --gpus-per-task ask for the same thing twice"}
	}
	perNode, err := r.gpusPerNode()
	if err != nil {
		return err
	}
	if asked {
		items = gres.Sum(items, perNode)
		r.spec.Gres = gres.Format(items)
	}
	return r.perGPU(gres.Total(items, "gpu"))
}

// claimGPUs makes a way to ask for GPUs the one that counts: all that weaker sources asked for, in whatever way, is
// forgotten. Ways of one source stand beside each other, as --gpus with --gpus-per-task.
func (r *request) claimGPUs(name string) {
	for way, source := range r.claims {
		if source >= r.source {
			continue
		}
		delete(r.claims, way)
		switch way {
		case "gres":
			items, err := gres.Parse(r.spec.Gres)
			if err == nil { // it was made by gres.Format
				r.spec.Gres = gres.Format(slices.DeleteFunc(items, func(it gres.Item) bool { return it.Name == "gpu" }))
			}
		case "tres-per-task":
			delete(r.gpu, "gpus-per-task")
			r.drop(way)
		default:
			delete(r.gpu, way)
			r.drop(way)
		}
	}
	r.claims[name] = r.source
}

// rivalCPUs: the CPUs of a task and those of a GPU are two ways to say one thing; the stronger source wins.
func (r *request) rivalCPUs(name string) error {
	return r.exclude(name, []string{"cpus-per-gpu", "cpus-per-task"}, func() {
		r.spec.CPUsPerTask = 0
		delete(r.gpu, "cpus-per-gpu")
		r.drop("cpus-per-gpu")
	})
}

// gpusPerNode is what --gpus, --gpus-per-node or --gpus-per-task give on each node.
func (r *request) gpusPerNode() ([]gres.Item, error) {
	nodes := uint64(max(1, r.spec.MinNodes))
	if v := r.gpu["gpus-per-node"]; v != "" {
		return parseGPUs("gpus-per-node", v)
	}
	if v := r.gpu["gpus"]; v != "" {
		all, err := parseGPUs("gpus", v)
		if err != nil {
			return nil, err
		}
		for i := range all {
			if all[i].Count%nodes != 0 {
				return nil, &refusal{text: gres.Invalid, why: fmt.Sprintf(
					"%d GPUs are not the same number on each of %d nodes; use --gpus-per-node", all[i].Count, nodes)}
			}
			all[i].Count /= nodes
		}
		if per := r.gpu["gpus-per-task"]; per != "" && r.spec.NTasks == 0 {
			one, err := parseGPUs("gpus-per-task", per)
			if err != nil {
				return nil, err
			}
			r.spec.NTasks = uint32(gres.Total(all, "gpu") * nodes / max(1, gres.Total(one, "gpu")))
		}
		return all, nil
	}
	v := r.gpu["gpus-per-task"]
	if v == "" {
		return nil, nil
	}
	one, err := parseGPUs("gpus-per-task", v)
	if err != nil {
		return nil, err
	}
	tasks := uint64(r.spec.NTasksPerNode)
	if tasks == 0 {
		all := uint64(max(r.spec.NTasks, r.spec.MinNodes, 1))
		if all%nodes != 0 {
			return nil, &refusal{text: gres.Invalid, why: fmt.Sprintf(
				"%d tasks are not the same number on each of %d nodes; use --ntasks-per-node with --gpus-per-task", all, nodes)}
		}
		tasks = all / nodes
	}
	return gres.Times(one, tasks), nil
}

// perGPU applies what was asked for each GPU of a node.
func (r *request) perGPU(gpus uint64) error {
	ask := func(name string) uint64 { n, _ := strconv.ParseUint(r.gpu[name], 10, 32); return n }
	cpus, tasks := ask("cpus-per-gpu"), ask("ntasks-per-gpu")
	if gpus == 0 {
		for _, name := range []string{"cpus-per-gpu", "ntasks-per-gpu", "mem-per-gpu"} {
			if r.gpu[name] != "" || name == "mem-per-gpu" && r.memPerGPU > 0 {
				return fmt.Errorf("--%s used without any GPUs", name)
			}
		}
		return nil
	}
	if gpus > gres.MaxCount>>32 {
		return &refusal{text: gres.Invalid, why: fmt.Sprintf("%d GPUs on one node", gpus)}
	}
	if tasks > 0 && r.spec.NTasks == 0 {
		r.spec.NTasksPerNode = uint32(tasks * gpus)
		r.spec.NTasks = r.spec.NTasksPerNode * max(1, r.spec.MinNodes)
	}
	if cpus > 0 {
		each := max(uint64(r.spec.NTasksPerNode), uint64(r.spec.NTasks)/uint64(max(1, r.spec.MinNodes)), 1)
		r.spec.CPUsPerTask = uint32((cpus*gpus + each - 1) / each)
	}
	if r.memPerGPU > 0 {
		r.spec.MemPerNode = r.memPerGPU * int64(gpus)
	}
	return nil
}

// parseGPUs reads [type:]n[,[type:]n].
func parseGPUs(option, v string) ([]gres.Item, error) {
	words := strings.Split(v, ",")
	for i, w := range words {
		words[i] = "gpu:" + strings.TrimPrefix(w, "gpu:")
	}
	items, err := gres.Parse(strings.Join(words, ","))
	if err != nil {
		return nil, &refusal{text: gres.Invalid, why: fmt.Sprintf("--%s: %v", option, err)}
	}
	if len(items) > gres.MaxItems || len(v) > job.MaxString {
		return nil, &refusal{text: gres.Invalid, why: "--" + option + " is too long"}
	}
	return items, nil
}
