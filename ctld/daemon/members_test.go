package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/conf"
)

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func loud() (*slog.Logger, *syncBuffer) {
	b := &syncBuffer{}
	return slog.New(slog.NewTextHandler(b, nil)), b
}

// lines are the ControllerName lines of a hall's file, by name.
func (h *hall) lines() map[string]string {
	h.t.Helper()
	text, err := os.ReadFile(h.cfg.Source)
	if err != nil {
		h.t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "ControllerName="); ok {
			name, _, _ := strings.Cut(rest, " ")
			out[name] = line
		}
	}
	return out
}

// file writes a grid.conf that names these controllers only.
func (h *hall) file(names ...string) *conf.Config {
	h.t.Helper()
	text, err := os.ReadFile(h.cfg.Source)
	if err != nil {
		h.t.Fatal(err)
	}
	lines := h.lines()
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "ControllerName=") {
			b.WriteString(line)
		}
	}
	for _, n := range names {
		b.WriteString(lines[n])
	}
	path := filepath.Join(h.dir, strings.Join(names, "-")+".conf")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		h.t.Fatal(err)
	}
	cfg, err := conf.Load(path)
	if err != nil {
		h.t.Fatal(err)
	}
	return cfg
}

// launch runs one controller and comes back when it takes calls.
func (h *hall) launch(o Options) *running {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{stop: cancel, done: make(chan error, 1)}
	ready := make(chan struct{})
	if o.Logger == nil {
		o.Logger = quiet()
	}
	o.Version, o.Ready = "test", func() { close(ready) }
	go func() { r.done <- Run(ctx, o) }()
	select {
	case <-ready:
	case err := <-r.done:
		cancel()
		h.t.Fatalf("%s: %v", o.Name, err)
	}
	h.t.Cleanup(func() { r.end(h.t) })
	return r
}

// ends waits until a controller has ended by itself.
func (r *running) ends(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		close(r.done)
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
		return nil
	}
}

// until repeats f until it gives no error.
func (h *hall) until(what string, f func(ctx context.Context) error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		if !rest(ctx, 50*time.Millisecond) {
			h.t.Fatalf("%s: %v", what, err)
		}
	}
}

// submit submits for an ordinary user and gives the id.
func (h *hall) submit(at string) uint32 {
	h.t.Helper()
	uid := uint32(os.Getuid())
	if uid == 0 {
		uid = 65534
	}
	var id uint32
	h.until("submit at "+at, func(ctx context.Context) error {
		resp, err := h.client(at).Submit(ctx, &ctldpb.SubmitRequest{Uid: uid, Spec: &ctldpb.JobSpec{WorkDir: "/tmp", Script: []byte("#!/bin/sh\n")}})
		id = resp.GetJobId()
		return err
	})
	return id
}

