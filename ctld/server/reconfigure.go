package server

import (
	"context"
	"errors"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/conf"
)

// ShowConfig lists the configuration in force on this controller.
func (s *Server) ShowConfig(ctx context.Context, _ *ctldpb.ShowConfigRequest) (*ctldpb.ShowConfigResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	cfg := s.Config()
	out := &ctldpb.ShowConfigResponse{Ignored: notes(cfg.Ignored)}
	for _, l := range cfg.Show() {
		out.Lines = append(out.Lines, &ctldpb.ConfigLine{Key: l.Key, Value: l.Value})
	}
	return out, nil
}

func notes(list []conf.Note) []string {
	var out []string
	for _, n := range list {
		out = append(out, n.String())
	}
	return out
}

// Reconfigure reads the file again and puts it into force, or tells everything that is wrong with
// it and changes nothing. The other controllers follow when the log brings them the new digest.
func (s *Server) Reconfigure(ctx context.Context, req *ctldpb.ReconfigureRequest) (*ctldpb.ReconfigureResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	s.reload.Lock()
	defer s.reload.Unlock()
	old := s.Config()
	next, err := s.Load(old.Source)
	if err != nil {
		var problems conf.Problems
		if errors.As(err, &problems) {
			return &ctldpb.ReconfigureResponse{Problems: notes(problems)}, nil
		}
		return &ctldpb.ReconfigureResponse{Problems: []string{err.Error()}}, nil
	}
	out := &ctldpb.ReconfigureResponse{Ignored: notes(next.Ignored)}
	out.Changed, out.NeedsRestart = conf.Diff(old, next)
	if view := s.Log.View(); view.Config().Digest != "" && view.Config().Digest != old.Digest() && len(out.Changed) == 0 {
		out.Changed = []string{"the cluster ran under another file: " + differing(view, next)}
	}
	if req.DryRun {
		return out, nil
	}
	res, err := s.Log.Propose(ctx, &logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: s.Encode(next)}})
	if err != nil {
		return nil, logError(err)
	}
	if r := res[0].Refused; r != nil {
		out.Problems = []string{r.Text + ": " + r.Why}
		out.Changed, out.NeedsRestart = nil, nil
		return out, nil
	}
	s.setConfig(next)
	s.Logger.Info("configuration reloaded", "changed", len(out.Changed), "needs_restart", len(out.NeedsRestart))
	return out, nil
}

// Follow takes this controller's own file into force when another controller has put a new
// configuration into the log. It runs until ctx ends.
func (s *Server) Follow(ctx context.Context) {
	seen := ""
	for {
		view := s.Log.View()
		if digest := view.Config().Digest; digest != "" && digest != seen {
			seen = digest
			s.catchUp(digest)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.Log.Changed(view.Index()):
			if sleep(ctx, firstWait) != nil {
				return
			}
		}
	}
}

func (s *Server) catchUp(digest string) {
	s.reload.Lock()
	defer s.reload.Unlock()
	if s.Config().Digest() == digest {
		return
	}
	next, err := s.Load(s.Config().Source)
	switch {
	case err != nil:
		s.Logger.Error("the cluster has a new configuration, but the file here cannot be used", "file", s.Config().Source, "err", err)
	case next.Digest() != digest:
		// Who may do what is such a key: whoever lost a role elsewhere keeps it here.
		s.Logger.Warn("the configuration file here differs from the one the cluster runs under, and this controller goes on with what it had read before; make the files the same and say gctl reconfigure",
			"file", next.Source, "differs", differing(s.Log.View(), next))
	default:
		s.setConfig(next)
		s.Logger.Info("configuration reloaded with the cluster")
	}
}
