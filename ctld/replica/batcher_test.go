package replica

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
)

// gate is a log that the test answers by hand: entries stay in flight until they are released.
type gate struct {
	mu      sync.Mutex
	entries []*gated
}

type gated struct {
	cmds []*logpb.Command
	key  *byte
	size int
	err  error
	done chan struct{}
}

func (g *gated) Error() error { <-g.done; return g.err }

func (g *gated) Response() any {
	o := &outcome{}
	for _, c := range g.cmds {
		o.results = append(o.results, fsm.Result{JobID: uint32(c.GetControl().GetOp()), Taken: len(g.cmds)})
	}
	return o
}

func (g *gate) submit(fields [][]byte, size int) (future, *byte) {
	var data []byte
	for _, f := range fields {
		data = append(data, f...)
	}
	var e logpb.Entry
	if err := proto.Unmarshal(data, &e); err != nil {
		panic(err)
	}
	if len(data) != size {
		panic(fmt.Sprintf("announced %d bytes, brought %d", size, len(data)))
	}
	f := &gated{cmds: e.GetCommands(), key: &data[0], done: make(chan struct{})}
	for _, c := range f.cmds {
		f.size += proto.Size(c)
	}
	g.mu.Lock()
	g.entries = append(g.entries, f)
	g.mu.Unlock()
	return f, &data[0]
}

// next waits until n entries came in all and gives the newest.
func (g *gate) wait(n int) []*gated {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.entries) != n {
		panic(fmt.Sprintf("%d entries came, want %d", len(g.entries), n))
	}
	return g.entries
}

func numbered(n uint32, pad int) *logpb.Command {
	c := &logpb.Control{Op: n}
	if pad > 0 {
		c.Caller = &logpb.Caller{User: string(make([]byte, pad))}
	}
	return &logpb.Command{Of: &logpb.Command_Control{Control: c}}
}

// sized gives a command of exactly n encoded bytes.
func sized(t interface{ Fatalf(string, ...any) }, n int) *logpb.Command {
	for pad := n; pad > n-32 && pad > 0; pad-- {
		if c := numbered(7, pad); proto.Size(c) == n {
			return c
		}
	}
	t.Fatalf("no command has %d bytes", n)
	return nil
}

// propose is what Replica.Propose does with the batcher, leadership apart.
func propose(ctx context.Context, b *batcher, cmds ...*logpb.Command) ([]fsm.Result, error) {
	first, more, err := b.encode(cmds)
	if err != nil || first == nil {
		return nil, err
	}
	var all []fsm.Result
	for _, p := range append([]*proposal{first}, more...) {
		res, err := b.propose(ctx, p)
		if err != nil {
			return all, err
		}
		all = append(all, res...)
	}
	return all, nil
}

func encodeAll(cmds []*logpb.Command) ([]*proposal, error) {
	first, more, err := newBatcher(nil, nil).encode(cmds)
	if err != nil || first == nil {
		return nil, err
	}
	return append([]*proposal{first}, more...), nil
}

// commandsOf reads back what a proposal brings.
func commandsOf(t interface{ Fatal(...any) }, p *proposal) []*logpb.Command {
	var e logpb.Entry
	if err := proto.Unmarshal(p.fields, &e); err != nil {
		t.Fatal(err)
	}
	if len(e.Commands) != p.count {
		t.Fatal(len(e.Commands), "commands, announced are", p.count)
	}
	return e.Commands
}

// inBubble runs f with a batcher on a gate.
func inBubble(t *testing.T, f func(t *testing.T, b *batcher, g *gate)) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		b := newBatcher(g.submit, settle)
		go b.run()
		f(t, b, g)
		b.close()
		b.abandon()
		for _, e := range g.entries {
			select {
			case <-e.done:
			default:
				close(e.done)
			}
		}
	})
}

func TestEntryIsWhatProtobufWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := &logpb.Entry{
			Version: rapid.Uint32().Draw(t, "version"),
			TimeMs:  rapid.Int64().Draw(t, "time"),
		}
		pads := rapid.SliceOfN(rapid.IntRange(0, 400), 1, 40).Draw(t, "pads")
		for i, pad := range pads {
			want.Commands = append(want.Commands, numbered(uint32(i), pad))
		}
		runs, err := encodeAll(want.Commands)
		if err != nil || len(runs) != 1 {
			t.Fatalf("%d runs, %v", len(runs), err)
		}
		fields := runs[0].fields
		data := append(appendHeader(nil, want.Version, want.TimeMs), fields...)
		var got logpb.Entry
		if err := proto.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(&got, want) {
			t.Fatalf("got %v, want %v", &got, want)
		}
		if len(data) > entryHeader+len(fields) {
			t.Fatalf("header is %d bytes, %d were planned", len(data)-len(fields), entryHeader)
		}
	})
}

func TestSplitKeepsOrderAndLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 100, 500, 5000, 60 << 10, 127 << 10, 130 << 10}), 0, 700).Draw(t, "sizes")
		var cmds []*logpb.Command
		for i, s := range sizes {
			cmds = append(cmds, numbered(uint32(i), s))
		}
		runs, err := encodeAll(cmds)
		if err != nil {
			t.Fatal(err)
		}
		next := uint32(0)
		for i, r := range runs {
			size := 0
			list := commandsOf(t, r)
			for _, c := range list {
				if got := c.GetControl().GetOp(); got != next {
					t.Fatalf("command %d where %d belongs", got, next)
				}
				next++
				size += proto.Size(c)
			}
			switch {
			case size != r.bytes:
				t.Fatalf("run of %d bytes says %d", size, r.bytes)
			case len(list) == 0, len(list) > MaxEntryCommands, size > MaxEntryBytes && len(list) > 1:
				t.Fatalf("run of %d commands, %d bytes", len(list), size)
			}
			if i > 0 { // as long as it can be
				before := runs[i-1]
				if before.count < MaxEntryCommands && before.bytes+proto.Size(list[0]) <= MaxEntryBytes {
					t.Fatal("an entry was closed early")
				}
			}
		}
		if int(next) != len(cmds) {
			t.Fatalf("%d of %d commands", next, len(cmds))
		}
	})
}

// TestAppliedIsAnswered: an entry that was applied is answered before raft tells of it, once, and
// only with as many results as it has commands.
func TestAppliedIsAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, b *batcher, g *gate) {
		var got []fsm.Result
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			got, err = propose(t.Context(), b, numbered(1, 0), numbered(2, 0))
		}()
		e := g.wait(1)[0]
		b.applied(new(byte), make([]fsm.Result, 2))
		b.applied(e.key, make([]fsm.Result, 1))
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("answered with what is not its own")
		default:
		}
		b.applied(e.key, []fsm.Result{{JobID: 7}, {JobID: 8}})
		<-done
		if err != nil || len(got) != 2 || got[0].JobID != 7 || got[1].JobID != 8 {
			t.Errorf("%v, %v", got, err)
		}
		close(e.done)
		b.applied(e.key, []fsm.Result{{JobID: 9}, {JobID: 9}})
		synctest.Wait()
		if len(b.inFlight) != 0 || len(b.keys) != 0 {
			t.Errorf("%d in flight, %d keys", len(b.inFlight), len(b.keys))
		}
	})
}

