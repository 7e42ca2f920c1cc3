package server

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// followEvery is how often a followed file is looked at.
const followEvery = 300 * time.Millisecond

const outputMethod = authn.ControllerService + "JobOutput"

// JobOutput streams what a job wrote on its node, for its owner and for operators. With follow it
// goes on until the job has ended and everything was read.
func (s *Server) JobOutput(req *ctldpb.JobOutputRequest, out grpc.ServerStreamingServer[ctldpb.JobOutputResponse]) error {
	ctx := out.Context()
	if _, err := caller(ctx); err != nil {
		return err
	}
	one := &ctldpb.JobOutputRequest{JobId: req.JobId, Stderr: req.Stderr, Offset: req.Offset, Run: req.Run}
	for {
		resp, err := s.readChunk(ctx, one)
		if err != nil {
			return err
		}
		if len(resp.Data) > 0 {
			one.Offset += int64(len(resp.Data))
			if err := out.Send(&ctldpb.JobOutputResponse{Data: resp.Data}); err != nil {
				return err
			}
			continue
		}
		if resp.End || !req.Follow {
			return out.Send(&ctldpb.JobOutputResponse{End: true})
		}
		if err := sleep(ctx, followEvery); err != nil {
			return logError(err)
		}
	}
}

// readChunk reads one piece, here or at the leader: only it has sessions with the agents.
func (s *Server) readChunk(ctx context.Context, req *ctldpb.JobOutputRequest) (*ctldpb.JobOutputResponse, error) {
	resp, err := s.atLeader(ctx, true, func(ctx context.Context) (any, error) {
		return s.outputOnce(ctx, req)
	}, func(ctx context.Context, peer peerpb.PeerClient, c authn.Caller) (any, error) {
		return s.send(ctx, peer, outputMethod, req, c)
	})
	if err != nil {
		return nil, err
	}
	return resp.(*ctldpb.JobOutputResponse), nil
}

// outputOnce reads one piece on the leader. No data and no end means that the job still runs and
// has written nothing new.
func (s *Server) outputOnce(ctx context.Context, req *ctldpb.JobOutputRequest) (*ctldpb.JobOutputResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if req.Offset < 0 {
		return nil, refuse(codeInvalid, fmt.Sprintf("offset %d is negative", req.Offset))
	}
	j, err := s.oneJob(s.Log.View(), c, req.JobId)
	if err != nil {
		return nil, err
	}
	if len(j.Allocs) == 0 {
		if j.State == job.Pending {
			return &ctldpb.JobOutputResponse{}, nil
		}
		return nil, refuse("ESLURM_NO_OUTPUT", "the job never ran")
	}
	if s.Output == nil {
		return nil, refuse("ESLURM_NOT_SUPPORTED", "this controller has no agents")
	}
	run := j.Run
	if req.Run >= 0 {
		run = uint32(req.Run)
	}
	data, eof, running, err := s.Output.ReadOutput(ctx, j.Allocs[0].Node, j.ID, run, req.Stderr, req.Offset, outputChunk)
	if err != nil {
		return nil, refuse("ESLURM_NO_OUTPUT", err.Error())
	}
	return &ctldpb.JobOutputResponse{Data: data, End: eof && !running}, nil
}

// oneJob finds the one record that an id names and that the caller may read the files of.
func (s *Server) oneJob(view state.Viewer, c authn.Caller, id string) (*state.Job, error) {
	ref, err := job.ParseRef(id)
	if err != nil {
		return nil, refuse("ESLURM_INVALID_JOB_ID", err.Error())
	}
	rows := rowsOf(view, ref)
	if len(rows) == 0 || !s.Auth.Policy().MaySeeJob(c, rows[0].j.Spec.UID) {
		return nil, refuse("ESLURM_INVALID_JOB_ID", "")
	}
	j := rows[0].j
	if !c.MayChange(j.Spec.UID) {
		return nil, refuse("ESLURM_ACCESS_DENIED", "output is for the job's owner")
	}
	if len(rows) > 1 {
		if own := view.Job(ref.ID); own == nil || own.Waiting != nil || ref.Tasks != nil {
			return nil, refuse("ESLURM_INVALID_JOB_ID", fmt.Sprintf("%s names %d tasks; name one, as in %d_%d", id, len(rows), ref.ID, max(0, j.ArrayTask)))
		}
	}
	return j, nil
}
