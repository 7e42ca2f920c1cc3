package gqueue

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// unsorted is the word of --sort that lets rows out as they come.
const unsorted = "none"

// lister turns jobs into lines. It keeps of each row its line and what it is sorted by, not the job; unsorted rows are
// written at once.
type lister struct {
	env   *program.Env
	q     *query
	out   *bufio.Writer
	clock render.Clock
	now   time.Time

	cols     []render.Column
	shown    []*column
	keys     []sortKey
	atOnce   bool // rows go out as they come
	widest   bool // a column is as wide as its widest value: cells are kept
	people   bool // colours, and below a waiting job why it waits
	rows     []entry
	written  int
	headDone bool
	het      map[uint32]string // first components seen -> the ids of all
}

// entry is one row that waits for its place.
type entry struct {
	keys  []cell
	id    int64
	line  string
	cells []string
	look  look
	job   *ctldpb.Job // with --json only
}

// look is how a line is shown to people.
type look struct {
	colour render.Colour
	below  string
}

// cell is a value to sort by: a number or a text.
type cell struct {
	n int64
	s string
}

// sortKey is one column to sort by.
type sortKey struct {
	col  *column
	down bool
}

func (k sortKey) of(r *row) cell {
	if k.col.number != nil {
		return cell{n: k.col.number(r)}
	}
	return cell{s: k.col.value(r)}
}

// parseSort reads squeue's letters; what is unknown is passed over, as squeue does.
func parseSort(sorting string, sets [][]column) (keys []sortKey) {
	for part := range strings.SplitSeq(sorting, ",") {
		part = strings.TrimSpace(part)
		k := sortKey{down: strings.HasPrefix(part, "-")}
		part = strings.TrimLeft(part, "+-#")
		if k.col = byLetter(sets[0], part); k.col == nil {
			k.col = byName(part, sets...)
		}
		if k.col != nil {
			keys = append(keys, k)
		}
	}
	return keys
}

func newLister(env *program.Env, q *query, out *bufio.Writer) (*lister, error) {
	now := env.Now()
	l := &lister{env: env, q: q, out: out, now: now, clock: render.Clock{Now: now, Format: env.Getenv("SLURM_TIME_FORMAT")}}
	cols, sets, sorting, err := q.view(env.ByGName())
	if err != nil {
		return nil, err
	}
	l.cols, l.shown = cols, make([]*column, len(cols))
	for i, c := range cols {
		if l.shown[i] = q.find(c.Key, sets); l.shown[i] == nil {
			if c.Key != "" {
				env.Errorf("Invalid job format specification: %s", c.Key)
			}
			l.shown[i] = &column{value: func(*row) string { return "" }}
			l.cols[i].Width = 0
		}
		l.widest = l.widest || c.Widest
	}
	l.keys = parseSort(sorting, sets)
	l.people = env.ByGName() && env.StdoutTerminal && !q.json
	l.atOnce = sorting == unsorted && !l.widest && !q.json
	return l, nil
}

// find gives the column of a field: by name in the long language, else by letter. Ready-made views name some columns that
// have no letter.
func (q *query) find(key string, sets [][]column) *column {
	if q.longFormat != "" && q.format == "" {
		return byName(key, sets...)
	}
	if c := byLetter(sets[0], key); c != nil || len(key) < 2 {
		return c
	}
	return byName(key, sets...)
}

var errPartly = errors.New("the list broke off: the rest would come from another controller")

// begin forgets what a controller that went away has given; rows that are out cannot be taken back.
func (l *lister) begin() error {
	if l.written > 0 {
		return errPartly
	}
	l.rows = l.rows[:0]
	return nil
}

