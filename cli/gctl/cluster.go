package gctl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
)

// ping asks every controller by itself, and shows the replicas as the first one that answers sees them.
func (c *call) ping([]string) int {
	targets := c.client.Targets()
	answers := make([]*ctldpb.PingResponse, len(targets))
	var wg sync.WaitGroup
	for i := range targets {
		wg.Go(func() {
			if res, err := c.client.PingOne(background(), i); err == nil {
				answers[i] = res
			}
		})
	}
	wg.Wait()
	var seen *ctldpb.PingResponse
	for _, a := range answers {
		if a != nil && (seen == nil || a.Role == "leader") {
			seen = a
		}
	}
	code := 1
	for i, t := range targets {
		rank := "primary"
		if i > 0 {
			rank = fmt.Sprintf("backup%d", i)
			if len(targets) == 2 {
				rank = "backup"
			}
		}
		state := "DOWN"
		if answers[i] != nil || peerUp(seen, t.Name) {
			state, code = "UP", 0
		}
		fmt.Fprintf(c.env.Stdout, "Slurmctld(%s) at %s is %s\n", rank, t.Name, state)
	}
	if seen == nil {
		c.env.Errorf("%s", client.TextConnect)
		return 1
	}
	if c.env.ByGName() {
		c.replicas(seen)
	}
	return code
}

func peerUp(seen *ctldpb.PingResponse, name string) bool {
	for _, p := range seen.GetPeers() {
		if p.Name == name {
			return p.Up
		}
	}
	return false
}

func (c *call) replicas(p *ctldpb.PingResponse) {
	fmt.Fprintf(c.env.Stdout, "\ncluster %s, version %s, leader %s, term %d, applied %d of %d, up %s\n", p.Cluster, p.Version, p.Leader, p.Term,
		p.Applied, p.LastIndex, (time.Duration(p.UptimeMs) * time.Millisecond).Round(time.Second))
	fmt.Fprintf(c.env.Stdout, "%-12s %-22s %-10s %-5s %8s  %s\n", "CONTROLLER", "ADDRESS", "ROLE", "STATE", "LATENCY", "PROBLEM")
	for _, r := range p.Peers {
		state := "down"
		if r.Up {
			state = "up"
		}
		fmt.Fprintf(c.env.Stdout, "%-12s %-22s %-10s %-5s %6.1fms  %s\n", r.Name, r.Address, r.Role, state, float64(r.LatencyUs)/1000, r.Error)
	}
}

// reconfigure reads the file again and tells what came of it.
func (c *call) reconfigure([]string) int {
	var res *ctldpb.ReconfigureResponse
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.Reconfigure(ctx, &ctldpb.ReconfigureRequest{DryRun: c.dryRun})
		return err
	})
	if err != nil {
		return c.failed("slurm_reconfigure", err)
	}
	if len(res.Problems) > 0 {
		for _, p := range res.Problems {
			c.env.Errorf("%s", p)
		}
		return c.failed("slurm_reconfigure", errors.New("nothing was changed"))
	}
	if c.quiet {
		return 0
	}
	list := func(lead string, lines []string) {
		for _, l := range lines {
			fmt.Fprintf(c.env.Stdout, "%s%s\n", lead, l)
		}
	}
	lead := "changed: "
	if c.dryRun {
		lead = "would change: "
	}
	list(lead, res.Changed)
	list("needs a restart: ", res.NeedsRestart)
	list("ignored: ", res.Ignored)
	if len(res.Changed)+len(res.NeedsRestart) == 0 && c.env.ByGName() {
		fmt.Fprintln(c.env.Stdout, "nothing changed")
	}
	return 0
}
