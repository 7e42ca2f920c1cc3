package ginfo

import (
	"bufio"
	"context"
	"fmt"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func (q *query) loadReservations(c *client.Client) ([]*ctldpb.Reservation, error) {
	var res *ctldpb.ListReservationsResponse
	err := c.Do(context.Background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ListReservations(ctx, &ctldpb.ListReservationsRequest{Read: &ctldpb.ReadOptions{Stale: q.stale}})
		return err
	})
	return res.GetReservations(), err
}

// showReservations prints one line for each reservation.
func (q *query) showReservations(env *program.Env, c *client.Client) int {
	list, err := q.loadReservations(c)
	if err != nil {
		env.Refused("", err)
		return 1
	}
	out := bufio.NewWriter(env.Stdout)
	defer out.Flush()
	if len(list) == 0 {
		fmt.Fprintln(out, "No reservations in the system")
		return 0
	}
	width := len("RESV_NAME")
	for _, r := range list {
		width = max(width, len([]rune(r.Name)))
	}
	line := func(name, state, start, end, length, nodes string) {
		fmt.Fprintf(out, "%s  %8s  %19s  %19s  %11s  %s\n", render.Pad(render.Clean(name), width, false), state, start, end, length, render.Clean(nodes))
	}
	if !q.noHeader {
		line("RESV_NAME", "STATE", "START_TIME", "END_TIME", "DURATION", "NODELIST")
	}
	clock := render.Clock{Now: env.Now(), Format: env.Getenv("SLURM_TIME_FORMAT")}
	for _, r := range list {
		length := "UNLIMITED"
		if r.EndMs > r.StartMs {
			length = job.FormatDuration(r.EndMs - r.StartMs)
		}
		line(r.Name, render.Or(r.State, "INACTIVE"), clock.Time(r.StartMs, "Unknown"), clock.Time(r.EndMs, "Unknown"), length, render.Null(r.Nodes))
	}
	return 0
}

// nameReservations finds the active reservations of each node; without an answer the column stays empty.
func (q *query) nameReservations(c *client.Client) {
	q.resv = map[string]string{}
	list, err := q.loadReservations(c)
	if err != nil {
		return
	}
	for _, r := range list {
		names, err := hostlist.Expand(r.Nodes)
		if err != nil || r.State != "ACTIVE" {
			continue
		}
		for _, n := range names {
			if q.resv[n] != "" {
				q.resv[n] += ","
			}
			q.resv[n] += r.Name
		}
	}
}