// add takes one job.
func (l *lister) add(j *ctldpb.Job) error {
	if !l.q.keeps(j) {
		return nil
	}
	if !l.q.steps {
		return l.addRow(&row{Job: j, clock: l.clock, bitmap: l.q.bitmap})
	}
	for _, s := range j.Steps {
		if s.State == "RUNNING" && l.q.wantsStep(j, s) {
			if err := l.addRow(&row{Job: j, step: s, clock: l.clock, bitmap: l.q.bitmap}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *lister) addRow(r *row) error {
	e := entry{id: idRank(r)}
	if l.q.json {
		e.job = r.Job
	} else {
		cells := make([]string, len(l.cols))
		for i := range l.cols {
			cells[i] = l.shown[i].value(r)
		}
		if l.people {
			e.look.colour = render.StateColour(r.Job)
			if r.ReasonDetail != "" && render.BaseState(r.Job) == job.Pending && l.q.format == "" && l.q.longFormat == "" {
				e.look.below = render.Clean(r.ReasonDetail)
			}
		}
		if l.widest {
			e.cells = cells
		} else {
			e.line = l.lay(cells)
		}
	}
	if l.atOnce {
		if err := l.head(); err != nil {
			return err
		}
		return l.write(e)
	}
	for _, k := range l.keys {
		e.keys = append(e.keys, k.of(r))
	}
	l.rows = append(l.rows, e)
	return nil
}

// lay makes the line of a row.
func (l *lister) lay(cells []string) string {
	var b strings.Builder
	if render.Table(&b, l.cols, [][]string{cells}) != nil {
		return "" // a Builder takes everything
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// head writes what stands above the rows, once.
func (l *lister) head() error {
	if l.headDone || l.q.noHeader {
		return nil
	}
	l.headDone = true
	if l.q.long || l.q.iterate > 0 {
		fmt.Fprintln(l.out, l.now.Format("Mon Jan _2 15:04:05 2006"))
	}
	names := make([]string, len(l.cols))
	for i, c := range l.shown {
		names[i] = c.header
	}
	line := l.lay(names)
	if l.people {
		line = render.Bold(line)
	}
	_, err := fmt.Fprintln(l.out, line)
	return err
}

// flushEvery is how many rows go out together while more are to come.
const flushEvery = 500

func (l *lister) write(e entry) error {
	l.written++
	line := e.line
	if l.people {
		line = render.Paint(e.look.colour, line)
		if e.look.below != "" {
			line += "\n" + render.Dim("                   "+e.look.below)
		}
	}
	l.out.WriteString(line)
	if err := l.out.WriteByte('\n'); err != nil {
		return err
	}
	if l.atOnce && l.written%flushEvery == 0 {
		return l.out.Flush()
	}
	return nil
}

// sort brings the rows into order; ties by id.
func (l *lister) sort() {
	slices.SortStableFunc(l.rows, func(a, b entry) int {
		for i, k := range l.keys {
			c := cmp.Or(cmp.Compare(a.keys[i].n, b.keys[i].n), strings.Compare(a.keys[i].s, b.keys[i].s))
			if k.down {
				c = -c
			}
			if c != 0 {
				return c
			}
		}
		return cmp.Compare(a.id, b.id)
	})
}

// finish writes all that waited.
func (l *lister) finish() error {
	if l.widest {
		l.widen()
	}
	if err := l.head(); err != nil {
		return err
	}
	if l.atOnce {
		return nil
	}
	l.sort()
	for _, e := range l.rows {
		if err := l.write(e); err != nil {
			return err
		}
	}
	return nil
}

// widen settles the widths that hang on the values.
func (l *lister) widen() {
	for i := range l.cols {
		if !l.cols[i].Widest {
			continue
		}
		l.cols[i].Widest = false
		l.cols[i].Width = max(l.cols[i].Width, len([]rune(l.shown[i].header)))
		for _, e := range l.rows {
			l.cols[i].Width = max(l.cols[i].Width, len([]rune(e.cells[i])))
		}
	}
	for i := range l.rows {
		l.rows[i].line, l.rows[i].cells = l.lay(l.rows[i].cells), nil
	}
}

// writeJSON prints all jobs in the order of the list.
func (l *lister) writeJSON(w io.Writer, cluster string) error {
	l.sort()
	jobs := make([]*ctldpb.Job, len(l.rows))
	for i, e := range l.rows {
		jobs[i] = e.job
	}
	meta := render.NewMeta(cluster, program.SlurmVersion, append([]string{l.env.Name}, l.env.Args...))
	return render.WriteJSON(w, "jobs", render.NewJobsJSON(jobs, cluster), l.now, meta, l.env.Getenv("SLURM_JSON") == "compact")
}

// seen remembers first components of heterogeneous jobs.
func (l *lister) seen(j *ctldpb.Job) {
	if j.HetJobId == 0 || j.HetJobId != j.JobId || len(l.q.jobs) == 0 {
		return
	}
	if l.het == nil {
		l.het = map[uint32]string{}
	}
	l.het[j.JobId] = j.HetIds
}

// missing are the ids of the other components of first ones that were asked for.
func (l *lister) missing(asked []string) (more []string) {
	for _, id := range asked {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			continue
		}
		ids, err := hostlist.Expand("[" + l.het[uint32(n)] + "]")
		for _, other := range ids {
			if err == nil && other != id && !slices.Contains(asked, other) && !slices.Contains(more, other) {
				more = append(more, other)
			}
		}
	}
	return more
}
