package daemon

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// TestJoinKnowsOneFollower: the file of one that joins names a single controller, and another leads that joined
// at run time. It learns where that is from the one that it knows.
func TestJoinKnowsOneFollower(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an admin is needed: root")
	}
	dir := shortDir(t)
	_, cfg := newHall(t, dir, 3, "RaftTimeout=500ms")
	h := &hall{t, dir, cfg}
	h.launch(Options{Config: h.file("c1"), Name: "c1"})
	h.launch(Options{Config: h.file("c1", "c2"), Name: "c2", Join: true})
	h.until("add c2", func(context.Context) error { return h.change("c1", opAdd, "c2", cfg) })
	h.until("promote c2", func(context.Context) error { return h.change("c1", opPromote, "c2", cfg) })
	if err := h.change("c1", opTransfer, "c2", cfg); err != nil {
		t.Fatal(err)
	}
	h.until("c2 leads", func(context.Context) error {
		if name := h.leader("c1"); name != "c2" {
			return fmt.Errorf("%s leads", name)
		}
		return nil
	})
	h.launch(Options{Config: h.file("c1", "c3"), Name: "c3", Join: true})
	h.until("add c3", func(context.Context) error { return h.change("c2", opAdd, "c3", cfg) })
	h.until("promote c3", func(context.Context) error { return h.change("c2", opPromote, "c3", cfg) })
	h.submit("c3")
}
