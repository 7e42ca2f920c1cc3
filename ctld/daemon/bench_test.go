package daemon

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"crypto/rand"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/leader"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/replica/raftbench"
	"github.com/tensorgrid/tensorgrid/ctld/server"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

var (
	benchSubmit  = flag.Bool("bench-submit", false, "measure durable submissions (make bench-submit)")
	benchSeconds = flag.Int("bench-seconds", 10, "seconds of each measurement")
	benchProfile = flag.String("bench-profile", "", "folder for profiles of the measured processes")
)

func TestMain(m *testing.M) {
	os.Exit(raftbench.Main(m, map[string]raftbench.Body{
		"method": benchBody(methodLoad), "batch": benchBody(batchLoad), "unary": benchBody(unaryLoad),
		"single": benchBody(arrayLoad("")), "array": benchBody(arrayLoad("0-9999")),
	}))
}

// benchUser submits.
const benchUser = 4242

// benchHall writes what the processes share: certificates, accounts, grid.conf.
func benchHall(t *testing.T) string {
	dir := t.TempDir()
	ca, err := authn.NewCA("bench", rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.WriteCert(dir); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("ClusterName=bench\nMaxJobCount=1000000000\nMaxArraySize=10001\n")
	for i := range raftbench.Replicas {
		name := fmt.Sprintf("c%d", i+1)
		pair, err := ca.Issue(authn.RoleCtld, name, 0, rand.Reader, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := pair.Write(dir, name); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "ControllerName=%s Address=127.0.0.1 Port=%d RaftPort=%d\n", name, 7000+2*i, 7001+2*i)
	}
	b.WriteString("NodeName=n[1-100] CPUs=64 RealMemory=256000\nPartitionName=batch Nodes=ALL Default=YES\n")
	for name, text := range map[string]string{"grid.conf": b.String(), "group": "users:x:100:\n",
		"passwd": fmt.Sprintf("bench:x:%d:100::/home/bench:/bin/sh\n", benchUser)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// bench is the leader of a measurement: the product's log, state, server and peer service.
type bench struct {
	srv  *server.Server
	ctx  context.Context // of a call by benchUser
	dir  string          // shared folder
	name string
	own  string // the process's own folder
}

type benchLoad func(ctx context.Context, b *bench, s raftbench.Shape) (*raftbench.Figures, error)

// benchBody runs one of the three controllers; raft goes over mutual TLS as in the product.
func benchBody(load benchLoad) raftbench.Body {
	return func(ctx context.Context, c raftbench.Child) (*raftbench.Figures, error) {
		go tuneGC(ctx)
		name, dir := c.Names[c.Index], filepath.Dir(c.Dir)
		id, err := authn.OpenIdentity(dir, name, time.Now)
		if err != nil {
			return nil, err
		}
		cfg, err := conf.Load(filepath.Join(dir, "grid.conf"))
		if err != nil {
			return nil, err
		}
		var voters []replica.Voter
		for i, n := range c.Names {
			voters = append(voters, replica.Voter{Name: n, Addr: c.Addrs[i]})
		}
		r, err := replica.Open(ctx, replica.Config{
			Name: name, Voters: voters, Dir: filepath.Join(c.Dir, "state"),
			Listener: newTLSListener(c.Listener, id.Server(authn.RoleCtld)), Dial: tlsDialer(id.Client(authn.RoleCtld)),
			Peers: func(string) (peerpb.PeerClient, error) { return nil, replica.ErrNoLeader },
			Now:   time.Now, Logger: quiet(),
			Bootstrap: true, // nobody answers here for the others
		}, fsm.New(state.New()))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		select {
		case <-r.Leadership():
		case <-ctx.Done():
			return nil, nil
		}
		if _, err := r.Propose(ctx, &logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: leader.SetConfig(cfg)}}); err != nil {
			return nil, err
		}
		auth := authn.NewAuthenticator(authn.NewAccounts(filepath.Join(dir, "passwd"), filepath.Join(dir, "group"), time.Now), nil)
		srv := server.New(server.Deps{Log: r, Auth: auth, Config: cfg, Encode: leader.SetConfig, Name: name, Now: time.Now, Logger: quiet()})
		b := &bench{srv: srv, ctx: authn.NewContext(ctx, auth.Person(benchUser, 100, 1)), dir: dir, name: name, own: c.Dir}
		return load(ctx, b, c.Shape)
	}
}

// benchSpec is a plain job: about 512 bytes in the log.
func benchSpec(array string) *ctldpb.JobSpec {
	return &ctldpb.JobSpec{
		Name: "train", WorkDir: "/home/bench/project", StdOut: "logs/%x-%j.out", Command: "/home/bench/project/train.sh",
		SubmitLine: "sbatch --ntasks=4 --cpus-per-task=8 --mem=32G -t 2:00:00 train.sh", SubmitHost: "login1",
		Script: []byte("#!/bin/bash\n#SBATCH --ntasks=4 --cpus-per-task=8\nmodule load cuda\nsrun python train.py --epochs 10\n"),
		Ntasks: 4, CpusPerTask: 8, MemPerNode: 32 << 30, TimeLimitMs: 7200000, Array: array, Umask: 0o22, Export: "ALL",
	}
}

func request(seq uint64, i int, array string) *ctldpb.SubmitRequest {
	req := &ctldpb.SubmitRequest{Spec: benchSpec(array)}
	rename(req, seq, i)
	return req
}

// rename makes a request different from those before: key and name are its own.
func rename(req *ctldpb.SubmitRequest, seq uint64, i int) {
	var b [48]byte
	name := string(strconv.AppendInt(append(strconv.AppendUint(append(b[:0], "train-k"...), seq, 10), '.'), int64(i), 10))
	req.Spec.Name, req.Key = name, name[len("train-"):]
}

// methodLoad: many callers of the server's own method. Each has one request that it changes, as
// bare raft's callers have one payload: what is measured is the server.
func methodLoad(ctx context.Context, b *bench, s raftbench.Shape) (*raftbench.Figures, error) {
	requests := make([]*ctldpb.SubmitRequest, s.Callers)
	for i := range requests {
		requests[i] = request(0, i, "")
	}
	return raftbench.Load(ctx, s, func(_ context.Context, caller int, seq uint64) error {
		rename(requests[caller], seq, 0)
		_, err := b.srv.Submit(b.ctx, requests[caller])
		return err
	}), nil
}

// arrayLoad: one caller after the other submits an array, or one job.
func arrayLoad(array string) benchLoad {
	return func(ctx context.Context, b *bench, s raftbench.Shape) (*raftbench.Figures, error) {
		return raftbench.Load(ctx, s, func(_ context.Context, _ int, seq uint64) error {
			_, err := b.srv.Submit(b.ctx, request(seq, 0, array))
			return err
		}), nil
	}
}

// forwarder is the peer service of the leader.
type forwarder struct {
	peerpb.UnimplementedPeerServer
	srv *server.Server
}

func (f forwarder) Forward(ctx context.Context, req *peerpb.ForwardRequest) (*peerpb.ForwardResponse, error) {
	return f.srv.Forward(ctx, req)
}

// batchLoad: batches over gRPC with mutual TLS, as a follower sends them on.
func batchLoad(ctx context.Context, b *bench, s raftbench.Shape) (*raftbench.Figures, error) {
	id, err := authn.OpenIdentity(b.dir, b.name, time.Now)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(id.Server())), grpc.MaxRecvMsgSize(server.MaxMessage),
		grpc.ChainUnaryInterceptor(b.srv.Auth.Unary()))
	peerpb.RegisterPeerServer(g, forwarder{srv: b.srv})
	go g.Serve(l)
	defer g.Stop()
	conns := make([]peerpb.PeerClient, 4)
	for i := range conns {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(id.Client(authn.RoleCtld))))
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		conns[i] = peerpb.NewPeerClient(conn)
	}
	who := &peerpb.Caller{Uid: benchUser, Gid: 100, Host: b.name}
	return raftbench.Load(ctx, s, func(ctx context.Context, caller int, seq uint64) error {
		return sendBatch(ctx, conns[caller%len(conns)], who, seq, s.PerCall)
	}), nil
}

