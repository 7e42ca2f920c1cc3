package conf

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// nodeLine takes a NodeName line: DEFAULT, or nodes that share its values.
func (b *builder) nodeLine(rec record) {
	name := rec.pairs[0].value
	if strings.EqualFold(name, "DEFAULT") {
		fill(b, rec, b.node, &b.node.def)
		return
	}
	n := b.node.def
	fill(b, rec, b.node, &n)
	names, err := hostlist.Expand(name)
	if err != nil {
		b.r.problem(rec.file, rec.line, "NodeName=%s: %v", clip(name), err)
		return
	}
	hosts := b.parallel(rec, "NodeHostname", n.Hostname, names, names)
	addrs := b.parallel(rec, "NodeAddr", n.Address, hosts, names)
	completeTopology(&n)
	if n.CPUs == 0 {
		b.r.problem(rec.file, rec.line, "NodeName=%s: CPUs is 0", clip(name))
	}
	if want := n.Sockets * n.CoresPerSocket * n.ThreadsPerCore; want < n.CPUs {
		b.r.problem(rec.file, rec.line, "NodeName=%s: CPUs=%d is more than Sockets x CoresPerSocket x ThreadsPerCore = %d", clip(name), n.CPUs, want)
	}
	if _, err := gres.ParseInventory(n.Gres); n.Gres != "" && err != nil {
		b.r.problem(rec.file, rec.line, "Gres=%s: %v", clip(n.Gres), err)
	}
	if n.UserMap != "identity" {
		b.r.problem(rec.file, rec.line, "UserMap=%s is not served by this version; identity is", n.UserMap)
	}
	for i, one := range names {
		if at, dup := b.nodeAt[one]; dup {
			b.r.problem(rec.file, rec.line, "node %s is on line %d of %s already", one, at.Line, at.File)
			continue
		}
		if !goodName(one) {
			b.r.problem(rec.file, rec.line, "%q is no good node name: letters, digits, '.', '-' and '_', at most 40", clip(one))
			continue
		}
		b.nodeAt[one] = Note{rec.file, rec.line, ""}
		n.Name, n.Hostname, n.Address = one, hosts[i], addrs[i]
		b.cfg.Nodes = append(b.cfg.Nodes, n)
	}
}

// parallel unfolds a list that must be as long as names; empty gives def, one value serves all.
func (b *builder) parallel(rec record, key, list string, def, names []string) []string {
	if list == "" {
		return def
	}
	out, err := hostlist.Expand(list)
	switch {
	case err != nil:
		b.r.problem(rec.file, rec.line, "%s=%s: %v", key, clip(list), err)
		return def
	case len(out) == 1 && len(names) > 1:
		for len(out) < len(names) {
			out = append(out, out[0])
		}
	case len(out) != len(names):
		b.r.problem(rec.file, rec.line, "%s names %d hosts for %d nodes", key, len(out), len(names))
		return def
	}
	return out
}

// completeTopology fills in CPUs or Sockets, whichever is missing.
func completeTopology(n *Node) {
	per := max(1, n.CoresPerSocket) * max(1, n.ThreadsPerCore)
	switch {
	case n.Sockets == 0 && n.CPUs == 0:
		n.Sockets, n.CPUs = 1, per
	case n.Sockets == 0 && n.CPUs >= per:
		n.Sockets = (n.CPUs + per - 1) / per
	case n.Sockets == 0:
		n.Sockets = 1
	case n.CPUs == 0:
		n.CPUs = n.Sockets * per
	}
}

