package conf

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// Default is where the configuration is looked for last.
const Default = "/etc/tensorgrid/grid.conf"

// Problems is all that is wrong with a configuration. It is an error.
type Problems []Note

// Error is every problem on a line of its own, file:line first.
func (p Problems) Error() string {
	var b strings.Builder
	for i, n := range p {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(n.String())
	}
	return b.String()
}

// String is "file:line: text".
func (n Note) String() string {
	if n.Line == 0 {
		return fmt.Sprintf("%s: %s", n.File, n.Text)
	}
	return fmt.Sprintf("%s:%d: %s", n.File, n.Line, n.Text)
}

// Find gives the path of the configuration: $GRID_CONF, $TENSORGRID_CONF, $SLURM_CONF, else Default.
func Find() string {
	for _, v := range []string{"GRID_CONF", "TENSORGRID_CONF", "SLURM_CONF"} {
		if p := os.Getenv(v); p != "" {
			return p
		}
	}
	return Default
}

// Load reads, completes and validates the file at path and what it includes. The error is Problems
// (all of them), or what opening the file gave.
func Load(path string) (*Config, error) {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	r := &reader{}
	if err := r.file(path); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	b := newBuilder(r, path)
	for _, rec := range r.records {
		b.record(rec)
	}
	if err := b.topologyFile(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	b.finish()
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b Note) int {
			return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
		})
		return nil, r.problems
	}
	return b.cfg, nil
}

// Front is what a user's command reads of the file.
type Front struct {
	Cluster     string
	Controllers []Controller
	TLSDir      string
	LoginSocket string
}

