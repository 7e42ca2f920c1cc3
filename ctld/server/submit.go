package server

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Submit takes one job: validated here, given its id by Apply, answered when a majority has it.
func (s *Server) Submit(ctx context.Context, req *ctldpb.SubmitRequest) (*ctldpb.SubmitResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	view := s.Log.View()
	if req.GetTestOnly() {
		return s.testOnly(ctx, view, c, req)
	}
	d := newDraft()
	defer d.release()
	ref, err := s.submission(ctx, view, c, req, d)
	if err != nil {
		return nil, err
	}
	if ref != nil {
		return nil, refusalError(ref)
	}
	res, err := s.Log.Propose(ctx, &d.cmd)
	if err != nil {
		return nil, logError(err)
	}
	if r := res[0].Refused; r != nil {
		return nil, refusalError(fromFSM(r))
	}
	return &ctldpb.SubmitResponse{JobId: res[0].JobID, Duplicate: res[0].Duplicate}, nil
}

// SubmitBatch takes up to MaxBatch jobs in one go; each has its own result. Those that are refused
// do not keep the others back.
func (s *Server) SubmitBatch(ctx context.Context, req *ctldpb.SubmitBatchRequest) (*ctldpb.SubmitBatchResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if n := len(req.GetRequests()); n > MaxBatch {
		return nil, tooMany("requests", "MaxBatch", n, MaxBatch)
	}
	view := s.Log.View()
	results := make([]*ctldpb.SubmitResult, len(req.GetRequests()))
	cmds := make([]*logpb.Command, 0, len(results))
	at := make([]int, 0, len(results))
	list := make([]*draft, 0, len(results))
	defer func() {
		for _, d := range list {
			d.release()
		}
	}()
	for i, one := range req.GetRequests() {
		if one.GetTestOnly() {
			results[i] = &ctldpb.SubmitResult{}
			if results[i].Ok, err = s.testOnly(ctx, view, c, one); err != nil {
				results[i] = &ctldpb.SubmitResult{Refusal: refusalOrInvalid(err)}
			}
			continue
		}
		d := newDraft()
		list = append(list, d)
		ref, err := s.submission(ctx, view, c, one, d)
		switch {
		case err != nil:
			return nil, err
		case ref != nil:
			results[i] = &ctldpb.SubmitResult{Refusal: ref}
		default:
			cmds, at = append(cmds, &d.cmd), append(at, i)
		}
	}
	if len(cmds) == 0 {
		return &ctldpb.SubmitBatchResponse{Results: results}, nil
	}
	done, err := s.Log.Propose(ctx, cmds...)
	if err != nil {
		return nil, logError(err)
	}
	for k, r := range done {
		if r.Refused != nil {
			results[at[k]] = &ctldpb.SubmitResult{Refusal: fromFSM(r.Refused)}
			continue
		}
		results[at[k]] = &ctldpb.SubmitResult{Ok: &ctldpb.SubmitResponse{JobId: r.JobID, Duplicate: r.Duplicate}}
	}
	return &ctldpb.SubmitBatchResponse{Results: results}, nil
}

func refusalOrInvalid(err error) *ctldpb.Refusal {
	if r := RefusalOf(err); r != nil {
		return r
	}
	return refusalOf(codeInvalid, err.Error())
}

// submission turns a request into the log command, or says why it is refused. The error is for
// what is no refusal: a log that cannot take the script. The command is d's.
func (s *Server) submission(ctx context.Context, view state.Viewer, c authn.Caller, req *ctldpb.SubmitRequest, d *draft) (*ctldpb.Refusal, error) {
	if len(req.GetKey()) > job.MaxKey {
		return refusalOf(codeLimit, fmt.Sprintf("a key of %d bytes exceeds MaxKey (%d)", len(req.Key), job.MaxKey)), nil
	}
	if req.GetSpec() == nil {
		return noJob(), nil
	}
	if len(req.Het) > 0 {
		return s.hetSubmission(ctx, view, c, req, d)
	}
	spec := &d.spec
	specFromAPI(spec, req.Spec)
	digest, err := d.digestOf(req)
	if err != nil {
		return nil, err
	}
	if ref, known := s.prepare(spec, view, c, req.Uid, false); ref != nil {
		// A repeated request is answered as the first time, whatever was reconfigured in between.
		if !known || !s.repeated(view, spec, req.Key, digest) {
			return ref, nil
		}
	}
	if ref, err := s.admitPlanned(ctx, view, spec); ref != nil || err != nil {
		if err != nil || !s.repeated(view, spec, req.Key, digest) {
			return ref, err
		}
	}
	if len(spec.Script) > job.MaxInlineScript {
		hash, err := s.storeBlob(ctx, view, spec.UID, spec.Script)
		if err != nil {
			return nil, err
		}
		spec.ScriptHash, spec.Script = hash, nil
	}
	d.submit.Key, d.submit.Digest = req.Key, digest
	fsm.SpecIntoLog(&d.log, spec)
	return nil, nil
}