func TestSplitLimits(t *testing.T) {
	many := func(n int) (out []*logpb.Command) {
		for i := range n {
			out = append(out, numbered(uint32(i), 0))
		}
		return out
	}
	half := sized(t, MaxEntryBytes/2)
	for _, tc := range []struct {
		name string
		cmds []*logpb.Command
		runs int
		err  error
	}{
		{"nothing", nil, 0, nil},
		{"256 commands", many(MaxEntryCommands), 1, nil},
		{"257 commands", many(MaxEntryCommands + 1), 2, nil},
		{"128 KiB", []*logpb.Command{half, half}, 1, nil},
		{"128 KiB and one byte", []*logpb.Command{half, sized(t, MaxEntryBytes/2+1)}, 2, nil},
		{"1 MiB", []*logpb.Command{sized(t, MaxCommand)}, 1, nil},
		{"1 MiB goes alone", []*logpb.Command{numbered(0, 0), sized(t, MaxCommand), numbered(1, 0)}, 3, nil},
		{"1 MiB and one byte", []*logpb.Command{sized(t, MaxCommand+1)}, 0, ErrTooLarge},
		{"no kind", []*logpb.Command{numbered(1, 1), {}}, 0, errEmpty},
		{"nil", []*logpb.Command{nil}, 0, errEmpty},
	} {
		t.Run(tc.name, func(t *testing.T) {
			runs, err := encodeAll(tc.cmds)
			if !errors.Is(err, tc.err) || len(runs) != tc.runs {
				t.Errorf("%d runs, %v; want %d, %v", len(runs), err, tc.runs, tc.err)
			}
		})
	}
}

// TestAnswersReachTheirProposers has proposers of all sizes and expects each to get its own results,
// its commands side by side in one entry when they fit, and entries within the limits.
func TestAnswersReachTheirProposers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *batcher, g *gate) {
		var wg sync.WaitGroup
		for w := range 200 {
			wg.Go(func() {
				n := 1 + (w*37)%300
				cmds := make([]*logpb.Command, n)
				for i := range cmds {
					cmds[i] = numbered(uint32(w*1000+i), (w*i)%700)
				}
				res, err := propose(t.Context(), b, cmds...)
				if err != nil || len(res) != n {
					t.Errorf("proposer %d: %d results, %v", w, len(res), err)
					return
				}
				for i, r := range res {
					if r.JobID != uint32(w*1000+i) {
						t.Errorf("proposer %d: result %d is %d's", w, i, r.JobID)
						return
					}
				}
			})
		}
		stop := make(chan struct{})
		go func() { // release whatever came until all have their answers
			for i := 0; ; {
				synctest.Wait()
				g.mu.Lock()
				n := len(g.entries)
				if n-i > MaxInFlight {
					t.Errorf("%d entries in flight", n-i)
				}
				for ; i < n; i++ {
					e := g.entries[i]
					if len(e.cmds) > MaxEntryCommands || e.size > MaxEntryBytes {
						t.Errorf("entry of %d commands, %d bytes", len(e.cmds), e.size)
					}
					close(e.done)
				}
				g.mu.Unlock()
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		wg.Wait()
		close(stop)
		order := map[uint32]uint32{}
		for _, e := range g.entries {
			for _, c := range e.cmds {
				w, i := c.GetControl().GetOp()/1000, c.GetControl().GetOp()%1000
				if order[w] != i {
					t.Fatalf("proposer %d: command %d came where %d belongs", w, i, order[w])
				}
				order[w]++
			}
		}
	})
}

func TestInFlightLimit(t *testing.T) {
	inBubble(t, func(t *testing.T, b *batcher, g *gate) {
		for i := range MaxInFlight {
			go func() { _, _ = propose(t.Context(), b, numbered(uint32(i), 0)) }()
			g.wait(i + 1) // an idle batcher sends at once
		}
		for i := range 300 {
			go func() { _, _ = propose(t.Context(), b, numbered(uint32(100+i), 0)) }()
		}
		g.wait(MaxInFlight) // the next one has to wait
		close(g.entries[0].done)
		if e := g.wait(MaxInFlight + 1)[MaxInFlight]; len(e.cmds) != MaxEntryCommands {
			t.Errorf("%d commands in the entry after a wait", len(e.cmds))
		}
	})
}

// TestGather: the proposers that one entry's answers wake share the next entry.
func TestGather(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // who can run comes first only where there is an order
	inBubble(t, func(t *testing.T, b *batcher, g *gate) {
		const callers = 50
		for i := range callers {
			go func() {
				for range 2 {
					if _, err := propose(t.Context(), b, numbered(uint32(i), 0)); err != nil {
						return
					}
				}
			}()
		}
		synctest.Wait()
		g.mu.Lock()
		first := len(g.entries)
		g.mu.Unlock()
		if first > 3 {
			t.Errorf("%d callers at once made %d entries", callers, first)
		}
	})
}