// partitionLine takes a PartitionName line.
func (b *builder) partitionLine(rec record) {
	name := rec.pairs[0].value
	if strings.EqualFold(name, "DEFAULT") {
		fill(b, rec, b.part, &b.part.def)
		return
	}
	p := b.part.def
	fill(b, rec, b.part, &p)
	if !goodName(name) {
		b.r.problem(rec.file, rec.line, "PartitionName=%s: a name has letters, digits, '.', '-' and '_', and at most 40 of them", clip(name))
		return
	}
	if at, dup := b.partAt[name]; dup {
		b.r.problem(rec.file, rec.line, "partition %s is on line %d of %s already", name, at.Line, at.File)
		return
	}
	if p.DefaultTime > 0 && p.MaxTime > 0 && p.DefaultTime > p.MaxTime {
		b.r.problem(rec.file, rec.line, "partition %s: DefaultTime is over MaxTime", name)
	}
	if p.MaxNodes > 0 && p.MinNodes > p.MaxNodes {
		b.r.problem(rec.file, rec.line, "partition %s: MinNodes=%d is over MaxNodes=%d", name, p.MinNodes, p.MaxNodes)
	}
	b.partAt[name] = Note{rec.file, rec.line, ""}
	p.Name = name
	b.partRefs = append(b.partRefs, partRef{rec.file, rec.line, len(b.cfg.Partitions)})
	b.cfg.Partitions = append(b.cfg.Partitions, p)
}

// controllerLine takes a ControllerName line.
func (b *builder) controllerLine(rec record) {
	c := b.ctl.def
	fill(b, rec, b.ctl, &c)
	c.Name = rec.pairs[0].value
	b.addController(rec.file, rec.line, c)
}

func (b *builder) addController(file string, line int, c Controller) {
	if !goodName(c.Name) {
		b.r.problem(file, line, "ControllerName=%s: a name has letters, digits, '.', '-' and '_', and at most 40 of them", clip(c.Name))
		return
	}
	if at, dup := b.ctlAt[c.Name]; dup {
		b.r.problem(file, line, "controller %s is on line %d of %s already", c.Name, at.Line, at.File)
		return
	}
	for _, p := range []struct {
		key  string
		port uint32
	}{{"Port", c.Port}, {"RaftPort", c.RaftPort}} {
		if p.port == 0 || p.port > 65535 {
			b.r.problem(file, line, "controller %s: %s=%d is not from 1 to 65535", c.Name, p.key, p.port)
		}
	}
	if c.UserPort > 65535 {
		b.r.problem(file, line, "controller %s: UserPort=%d is not from 0 (closed) to 65535", c.Name, c.UserPort)
	}
	if c.Address == "" {
		c.Address = c.Name
	}
	c.Socket = strings.ReplaceAll(c.Socket, "%c", c.Name)
	c.StateDir = strings.ReplaceAll(c.StateDir, "%c", c.Name)
	b.ctlAt[c.Name] = Note{file, line, ""}
	b.cfg.Controllers = append(b.cfg.Controllers, c)
}

// slurmHosts gathers what a site's slurm.conf says of its controllers.
type slurmHosts struct {
	hosts    []string
	port     uint32
	stateDir string
}

// take takes one of slurm.conf's controller keys.
func (s *slurmHosts) take(name, value string) bool {
	switch name {
	case "slurmctldhost", "controlmachine", "backupcontroller":
		s.hosts = append(s.hosts, value)
	case "slurmctldport":
		first, _, _ := strings.Cut(value, "-")
		if n, err := strconv.ParseUint(first, 10, 16); err == nil {
			s.port = uint32(n)
		}
	case "statesavelocation":
		s.stateDir = value
	default:
		return false
	}
	return true
}

// slurmControllers adds the SlurmctldHost lines as replicas: host(address).
func (b *builder) slurmControllers() {
	if n := len(b.slurm.hosts); n == 2 || n == 4 { // a primary and backups in Slurm's sense
		b.cfg.Ignored = append(b.cfg.Ignored, Note{b.cfg.Source, 0,
			fmt.Sprintf("SlurmctldHost=%s has no effect: %d controllers have no better majority than %d", b.slurm.hosts[n-1], n, n-1)})
		b.slurm.hosts = b.slurm.hosts[:n-1]
	}
	for _, h := range b.slurm.hosts {
		c := b.ctl.def
		name, addr, _ := strings.Cut(h, "(")
		c.Name, c.Address = name, strings.TrimSuffix(addr, ")")
		if b.slurm.port != 0 {
			c.Port = b.slurm.port
		}
		if b.slurm.stateDir != "" {
			c.StateDir = b.slurm.stateDir
		}
		b.addController(b.cfg.Source, 0, c)
	}
}

