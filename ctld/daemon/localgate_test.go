package daemon

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// TestGateOfTheSocket: each uid has its own bounds, root has none, and requests that do not come whole end.
func TestGateOfTheSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := localBounds()
		b.callsOf, b.slowOf = 8, 2
		g := newGate(b)
		by := func(uid uint32) context.Context {
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			return peer.NewContext(ctx, &peer.Peer{Addr: &net.UnixAddr{Net: "unix"}, AuthInfo: authn.PeerInfo{UID: uid}})
		}
		enter := func(uid uint32, n int) (in []context.Context) {
			for range n {
				if ctx, err := g.enter(by(uid), nil); err == nil {
					in = append(in, ctx)
				}
			}
			return in
		}
		mine, others, root := enter(1000, 9), enter(1001, 8), enter(0, 100)
		if len(mine) != 8 || len(others) != 8 || len(root) != 100 {
			t.Fatalf("%d, %d and %d calls were let in, want 8, 8 and 100", len(mine), len(others), len(root))
		}
		for _, ctx := range others[:7] {
			here(ctx)
		}
		ended := func(in []context.Context) (n int) {
			for _, ctx := range in {
				if ctx.Err() != nil {
					n++
				}
			}
			return n
		}
		time.Sleep(localPatience + time.Second)
		synctest.Wait()
		if m, o := ended(mine), ended(others); m != 6 || o != 0 {
			t.Errorf("after the patience %d and %d calls were ended, want 6 (two may be slow) and 0", m, o)
		}
		time.Sleep(remoteArriveWithin)
		synctest.Wait()
		if m, o, r := ended(mine), ended(others), ended(root); m != 8 || o != 1 || r != 0 {
			t.Errorf("in the end %d, %d and %d calls were ended, want 8, 1 and 0", m, o, r)
		}
		if n := len(enter(1000, 8)); n != 8 {
			t.Errorf("%d calls found their places free again, want 8", n)
		}
	})
}