func TestSplitProposalStopsAtTheFirstFailure(t *testing.T) {
	inBubble(t, func(t *testing.T, b *batcher, g *gate) {
		cmds := make([]*logpb.Command, 3*MaxEntryCommands)
		for i := range cmds {
			cmds[i] = numbered(uint32(i), 0)
		}
		var res []fsm.Result
		var err error
		done := make(chan struct{})
		go func() { defer close(done); res, err = propose(t.Context(), b, cmds...) }()
		close(g.wait(1)[0].done)
		second := g.wait(2)[1]
		second.err = raft.ErrLeadershipLost
		close(second.done)
		<-done
		g.wait(2)
		if !errors.Is(err, ErrUnknown) || len(res) != MaxEntryCommands {
			t.Errorf("%d results, %v", len(res), err)
		}
	})
}

func TestErrorsOfRaft(t *testing.T) {
	other := errors.New("disk full")
	for _, tc := range []struct{ from, want error }{
		{raft.ErrNotLeader, ErrNotLeader},
		{raft.ErrLeadershipTransferInProgress, ErrNotLeader},
		{raft.ErrLeadershipLost, ErrUnknown},
		{raft.ErrRaftShutdown, ErrUnknown},
		{other, ErrUnknown},
	} {
		t.Run(tc.from.Error(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *batcher, g *gate) {
				var err error
				done := make(chan struct{})
				go func() { defer close(done); _, err = propose(t.Context(), b, numbered(1, 0)) }()
				e := g.wait(1)[0]
				e.err = tc.from
				close(e.done)
				<-done
				if !errors.Is(err, tc.want) || errors.Is(err, ErrUnknown) == errors.Is(err, ErrNotLeader) {
					t.Errorf("%v becomes %v, want %v", tc.from, err, tc.want)
				}
			})
		})
	}
}

// TestCancelledProposer: one that still waits is withdrawn, one on its way does not know; nobody
// else is touched.
func TestCancelledProposer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *batcher, g *gate) {
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range MaxInFlight {
			wg.Go(func() {
				_, err := propose(ctx, b, numbered(uint32(i), 0))
				if !errors.Is(err, ErrUnknown) || !errors.Is(err, context.Canceled) {
					t.Errorf("on its way: %v", err)
				}
			})
			g.wait(i + 1)
		}
		var others sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				_, err := propose(ctx, b, numbered(uint32(100+i), 0))
				if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnknown) {
					t.Errorf("waiting: %v", err)
				}
			})
			others.Go(func() {
				res, err := propose(t.Context(), b, numbered(uint32(200+i), 0))
				if err != nil || res[0].JobID != uint32(200+i) {
					t.Errorf("the other: %v, %v", res, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		for _, e := range g.wait(MaxInFlight) {
			close(e.done)
		}
		synctest.Wait()
		for _, e := range g.entries[MaxInFlight:] {
			for _, c := range e.cmds {
				if n := c.GetControl().GetOp(); n < 200 {
					t.Errorf("withdrawn command %d was proposed", n)
				}
			}
			close(e.done)
		}
		others.Wait()
		if b.queued != 0 || b.bytes != 0 || len(b.inFlight) != 0 {
			t.Errorf("left over: %d commands, %d bytes, %d entries", b.queued, b.bytes, len(b.inFlight))
		}
	})
}

// TestWithdrawnLeaveNothing: while entries hang, callers that give up leave no memory behind, and
// those that wait keep their order.
func TestWithdrawnLeaveNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *batcher, g *gate) {
		fill(t, b, g)
		var stay sync.WaitGroup
		for i := range 20 {
			stay.Go(func() {
				if res, err := propose(t.Context(), b, numbered(uint32(100+i), 0)); err != nil || res[0].JobID != uint32(100+i) {
					t.Errorf("one that stays: %v, %v", res, err)
				}
			})
			synctest.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			for range maxGone {
				go func() { _, _ = propose(ctx, b, numbered(9, 1000)) }()
			}
			synctest.Wait()
			cancel()
			synctest.Wait()
			held := 0
			for _, p := range b.queue[b.head:] {
				held += len(p.fields)
			}
			if n := len(b.queue) - b.head; n > 2*maxGone+2*(i+1) || held > 1000 {
				t.Fatalf("round %d: %d runs and %d bytes in the queue for %d that wait", i, n, held, i+1)
			}
		}
		for _, e := range g.wait(MaxInFlight) {
			close(e.done)
		}
		synctest.Wait()
		next := uint32(100)
		for _, e := range g.entries[MaxInFlight:] {
			for _, c := range e.cmds {
				if n := c.GetControl().GetOp(); n != next {
					t.Errorf("command %d, want %d", n, next)
				}
				next++
			}
			close(e.done)
		}
		stay.Wait()
		if b.gone != 0 || b.queued != 0 {
			t.Errorf("left over: %d gone, %d queued", b.gone, b.queued)
		}
	})
}

