package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
)

// Bounds of backups.
const (
	backupChunk = 256 << 10 // bytes of one SaveSnapshotResponse
	backupsMost = 2         // under way at one time: each keeps an old state in memory
)

// Backup writes the whole state, of which everything that was acknowledged before is part.
type Backup interface {
	SaveSnapshot(ctx context.Context, w io.Writer) (replica.Saved, error)
}

// SaveSnapshot streams a backup: what it is of, then its bytes, with the last of them their SHA-256. Any
// controller answers, after it has seen that it lacks nothing.
func (s *Server) SaveSnapshot(_ *ctldpb.SaveSnapshotRequest, out grpc.ServerStreamingServer[ctldpb.SaveSnapshotResponse]) error {
	ctx := out.Context()
	if _, err := caller(ctx); err != nil {
		return err
	}
	if s.Backup == nil {
		return refuse("ESLURM_NOT_SUPPORTED", "this controller has no replica")
	}
	select {
	case s.saving <- struct{}{}:
		defer func() { <-s.saving }()
	default:
		return refuse(codeBusy, fmt.Sprintf("%d backups are being made here at present; try again later", backupsMost))
	}
	if _, err := s.readRetry(ctx); err != nil { // waits for a leader
		return logError(err)
	}
	w := &backupStream{out: out, cluster: s.Config().ClusterName}
	saved, err := s.Backup.SaveSnapshot(ctx, w)
	if err != nil {
		return logError(err)
	}
	return w.finish(saved)
}

// backupStream cuts a backup into messages.
type backupStream struct {
	out     grpc.ServerStreamingServer[ctldpb.SaveSnapshotResponse]
	cluster string
	buf     []byte
	said    bool
}

// Write implements io.Writer.
func (w *backupStream) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if len(w.buf) == backupChunk {
			if err := w.flush(nil); err != nil {
				return n - len(b), err
			}
		}
		take := min(len(b), backupChunk-len(w.buf))
		w.buf, b = append(w.buf, b[:take]...), b[take:]
	}
	return n, nil
}

// flush sends what is gathered; sum is set with the last.
func (w *backupStream) flush(sum []byte) error {
	if !w.said {
		head, err := backupHeader(w.buf)
		if err != nil {
			return err
		}
		if err := w.out.Send(&ctldpb.SaveSnapshotResponse{Index: head.Index, TimeMs: head.TimeMs, Feature: head.Version, Cluster: w.cluster}); err != nil {
			return err
		}
		w.said = true
	}
	err := w.out.Send(&ctldpb.SaveSnapshotResponse{Data: w.buf, Sha256: sum})
	w.buf = nil // the message may still be on its way
	return err
}

func (w *backupStream) finish(saved replica.Saved) error { return w.flush(saved.SHA256[:]) }

// backupHeader reads the first record of a snapshot.
func backupHeader(b []byte) (*logpb.SnapshotHeader, error) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, errors.New("the snapshot has no header")
	}
	record := &logpb.SnapshotRecord{}
	if err := proto.Unmarshal(b[n:n+int(size)], record); err != nil {
		return nil, fmt.Errorf("the snapshot's header: %w", err)
	}
	if record.GetHeader() == nil {
		return nil, errors.New("the snapshot does not begin with a header")
	}
	return record.GetHeader(), nil
}
