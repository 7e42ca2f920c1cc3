package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// stallTimeout ends a backup that does not come along.
const stallTimeout = 60 * time.Second

// backupLimit bounds one backup.
const backupLimit = 24 * time.Hour

// Backup says what a backup is of.
type Backup struct {
	Cluster string
	Index   uint64
	TimeMS  int64
	Feature uint32
	Bytes   int64
	SHA256  []byte
}

// errStalled: no bytes for stallTimeout.
var errStalled = errors.New("the backup does not come along")

// SaveSnapshot writes a backup of the cluster to what begin gives, which is called again when another controller
// has to be asked after some bytes; it is not when again is false and bytes have been written. The backup is whole
// and as the controller sent it when there is no error.
func (c *Client) SaveSnapshot(ctx context.Context, begin func() (io.Writer, error), again bool) (*Backup, error) {
	var b *Backup
	written := false
	err := c.do(ctx, backupLimit, backupLimit, func(ctx context.Context, cc ctldpb.ControllerClient) error {
		if written && !again {
			return &Refusal{Code: "CUT", Text: "the backup was cut short", Why: "the controller went away in the middle; try again"}
		}
		w, err := begin()
		if err != nil {
			return err
		}
		b, err = receive(ctx, cc, w, &written)
		return err
	})
	return b, err
}

// receive takes one stream to its end and compares the sums.
func receive(ctx context.Context, cc ctldpb.ControllerClient, w io.Writer, written *bool) (*Backup, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(stallTimeout, func() { cancel(errStalled) })
	defer watch.Stop()
	stalled := func(err error) error {
		if errors.Is(context.Cause(ctx), errStalled) {
			return status.Errorf(codes.Unavailable, "no byte of the backup came for %s", stallTimeout)
		}
		return err
	}
	stream, err := cc.SaveSnapshot(ctx, &ctldpb.SaveSnapshotRequest{})
	if err != nil {
		return nil, stalled(err)
	}
	b, sum := &Backup{}, sha256.New()
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, stalled(err)
		}
		watch.Reset(stallTimeout)
		if m.Index != 0 {
			b.Index, b.TimeMS, b.Feature, b.Cluster = m.Index, m.TimeMs, m.Feature, m.Cluster
		}
		if len(m.Sha256) > 0 {
			b.SHA256 = m.Sha256
		}
		if len(m.Data) == 0 {
			continue
		}
		*written = true
		sum.Write(m.Data)
		n, err := w.Write(m.Data)
		b.Bytes += int64(n)
		if err != nil {
			return nil, err
		}
	}
	switch have := sum.Sum(nil); {
	case b.Bytes == 0 || len(b.SHA256) == 0:
		return nil, &Refusal{Code: "CUT", Text: "the backup was cut short", Why: fmt.Sprintf("%d bytes came and no sum over them; try again", b.Bytes)}
	case !bytes.Equal(have, b.SHA256):
		return nil, &Refusal{Code: "SUM", Text: "the backup was damaged on its way", Why: fmt.Sprintf("the controller sent sha256 %x, what came has %x; try again", b.SHA256, have)}
	}
	return b, nil
}

// Ping asks one controller after the other until one answers.
func (c *Client) Ping(ctx context.Context) (*ctldpb.PingResponse, error) {
	var res *ctldpb.PingResponse
	err := c.Do(ctx, func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.Ping(ctx, &ctldpb.PingRequest{})
		return err
	})
	return res, err
}