// repeated tells whether the owner of spec has used the key for the same request before.
func (s *Server) repeated(view state.Viewer, spec *job.Spec, key string, digest []byte) bool {
	if key == "" {
		return false
	}
	_, old, ok := view.Key(spec.UID, key)
	return ok && string(old) == string(digest)
}

// draft is a submission on its way into the log, in memory that is used again for another when the
// log has answered. Its command is whole.
type draft struct {
	cmd    logpb.Command
	of     logpb.Command_Submit
	submit logpb.Submit
	log    logpb.JobSpec
	spec   job.Spec
	digest [sha256.Size]byte
	text   []byte // of the request, as the digest sees it
}

// maxDraftText is the most memory for a request's text that a draft keeps.
const maxDraftText = 16 << 10

var drafts = sync.Pool{New: func() any {
	d := new(draft)
	d.cmd.Of, d.of.Submit, d.submit.Spec = &d.of, &d.submit, &d.log
	return d
}}

func newDraft() *draft { return drafts.Get().(*draft) }

// release gives a draft back; what it held of the request is let go.
func (d *draft) release() {
	d.cmd.Of = &d.of
	d.spec = job.Spec{}
	d.submit.Key, d.submit.Digest = "", nil
	fsm.SpecIntoLog(&d.log, &d.spec)
	if cap(d.text) > maxDraftText {
		d.text = nil
	}
	drafts.Put(d)
}

// digestOf is what tells a repeated request from another one under the same key. The draft's
// specification must be as it was asked for.
func (d *draft) digestOf(req *ctldpb.SubmitRequest) ([]byte, error) {
	if req.Key == "" {
		return nil, nil
	}
	fsm.SpecIntoLog(&d.log, &d.spec)
	text, err := fsm.AppendSpec(d.text[:0], &d.log)
	if err != nil {
		return nil, refuse(codeInvalid, err.Error())
	}
	d.text = binary.BigEndian.AppendUint32(text, req.Uid)
	d.digest = sha256.Sum256(d.text)
	return d.digest[:], nil
}

// PutBlob stores a script or environment under its SHA-256, through the log.
func (s *Server) PutBlob(ctx context.Context, req *ctldpb.PutBlobRequest) (*ctldpb.PutBlobResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if n := len(req.GetData()); n > MaxBlob {
		return nil, refuse(codeLimit, fmt.Sprintf("a blob of %d bytes exceeds MaxBlob (%d)", n, MaxBlob))
	}
	if len(req.GetData()) == 0 {
		return nil, refuse(codeInvalid, "the blob is empty")
	}
	hash, err := s.storeBlob(ctx, s.Log.View(), c.UID, req.Data)
	if err != nil {
		return nil, err
	}
	return &ctldpb.PutBlobResponse{Hash: hash}, nil
}

// storeBlob brings data that a user sent into the log in chunks, unless it is there.
func (s *Server) storeBlob(ctx context.Context, view state.Viewer, uid uint32, data []byte) ([]byte, error) {
	sum := sha256.Sum256(data)
	if _, ok := view.Blob(sum[:]); ok {
		return sum[:], nil
	}
	var cmds []*logpb.Command
	for off := 0; off < len(data); off += BlobChunk {
		cmds = append(cmds, &logpb.Command{Of: &logpb.Command_PutBlob{PutBlob: &logpb.PutBlob{
			Hash: sum[:], Total: uint64(len(data)), Offset: uint64(off), Data: data[off:min(off+BlobChunk, len(data))],
			Uid: uid,
		}}})
	}
	res, err := s.Log.Propose(ctx, cmds...)
	if err != nil {
		return nil, logError(err)
	}
	for _, r := range res {
		if r.Refused != nil {
			return nil, refusalError(fromFSM(r.Refused))
		}
	}
	return sum[:], nil
}
