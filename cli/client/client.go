// Package client is the way from a command to the controllers: it finds them, tries one after the
// other on their local sockets or, from another host, on their ports for users, and repeats a call whose outcome is not known; calls that change
// something carry a key, so a repeat happens once.
package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// Limits of one call.
const (
	MessageTimeout = 20 * time.Second // all tries of a call, while some controller answers
	TryTimeout     = 10 * time.Second // one try: a controller that hangs must not eat the whole time
	ConnectTimeout = 3 * time.Second  // while none does
	MaxMessage     = 64 << 20         // bytes of one answer
	firstPause     = 25 * time.Millisecond
	lastPause      = 500 * time.Millisecond
)

// Target is one controller as seen from this host: its socket or, on another host, its address.
type Target struct{ Name, Socket, Address string }

// Client talks to the controllers. Safe for concurrent use.
type Client struct {
	targets []Target
	cluster string
	remote  *remote // nil: by local sockets

	mu    sync.Mutex
	conns []*link // by target; nil = not connected
	good  int     // index of the target that answered last
}

// New gives a client of these controllers. It connects at the first call.
func New(cluster string, targets []Target) *Client {
	return &Client{targets: targets, cluster: cluster, conns: make([]*link, len(targets))}
}

// Cluster is the cluster's name, "" when it is not known.
func (c *Client) Cluster() string { return c.cluster }

// Targets lists the controllers in the configuration's order.
func (c *Client) Targets() []Target { return c.targets }

// Close ends all connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, conn := range c.conns {
		if conn != nil {
			conn.Close()
			c.conns[i] = nil
		}
	}
}

var (
	// errConnect: the socket of a controller cannot be reached.
	errConnect = errors.New("connect failure")
	// errHung: a controller took the call and gave no answer in time.
	errHung = errors.New("no answer in time")
)

// connect gives the connection to target i. It is opened here, so that a dead controller is told apart
// from one that answers with an error.
func (c *Client) connect(ctx context.Context, i int) (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns[i] != nil {
		return c.conns[i], nil
	}
	d := net.Dialer{Timeout: time.Second}
	network, address := "unix", c.targets[i].Socket
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if c.remote != nil {
		d.Timeout = ConnectTimeout
		network, address, opts = "tcp", c.targets[i].Address, c.remote.options()
	}
	first, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errConnect, err)
	}
	l := &link{first: first}
	l.ClientConn, err = grpc.NewClient("passthrough:///"+c.targets[i].Name, append(opts,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if nc := l.take(); nc != nil {
				return nc, nil
			}
			return d.DialContext(ctx, network, address)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, MaxDelay: lastPause},
			MinConnectTimeout: d.Timeout,
		}))...)
	if err != nil {
		first.Close()
		return nil, fmt.Errorf("%w: %w", errConnect, err)
	}
	c.conns[i] = l
	return l, nil
}

// link is a connection. Its first socket is opened before grpc wants it, which may be never.
type link struct {
	*grpc.ClientConn

	mu    sync.Mutex
	first net.Conn
}

func (l *link) take() net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	nc := l.first
	l.first = nil
	return nc
}

// Close ends the connection and the socket that was never used.
func (l *link) Close() {
	l.ClientConn.Close()
	if nc := l.take(); nc != nil {
		nc.Close()
	}
}

func (c *Client) drop(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns[i] != nil {
		c.conns[i].Close()
		c.conns[i] = nil
	}
}

// Do makes a call, at each controller in turn until one gives an answer that counts. call may run
// more than once and must be safe to repeat. The error is a *Refusal or one of this package.
func (c *Client) Do(ctx context.Context, call func(context.Context, ctldpb.ControllerClient) error) error {
	return c.do(ctx, MessageTimeout, TryTimeout, call)
}

