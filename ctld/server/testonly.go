package server

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// maxTries bounds how many plans one --test-only makes.
const maxTries = 64

// testOnly answers whether and when a job would start, and proposes nothing. It asks the planner
// on copies of the present in which running jobs have ended one after the other; other waiting
// jobs are not counted, so the answer is the earliest possible start.
func (s *Server) testOnly(view state.Viewer, c authn.Caller, req *ctldpb.SubmitRequest) (*ctldpb.SubmitResponse, error) {
	if req.GetSpec() == nil {
		return nil, refusalError(noJob())
	}
	spec := new(job.Spec)
	specFromAPI(spec, req.Spec)
	if ref, _ := s.prepare(spec, view, c, req.Uid); ref != nil {
		return nil, refusalError(ref)
	}
	id := nextID(view)
	now := s.Now()
	start, at, ok := earliest(view, spec, id, now)
	if !ok {
		return nil, refuse("ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE", "no node can take the job at present, even when all running jobs have ended: nodes are down, drained or too small")
	}
	var names []string
	var cpus uint32
	for _, a := range start.Nodes {
		names = append(names, a.Node)
		cpus += a.CPUs
	}
	return &ctldpb.SubmitResponse{JobId: id, TestResult: fmt.Sprintf(
		"Job %d to start at %s using %d processors on nodes %s in partition %s",
		id, at.Format("2006-01-02T15:04:05"), cpus, hostlist.Compress(names), start.Partition)}, nil
}

func nextID(view state.Viewer) uint32 {
	id := max(view.Config().FirstJobID, 1)
	for j := range view.Jobs() {
		id = max(id, j.ID+1)
	}
	return id
}

// earliest finds the first moment at which the planner starts the job.
func earliest(view state.Viewer, spec *job.Spec, id uint32, now time.Time) (sched.Start, time.Time, bool) {
	snap := *view.Sched()
	snap.Nodes = slices.Clone(snap.Nodes)
	for i := range snap.Nodes {
		free := *snap.Nodes[i]
		n := &free
		snap.Nodes[i] = n
		n.CPUUsed = slices.Clone(n.CPUUsed)
		n.Gres = slices.Clone(n.Gres)
		for k := range n.Gres {
			n.Gres[k].Used = slices.Clone(n.Gres[k].Used)
		}
	}
	running := slices.Clone(snap.Running)
	slices.SortStableFunc(running, func(a, b *sched.Running) int { return cmp.Compare(endOf(a), endOf(b)) })
	one := *spec
	one.Array, one.Hold, one.Begin, one.Dependency = "", false, 0, ""
	at := max(now.UnixMilli(), spec.Begin)
	// Few jobs: one after the other; many: in maxTries groups.
	group := max(1, (len(running)+maxTries-1)/maxTries)
	for {
		snap.Running = running
		snap.Classes = []*sched.Class{{Key: "test", Mixed: true, Spec: &one, Count: 1, Waiting: just(sched.Waiting{
			JobID: id, Priority: 1, Submit: at, Time: spec.TimeLimit, TimeMin: spec.TimeMin, Limit: -1,
		})}}
		if plan := sched.Plan(&snap, at, sched.Policy{MaxStarts: 1}); len(plan.Starts) > 0 {
			return plan.Starts[0], time.UnixMilli(at), true
		}
		if len(running) == 0 {
			return sched.Start{}, time.Time{}, false
		}
		for range min(group, len(running)) {
			free(&snap, running[0])
			end := endOf(running[0])
			if end == never {
				end = now.AddDate(1, 0, 0).UnixMilli() // as Slurm: a job without a limit is taken to run for a year
			}
			at = max(at, end)
			running = running[1:]
		}
	}
}

const never = int64(1) << 62

func endOf(r *sched.Running) int64 {
	if r.End <= 0 {
		return never
	}
	return r.End
}

func just(w sched.Waiting) iter.Seq[sched.Waiting] {
	return func(yield func(sched.Waiting) bool) { yield(w) }
}

// free gives back on the copy what a run holds.
func free(snap *sched.Snapshot, r *sched.Running) {
	for _, a := range r.Allocs {
		i := slices.IndexFunc(snap.Nodes, func(n *sched.Node) bool { return n.Name == a.Node })
		if i < 0 {
			continue
		}
		n := snap.Nodes[i]
		n.FreeCPUs = min(n.FreeCPUs+a.CPUs, n.CPUs)
		n.FreeMem = min(n.FreeMem+a.Mem, n.Mem)
		if r.Exclusive {
			n.Excl = false
		}
		for _, id := range a.CPUIDs {
			if int(id) < len(n.CPUUsed) {
				n.CPUUsed[id] = false
			}
		}
		n.Busy = n.FreeCPUs < n.CPUs
		for _, g := range a.Gres {
			freeGres(n, g)
		}
	}
}

func freeGres(n *sched.Node, g job.GresAlloc) {
	for k := range n.Gres {
		have := &n.Gres[k]
		if have.Name != g.Name || have.Type != g.Type {
			continue
		}
		have.Taken -= min(have.Taken, g.Count)
		for _, at := range g.Index {
			if int(at) < len(have.Used) {
				have.Used[at] = false
			}
		}
	}
}
