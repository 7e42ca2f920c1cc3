package conf

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// switchLine takes a SwitchName or BlockName line.
func (b *builder) switchLine(rec record) {
	s := b.switches.def
	fill(b, rec, b.switches, &s)
	s.Name = rec.pairs[0].value
	s.Block = strings.EqualFold(rec.pairs[0].key, "BlockName")
	names, err := hostlist.Expand(s.Name)
	if err != nil || len(names) != 1 {
		b.r.problem(rec.file, rec.line, "%s=%s: one name was expected", rec.pairs[0].key, clip(s.Name))
		return
	}
	for i := range b.cfg.Switches {
		if b.cfg.Switches[i].Name == s.Name {
			b.r.problem(rec.file, rec.line, "%s %s is defined a second time", rec.pairs[0].key, clip(s.Name))
			return
		}
	}
	if (s.Switches == "") == (s.Nodes == "") || s.Block && s.Switches != "" {
		b.r.problem(rec.file, rec.line, "%s=%s: Nodes, or the Switches below it, were expected", rec.pairs[0].key, clip(s.Name))
		return
	}
	for _, list := range []string{s.Nodes, s.Switches} {
		if _, err := hostlist.Expand(list); list != "" && err != nil {
			b.r.problem(rec.file, rec.line, "%s=%s: %v", rec.pairs[0].key, clip(s.Name), err)
			return
		}
	}
	b.cfg.Switches = append(b.cfg.Switches, s)
}

// topologyFile reads topology.conf beside the configuration, when the plugin needs lines and the file is there.
func (b *builder) topologyFile() error {
	if !strings.HasSuffix(b.cfg.TopologyPlugin, "tree") && !strings.HasSuffix(b.cfg.TopologyPlugin, "block") {
		return nil
	}
	from := len(b.r.records)
	err := b.r.file(filepath.Join(filepath.Dir(b.cfg.Source), "topology.conf"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, rec := range b.r.records[from:] {
		if len(rec.pairs) == 0 {
			continue
		}
		switch name := strings.ToLower(rec.pairs[0].key); name {
		case "switchname", "blockname", "blocksizes", "topologyparam":
			b.record(rec)
		default:
			b.r.problem(rec.file, rec.line, "%s is no key of topology.conf", clip(rec.pairs[0].key))
		}
	}
	return nil
}

// topology checks switches and blocks when all nodes are known.
func (b *builder) topology() {
	names := map[string]bool{}
	for i := range b.cfg.Switches {
		names[b.cfg.Switches[i].Name] = true
	}
	below := map[string]string{}
	for i := range b.cfg.Switches {
		s := &b.cfg.Switches[i]
		nodes, _ := hostlist.Expand(s.Nodes)
		for _, n := range nodes {
			if _, ok := b.nodeAt[n]; !ok {
				b.r.problem(b.cfg.Source, 0, "switch or block %s: node %s is on no NodeName line", s.Name, clip(n))
			}
		}
		subs, _ := hostlist.Expand(s.Switches)
		for _, sub := range subs {
			if !names[sub] {
				b.r.problem(b.cfg.Source, 0, "switch %s: switch %s is on no SwitchName line", s.Name, clip(sub))
			}
			if up, dup := below[sub]; dup {
				b.r.problem(b.cfg.Source, 0, "switch %s is below both %s and %s", sub, up, s.Name)
			}
			below[sub] = s.Name
		}
	}
	for name := range names {
		at := name
		for range len(b.cfg.Switches) {
			if at = below[at]; at == "" {
				break
			}
		}
		if at != "" {
			b.r.problem(b.cfg.Source, 0, "switch %s is below itself", name)
			return
		}
	}
	for _, n := range b.cfg.BlockSizes {
		if _, err := strconv.ParseUint(n, 10, 16); err != nil {
			b.r.problem(b.cfg.Source, 0, "BlockSizes: %q is no number of nodes", clip(n))
		}
	}
}