// unaryLoad: single submissions over the users' socket, with peer credentials.
func unaryLoad(ctx context.Context, b *bench, s raftbench.Shape) (*raftbench.Figures, error) {
	dir, err := os.MkdirTemp("", "tgb")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	sock := filepath.Join(dir, "s")
	l, err := net.Listen("unix", sock)
	if err != nil {
		return nil, err
	}
	g := grpc.NewServer(grpc.Creds(authn.PeerCred()), grpc.MaxRecvMsgSize(server.MaxMessage),
		grpc.ChainUnaryInterceptor(b.srv.Auth.Unary(), b.srv.Forwarding()))
	ctldpb.RegisterControllerServer(g, b.srv)
	go g.Serve(l)
	defer g.Stop()
	conns := make([]ctldpb.ControllerClient, s.Callers)
	for i := range conns {
		conn, err := grpc.NewClient("unix:"+sock, grpc.WithTransportCredentials(authn.PeerCred()))
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		conns[i] = ctldpb.NewControllerClient(conn)
	}
	return raftbench.Load(ctx, s, func(ctx context.Context, caller int, seq uint64) error {
		req := request(seq, 0, "")
		if os.Getuid() == 0 {
			req.Uid = benchUser
		}
		_, err := conns[caller].Submit(ctx, req)
		return err
	}), nil
}
