package gsub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// waitSlice is how long one question about the end of a job stays open.
const waitSlice = 30 * time.Second

// submit sends the request, prints the id, and with --wait stays until the end.
func (r *request) submit() int {
	environ, err := r.environment()
	if err != nil {
		return r.failed(err)
	}
	c, err := r.env.Connect()
	if err != nil {
		r.env.Refused("", err)
		return 1
	}
	defer c.Close()
	if r.cluster != "" && r.cluster != c.Cluster() && r.cluster != "all" {
		r.env.Errorf("No cluster '%s' known by database.", r.cluster)
		return 1
	}
	ctx := context.Background()
	res, err := r.send(ctx, c, environ)
	if err != nil {
		lead := "Batch job submission failed: "
		if r.testOnly {
			lead = "allocation failure: "
		}
		r.env.Refused(lead, err)
		return 1
	}
	for _, w := range res.Warnings {
		r.advise("%s", w)
	}
	if r.testOnly {
		r.env.Infof("%s", res.TestResult)
		if !r.quiet && !r.env.SharedOutput {
			for _, line := range render.Explain(res.Explanation, render.Clock{Now: r.env.Now(), Format: r.env.Getenv("SLURM_TIME_FORMAT")}) {
				r.env.Infof("%s", line)
			}
		}
		return 0
	}
	if err := r.announce(res.JobId, c.Cluster()); err != nil {
		r.env.Errorf("job %d was submitted, but this could not be printed", res.JobId)
	}
	if r.wait {
		return r.waitFor(ctx, c, res.JobId)
	}
	return 0
}

// announce prints the line that programs read.
func (r *request) announce(id uint32, cluster string) (err error) {
	switch {
	case r.parsable && r.cluster != "":
		_, err = fmt.Fprintf(r.env.Stdout, "%d;%s\n", id, cluster)
	case r.parsable:
		_, err = fmt.Fprintf(r.env.Stdout, "%d\n", id)
	case r.cluster != "":
		_, err = fmt.Fprintf(r.env.Stdout, "Submitted batch job %d on cluster %s\n", id, cluster)
	default:
		_, err = fmt.Fprintf(r.env.Stdout, "Submitted batch job %d\n", id)
	}
	return err
}

// send puts the environment and a large script in place and submits, all with one key: whatever is
// repeated, the job is there once.
func (r *request) send(ctx context.Context, c *client.Client, environ []byte) (*ctldpb.SubmitResponse, error) {
	spec := r.spec
	var err error
	if len(spec.Script) > job.MaxInlineScript {
		if spec.ScriptHash, err = putBlob(ctx, c, spec.Script); err != nil {
			return nil, err
		}
		spec.Script = nil
	}
	if spec.EnvHash, err = putBlob(ctx, c, environ); err != nil {
		return nil, err
	}
	req := &ctldpb.SubmitRequest{Key: client.NewKey(), Spec: client.SpecToAPI(&spec), TestOnly: r.testOnly, Uid: r.forUID}
	for _, c := range r.het {
		part := c.spec
		part.EnvHash = nil
		req.Het = append(req.Het, client.SpecToAPI(&part))
	}
	if r.verbose > 0 {
		r.env.Infof("job %q, %d bytes of script, %d bytes of environment, key %s", spec.Name, len(r.spec.Script), len(environ), req.Key)
	}
	var res *ctldpb.SubmitResponse
	err = c.Do(ctx, func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.Submit(ctx, req)
		return err
	})
	return res, err
}

func putBlob(ctx context.Context, c *client.Client, data []byte) ([]byte, error) {
	var res *ctldpb.PutBlobResponse
	err := c.Do(ctx, func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.PutBlob(ctx, &ctldpb.PutBlobRequest{Data: data})
		return err
	})
	return res.GetHash(), err
}

// waitFor stays until the job ended and gives its exit code: the highest of an array, 1 for a signal. A
// controller that goes away meanwhile is no reason to give up.
func (r *request) waitFor(ctx context.Context, c *client.Client, id uint32) int {
	pause := time.Second
	for {
		var res *ctldpb.WaitJobResponse
		err := c.Wait(ctx, waitSlice, func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
			res, err = cc.WaitJob(ctx, &ctldpb.WaitJobRequest{JobId: id, TimeoutMs: waitSlice.Milliseconds()})
			return err
		})
		var refused *client.Refusal
		switch {
		case errors.As(err, &refused) && (refused.Text == client.TextConnect || refused.Text == client.TextTimeout):
			r.env.Errorf("%s; still waiting for job %d", refused.Text, id)
			r.env.Sleep(pause)
			pause = min(2*pause, time.Minute)
			continue
		case err != nil:
			r.env.Refused("", err)
			return 1
		}
		pause = time.Second
		if res.Done {
			return exitCode(res.Exit)
		}
	}
}

func exitCode(e *ctldpb.ExitStatus) int {
	if e.GetSignal() != 0 {
		return 1
	}
	return int(e.GetCode()) & 0xff
}
