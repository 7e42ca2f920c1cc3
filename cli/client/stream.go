package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// streamLimit bounds a whole list that comes in pieces; each piece has TryTimeout.
const streamLimit = 10 * time.Minute

// ErrPage wraps what a taker of pages refuses; no other controller is asked then.
var ErrPage = errors.New("page not taken")

// StreamJobs gives a list to page as its pieces come, so that a long queue is never held in memory at once. begin is called
// before the first piece, and again when another controller has to be asked from the start; when it gives an error, as
// after pieces have gone out that cannot be taken back, the list ends. A controller that does not know the call gives its
// list in one.
func (c *Client) StreamJobs(ctx context.Context, req *ctldpb.ListJobsRequest, begin func() error, page func(*ctldpb.ListJobsResponse) error) error {
	return c.do(ctx, streamLimit, streamLimit, func(ctx context.Context, cc ctldpb.ControllerClient) error {
		if err := begin(); err != nil {
			return fmt.Errorf("%w: %w", ErrPage, err)
		}
		err := pages(ctx, cc.StreamJobs, req, page)
		if status.Code(err) == codes.Unimplemented {
			err = pages(ctx, cc.ListJobs, req, page)
		}
		return err
	})
}

// pages reads one stream. A controller that gives no piece for TryTimeout counts as one that hangs.
func pages[S interface {
	Recv() (*ctldpb.ListJobsResponse, error)
}, O any](ctx context.Context, call func(context.Context, *ctldpb.ListJobsRequest, ...O) (S, error), req *ctldpb.ListJobsRequest, page func(*ctldpb.ListJobsResponse) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var hung atomic.Bool
	watch := time.AfterFunc(TryTimeout, func() { hung.Store(true); cancel() })
	defer watch.Stop()
	stream, err := call(ctx, req)
	for err == nil {
		var res *ctldpb.ListJobsResponse
		if res, err = stream.Recv(); err != nil {
			break
		}
		watch.Stop() // the taker's time is not the controller's
		if err := page(res); err != nil {
			return fmt.Errorf("%w: %w", ErrPage, err)
		}
		watch.Reset(TryTimeout)
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case hung.Load():
		return fmt.Errorf("%w: %w", errHung, err)
	}
	return err
}