// LoadFront reads only what a user's command needs: the cluster's name, its controllers, and the way to them from
// other hosts. A mistake elsewhere in the file, which an administrator may be editing, stops nobody's command; the
// error is Problems when these cannot be told.
func LoadFront(path string) (*Front, error) {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	r := &reader{}
	if err := r.file(path); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	b := newBuilder(r, path)
	r.problems = nil
	for _, rec := range r.records {
		if len(rec.pairs) == 0 {
			continue
		}
		switch strings.ToLower(rec.pairs[0].key) {
		case "controllername":
			b.controllerLine(rec)
		case "nodename", "partitionname":
		default:
			for _, p := range rec.pairs {
				name := strings.ToLower(p.key)
				if name == "clustername" || name == "tlsdir" || name == "loginsocket" {
					b.topPair(rec, p)
				} else {
					b.slurm.take(name, p.value)
				}
			}
		}
	}
	b.slurmControllers()
	if b.cfg.ClusterName == "" {
		r.problem(path, 0, "ClusterName is missing")
	}
	if len(b.cfg.Controllers) == 0 {
		r.problem(path, 0, "no ControllerName line says where the controllers are")
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return &Front{b.cfg.ClusterName, b.cfg.Controllers, b.cfg.TLSDir, b.cfg.LoginSocket}, nil
}

// builder turns records into a Config.
type builder struct {
	r        *reader
	cfg      *Config
	strict   bool // grid.conf: an unknown key is a problem; in a site's slurm.conf it is a note
	top      map[string]key
	node     lineKind[Node]
	part     lineKind[Partition]
	ctl      lineKind[Controller]
	switches lineKind[Switch]
	nodeAt   map[string]Note
	partAt   map[string]Note
	ctlAt    map[string]Note
	topAt    map[string]Note // where a cluster's key stands, by its name in lower case
	partRefs []partRef
	slurm    slurmHosts
	wide     Partition // what clusterWide keys set outside of partition lines
}

// clusterWide are the keys of a partition that may stand outside of its line, for all of them.
var clusterWide = map[string]bool{"defmempernode": true, "defmempercpu": true, "maxmempernode": true, "maxmempercpu": true, "disablerootjobs": true}

// lineKind is what the lines of one record type share: keys and DEFAULT values.
type lineKind[T any] struct {
	keys map[string]key
	def  T
}

// partRef remembers where a partition's nodes were named, for the check at the end.
type partRef struct {
	file string
	line int
	part int // index into Partitions
}

func newLineKind[T any]() lineKind[T] {
	var k lineKind[T]
	k.keys = keysOf(reflect.TypeFor[T]())
	setDefaults(&k.def, k.keys)
	return k
}

func setDefaults[T any](dst *T, keys map[string]key) {
	for _, k := range keys {
		if k.def == "" || k.name == "ControllerName" {
			continue
		}
		if err := k.set(reflect.ValueOf(dst), k.def, "="); err != nil {
			panic("conf: default of " + err.Error()) // a tag of this package is wrong
		}
	}
}

func newBuilder(r *reader, path string) *builder {
	b := &builder{r: r, cfg: &Config{Source: path}, top: keysOf(reflect.TypeFor[Config]())}
	b.strict = !strings.HasPrefix(filepath.Base(path), "slurm")
	setDefaults(b.cfg, b.top)
	b.node, b.part, b.ctl = newLineKind[Node](), newLineKind[Partition](), newLineKind[Controller]()
	b.switches = newLineKind[Switch]()
	b.nodeAt, b.partAt, b.ctlAt, b.topAt = map[string]Note{}, map[string]Note{}, map[string]Note{}, map[string]Note{}
	return b
}

// record takes one logical line; its first key decides what it is.
func (b *builder) record(rec record) {
	if len(rec.pairs) == 0 {
		return
	}
	switch strings.ToLower(rec.pairs[0].key) {
	case "nodename":
		b.nodeLine(rec)
	case "partitionname":
		b.partitionLine(rec)
	case "controllername":
		b.controllerLine(rec)
	case "switchname", "blockname":
		b.switchLine(rec)
	case "downnodes", "nodeset", "frontendname":
		b.cfg.Ignored = append(b.cfg.Ignored, Note{rec.file, rec.line, rec.pairs[0].key + " lines have no effect"})
	default:
		for _, p := range rec.pairs {
			b.topPair(rec, p)
		}
	}
}

func (b *builder) topPair(rec record, p pair) {
	name := strings.ToLower(p.key)
	if k, ok := b.top[name]; ok {
		b.topAt[name] = Note{rec.file, rec.line, ""}
		if err := k.set(reflect.ValueOf(b.cfg), p.value, p.op); err != nil {
			b.r.problem(rec.file, rec.line, "%v", err)
		}
		return
	}
	if b.slurm.take(name, p.value) {
		return
	}
	if k, ok := b.part.keys[name]; ok && clusterWide[name] {
		// slurm.conf sets these for the whole cluster too; a partition's own line is stronger.
		if err := k.set(reflect.ValueOf(&b.wide), p.value, p.op); err != nil {
			b.r.problem(rec.file, rec.line, "%v", err)
		}
		return
	}
	b.unknown(rec, p.key, b.top)
}

// unknown notes a key of Slurm's, and complains about one that nobody knows.
func (b *builder) unknown(rec record, name string, near map[string]key) {
	if !b.strict || slurmKeys[strings.ToLower(name)] {
		b.cfg.Ignored = append(b.cfg.Ignored, Note{rec.file, rec.line, name + " has no effect"})
		return
	}
	hint := ""
	if k := nearest(strings.ToLower(name), near); k != "" {
		hint = "; did you mean " + k + "?"
	}
	b.r.problem(rec.file, rec.line, "%s is no known key%s", name, hint)
}

// fill sets the keys of one record line on dst; the first pair, its name, is left to the caller.
func fill[T any](b *builder, rec record, kind lineKind[T], dst *T) {
	for _, p := range rec.pairs[1:] {
		name := strings.ToLower(p.key)
		switch name {
		case "procs":
			name = "cpus"
		case "feature":
			name = "features"
		case "shared":
			name = "oversubscribe"
		}
		k, ok := kind.keys[name]
		if !ok {
			b.unknown(rec, p.key, kind.keys)
			continue
		}
		if err := k.set(reflect.ValueOf(dst), p.value, p.op); err != nil {
			b.r.problem(rec.file, rec.line, "%v", err)
		}
	}
}

// nearest gives the known key within edit distance 2, "" when there is none.
func nearest(name string, keys map[string]key) string {
	best, at := "", 3
	for lower, k := range keys {
		if d := distance(name, lower); d < at || d == at && d < 3 && k.name < best {
			best, at = k.name, d
		}
	}
	return best
}

// distance is the Levenshtein distance of two short words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		prev := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := prev
			if a[i-1] != b[j-1] {
				cost++
			}
			prev = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
