package command

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/gsim/replay"
	"github.com/tensorgrid/tensorgrid/ctld/gsim/whatif"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// foreseen is one waiting job as it is shown: seconds since 1970, 0 = not foreseen.
type foreseen struct {
	JobID  uint32 `json:"job_id"`
	Tasks  int    `json:"tasks"`
	Now    int64  `json:"start_now"`
	Then   int64  `json:"start_then"`
	Last   int64  `json:"last_task_now,omitempty"`
	LastT  int64  `json:"last_task_then,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// MaxAdd bounds the nodes of --add.
const MaxAdd = 100000

// whatIf forecasts from a snapshot, as things are and as they would be.
func whatIf(o *options, file string, stdout io.Writer) error {
	view, err := restore(file)
	if err != nil {
		return err
	}
	change, pol, err := o.change(view)
	if err != nil {
		return err
	}
	now, s := view.Time(), view.Sched()
	as, err := whatif.Forecast(s, now, view.Policy(), sched.NewPlanner())
	if err != nil {
		return fmt.Errorf("%s, as it is: %w", file, err)
	}
	other, err := whatif.Apply(s, change)
	if err != nil {
		return err
	}
	would, err := whatif.Forecast(other, now, pol, sched.NewPlanner())
	if err != nil {
		return fmt.Errorf("%s, with the change: %w", file, err)
	}
	var list []foreseen
	for i := range as {
		a, b := &as[i], &would[i]
		f := foreseen{JobID: a.ID, Tasks: a.Tasks, Now: a.First / 1000, Then: b.First / 1000, Reason: string(b.Reason)}
		if a.Tasks > 1 {
			f.Last, f.LastT = a.Last/1000, b.Last/1000
		}
		list = append(list, f)
	}
	if o.json {
		return writeJSON(stdout, list)
	}
	return showForeseen(stdout, list, now)
}

// restore reads what "gctl snapshot save" wrote.
func restore(file string) (*state.View, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	store := state.New()
	if err := fsm.New(store).Restore(bufio.NewReaderSize(f, 256<<10)); err != nil {
		return nil, fmt.Errorf("%s is no snapshot that can be read: %w", file, err)
	}
	return store.View(), nil
}

// change is what the options would change, and the policy that then holds.
func (o *options) change(view *state.View) (*whatif.Change, sched.Policy, error) {
	c, pol := &whatif.Change{}, view.Policy()
	if len(o.policies) == 1 {
		p, err := readPolicy(o.policies[0])
		if err != nil {
			return nil, pol, err
		}
		if err := live(p); err != nil {
			return nil, pol, err
		}
		c.Policy, pol = p, p.Sched
	}
	if o.down != "" {
		names, err := hostlist.ExpandMax(o.down, MaxAdd)
		if err != nil {
			return nil, pol, fmt.Errorf("--down: %w", err)
		}
		c.Down = names
	}
	if o.add != "" {
		count, like, ok := strings.Cut(o.add, "=")
		n, err := strconv.ParseUint(count, 10, 31)
		if !ok || err != nil || n == 0 || n > MaxAdd || like == "" {
			return nil, pol, fmt.Errorf("--add: %q is not COUNT=NODE with a count from 1 to %d", o.add, MaxAdd)
		}
		c.Add, c.Like = int(n), like
	}
	return c, pol, nil
}

// live refuses what only a replay of the past can do.
func live(p *replay.Policy) error {
	if p.Perfect {
		return errors.New("estimates=perfect: nobody knows how long the jobs of a live cluster will run")
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// showForeseen prints the table: starts as time from the snapshot on.
func showForeseen(w io.Writer, list []foreseen, now int64) error {
	at := time.UnixMilli(now).UTC().Format("2006-01-02T15:04:05Z")
	sooner, later, never := 0, 0, 0
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(tw, "times from the snapshot on (%s), runs lasting until their limits\n\nJOBID\tTASKS\tSTART NOW\tSTART THEN\tCHANGE\tREASON\n", at)
	for _, f := range list {
		switch {
		case f.Then == 0:
			never++
		case f.Now == 0 || f.Then < f.Now:
			sooner++
		case f.Then > f.Now:
			later++
		}
		diff := "-"
		if f.Now > 0 && f.Then > 0 {
			diff = signed(f.Then - f.Now)
		}
		fmt.Fprintf(tw, "%d\t%d\t%s\t%s\t%s\t%s\n", f.JobID, f.Tasks, after(f.Now, now), after(f.Then, now), diff, f.Reason)
	}
	fmt.Fprintf(tw, "\n%d jobs: %d sooner, %d later, %d not foreseen\n", len(list), sooner, later, never)
	return tw.Flush()
}

// after writes a start as days-hours:minutes:seconds after the snapshot.
func after(start, now int64) string {
	if start == 0 {
		return "unknown"
	}
	return span(start - now/1000)
}

func signed(s int64) string {
	switch {
	case s > 0:
		return "+" + span(s)
	case s < 0:
		return "-" + span(-s)
	}
	return "0"
}

func span(s int64) string {
	if s >= 86400 {
		return fmt.Sprintf("%d-%02d:%02d:%02d", s/86400, s/3600%24, s/60%60, s%60)
	}
	return fmt.Sprintf("%02d:%02d:%02d", s/3600, s/60%60, s%60)
}