// finish checks what only the whole shows.
func (b *builder) finish() {
	src := b.cfg.Source
	b.slurmControllers()
	if b.cfg.ClusterName == "" {
		b.r.problem(src, 0, "ClusterName is missing")
	}
	b.controllerCount()
	if b.cfg.MaxArraySize > 4000001 {
		b.r.problem(src, 0, "MaxArraySize=%d: at most 4000001 can be set", b.cfg.MaxArraySize)
	}
	if b.cfg.HeartbeatInterval <= 0 {
		b.r.problem(src, 0, "HeartbeatInterval must be over 0")
	}
	if b.cfg.LaunchTimeout <= 0 {
		b.r.problem(src, 0, "LaunchTimeout must be over 0")
	}
	if b.cfg.ReturnToService > 2 {
		b.r.problem(src, 0, "ReturnToService=%d: 0, 1 or 2 was expected", b.cfg.ReturnToService)
	}
	b.leases()
	b.guards()
	b.clashes()
	b.resolvePartitions()
	b.topology()
	b.scheduling()
}

// leaseBeats is how many heartbeats a lease holds at least: one that is lost on the way must end no job.
const leaseBeats = 3

// leases finds leases that a healthy node could not keep.
func (b *builder) leases() {
	least := leaseBeats * b.cfg.HeartbeatInterval
	check := func(file string, line int, what string, lease time.Duration) {
		if lease > 0 && lease < least {
			b.r.problem(file, line, "%sJobLease=%v: a heartbeat renews it, so it must be 0 or at least %v, that is %d times HeartbeatInterval",
				what, lease, least, leaseBeats)
		}
	}
	check(b.cfg.Source, 0, "", b.cfg.JobLease)
	for _, ref := range b.partRefs {
		p := &b.cfg.Partitions[ref.part]
		check(ref.file, ref.line, "partition "+p.Name+": ", time.Duration(p.JobLease)*time.Millisecond)
	}
}

// clashes finds controllers that would listen at the same place or share a folder.
func (b *builder) clashes() {
	seen := map[string]string{}
	for _, c := range b.cfg.Controllers {
		for _, port := range []uint32{c.Port, c.RaftPort, c.UserPort} {
			if port == 0 {
				continue
			}
			at := net.JoinHostPort(c.Address, strconv.Itoa(int(port)))
			if other, dup := seen[at]; dup {
				b.r.problem(b.cfg.Source, b.ctlAt[c.Name].Line, "controllers %s and %s would both listen at %s", other, c.Name, at)
			}
			seen[at] = c.Name
		}
	}
}

// resolvePartitions unfolds ALL and finds nodes that no NodeName line names.
func (b *builder) resolvePartitions() {
	defaults := 0
	for _, ref := range b.partRefs {
		p := &b.cfg.Partitions[ref.part]
		b.spread(p)
		if p.Default {
			defaults++
			if defaults > 1 {
				b.r.problem(ref.file, ref.line, "partition %s: a second Default=YES", p.Name)
			}
		}
		if len(p.Nodes) == 1 && strings.EqualFold(p.Nodes[0], "ALL") {
			p.Nodes = nil
			for _, n := range b.cfg.Nodes {
				p.Nodes = append(p.Nodes, n.Name)
			}
		}
		seen := map[string]bool{}
		kept := p.Nodes[:0:0]
		for _, n := range p.Nodes {
			if _, ok := b.nodeAt[n]; !ok {
				b.r.problem(ref.file, ref.line, "partition %s: node %s is on no NodeName line", p.Name, clip(n))
			}
			if !seen[n] {
				seen[n] = true
				kept = append(kept, n)
			}
		}
		p.Nodes = kept
	}
}

// spread gives a partition the memory rules of the whole cluster where it has none of its own.
func (b *builder) spread(p *Partition) {
	if p.DefMemPerNode == 0 && p.DefMemPerCPU == 0 {
		p.DefMemPerNode, p.DefMemPerCPU = b.wide.DefMemPerNode, b.wide.DefMemPerCPU
	}
	if p.MaxMemPerNode == 0 && p.MaxMemPerCPU == 0 {
		p.MaxMemPerNode, p.MaxMemPerCPU = b.wide.MaxMemPerNode, b.wide.MaxMemPerCPU
	}
	p.DisableRootJobs = p.DisableRootJobs || b.wide.DisableRootJobs
}
