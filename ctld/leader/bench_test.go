package leader

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// startBench brings up a leader with so many one-node agents that answer each launch and report at once.
func startBench(b *testing.B, ctx context.Context, nodes int) (*Leader, *replicaOf) {
	cfg := testConfig()
	first := cfg.Nodes[0]
	cfg.Nodes, cfg.Partitions[0].Nodes = nil, nil
	for i := range nodes {
		first.Name = fmt.Sprintf("n%04d", i)
		cfg.Nodes = append(cfg.Nodes, first)
		cfg.Partitions[0].Nodes = append(cfg.Partitions[0].Nodes, first.Name)
	}
	_, key, _ := ed25519.GenerateKey(zeros{})
	r := newMemLog().replica("c1")
	l := New(Deps{Log: r, Name: "c1", Config: func() *conf.Config { return cfg }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Signer: func() (ed25519.PrivateKey, []byte) { return key, make([]byte, 400) }, Address: func(string) string { return "" }})
	go l.Run(ctx)
	r.win(ctx)
	for l.current() == nil {
		<-r.Changed(r.View().Index())
	}
	for i := range nodes {
		name := cfg.Nodes[i].Name
		a := &agent{name: name, in: make(chan *nodepb.AgentMessage, 16), out: make(chan *nodepb.ControllerMessage, 16), err: make(chan error, 1)}
		a.ctx, a.cancel = context.WithCancel(nodeContext(ctx, name))
		go func() { a.err <- l.Session(a) }()
		a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Hello{Hello: hello(name)}})
		<-a.out
		go a.serve()
	}
	return l, r
}

// serve answers launches and reports their end.
func (a *agent) serve() {
	for {
		select {
		case <-a.ctx.Done():
			return
		case m := <-a.out:
			list := m.GetLaunch().GetLaunches()
			if len(list) == 0 {
				continue
			}
			results, reports := &nodepb.LaunchResults{}, &nodepb.Reports{}
			for _, x := range list {
				results.Results = append(results.Results, &nodepb.LaunchResult{Key: x.Key, Ok: true})
				reports.Reports = append(reports.Reports, &nodepb.Report{Key: x.Key})
			}
			a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Launched{Launched: results}})
			a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Reports{Reports: reports}})
		}
	}
}

// Jobs that do nothing, from pending to completed: planning, signing and driving, without a disk or
// a network.
func BenchmarkJobs(b *testing.B) {
	for _, nodes := range []int{1, 4, 1000} {
		b.Run(fmt.Sprint("nodes=", nodes), func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			_, r := startBench(b, ctx, nodes)
			const jobs = 2000
			for b.Loop() {
				var cmds []*logpb.Command
				for range jobs {
					cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Submit{Submit: &logpb.Submit{
						Spec: fsm.SpecToLog(&job.Spec{Script: []byte("#!/bin/sh\n"), UID: 1, GID: 1, User: "ada", WorkDir: "/tmp"})}}})
				}
				if _, err := r.Propose(ctx, cmds...); err != nil {
					b.Fatal(err)
				}
				for view := r.View(); ; view = r.View() {
					changed := r.Changed(view.Index())
					if _, pending, running := view.Counts(); pending+running == 0 {
						break
					}
					<-changed
				}
			}
			b.ReportMetric(float64(jobs*b.N)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}

func BenchmarkBuildLaunch(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	l, r := startBench(b, ctx, 1)
	var env bytes.Buffer
	for i := range 60 {
		fmt.Fprintf(&env, "VARIABLE_%d=some value of usual length\x00", i)
	}
	r.mu.Lock()
	hash := (&bench{log: r.memLog}).blobLocked(env.Bytes())
	results, err := r.apply([]*logpb.Command{{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Spec: fsm.SpecToLog(&job.Spec{
		Script: []byte("#!/bin/sh\n"), EnvHash: hash, UID: 1, GID: 1, User: "ada", WorkDir: "/tmp", Hold: true})}}}})
	r.mu.Unlock()
	if err != nil || results[0].Refused != nil {
		b.Fatal(err, results)
	}
	view := r.View()
	j := *view.Job(results[0].JobID)
	j.Partition, j.Allocs = "main", []job.NodeAlloc{{Node: "n0000", CPUs: 1, Tasks: 1}}
	for b.Loop() {
		if _, err := l.buildLaunch(view, &j, "n0000"); err != nil {
			b.Fatal(err)
		}
	}
}
