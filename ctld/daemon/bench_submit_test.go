package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/replica/raftbench"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// sendBatch forwards one SubmitBatch and checks that all of it was taken.
func sendBatch(ctx context.Context, to peerpb.PeerClient, who *peerpb.Caller, seq uint64, n int) error {
	req := &ctldpb.SubmitBatchRequest{Requests: make([]*ctldpb.SubmitRequest, n)}
	for i := range req.Requests {
		req.Requests[i] = request(seq, i, "")
	}
	data, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	out, err := to.Forward(ctx, &peerpb.ForwardRequest{Method: authn.ControllerService + "SubmitBatch", Request: data, Caller: who})
	if err != nil {
		return err
	}
	if out.StatusCode != 0 {
		return fmt.Errorf("code %d: %s", out.StatusCode, out.StatusMessage)
	}
	var resp ctldpb.SubmitBatchResponse
	if err := proto.Unmarshal(out.Response, &resp); err != nil {
		return err
	}
	for _, r := range resp.Results {
		if r.Ok.GetJobId() == 0 {
			return fmt.Errorf("refused: %v", r.Refusal)
		}
	}
	return nil
}

// figure prints one measured line and tells whether it reached its target.
func figure(t *testing.T, name string, value float64, unit string, target float64) {
	verdict := "ok"
	if value < target {
		verdict = "short"
		t.Errorf("%s is %.2f %s, the target is %.2f", name, value, unit, target)
	}
	fmt.Printf("figure %s %.2f %s (target >= %.2f) %s\n", name, value, unit, target, verdict)
}

// measure runs one body with that load and prints what came of it.
func measure(t *testing.T, body string, shape raftbench.Shape) raftbench.Figures {
	t.Helper()
	shape.Warmup, shape.Duration = 2*time.Second, time.Duration(*benchSeconds)*time.Second
	shape.Profile = *benchProfile
	dir := benchHall(t)
	f, err := raftbench.Run(t.Context(), dir, body, shape)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if f.Errors > 0 {
		t.Errorf("%s: %d errors, the last: %s", body, f.Errors, f.LastError)
	}
	fmt.Printf("%-7s %s\n", body, f)
	for _, name := range []string{"c1", "c2", "c3"} {
		os.RemoveAll(filepath.Join(dir, name))
	}
	return f
}

// median is the middle one of three rates.
func median(rates []float64) float64 {
	rates = slices.Sorted(slices.Values(rates))
	return rates[len(rates)/2]
}

// TestBenchSubmit measures durable submissions on three processes that share one disk, beside bare
// raft and bolt with the same batching, in the same run: the two by turns, three times.
func TestBenchSubmit(t *testing.T) {
	if !*benchSubmit {
		t.Skip("a measurement: make bench-submit")
	}
	t.Run("method", func(t *testing.T) {
		var bare, method []float64
		for range 3 {
			bare = append(bare, measure(t, "bare", raftbench.Headline).PerSecond)
			method = append(method, measure(t, "method", raftbench.Headline).PerSecond)
		}
		figure(t, "submit-bare", median(bare), "submissions/s", 0)
		figure(t, "submit-method", median(method), "submissions/s", 20000)
		figure(t, "submit-method-of-bare", median(method)/median(bare), "ratio", 0.5)
	})
	t.Run("batch", func(t *testing.T) {
		batch := measure(t, "batch", raftbench.Shape{Callers: 16, PerCall: 256, CommandBytes: 512})
		figure(t, "submit-batch-tls", batch.PerSecond, "submissions/s", 10000)
	})
	t.Run("unary", func(t *testing.T) {
		unary := measure(t, "unary", raftbench.Shape{Callers: 64, PerCall: 1, CommandBytes: 512})
		figure(t, "submit-unary-64", unary.PerSecond, "submissions/s", 0)
		figure(t, "submit-unary-64-cpu", float64(unary.CPU.Microseconds()), "us/submission, client and leader", 0)
	})
	t.Run("array", func(t *testing.T) {
		single := measure(t, "single", raftbench.Shape{Callers: 1, PerCall: 1, CommandBytes: 512})
		array := measure(t, "array", raftbench.Shape{Callers: 1, PerCall: 1, CommandBytes: 512})
		figure(t, "one-job-over-array-of-10000", float64(single.P50)/float64(array.P50), "ratio of p50 latency", 1.0/3)
	})
}