// fill puts entries in flight until nothing more leaves.
func fill(t *testing.T, b *batcher, g *gate) {
	for i := range MaxInFlight {
		go func() { _, _ = propose(t.Context(), b, numbered(uint32(i), 0)) }()
		g.wait(i + 1)
	}
}

func TestQueueLimits(t *testing.T) {
	batch := make([]*logpb.Command, MaxEntryCommands)
	for i := range batch {
		batch[i] = numbered(1, 0)
	}
	inBubble(t, func(t *testing.T, b *batcher, g *gate) {
		fill(t, b, g)
		for range MaxQueued / MaxEntryCommands {
			go func() { _, _ = propose(t.Context(), b, batch...) }()
		}
		synctest.Wait()
		if b.queued != MaxQueued {
			t.Fatalf("%d commands wait", b.queued)
		}
		if _, err := propose(t.Context(), b, numbered(1, 0)); !errors.Is(err, ErrBusy) {
			t.Errorf("command 65537: %v", err)
		}
	})
	inBubble(t, func(t *testing.T, b *batcher, g *gate) {
		fill(t, b, g)
		for range MaxQueuedBytes / MaxCommand { // the size is what the proposer states; the bytes are not needed
			p := b.proposal()
			p.count, p.bytes = 1, MaxCommand
			go func() { _, _ = b.propose(t.Context(), p) }()
		}
		synctest.Wait()
		if _, err := propose(t.Context(), b, numbered(1, 0)); !errors.Is(err, ErrBusy) {
			t.Errorf("one command over the limit of bytes: %v", err)
		}
	})
}

func TestClosedBatcher(t *testing.T) {
	inBubble(t, func(t *testing.T, b *batcher, g *gate) {
		fill(t, b, g)
		var waiting error
		done := make(chan struct{})
		go func() { defer close(done); _, waiting = propose(t.Context(), b, numbered(1, 0)) }()
		synctest.Wait()
		b.close()
		<-done
		if !errors.Is(waiting, ErrNotLeader) {
			t.Errorf("waiting: %v", waiting)
		}
		if _, err := propose(t.Context(), b, numbered(1, 0)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("late: %v", err)
		}
		select {
		case <-b.idle:
			t.Error("idle with entries in flight")
		default:
		}
		for _, e := range g.entries {
			close(e.done)
		}
		<-b.idle
	})
}

// TestWaitersCostNoGoroutine: a proposer waits in its own goroutine and none other.
func TestWaitersCostNoGoroutine(t *testing.T) {
	inBubble(t, func(t *testing.T, b *batcher, g *gate) {
		fill(t, b, g)
		before := runtime.NumGoroutine()
		for range 1000 {
			go func() { _, _ = propose(t.Context(), b, numbered(1, 0)) }()
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 1000 {
			t.Errorf("%d goroutines for 1000 proposers", n)
		}
	})
}
