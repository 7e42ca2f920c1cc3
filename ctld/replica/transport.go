package replica

import (
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// transport is raft's own with a note of the snapshots that are on their way: a follower that takes one
// gets no further in the log, and must not be held to be stuck.
type transport struct {
	*raft.NetworkTransport
	mu   sync.Mutex
	sent map[raft.ServerID]time.Time // when something was last read for it
}

func newTransport(c *raft.NetworkTransportConfig) *transport {
	return &transport{NetworkTransport: raft.NewNetworkTransportWithConfig(c), sent: map[raft.ServerID]time.Time{}}
}

// InstallSnapshot implements raft.Transport.
func (t *transport) InstallSnapshot(id raft.ServerID, addr raft.ServerAddress, req *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	t.note(id)
	defer func() {
		t.mu.Lock()
		delete(t.sent, id)
		t.mu.Unlock()
	}()
	return t.NetworkTransport.InstallSnapshot(id, addr, req, resp, &notedReader{data, func() { t.note(id) }})
}

func (t *transport) note(id raft.ServerID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent[id] = time.Now()
}

// sending tells whether a snapshot is on its way to id and moves.
func (t *transport) sending(id raft.ServerID, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.sent[id]
	return ok && now.Sub(at) < sendStalled
}

// notedReader tells of each read.
type notedReader struct {
	io.Reader
	note func()
}

func (r *notedReader) Read(b []byte) (int, error) {
	r.note()
	return r.Reader.Read(b)
}
