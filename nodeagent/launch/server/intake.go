package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// Limits of the launcher's socket. Neither the agent nor the shepherds can make the launcher hold more
// than these allow.
const (
	MaxConns      = 8192             // connections: the agent's, and one a shepherd while it asks for a signal
	MaxAgentConns = 16               // of these the agent's
	MaxInflight   = 1024             // requests of one connection that are being worked on; more wait in the socket
	maxHeld       = 256 << 20        // bytes of all requests over smallRequest that are read or worked on
	smallRequest  = 16 << 10         // bytes
	frameTime     = 10 * time.Second // for a request to arrive once it has begun, and for an answer to be taken
	askTime       = 30 * time.Second // for a shepherd to ask
)

// heldUnit is what maxHeld is counted in. Whoever takes units keeps some while it waits for more; the
// largest request of each connection fits in many times over, so that they never wait for each other.
const heldUnit = 1 << 20

// intake bounds what is being read.
type intake struct {
	once   sync.Once
	units  chan struct{}
	agents atomic.Int32 // connections of the agent's

	mu      sync.Mutex
	nextLog time.Time
	leftOut int // lines
}

// logEvery is how often a refusal is written: peers must not fill the log.
const logEvery = time.Second

func (i *intake) warn(log *slog.Logger, text string, err error) {
	now := time.Now()
	i.mu.Lock()
	leftOut, rare := i.leftOut, now.Before(i.nextLog)
	if rare {
		i.leftOut++
	} else {
		i.leftOut, i.nextLog = 0, now.Add(logEvery)
	}
	i.mu.Unlock()
	if !rare {
		log.Warn(text, "err", err, "left_out", leftOut)
	}
}

// take waits until a request of n bytes may be held. false: ctx has ended.
func (i *intake) take(ctx context.Context, n int) (give func(), ok bool) {
	if n <= smallRequest {
		return func() {}, true
	}
	i.once.Do(func() { i.units = make(chan struct{}, maxHeld/heldUnit) })
	taken := 0
	give = func() {
		for range taken {
			<-i.units
		}
	}
	for want := (n + heldUnit - 1) / heldUnit; taken < want; taken++ {
		select {
		case i.units <- struct{}{}:
		case <-ctx.Done():
			give()
			return nil, false
		}
	}
	return give, true
}

// serve reads requests, works on up to MaxInflight of them at once, and answers in any order.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	who, err := s.peer(conn)
	if err != nil {
		s.intake.warn(s.log, "connection refused", err)
		return
	}
	stop := context.AfterFunc(ctx, func() { conn.CloseRead() }) // answers still go out
	defer stop()
	w := &worker{s: s, who: who, conn: conn, slots: make(chan struct{}, MaxInflight)}
	defer w.working.Wait()
	if err := w.read(ctx); err != nil && ctx.Err() == nil {
		s.intake.warn(s.log, "request refused", err)
	}
}

// worker is one connection.
type worker struct {
	s    *Server
	who  peer
	conn *net.UnixConn

	slots   chan struct{}
	working sync.WaitGroup
	writing sync.Mutex
}

// read takes requests until the peer hangs up.
func (w *worker) read(ctx context.Context) error {
	limit, in := launch.MaxSmallFrame, bufio.NewReaderSize(w.conn, launch.MaxSmallFrame)
	if w.who == agent {
		defer w.s.intake.agents.Add(-1)
		if w.s.intake.agents.Add(1) > MaxAgentConns {
			return fmt.Errorf("the agent has %d connections", MaxAgentConns)
		}
		limit, in = launch.MaxFrame, bufio.NewReaderSize(w.conn, 64<<10)
	}
	for {
		req, give, err := w.next(ctx, in, limit)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		w.slots <- struct{}{}
		w.working.Go(func() {
			reply := w.s.answer(ctx, w.who, req)
			give()
			<-w.slots
			reply.ID = req.ID
			w.reply(reply)
		})
	}
}

// next reads one request. give says that it is held no more.
func (w *worker) next(ctx context.Context, in *bufio.Reader, limit int) (req *launch.Request, give func(), err error) {
	if w.who != agent {
		if err := w.conn.SetReadDeadline(time.Now().Add(askTime)); err != nil {
			return nil, nil, err
		}
	}
	if _, err := in.Peek(1); err != nil { // the time counts from the first byte
		return nil, nil, err
	}
	if err := w.conn.SetReadDeadline(time.Now().Add(frameTime)); err != nil {
		return nil, nil, err
	}
	n, err := launch.ReadLength(in, limit)
	if err != nil {
		return nil, nil, err
	}
	give, ok := w.s.intake.take(ctx, n)
	if !ok {
		return nil, nil, ctx.Err()
	}
	if err = w.conn.SetReadDeadline(time.Now().Add(frameTime)); err == nil {
		req, err = launch.ReadRequest(in, n)
	}
	if err == nil {
		err = w.conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		give()
		return nil, nil, err
	}
	return req, give, nil
}

func (w *worker) reply(r *launch.Reply) {
	w.writing.Lock()
	defer w.writing.Unlock()
	err := w.conn.SetWriteDeadline(time.Now().Add(frameTime))
	if err == nil {
		err = launch.WriteFrame(w.conn, r)
	}
	if err != nil {
		w.conn.Close()
	}
}
