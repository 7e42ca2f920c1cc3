package replica

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// ledger is a small machine that keeps state: the keys of submissions in the order they were
// applied, each once, and the bytes of blobs. A Purge of 666 records is a command it does not know.
type ledger struct {
	mu    sync.Mutex
	ids   map[string]uint32
	now   atomic.Pointer[ledgerState]
	delay func() // before an entry is applied; nil for none
	write func() // before a snapshot is written
	// forget keeps no blobs, so that the state stays small.
	forget bool
}

// ledgerState is immutable; order is shared with later states, which only append to it.
type ledgerState struct {
	state.Viewer
	Raft  uint64
	Order []string
	Times []int64
	Blobs [][]byte
	Level uint32
}

func (s *ledgerState) Index() uint64 { return s.Raft }

// Time is that of the last entry; an empty state has none.
func (s *ledgerState) Time() int64 {
	if len(s.Times) == 0 {
		return 0
	}
	return s.Times[len(s.Times)-1]
}

// Feature is that of the first release until a command raises it.
func (s *ledgerState) Feature() uint32 { return max(1, s.Level) }

func (s *ledgerState) has(key string) bool {
	for _, k := range s.Order {
		if k == key {
			return true
		}
	}
	return false
}

func newLedger() *ledger {
	l := &ledger{ids: map[string]uint32{}}
	l.now.Store(&ledgerState{})
	return l
}

var errUnknownCommand = errors.New("unknown command of version 9")

func (l *ledger) ApplyEntry(index uint64, data []byte) ([]fsm.Result, error) {
	if l.delay != nil {
		l.delay()
	}
	var e logpb.Entry
	if err := proto.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	next := *l.now.Load()
	next.Raft = index
	results := make([]fsm.Result, len(e.GetCommands()))
	for i, c := range e.GetCommands() {
		switch of := c.GetOf().(type) {
		case *logpb.Command_Submit:
			id, known := l.ids[of.Submit.GetKey()]
			if !known {
				next.Order = append(next.Order, of.Submit.GetKey())
				next.Times = append(next.Times, e.GetTimeMs())
				id = uint32(len(next.Order))
				l.ids[of.Submit.GetKey()] = id
			}
			results[i] = fsm.Result{JobID: id, Duplicate: known}
		case *logpb.Command_PutBlob:
			if !l.forget {
				next.Blobs = append(next.Blobs, of.PutBlob.GetData())
			}
		case *logpb.Command_Noop:
		case *logpb.Command_RaiseFeature:
			next.Level = of.RaiseFeature.GetLevel()
		case *logpb.Command_HashMark:
			results[i].Mark = true
		case *logpb.Command_HashCheck:
			results[i].Check = &fsm.HashCheck{Index: of.HashCheck.GetIndex(), SHA256: [32]byte(of.HashCheck.GetSha256()), Leader: of.HashCheck.GetLeader()}
		case *logpb.Command_Purge:
			return nil, errUnknownCommand
		default:
			return nil, fmt.Errorf("command %T", of)
		}
	}
	l.now.Store(&next)
	return results, nil
}

func (l *ledger) View() state.Viewer { return l.now.Load() }

func (l *ledger) state() *ledgerState { return l.now.Load() }

type ledgerSnapshot struct {
	state *ledgerState
	write func()
}

func (l *ledger) Snapshot() Snapshot { return ledgerSnapshot{l.now.Load(), l.write} }

func (s ledgerSnapshot) Index() uint64 { return s.state.Raft }

func (s ledgerSnapshot) Write(w io.Writer) error {
	if s.write != nil {
		s.write()
	}
	flat := *s.state
	flat.Viewer = nil
	return gob.NewEncoder(w).Encode(&flat)
}

func (l *ledger) Restore(r io.Reader) error {
	next := new(ledgerState)
	if err := gob.NewDecoder(r).Decode(next); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = make(map[string]uint32, len(next.Order))
	for i, k := range next.Order {
		l.ids[k] = uint32(i + 1)
	}
	l.now.Store(next)
	return nil
}

func submit(key string) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Key: key}}}
}

func blob(n int) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_PutBlob{PutBlob: &logpb.PutBlob{Data: make([]byte, n)}}}
}
