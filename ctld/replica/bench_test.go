package replica

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica/raftbench"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

func TestMain(m *testing.M) {
	os.Exit(raftbench.Main(m, map[string]raftbench.Body{"replica": replicaBody(newSink), "fsm": replicaBody(newProduct)}))
}

// sink is a machine that only acknowledges, as bare raft's does: what is measured is the replica.
type sink struct{ ledger }

func newSink() Machine {
	s := &sink{}
	s.now.Store(&ledgerState{})
	return s
}

func (s *sink) ApplyEntry(index uint64, data []byte) ([]fsm.Result, error) {
	n := 0
	for d := data; len(d) > 0; {
		field, _, at := protowire.ConsumeField(d)
		if at < 0 {
			return nil, protowire.ParseError(at)
		}
		if field == fieldCommands {
			n++
		}
		d = d[at:]
	}
	return make([]fsm.Result, n), nil
}

func newProduct() Machine { return fsmMachine{fsm.New(state.New())} }

// replicaBody measures our replica over a machine in three processes.
func replicaBody(machine func() Machine) raftbench.Body {
	return func(ctx context.Context, c raftbench.Child) (*raftbench.Figures, error) {
		cfg := Config{
			Name: c.Names[c.Index], Dir: c.Dir, Listener: c.Listener, Dial: dialTCP,
			Peers:     func(string) (peerpb.PeerClient, error) { return nil, errCut },
			Bootstrap: true,
			Now:       time.Now, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		}
		for i, n := range c.Names {
			cfg.Voters = append(cfg.Voters, Voter{Name: n, Addr: c.Addrs[i]})
		}
		r, err := OpenMachine(ctx, cfg, machine())
		if err != nil {
			return nil, err
		}
		defer r.Close()
		select {
		case <-r.Leadership():
		case <-ctx.Done():
			return nil, nil
		}
		config := &logpb.SetConfig{FirstJobId: 1, MaxJobCount: 1 << 30, MaxArraySize: 10,
			Nodes:      []*logpb.ConfigNode{{Name: "n1", Cpus: 4, Mem: 1 << 30}},
			Partitions: []*logpb.ConfigPartition{{Name: "p", IsDefault: true, Nodes: []string{"n1"}, State: "UP"}}}
		if _, err := r.Propose(ctx, &logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: config}}); err != nil {
			return nil, err
		}
		return raftbench.Load(ctx, c.Shape, func(ctx context.Context, _ int, seq uint64) error {
			cmds := make([]*logpb.Command, max(1, c.Shape.PerCall))
			for i := range cmds {
				cmds[i] = submission(fmt.Sprintf("%016x%08x", seq, i), c.Shape.CommandBytes)
			}
			res, err := r.Propose(ctx, cmds...)
			if err == nil && res[0].Refused != nil {
				return fmt.Errorf("refused: %s", res[0].Refused.Text)
			}
			return err
		}), nil
	}
}

// submission is a small job of about size encoded bytes.
func submission(key string, size int) *logpb.Command {
	spec := &logpb.JobSpec{
		Name: "train", Partition: "p", MinNodes: 1, MaxNodes: 1, Ntasks: 1, CpusPerTask: 1,
		Uid: 1000, Gid: 1000, User: "u", WorkDir: "/home/u", TimeLimitMs: 3600000,
	}
	c := &logpb.Command{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Key: key, Digest: make([]byte, 32), Spec: spec}}}
	if pad := size - proto.Size(c) - 8; pad > 0 {
		spec.Script = make([]byte, pad)
	}
	return c
}

// BenchmarkDurable measures durable commands on three processes that share one disk: bare raft,
// this replica over a machine that only acknowledges, and over the product's.
//
//	go test -run '^$' -bench Durable -benchtime 1x ./ctld/replica
func BenchmarkDurable(b *testing.B) {
	for _, body := range []string{"bare", "replica", "fsm"} {
		for _, callers := range []int{2048, 64, 1} {
			b.Run(fmt.Sprintf("%s/%d", body, callers), func(b *testing.B) {
				shape := raftbench.Headline
				shape.Callers = callers
				for range b.N {
					f, err := raftbench.Run(b.Context(), b.TempDir(), body, shape)
					if err != nil {
						b.Fatal(err)
					}
					b.Log(f)
					b.ReportMetric(f.PerSecond, "commands/s")
					b.ReportMetric(float64(f.P50.Microseconds())/1000, "p50-ms")
					b.ReportMetric(float64(f.P99.Microseconds())/1000, "p99-ms")
					b.ReportMetric(float64(f.CPU.Microseconds()), "leader-us/command")
					if f.Errors > 0 {
						b.Errorf("%d errors, the last: %s", f.Errors, f.LastError)
					}
				}
			})
		}
	}
}

// TestProcesses runs the measurement's machinery for a moment, so that it does not rot.
func TestProcesses(t *testing.T) {
	shape := raftbench.Shape{Callers: 8, CommandBytes: 512, PerCall: 1, Duration: 200 * time.Millisecond}
	for _, body := range []string{"bare", "replica", "fsm"} {
		f, err := raftbench.Run(t.Context(), t.TempDir(), body, shape)
		if err != nil || f.Count == 0 || f.Errors > 0 || f.P99 < f.P50 {
			t.Errorf("%s: %v, %v", body, f, err)
		}
	}
	if _, err := raftbench.Run(t.Context(), t.TempDir(), "none", shape); err == nil {
		t.Error("a body that is not there runs")
	}
}
