package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// StreamJobs is ListJobs by another name: clients ask for it where they print rows as they come. Pages hold at most
// PageJobs rows, and the next is made when the one before has left: memory does not grow with the queue.
func (s *Server) StreamJobs(req *ctldpb.ListJobsRequest, out grpc.ServerStreamingServer[ctldpb.ListJobsResponse]) error {
	return s.ListJobs(req, out)
}

// ListJobs streams the jobs that a filter takes, in pages, all of one moment.
func (s *Server) ListJobs(req *ctldpb.ListJobsRequest, out grpc.ServerStreamingServer[ctldpb.ListJobsResponse]) error {
	ctx := out.Context()
	c, err := caller(ctx)
	if err != nil {
		return err
	}
	sel, err := s.compile(&ctldpb.JobFilter{
		JobIds: req.JobIds, Users: req.Users, Names: req.Names, Partitions: req.Partitions, States: req.States,
		Accounts: req.Accounts, Qos: req.Qos, Nodes: req.Nodes,
	})
	if err != nil {
		return err
	}
	sel.endedAfter, sel.before = req.EndedAfterMs, req.StartedBeforeMs
	view, info, err := s.read(ctx, req.Read)
	if err != nil {
		return err
	}
	policy := s.Auth.Policy()
	if policy.Private("jobs") {
		sel.restrict(c)
	}
	p := pager{out: out, page: &ctldpb.ListJobsResponse{Info: info}}
	var unknown []string
	show := newShower(view, info.NowMs)
	for row := range sel.rows(view, &unknown) {
		mine := c.MayChange(row.j.Spec.UID)
		if !req.ArrayTasks || row.tasks == nil || row.task >= 0 {
			err = p.add(show.job(row, mine, req.Detail))
		} else {
			for task := range row.tasks.All() {
				if err = p.add(show.job(jobRow{j: row.j, task: int64(task)}, mine, req.Detail)); err != nil {
					break
				}
			}
		}
		if err != nil {
			return err
		}
	}
	p.page.UnknownIds = unknown
	return p.flush()
}

// pager packs jobs into pages of at most PageJobs and PageBytes.
type pager struct {
	out   grpc.ServerStreamingServer[ctldpb.ListJobsResponse]
	page  *ctldpb.ListJobsResponse
	bytes int
}

func (p *pager) add(j *ctldpb.Job) error {
	size := proto.Size(j)
	if len(p.page.Jobs) > 0 && (len(p.page.Jobs) >= PageJobs || p.bytes+size > PageBytes) {
		info := p.page.Info
		if err := p.flush(); err != nil {
			return err
		}
		p.page, p.bytes = &ctldpb.ListJobsResponse{Info: info}, 0
	}
	p.page.Jobs = append(p.page.Jobs, j)
	p.bytes += size
	return nil
}

func (p *pager) flush() error { return p.out.Send(p.page) }

// GetScript gives a job's script or environment to its owner and to operators.
func (s *Server) GetScript(ctx context.Context, req *ctldpb.GetScriptRequest) (*ctldpb.GetScriptResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	view, _, err := s.read(ctx, nil)
	if err != nil {
		return nil, err
	}
	j := view.Job(req.JobId)
	if j == nil {
		// The base record of an array leaves when its last task has got the id of its own; any task will do.
		for _, t := range view.ArrayTasks(req.JobId) {
			j = t
			break
		}
	}
	if j == nil || !s.Auth.Policy().MaySeeJob(c, j.Spec.UID) {
		return nil, refuse("ESLURM_INVALID_JOB_ID", "")
	}
	if !c.MayChange(j.Spec.UID) {
		return nil, refuse("ESLURM_ACCESS_DENIED", "script and environment are for the job's owner")
	}
	hash, inline := j.Spec.ScriptHash, j.Spec.Script
	if req.Env {
		hash, inline = j.Spec.EnvHash, nil
	}
	if len(hash) == 0 {
		return &ctldpb.GetScriptResponse{Data: inline}, nil
	}
	data, ok := view.Blob(hash)
	if !ok {
		return nil, refuse(codeBlobMissing, "the blob is no longer kept")
	}
	return &ctldpb.GetScriptResponse{Data: data}, nil
}

// WaitJob answers when a job, or every task of an array, has ended, or when the time is over.
func (s *Server) WaitJob(ctx context.Context, req *ctldpb.WaitJobRequest) (*ctldpb.WaitJobResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	wait := MaxWait
	if req.TimeoutMs > 0 && req.TimeoutMs < MaxWait.Milliseconds() {
		wait = msDuration(req.TimeoutMs)
	}
	view, err := s.readRetry(ctx)
	if err != nil {
		return nil, logError(err)
	}
	limit, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		rows := rowsOf(view, job.Ref{ID: req.JobId})
		if len(rows) == 0 || !s.Auth.Policy().MaySeeJob(c, rows[0].j.Spec.UID) {
			return nil, refuse("ESLURM_INVALID_JOB_ID", "")
		}
		if resp := outcome(rows); resp.Done {
			return resp, nil
		}
		changed := s.Log.Changed(view.Index())
		select {
		case <-changed:
			// A busy cluster changes thousands of times a second; a waiter looks no more often than this.
			if sleep(limit, waitPace(len(rows))) == nil {
				view = s.Log.View()
				continue
			}
		case <-limit.Done():
		}
		if ctx.Err() != nil {
			return nil, logError(ctx.Err())
		}
		return outcome(rowsOf(s.Log.View(), job.Ref{ID: req.JobId})), nil
	}
}

// outcome is how a job stands: for arrays done when all tasks are, with the highest exit code. One that still
// completes is not over: how it ended may not be known yet. One that did not complete has failed, whatever its
// script said, or did not say because it never ran.
func outcome(rows []jobRow) *ctldpb.WaitJobResponse {
	resp := &ctldpb.WaitJobResponse{Done: len(rows) > 0, Exit: &ctldpb.ExitStatus{}}
	for _, row := range rows {
		j := row.j
		if !j.State.Ended() || j.Flags&(job.Requeued|job.Completing) != 0 {
			resp.Done, resp.State = false, j.State.String()
			return resp
		}
		if resp.State == "" || j.State != job.Completed {
			resp.State = j.State.String()
		}
		if j.Exit.Signal != 0 && resp.Exit.Signal == 0 {
			resp.Exit.Signal = j.Exit.Signal
		}
		resp.Exit.Code = max(resp.Exit.Code, j.Exit.Code)
		if j.State != job.Completed && j.Exit == (job.Exit{}) {
			resp.Exit.Code = max(resp.Exit.Code, 1)
		}
	}
	return resp
}