func (c *Client) do(ctx context.Context, limit, try time.Duration, call func(context.Context, ctldpb.ControllerClient) error) error {
	if len(c.targets) == 0 {
		return &Refusal{Code: "NO_CONTROLLER", Text: "Unable to contact slurm controller (connect failure)",
			Why: "the configuration names no controller"}
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	answered := false
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		for k := range c.targets {
			i := (c.lastGood() + k) % len(c.targets)
			err := c.try(ctx, i, try, call)
			if err == nil || !repeatable(err) {
				if !errors.Is(err, errConnect) {
					c.setGood(i)
				}
				return translate(err)
			}
			if !errors.Is(err, errConnect) || last == nil {
				last = err
			}
			answered = answered || !errors.Is(err, errConnect)
		}
		if ctx.Err() != nil || !answered && time.Since(begin) > ConnectTimeout {
			return translate(last)
		}
		select {
		case <-ctx.Done():
			return translate(last)
		case <-time.After(pause):
		}
	}
}

func (c *Client) try(ctx context.Context, i int, limit time.Duration, call func(context.Context, ctldpb.ControllerClient) error) error {
	conn, err := c.connect(ctx, i)
	if err != nil {
		return err
	}
	once, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = call(once, ctldpb.NewControllerClient(conn))
	// The controller knows the limit too, and its answer that the time is over may come before our own clock says so.
	over := once.Err() != nil || status.Code(err) == codes.DeadlineExceeded
	if err != nil && over && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", errHung, err)
	}
	if status.Code(err) == codes.Unavailable {
		c.drop(i)
		if c.remote != nil {
			err = c.remote.unavailable(c.targets[i], err)
		}
	}
	return err
}

func (c *Client) lastGood() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.good
}

func (c *Client) setGood(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.good = i
}

// repeatable: the call was not taken, or whether it was is not known.
func repeatable(err error) bool {
	if errors.Is(err, errConnect) || errors.Is(err, errHung) {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Aborted:
		return true
	case codes.ResourceExhausted:
		var r *Refusal
		return errors.As(translate(err), &r) && r.Code == "BUSY"
	}
	return false
}

// NewKey makes an idempotency key.
func NewKey() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: see crypto/rand
	return hex.EncodeToString(b[:])
}

// ListJobs collects all pages of a list.
func (c *Client) ListJobs(ctx context.Context, req *ctldpb.ListJobsRequest) (*ctldpb.ListJobsResponse, error) {
	var all *ctldpb.ListJobsResponse
	err := c.Do(ctx, func(ctx context.Context, cc ctldpb.ControllerClient) error {
		all = &ctldpb.ListJobsResponse{}
		stream, err := cc.ListJobs(ctx, req)
		if err != nil {
			return err
		}
		for {
			page, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if page.Info != nil {
				all.Info = page.Info
			}
			all.Jobs = append(all.Jobs, page.Jobs...)
			all.UnknownIds = append(all.UnknownIds, page.UnknownIds...)
		}
	})
	return all, err
}

// Output copies a job's output to w until it ends or, with follow, until the job does.
func (c *Client) Output(ctx context.Context, req *ctldpb.JobOutputRequest, w io.Writer) error {
	offset := req.Offset
	return c.do(ctx, followLimit, followLimit, func(ctx context.Context, cc ctldpb.ControllerClient) error {
		req.Offset = offset
		stream, err := cc.JobOutput(ctx, req)
		if err != nil {
			return err
		}
		for {
			page, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			n, err := w.Write(page.Data)
			offset += int64(n)
			if err != nil {
				return err
			}
			if page.End {
				return nil
			}
		}
	})
}

// Wait makes a call that takes as long as limit, such as waiting for a job.
func (c *Client) Wait(ctx context.Context, limit time.Duration, call func(context.Context, ctldpb.ControllerClient) error) error {
	limit += MessageTimeout
	return c.do(ctx, limit, limit, call)
}

// followLimit bounds one call that follows output.
const followLimit = 30 * 24 * time.Hour

// PingOne asks one controller and nobody else.
func (c *Client) PingOne(ctx context.Context, i int) (*ctldpb.PingResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, ConnectTimeout)
	defer cancel()
	var res *ctldpb.PingResponse
	err := c.try(ctx, i, ConnectTimeout, func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.Ping(ctx, &ctldpb.PingRequest{})
		return err
	})
	return res, translate(err)
}
