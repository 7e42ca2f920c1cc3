package daemon

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// TestChangesWhileLeadersChange: a controller is taken in and out by two callers at once, some of whom go away in
// the middle, while leadership moves. Each change comes about once, the record of where the controller is goes
// with it, and submissions go on.
func TestChangesWhileLeadersChange(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an admin is needed: root")
	}
	dir := shortDir(t)
	_, cfg := newHall(t, dir, 4, "RaftTimeout=500ms")
	h := &hall{t, dir, cfg}
	three := h.file("c1", "c2", "c3")
	for _, c := range three.Controllers {
		h.launch(Options{Config: three, Name: c.Name})
	}
	h.leader("c1")
	for round := range 2 {
		log, said := loud()
		defer func() {
			if t.Failed() {
				t.Logf("c4 said\n%s", said)
			}
		}()
		guest := h.launch(Options{Config: cfg, Name: "c4", Join: true, Logger: log})
		stop := h.unrest()
		h.both(opAdd, "is a learner already", "a member already")
		h.submit("c2")
		// One that is taken out before it took part goes on waiting to be taken in.
		h.until("c4 takes part", func(ctx context.Context) error {
			ids, err := h.jobs(ctx, "c4", true)
			if err == nil && len(ids) != 2*round+1 {
				err = fmt.Errorf("it has %v", ids)
			}
			return err
		})
		h.both(opRemove, "is no member")
		stop()
		h.submit("c3")
		if err := guest.ends(t); err != nil {
			t.Errorf("round %d: c4 ended with %v", round, err)
		}
		h.until("nothing is left of c4", func(ctx context.Context) error {
			m, resp, err := h.members(ctx, "c1")
			if err == nil && m["c4"] != nil {
				err = fmt.Errorf("%v", resp)
			}
			return err
		})
		if err := os.RemoveAll(filepath.Join(dir, "state", "c4")); err != nil {
			t.Fatal(err)
		}
	}
	ids, err := h.jobs(context.Background(), "c1", false)
	if err != nil || len(ids) != 4 {
		t.Errorf("jobs %v, %v", ids, err)
	}
}

// unrest moves leadership about until the function that it gives is called.
func (h *hall) unrest() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	client := h.client("c1")
	var wg sync.WaitGroup
	wg.Go(func() {
		for rest(ctx, 700*time.Millisecond) {
			_, _ = client.ChangeController(ctx, &ctldpb.ChangeControllerRequest{Op: opTransfer})
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// both has two callers make one change until it is done, each at another controller and with little patience
// at first.
func (h *hall) both(op ctldpb.ChangeControllerRequest_Op, done ...string) {
	h.t.Helper()
	c := h.cfg.Controller("c4")
	req := &ctldpb.ChangeControllerRequest{Op: op, Name: "c4"}
	if op == opAdd {
		req.Address, req.Port, req.RaftPort = c.Address, c.Port, c.RaftPort
	}
	var wg sync.WaitGroup
	for _, at := range []string{"c2", "c3"} {
		client := h.client(at)
		wg.Go(func() {
			h.until(op.String()+" at "+at, func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, time.Duration(20+rand.Intn(2000))*time.Millisecond)
				defer cancel()
				_, err := client.ChangeController(ctx, req)
				for _, word := range done {
					if err != nil && strings.Contains(err.Error(), word) {
						return nil
					}
				}
				return err
			})
		})
	}
	wg.Wait()
}