// jobs lists the ids that a controller shows; stale = of its own state.
func (h *hall) jobs(ctx context.Context, at string, stale bool) (ids []uint32, err error) {
	s, err := h.client(at).ListJobs(ctx, &ctldpb.ListJobsRequest{Read: &ctldpb.ReadOptions{Stale: stale}})
	for err == nil {
		var page *ctldpb.ListJobsResponse
		if page, err = s.Recv(); err == nil {
			for _, j := range page.Jobs {
				ids = append(ids, j.JobId)
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return ids, err
}

// members gives the controllers as one of them shows them.
func (h *hall) members(ctx context.Context, at string) (map[string]*ctldpb.ControllerInfo, *ctldpb.ListControllersResponse, error) {
	resp, err := h.client(at).ListControllers(ctx, &ctldpb.ListControllersRequest{})
	out := map[string]*ctldpb.ControllerInfo{}
	for _, c := range resp.GetControllers() {
		out[c.Name] = c
	}
	return out, resp, err
}

func (h *hall) change(at string, op ctldpb.ChangeControllerRequest_Op, name string, cfg *conf.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req := &ctldpb.ChangeControllerRequest{Op: op, Name: name}
	if c := cfg.Controller(name); c != nil && op == ctldpb.ChangeControllerRequest_ADD {
		req.Address, req.Port, req.RaftPort, req.UserPort = c.Address, c.Port, c.RaftPort, c.UserPort
	}
	_, err := h.client(at).ChangeController(ctx, req)
	return err
}

func (h *hall) leader(at string) string {
	h.t.Helper()
	name := ""
	h.until("a leader", func(ctx context.Context) error {
		resp, err := h.client(at).Ping(ctx, &ctldpb.PingRequest{})
		if err == nil && resp.Leader == "" {
			err = errors.New("nobody leads")
		}
		name = resp.GetLeader()
		return err
	})
	return name
}

const (
	opAdd      = ctldpb.ChangeControllerRequest_ADD
	opPromote  = ctldpb.ChangeControllerRequest_PROMOTE
	opRemove   = ctldpb.ChangeControllerRequest_REMOVE
	opTransfer = ctldpb.ChangeControllerRequest_TRANSFER
)

// TestClusterGrowsAndShrinks: one controller becomes three while jobs are submitted, leadership moves, the
// leader is taken out and ends by itself.
func TestClusterGrowsAndShrinks(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an admin is needed: root")
	}
	dir := shortDir(t)
	_, cfg := newHall(t, dir, 3, "RaftTimeout=500ms")
	h := &hall{t, dir, cfg}
	first := h.launch(Options{Config: h.file("c1"), Name: "c1"})
	h.submit("c1")
	running := map[string]*running{"c1": first}
	for _, name := range []string{"c2", "c3"} {
		// Before it runs it cannot be taken in, and nothing is left of the try.
		if err := h.change("c1", opAdd, name, cfg); err == nil || !strings.Contains(err.Error(), "gctld --join --name "+name) && !strings.Contains(err.Error(), "do not all run") {
			t.Errorf("%s was taken in before it ran: %v", name, err)
		}
		log, said := loud()
		running[name] = h.launch(Options{Config: h.file("c1", name), Name: name, Join: true, Logger: log})
		h.until("add "+name, func(context.Context) error { return h.change("c1", opAdd, name, cfg) })
		defer func() {
			if t.Failed() {
				t.Logf("%s said %s", name, said)
			}
		}()
		h.until("promote "+name, func(context.Context) error { return h.change(name, opPromote, name, cfg) })
		h.submit(name)
	}
	h.until("three voters", func(ctx context.Context) error {
		m, resp, err := h.members(ctx, "c3")
		if err == nil && (len(m) != 3 || !m["c1"].Voter || !m["c2"].Voter || !m["c3"].Voter || !m["c2"].Up || resp.Feature != 3) {
			err = fmt.Errorf("%v", resp)
		}
		return err
	})
	if err := h.change("c2", opTransfer, "c3", cfg); err != nil {
		t.Errorf("transfer: %v", err)
	}
	h.until("c3 leads", func(context.Context) error {
		if name := h.leader("c1"); name != "c3" {
			return fmt.Errorf("%s leads", name)
		}
		return nil
	})
	h.submit("c1")
	// The leader is taken out by way of another controller.
	if err := h.change("c2", opRemove, "c3", cfg); err != nil {
		t.Fatalf("remove the leader: %v", err)
	}
	if err := running["c3"].ends(t); err != nil {
		t.Errorf("the removed controller ended with %v", err)
	}
	log, said := loud()
	if err := Run(context.Background(), Options{Config: h.file("c1", "c3"), Name: "c3", Logger: log}); err != nil || !strings.Contains(said.String(), "removed") {
		t.Errorf("a removed controller that is started again: %v, %s", err, said)
	}
	if err := h.change("c2", opRemove, "c3", cfg); err == nil || !strings.Contains(err.Error(), "no member") {
		t.Errorf("removed twice: %v", err)
	}
	h.submit("c1")
	h.until("all jobs", func(ctx context.Context) error {
		ids, err := h.jobs(ctx, "c2", true)
		if err == nil && len(ids) != 5 {
			err = fmt.Errorf("c2 has %v", ids)
		}
		return err
	})
	h.auditedChanges("c1", "c2", "c3")
}

// auditedChanges looks for the changes in the audit logs of those that decided them.
func (h *hall) auditedChanges(names ...string) {
	h.t.Helper()
	seen := map[string]bool{}
	for _, n := range names {
		path := filepath.Join(h.dir, "state", n, "audit.log")
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			h.t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			h.t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
		for line := range strings.Lines(string(text)) {
			var l struct {
				Method, Op, Outcome string
				Targets             []string
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				h.t.Errorf("line %q: %v", line, err)
			}
			seen[fmt.Sprint(l.Method, " ", l.Op, " ", l.Targets, " ", l.Outcome)] = true
		}
	}
	for _, want := range []string{"ChangeController add [c2] ok", "ChangeController promote [c3] ok", "ChangeController transfer [c3] ok", "ChangeController remove [c3] ok", "Submit  [1] ok"} {
		if !seen[want] {
			h.t.Errorf("%q is in no audit log: %v", want, seen)
		}
	}
}

// TestEmptiedDiskComesBack: a controller that lost its folder takes no part until it is a learner again, and
// votes again when it has caught up.
func TestEmptiedDiskComesBack(t *testing.T) {
	dir := shortDir(t)
	_, cfg := newHall(t, dir, 3, "RaftTimeout=500ms")
	h := &hall{t, dir, cfg}
	running := map[string]*running{}
	for _, c := range cfg.Controllers {
		running[c.Name] = h.launch(Options{Config: cfg, Name: c.Name})
	}
	h.submit("c1")
	lost := "c1"
	if h.leader("c2") == lost {
		lost = "c2"
	}
	running[lost].end(t)
	if err := os.RemoveAll(filepath.Join(dir, "state", lost)); err != nil {
		t.Fatal(err)
	}
	h.submit("c3")
	running[lost] = h.launch(Options{Config: cfg, Name: lost})
	h.until(lost+" votes again", func(ctx context.Context) error {
		m, resp, err := h.members(ctx, "c3")
		if err == nil && (m[lost] == nil || !m[lost].Voter || !m[lost].Up || m[lost].Role != "follower") {
			err = fmt.Errorf("%v", resp)
		}
		return err
	})
	ids, err := h.jobs(context.Background(), lost, true)
	if err != nil || len(ids) != 2 {
		t.Errorf("%s has jobs %v, %v", lost, ids, err)
	}
}

// TestStartsAgainInTime: three blank controllers ask each other and begin, in about the time of an election.
func TestStartsAgainInTime(t *testing.T) {
	dir := shortDir(t)
	_, cfg := newHall(t, dir, 3, "RaftTimeout=500ms")
	h := &hall{t, dir, cfg}
	begin := time.Now()
	var wg sync.WaitGroup
	for _, c := range cfg.Controllers {
		wg.Go(func() { h.launch(Options{Config: cfg, Name: c.Name}) })
	}
	wg.Wait()
	h.leader("c2")
	t.Logf("a leader after %v", time.Since(begin))
	if d := time.Since(begin); d > 20*time.Second {
		t.Errorf("a leader after %v", d)
	}
}
