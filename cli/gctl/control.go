package gctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// operation is one of the verbs that change jobs, with the word of its errors.
type operation struct {
	op   ctldpb.ControlRequest_Op
	what string
}

var (
	hold        = operation{ctldpb.ControlRequest_HOLD, "slurm_update"}
	uhold       = operation{ctldpb.ControlRequest_UHOLD, "slurm_update"}
	release     = operation{ctldpb.ControlRequest_RELEASE, "slurm_update"}
	requeue     = operation{ctldpb.ControlRequest_REQUEUE, "slurm_requeue"}
	requeueHold = operation{ctldpb.ControlRequest_REQUEUE_HOLD, "slurm_requeue"}
	suspend     = operation{ctldpb.ControlRequest_SUSPEND, "slurm_suspend"}
	resume      = operation{ctldpb.ControlRequest_RESUME, "slurm_resume"}
	top         = operation{ctldpb.ControlRequest_TOP, "slurm_top_job"}
)

// control makes the handler of a verb.
func control(o operation) func(*call, []string) int {
	return func(c *call, args []string) int { return c.steer(o, args) }
}

// jobWords reads "12", "12,13", "JobId=12", "name=x".
func jobWords(args []string) ([]string, error) {
	var ids []string
	for _, a := range args {
		key, value, has := strings.Cut(a, "=")
		switch {
		case !has:
			ids = append(ids, splitIDs(a)...)
		case strings.EqualFold(key, "jobid") || strings.EqualFold(key, "job"):
			ids = append(ids, splitIDs(value)...)
		case strings.EqualFold(key, "name") || strings.EqualFold(key, "jobname"):
			if strings.Trim(value, ", ") == "" {
				return nil, fmt.Errorf("Invalid job name %q\na name that is empty names no job", value)
			}
			ids = append(ids, "name="+value)
		default:
			return nil, fmt.Errorf("Invalid job id specification: %s", a)
		}
	}
	for i, id := range ids {
		if ids[i] = render.PlainID(id); ids[i] != id {
			continue
		}
		if strings.HasPrefix(id, "name=") {
			continue
		}
		if _, err := job.ParseRef(id); err != nil {
			return nil, fmt.Errorf("Invalid job id %s", id)
		}
	}
	if len(ids) == 0 {
		return nil, errors.New("too few arguments: which job?")
	}
	return ids, nil
}

func (c *call) steer(o operation, args []string) int {
	ids, err := jobWords(args)
	if err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	req := &ctldpb.ControlRequest{Op: o.op, JobIds: ids, Key: client.NewKey()}
	var res *ctldpb.JobResults
	err = c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.Control(ctx, req)
		return err
	})
	if err != nil {
		return c.failed(o.what, err)
	}
	return c.results(o.what, res.Results)
}

// results prints what could not be done.
func (c *call) results(what string, list []*ctldpb.JobResult) int {
	code := 0
	for _, r := range list {
		if r.Code == "" {
			continue
		}
		code = 1
		if !c.quiet {
			fmt.Fprintf(c.env.Stderr, "%s for job %s\n%s error: %s\n", render.Clean(r.Text), r.JobId, what, render.Clean(r.Text))
		}
	}
	return code
}

// update changes what its first word names.
func (c *call) update(args []string) int {
	if len(args) == 0 {
		c.env.Errorf("too few arguments for keyword:update")
		return 1
	}
	if resUpdate(args) {
		return c.updateReservation(args)
	}
	words := make([][2]string, len(args))
	rank, kind, names := 0, "", ""
	for i, a := range args {
		key, value, has := strings.Cut(a, "=")
		if !has {
			c.env.Errorf("Invalid input: %s", a)
			c.env.Errorf("write KEY=VALUE; quote values with blanks")
			return 1
		}
		words[i] = [2]string{key, value}
		if k, n := entity(key); n > rank {
			rank, kind, names = n, k, value
		}
	}
	set := map[string]string{}
	for _, w := range words {
		if k, n := entity(w[0]); k != kind || n != rank || w[1] != names {
			set[w[0]] = w[1]
		}
	}
	if kind != "" && len(set) == 0 {
		c.env.Errorf("No changes specified")
		return 1
	}
	switch kind {
	case "job":
		return c.updateJob(names, set)
	case "jobname":
		return c.updateJob("name="+names, set)
	case "node":
		return c.updateNode(names, set)
	case "partition":
		return c.updatePartition(names, set)
	}
	c.env.Errorf("No valid entity in update command")
	c.env.Errorf(`Input line must include "NodeName", "JobId", "PartitionName" or "ReservationName"`)
	return 1
}

// resUpdate: ReservationName stands there and no word that says more; of a job, a reservation is a value.
func resUpdate(args []string) bool {
	named := false
	for _, a := range args {
		key, _, _ := strings.Cut(a, "=")
		if kind, rank := entity(key); rank > 0 && kind != "partition" {
			return false
		}
		low := strings.ToLower(key)
		named = named || low != "name" && resName(key)
	}
	return named
}

