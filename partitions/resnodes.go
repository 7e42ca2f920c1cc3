package partitions

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// nodes chooses the nodes, or checks those that were named, when anything was said that decides about them.
func (e *resEdit) nodes() *Refusal {
	timed := e.started || e.ended || e.duration >= 0
	switch {
	case e.Has("LICENSE_ONLY"):
		e.Nodes, e.Named = nil, false
		return nil
	case !e.fresh && !e.chooses && !timed && len(e.Nodes) > 0:
		return nil
	case e.names != "":
		if e.nodesOp == "=" && !e.counted {
			e.NodeCnt, e.CoreCnt = 0, 0
		}
		if refusal := e.named(); refusal != nil {
			return refusal
		}
		if e.NodeCnt == 0 && e.CoreCnt == 0 || len(e.Nodes) == int(e.NodeCnt) {
			return e.free()
		}
		return e.choose(e.Nodes)
	case e.Has("PART_NODES"):
		e.names, e.nodesOp = "ALL", "="
		if refusal := e.named(); refusal != nil {
			return refusal
		}
		return e.free()
	case e.Named && e.NodeCnt == 0 && e.CoreCnt == 0:
		return e.free()
	case e.NodeCnt == 0 && e.CoreCnt == 0:
		return badReservation("a reservation needs Nodes, NodeCnt, CoreCnt, or Licenses with the flag LICENSE_ONLY")
	}
	return e.choose(nil)
}

// named reads Nodes=.
func (e *resEdit) named() *Refusal {
	const code, text = "ESLURM_INVALID_NODE_NAME", "Invalid node name specified"
	var names []string
	if strings.EqualFold(e.names, "ALL") {
		for i := range e.env.Nodes {
			if e.Partition == "" || slices.Contains(e.env.Nodes[i].Partitions, e.Partition) {
				names = append(names, e.env.Nodes[i].Name)
			}
		}
	} else {
		var err error
		if names, err = hostlist.Expand(e.names); err != nil {
			return refuse(code, text, "Nodes=%s: %v", e.names, err)
		}
	}
	known := map[string]bool{}
	for i := range e.env.Nodes {
		known[e.env.Nodes[i].Name] = true
	}
	for _, name := range names {
		if !known[name] {
			return refuse(code, text, "there is no node %q", name)
		}
	}
	want := map[string]bool{}
	if e.nodesOp != "=" {
		for _, name := range e.Nodes {
			want[name] = true
		}
	}
	for _, name := range names {
		if e.nodesOp == "-=" && !want[name] {
			return refuse(code, text, "Nodes-=%s: node %s is not in the reservation", e.names, name)
		}
		want[name] = e.nodesOp != "-="
	}
	var nodes []string
	for i := range e.env.Nodes {
		if want[e.env.Nodes[i].Name] {
			nodes = append(nodes, e.env.Nodes[i].Name)
		}
	}
	if len(nodes) == 0 {
		return badReservation("no node would be left")
	}
	e.Nodes, e.Named = nodes, true
	if e.nodesOp != "=" && e.NodeCnt > 0 {
		e.NodeCnt = uint32(len(nodes))
	}
	if e.NodeCnt == 0 && !e.Has("PART_NODES") && !slices.Contains(e.Flags, "SPEC_NODES") {
		e.Flags = slices.Sorted(slices.Values(append(slices.Clone(e.Flags), "SPEC_NODES")))
	}
	return nil
}

// shares tells whether another reservation may have the same nodes.
func (e *resEdit) shares(o *Reservation) bool {
	return e.Has("OVERLAP") || e.Has("MAINT") || o.Has("OVERLAP") || o.Has("MAINT") || !e.overlaps(o, e.now)
}

// taken are the nodes of others at the same time, with who has them.
func (e *resEdit) taken() map[string]string {
	taken := map[string]string{}
	for _, o := range e.env.Reservations {
		if o.Name == e.Name || e.shares(o) {
			continue
		}
		for _, name := range o.Nodes {
			taken[name] = o.Name
		}
	}
	return taken
}

// busy tells whether jobs may be on a node when the reservation begins.
func (e *resEdit) busy(n *ResNode) bool {
	start, _, _ := e.At(e.now)
	return !e.Has("IGNORE_JOBS") && n.Busy && (n.BusyUntil == 0 || n.BusyUntil > start)
}

