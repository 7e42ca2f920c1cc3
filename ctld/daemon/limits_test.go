package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/server"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// TestSocketTakesTheLargestJob: the users' socket admits a script at its limit with long arguments and
// an environment at its limit, and refuses one byte more with the limit's name.
func TestSocketTakesTheLargestJob(t *testing.T) {
	dir := shortDir(t)
	_, cfg := newHall(t, dir, 1, "")
	h := &hall{t, dir, cfg}
	h.start("c1")
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	c := h.client("c1")
	uid := uint32(os.Getuid())
	if uid == 0 {
		uid = 65534
	}
	script := append([]byte("#!/bin/sh\n"), bytes.Repeat([]byte("#"), job.MaxScript-10)...)
	env := bytes.Repeat([]byte("A=b\x00"), job.MaxEnv/4)
	if _, err := c.PutBlob(ctx, &ctldpb.PutBlobRequest{Data: env}); err != nil {
		t.Fatalf("an environment of MaxEnv: %v", err)
	}
	hash := sha256.Sum256(env)
	req := &ctldpb.SubmitRequest{Uid: uid, Spec: &ctldpb.JobSpec{
		WorkDir: "/tmp", Script: script, EnvHash: hash[:], Args: []string{strings.Repeat("a", job.MaxEnv/4)}}}
	if r, err := c.Submit(ctx, req); err != nil || r.JobId == 0 {
		t.Errorf("a script of MaxScript: %v", err)
	}
	req.Spec.Script = append(script, '#')
	if _, err := c.Submit(ctx, req); err == nil || !strings.Contains(status.Convert(err).Message(), "MaxScript is 4194304") {
		t.Errorf("one byte more: %v", err)
	}
	_, err := c.PutBlob(ctx, &ctldpb.PutBlobRequest{Data: make([]byte, server.MaxMessage)})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "8388608") {
		t.Errorf("a message over MaxMessage: %v", err)
	}
	if _, err := c.PutBlob(ctx, &ctldpb.PutBlobRequest{Data: make([]byte, server.MaxBlob+1)}); err == nil || !strings.Contains(err.Error(), "MaxBlob (4194304)") {
		t.Errorf("a blob over MaxBlob: %v", err)
	}
}