// entity says what a key names, and how much it says so: the partition of a job is a value, JobId is not.
func entity(key string) (kind string, rank int) {
	switch strings.ToLower(key) {
	case "jobid", "job":
		return "job", 4
	case "nodename", "node":
		return "node", 3
	case "partitionname", "partition":
		return "partition", 2
	case "jobname":
		return "jobname", 1
	}
	return "", 0
}

func (c *call) updateJob(names string, set map[string]string) int {
	ids, err := jobWords([]string{names})
	if err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	req := &ctldpb.UpdateJobRequest{JobIds: ids, Set: set, Key: client.NewKey()}
	var res *ctldpb.JobResults
	err = c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.UpdateJob(ctx, req)
		return err
	})
	if err != nil {
		return c.failed("slurm_update", err)
	}
	if l := res.Results; len(l) == 1 && l[0].Code != "" && !c.quiet { // which job is known: one line
		fmt.Fprintf(c.env.Stderr, "slurm_update error: %s\n", render.Clean(l[0].Text))
		return 1
	}
	return c.results("slurm_update", res.Results)
}

func (c *call) updateNode(names string, set map[string]string) int {
	req := &ctldpb.UpdateNodeRequest{Names: names, Set: set, Key: client.NewKey()}
	var res *ctldpb.UpdateNodeResponse
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.UpdateNode(ctx, req)
		return err
	})
	if err != nil {
		return c.failed("slurm_update", err)
	}
	code := 0
	for _, r := range res.Results {
		if r.Code != "" {
			code = 1
			fmt.Fprintf(c.env.Stderr, "slurm_update error: %s (node %s)\n", render.Clean(r.Text), r.JobId)
		}
	}
	return code
}

func (c *call) updatePartition(name string, set map[string]string) int {
	req := &ctldpb.UpdatePartitionRequest{Name: name, Set: set, Key: client.NewKey()}
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) error {
		_, err := cc.UpdatePartition(ctx, req)
		return err
	})
	if err != nil {
		return c.failed("slurm_update", err)
	}
	return 0
}

// jobWord is "job output ID".
func (c *call) jobWord(args []string) int {
	if len(args) != 2 || args[0] != "output" {
		c.env.Errorf("write: %s job output ID [--stderr] [--follow]", c.env.Name)
		return 1
	}
	req := &ctldpb.JobOutputRequest{JobId: args[1], Stderr: c.stderr, Follow: c.follow, Run: -1}
	err := c.client.Output(background(), req, c.env.Stdout)
	if err == nil {
		return 0
	}
	code := c.failed("job output", err)
	if res, err := c.client.ListJobs(background(), &ctldpb.ListJobsRequest{JobIds: args[1:], States: []string{"all"}}); err == nil && len(res.Jobs) > 0 && !c.quiet {
		c.env.Infof("job %s writes to %s in the folder %s", args[1], res.Jobs[0].StdOut, res.Jobs[0].Spec.GetWorkDir())
	}
	return code
}

// write saves a job's script: to slurm-ID.sh, the file named, or standard output for "-".
func (c *call) write(args []string) int {
	if len(args) < 2 || len(args) > 3 || len(args[0]) < 2 || !strings.HasPrefix("batch_script", strings.ToLower(args[0])) {
		c.env.Errorf("write: %s write batch_script ID [FILE|-]", c.env.Name)
		return 1
	}
	ref, err := job.ParseRef(args[1])
	if err != nil || ref.Tasks != nil {
		c.env.Errorf("Invalid job id %s", args[1])
		return 1
	}
	var res *ctldpb.GetScriptResponse
	err = c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.GetScript(ctx, &ctldpb.GetScriptRequest{JobId: ref.ID})
		return err
	})
	if err != nil {
		return c.failed("slurm_job_batch_script", err)
	}
	name := fmt.Sprintf("slurm-%d.sh", ref.ID)
	if len(args) == 3 {
		name = args[2]
	}
	if name == "-" {
		c.env.Stdout.Write(res.Data)
		return 0
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(c.env.Dir, name)
	}
	if err := os.WriteFile(name, res.Data, 0o600); err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	if !c.quiet {
		fmt.Fprintf(c.env.Stdout, "batch script for job %s written to %s\n", args[1], name)
	}
	return 0
}

// waitPause is how often wait_job looks.
const waitPause = 500 * time.Millisecond

// waitJob stays until the job runs; 1 when it ended.
func (c *call) waitJob(args []string) int {
	if len(args) != 1 {
		c.env.Errorf("write: %s wait_job ID", c.env.Name)
		return 1
	}
	for {
		res, err := c.client.ListJobs(background(), &ctldpb.ListJobsRequest{JobIds: args, States: []string{"all"}})
		if err != nil {
			return c.failed("slurm_load_jobs", err)
		}
		if len(res.Jobs) == 0 {
			fmt.Fprintf(c.env.Stderr, "slurm_load_jobs error: %s\n", invalidID)
			return 1
		}
		state, _ := render.State(res.Jobs[0])
		switch {
		case render.BaseState(res.Jobs[0]).Ended():
			c.env.Errorf("Job is no longer pending/configuring (%s)", state)
			return 1
		case state == "RUNNING":
			return 0
		}
		c.env.Sleep(waitPause)
	}
}
