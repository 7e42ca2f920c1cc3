package raftbench

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"time"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// The batching that is measured: it and the library's settings are the replica's.
const (
	entryCommands = 256
	entryBytes    = 128 << 10
	inFlight      = 8
)

// counter is a state machine that only acknowledges: an entry holds commands behind their lengths.
type counter struct{ applied int }

func (c *counter) Apply(l *raft.Log) any { return c.ApplyBatch([]*raft.Log{l})[0] }

func (c *counter) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		n := 0
		for d := l.Data; len(d) >= 4; n++ {
			d = d[4+binary.LittleEndian.Uint32(d):]
		}
		c.applied += n
		out[i] = n
	}
	return out
}

func (c *counter) Snapshot() (raft.FSMSnapshot, error) { return c, nil }
func (c *counter) Restore(rc io.ReadCloser) error      { return rc.Close() }
func (c *counter) Persist(sink raft.SnapshotSink) error {
	return sink.Close()
}
func (c *counter) Release() {}

// tcp is raft's network on a listener that the parent has opened.
type tcp struct{ net.Listener }

func (t tcp) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", string(addr), timeout)
}

// bare is the body of the floor: raft on bolt, one batching goroutine, nothing else.
func bare(ctx context.Context, c Child) (*Figures, error) {
	r, closeAll, err := openBare(c)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	for {
		select {
		case won := <-r.LeaderCh():
			if !won {
				continue
			}
			if err := r.Barrier(0).Error(); err != nil {
				continue
			}
			return loadBare(ctx, r, c.Shape), nil
		case <-ctx.Done():
			return nil, nil
		}
	}
}

func openBare(c Child) (*raft.Raft, func(), error) {
	logger := hclog.NewNullLogger()
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(c.Names[c.Index])
	rc.HeartbeatTimeout, rc.ElectionTimeout = 500*time.Millisecond, 500*time.Millisecond
	rc.LeaderLeaseTimeout = 400 * time.Millisecond
	rc.CommitTimeout = 20 * time.Millisecond
	rc.MaxAppendEntries = 32
	rc.BatchApplyCh = true
	rc.TrailingLogs = 512
	rc.SnapshotThreshold = 1 << 62
	rc.Logger = logger
	store, err := raftboltdb.New(raftboltdb.Options{
		Path:                    filepath.Join(c.Dir, "raft.db"),
		BoltOptions:             &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		return nil, nil, err
	}
	logs, err := raft.NewLogCache(128, store)
	if err != nil {
		return nil, nil, err
	}
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Logger: logger, Stream: tcp{c.Listener}, MaxPool: 3, MaxRPCsInFlight: 1, Timeout: 10 * time.Second,
		MsgpackUseNewTimeFormat: true,
	})
	var cluster raft.Configuration
	for i, name := range c.Names {
		cluster.Servers = append(cluster.Servers, raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(c.Addrs[i])})
	}
	snaps := raft.NewInmemSnapshotStore()
	if err := raft.BootstrapCluster(rc, logs, store, snaps, transport, cluster); err != nil {
		return nil, nil, err
	}
	r, err := raft.NewRaft(rc, &counter{}, logs, store, snaps, transport)
	if err != nil {
		return nil, nil, err
	}
	return r, func() { r.Shutdown(); _ = transport.Close() }, nil
}

// caller is one submission that waits.
type caller struct {
	data []byte
	done chan error
}

func loadBare(ctx context.Context, r *raft.Raft, s Shape) *Figures {
	queue := make(chan *caller, s.Callers)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go batchBare(ctx, r, queue)
	payload := make([]byte, s.CommandBytes)
	return Load(ctx, s, func(ctx context.Context, _ int, seq uint64) error {
		c := &caller{data: append([]byte(nil), payload...), done: make(chan error, 1)}
		binary.LittleEndian.PutUint64(c.data, seq)
		queue <- c
		select {
		case err := <-c.done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func batchBare(ctx context.Context, r *raft.Raft, queue <-chan *caller) {
	slots := make(chan struct{}, inFlight)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		var batch []*caller
		var data []byte
		select {
		case c := <-queue:
			batch, data = append(batch, c), appendCommand(data, c.data)
		case <-ctx.Done():
			return
		}
	gather:
		for len(batch) < entryCommands && len(data)+len(batch[0].data) <= entryBytes {
			select {
			case c := <-queue:
				batch, data = append(batch, c), appendCommand(data, c.data)
			default:
				break gather
			}
		}
		f := r.Apply(data, 0)
		go func() {
			err := f.Error()
			<-slots
			for _, c := range batch {
				c.done <- err
			}
		}()
	}
}

func appendCommand(to, data []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(to, uint32(len(data))), data...)
}