// free refuses named nodes that others have, or that jobs are on. Nodes that an update keeps may be in use by its own jobs.
func (e *resEdit) free() *Refusal {
	taken := e.taken()
	for _, name := range e.Nodes {
		if other, is := taken[name]; is {
			return refuse("ESLURM_RESERVATION_OVERLAP", "Requested reservation overlaps with another reservation or a running job",
				"node %s is in reservation %s at that time; with Flags=OVERLAP or MAINT both may have it", name, other)
		}
	}
	for i := range e.env.Nodes {
		n := &e.env.Nodes[i]
		if slices.Contains(e.Nodes, n.Name) && !slices.Contains(e.before, n.Name) && e.busy(n) {
			return refuse("ESLURM_NODES_BUSY", "Requested nodes are busy", "jobs on node %s may still run when the reservation begins; with Flags=IGNORE_JOBS it begins all the same", n.Name)
		}
	}
	return nil
}

// choose takes NodeCnt nodes, or as many as have CoreCnt cores, of the named ones or of the partition: those that the
// reservation has already, then in the order of the configuration.
func (e *resEdit) choose(among []string) *Refusal {
	partition := e.Partition
	if partition == "" && !e.Has("ANY_NODES") && among == nil {
		partition = e.env.DefaultPartition
	}
	var feature *Feature
	if e.Features != "" {
		feature, _ = ParseFeatures(e.Features) // whole has read it
	}
	taken := e.taken()
	var have, free []*ResNode
	why := map[string]int{}
	for i := range e.env.Nodes {
		n := &e.env.Nodes[i]
		own := slices.Contains(e.before, n.Name)
		switch {
		case among != nil && !slices.Contains(among, n.Name), partition != "" && !slices.Contains(n.Partitions, partition):
		case feature != nil && !feature.Match(n.Features):
			why["without the features"]++
		case !n.Up:
			why["down or drained"]++
		case taken[n.Name] != "":
			why["in other reservations"]++
		case own:
			have = append(have, n)
		case e.busy(n):
			why["with jobs"]++
		default:
			free = append(free, n)
		}
	}
	nodes, cores := []string{}, uint64(0)
	for _, n := range append(have, free...) {
		if e.NodeCnt > 0 && len(nodes) >= int(e.NodeCnt) && cores >= uint64(e.CoreCnt) || e.NodeCnt == 0 && cores >= uint64(e.CoreCnt) {
			break
		}
		nodes, cores = append(nodes, n.Name), cores+uint64(max(n.Cores, 1))
	}
	if len(nodes) < int(e.NodeCnt) || cores < uint64(e.CoreCnt) {
		return e.tooFew(partition, len(have)+len(free), why)
	}
	e.Nodes, e.Named = e.ordered(nodes), false
	e.Flags = slices.DeleteFunc(slices.Clone(e.Flags), func(f string) bool { return f == "SPEC_NODES" })
	return nil
}

// ordered sorts names by the configuration.
func (e *resEdit) ordered(names []string) (out []string) {
	is := map[string]bool{}
	for _, n := range names {
		is[n] = true
	}
	for i := range e.env.Nodes {
		if is[e.env.Nodes[i].Name] {
			out = append(out, e.env.Nodes[i].Name)
		}
	}
	return out
}

func (e *resEdit) tooFew(partition string, found int, why map[string]int) *Refusal {
	var parts []string
	for _, k := range []string{"without the features", "down or drained", "in other reservations", "with jobs"} {
		if why[k] > 0 {
			parts = append(parts, k+": "+strconv.Itoa(why[k]))
		}
	}
	text := "too few nodes: " + strconv.Itoa(found) + " can be had"
	if partition != "" {
		text += " in partition " + partition
	}
	if len(parts) > 0 {
		text += "; " + strings.Join(parts, ", ")
	}
	return refuse("ESLURM_NODES_BUSY", "Requested nodes are busy", "%s", text)
}

// licenses refuses more of a license than there are beside what others have at the same time.
func (e *resEdit) licenses() *Refusal {
	const code, text = "ESLURM_INVALID_LICENSES", "Invalid license specification"
	for _, l := range e.Licenses {
		total := uint64(0)
		for _, have := range e.env.Licenses {
			if have.Name == l.Name {
				total = have.Count
			}
		}
		if total == 0 {
			return refuse(code, text, "there is no license %q", l.Name)
		}
		others := uint64(0)
		for _, o := range e.env.Reservations {
			if o.Name == e.Name || !e.overlaps(o, e.now) {
				continue
			}
			for _, have := range o.Licenses {
				if have.Name == l.Name {
					others += have.Count
				}
			}
		}
		if l.Count+others > total {
			return refuse(code, text, "license %s: %d were asked, there are %d, and %d are in other reservations", l.Name, l.Count, total, others)
		}
	}
	return nil
}
