package gctl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/render"
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
		if a != nil && (seen == nil || a.Role == "leader" || seen.Role == "blank") {
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
		if a := answers[i]; a != nil && a.Role != "blank" || a == nil && peerUp(seen, t.Name) {
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
			return p.Up && p.Role != "blank" // one that has no state takes no calls
		}
	}
	return false
}

func (c *call) replicas(p *ctldpb.PingResponse) {
	fmt.Fprintf(c.env.Stdout, "\ncluster %s, version %s, leader %s, term %d, applied %d of %d, up %s\n", p.Cluster, p.Version, p.Leader, p.Term,
		p.Applied, p.LastIndex, (time.Duration(p.UptimeMs) * time.Millisecond).Round(time.Second))
	t := table{head: []string{"CONTROLLER", "ADDRESS", "ROLE", "STATE", "LATENCY", "PROBLEM"}, right: []int{4}}
	for _, r := range p.Peers {
		state, role, latency, problem := "down", "-", "-", r.Error
		if r.Up {
			state, role, latency = "up", render.Or(r.Role, "-"), fmt.Sprintf("%.1fms", float64(r.LatencyUs)/1000)
		}
		switch {
		case problem != "":
		case r.Up && r.Role == "blank":
			problem = "its folder is empty: it asks the others before it takes part"
		case r.Up && r.Role == "learner":
			problem = "has no vote yet; see gctl controller status"
		}
		t.row(r.Name, r.Address, role, state, latency, problem)
	}
	t.write(c.env.Stdout)
}

// reconfigure reads the file again and tells what came of it.
func (c *call) reconfigure(args []string) int {
	if len(args) > 0 {
		c.env.Errorf("reconfigure: one word too many: %s; it is for the whole cluster, and nothing was changed", args[0])
		c.env.Errorf("write: %s reconfigure [--dry-run]", c.env.Name)
		return 1
	}
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
