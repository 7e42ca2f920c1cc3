package server

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// MaxHet is the most components of one heterogeneous job.
const MaxHet = 128

// hetSubmission turns a request with several components into one log command: they enter together or not at all.
// Only the first has a script. The command is d's.
func (s *Server) hetSubmission(ctx context.Context, view state.Viewer, c authn.Caller, req *ctldpb.SubmitRequest, d *draft) (*ctldpb.Refusal, error) {
	if ref := hetBounds(view, req); ref != nil {
		return ref, nil
	}
	asked := components(req)
	het := &logpb.SubmitHet{Key: req.Key, Specs: make([]*logpb.JobSpec, len(asked))}
	specs, err := d.hetDigest(req, asked, het)
	if err != nil {
		return nil, err
	}
	for i, spec := range specs {
		ref, known := s.prepare(spec, view, c, req.Uid, i > 0)
		if ref == nil {
			if ref, err = s.admitPlanned(ctx, view, spec); err != nil {
				return nil, err
			}
			known = true
		}
		if ref == nil {
			continue
		}
		if known && s.repeated(view, specs[0], req.Key, het.Digest) {
			continue // answered as the first time, whatever was reconfigured in between
		}
		ref.Why = fmt.Sprintf("component %d: %s", i, ref.Why)
		return ref, nil
	}
	for i, spec := range specs {
		if len(spec.Script) > job.MaxInlineScript {
			if spec.ScriptHash, err = s.storeBlob(ctx, view, spec.UID, spec.Script); err != nil {
				return nil, err
			}
			spec.Script = nil
		}
		fsm.SpecIntoLog(het.Specs[i], spec)
	}
	d.cmd.Of = &logpb.Command_SubmitHet{SubmitHet: het}
	return nil, nil
}

// components lists what a heterogeneous job asks for, the first one first.
func components(req *ctldpb.SubmitRequest) []*ctldpb.JobSpec {
	return append([]*ctldpb.JobSpec{req.Spec}, req.Het...)
}

// hetBounds refuses heterogeneous jobs that there cannot be.
func hetBounds(view state.Viewer, req *ctldpb.SubmitRequest) *ctldpb.Refusal {
	if ref := needsSched(view, "heterogeneous jobs"); ref != nil {
		return ref
	}
	if n := len(req.Het) + 1; n > MaxHet {
		return refusalOf(codeLimit, fmt.Sprintf("%d components exceed MaxHet (%d)", n, MaxHet))
	}
	for i, p := range components(req) {
		switch {
		case p == nil:
			return noJob()
		case p.Array != "":
			return refusalOf("ESLURM_INVALID_ARRAY", fmt.Sprintf("component %d: --array=%s: a heterogeneous job is no array", i, p.Array))
		}
	}
	return nil
}

// hetDigest reads the components and puts into het what tells a repeated request from another one under its key.
func (d *draft) hetDigest(req *ctldpb.SubmitRequest, asked []*ctldpb.JobSpec, het *logpb.SubmitHet) ([]*job.Spec, error) {
	specs := make([]*job.Spec, len(asked))
	sum := sha256.New()
	for i, p := range asked {
		specs[i] = new(job.Spec)
		specFromAPI(specs[i], p)
		if i > 0 {
			specs[i].Script, specs[i].ScriptHash, specs[i].Args = nil, nil, nil
		}
		het.Specs[i] = new(logpb.JobSpec)
		fsm.SpecIntoLog(het.Specs[i], specs[i])
		text, err := fsm.AppendSpec(d.text[:0], het.Specs[i])
		if err != nil {
			return nil, refuse(codeInvalid, err.Error())
		}
		d.text = text
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		sum.Write(text)
	}
	if req.Key != "" {
		sum.Write(binary.BigEndian.AppendUint32(nil, req.Uid))
		het.Digest = sum.Sum(nil)
	}
	return specs, nil
}
