package server

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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// loud collects what is logged.
func loud() (*slog.Logger, *syncBuffer) {
	b := &syncBuffer{}
	return slog.New(slog.NewTextHandler(b, nil)), b
}

func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not seen: %s", what)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// TestAuditLogRotates: a full file gets a number, so many are kept, and nobody else may read any.
func TestAuditLogRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log, _ := loud()
	a := openAuditLog(path, log, 10, 2, time.Millisecond)
	for i := range 8 {
		a.put(fmt.Appendf(nil, "line %d.....\n", i))
		waitFor(t, "the line", func() bool { return strings.Contains(read(t, path), fmt.Sprintf("line %d", i)) })
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"": "line 7.....\n", ".1": "line 6.....\n", ".2": "line 5.....\n", ".3": ""} {
		if got := read(t, path+name); got != want {
			t.Errorf("audit.log%s is %q, want %q", name, got, want)
		}
		if info, err := os.Stat(path + name); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("audit.log%s has mode %v", name, info.Mode())
		}
	}
}

// TestAuditLogEndsATornLine: a controller that was killed in the middle of a line spoils no other.
func TestAuditLogEndsATornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("{}\n{\"time"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, _ := loud()
	a := OpenAuditLog(path, log)
	a.put([]byte("{\"a\":1}\n"))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, path), "{}\n{\"time\n{\"a\":1}\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestAuditLogWithoutADisk: nobody waits for a file that cannot be written; it is told loudly, and what had
// room is written when the file can be.
func TestAuditLogWithoutADisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	path := filepath.Join(dir, "audit.log")
	log, said := loud()
	a := openAuditLog(path, log, AuditBytes, AuditKept, time.Millisecond)
	a.put([]byte("first\n"))
	waitFor(t, "the complaint", func() bool { return strings.Contains(said.String(), "audit log cannot be written") })
	for range auditQueue + 10 {
		a.put([]byte("more\n"))
	}
	if a.Lost() == 0 {
		t.Error("lines over the limit are not counted")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the lines", func() bool { return strings.Count(read(t, path), "\n") >= auditQueue })
	waitFor(t, "the count of lost lines", func() bool { return strings.Contains(said.String(), "are lost") })
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); !strings.HasPrefix(got, "first\nmore\n") {
		t.Errorf("it begins %q", got[:20])
	}
	for _, tt := range []struct {
		name, want string
		make       func(path string) error
	}{
		{"a link", "too many levels", func(p string) error { return os.Symlink("/etc/passwd", p) }},
		{"a loose mode", "want 0600", func(p string) error { return os.WriteFile(p, nil, 0o644) }},
		{"a folder", "is a directory", func(p string) error { return os.Mkdir(p, 0o700) }},
	} {
		p := filepath.Join(t.TempDir(), "audit.log")
		if err := tt.make(p); err != nil {
			t.Fatal(err)
		}
		log, said := loud()
		b := openAuditLog(p, log, AuditBytes, AuditKept, time.Millisecond)
		b.put([]byte("x\n"))
		waitFor(t, tt.name, func() bool { return strings.Contains(said.String(), tt.want) })
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// audits gives a server with an audit log and a reader of its lines.
func audits(t *testing.T, f *fixture) func() []auditLine {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.log")
	f.srv.audit.log = OpenAuditLog(path, f.srv.Logger)
	return func() []auditLine {
		t.Helper()
		if err := f.srv.audit.log.Close(); err != nil {
			t.Fatal(err)
		}
		f.srv.audit.log = OpenAuditLog(path, f.srv.Logger)
		var out []auditLine
		dec := json.NewDecoder(strings.NewReader(read(t, path)))
		for {
			var l auditLine
			if err := dec.Decode(&l); errors.Is(err, io.EOF) {
				return out
			} else if err != nil {
				t.Fatal(err)
			}
			out = append(out, l)
		}
	}
}

// TestAuditLines: one line for what changes something or is refused, at the controller that decides, and no
// text of users in it.
func TestAuditLines(t *testing.T) {
	f, follower, link := pair(t)
	lines := audits(t, f)
	f.srv.Auth.Deny = f.srv.denied // the two servers share it
	local := func(ctx context.Context, method string, req any) (any, error) {
		h := map[string]grpc.UnaryHandler{
			"Submit": func(ctx context.Context, r any) (any, error) { return f.srv.Submit(ctx, r.(*ctldpb.SubmitRequest)) },
			"Cancel": func(ctx context.Context, r any) (any, error) { return f.srv.Cancel(ctx, r.(*ctldpb.CancelRequest)) },
			"GetScript": func(ctx context.Context, r any) (any, error) {
				return f.srv.GetScript(ctx, r.(*ctldpb.GetScriptRequest))
			},
			"Ping": func(ctx context.Context, r any) (any, error) { return f.srv.Ping(ctx, r.(*ctldpb.PingRequest)) },
		}[method]
		return call(ctx, f.srv, method, req, h)
	}
	spec := script()
	spec.Script = []byte("#!/bin/sh\necho hunter2\n")
	spec.Args, spec.Comment = []string{"--password=hunter2"}, "hunter2"
	resp, err := local(f.as(ann), "Submit", &ctldpb.SubmitRequest{Spec: spec, Key: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	id := resp.(*ctldpb.SubmitResponse).JobId
	if _, err := local(f.as(bob), "Cancel", &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{fmt.Sprint(id)}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := local(f.as(bob), "GetScript", &ctldpb.GetScriptRequest{JobId: id}); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
	if _, err := local(f.as(ann), "Ping", &ctldpb.PingRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := call(f.as(olga), follower, "UpdateNode", &ctldpb.UpdateNodeRequest{Names: "n1", Set: map[string]string{"State": "drain", "Reason": "hunter2"}}, notHere); err != nil {
		t.Fatal(err)
	}
	// Refused by the table, here and for a call that was sent on.
	_ = f.srv.Auth.Authorise(context.Background(), authn.ControllerService+"UpdateNode", f.srv.Auth.Person(ann, 100, 1))
	link.calls = 0
	if _, err := call(f.as(ann), follower, "UpdateNode", &ctldpb.UpdateNodeRequest{Names: "n1"}, notHere); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
	f.log.fail = []error{replica.ErrNotLeader}
	if _, err := local(f.as(ann), "Submit", &ctldpb.SubmitRequest{Spec: script(), Key: "k2"}); err != nil {
		t.Fatal(err)
	}
	got := lines()
	var text []string
	for _, l := range got {
		text = append(text, fmt.Sprintf("%s %s %s/%s by %s: %s %v%v", l.Method, l.Op, l.User, l.Role, l.Forwarded, l.Outcome, l.Targets, l.Refused))
	}
	want := []string{
		fmt.Sprintf("Submit  ann/user by : ok [%d][]", id),
		fmt.Sprintf("Cancel end bob/user by : ok [%d][%d]", id, id),
		fmt.Sprintf("GetScript  bob/user by : ESLURM_ACCESS_DENIED [%d][]", id),
		"UpdateNode Reason,State to DRAIN olga/operator by c2: ok [n1][]",
		"UpdateNode  ann/user by : ESLURM_ACCESS_DENIED [][]",
		"UpdateNode  ann/user by c2: ESLURM_ACCESS_DENIED [][]",
		fmt.Sprintf("Submit  ann/user by : ok [%d][]", id+1),
	}
	if a, b := strings.Join(text, "\n"), strings.Join(want, "\n"); a != b {
		t.Errorf("lines\n%s\nwant\n%s", a, b)
	}
	for _, l := range got {
		if b, _ := json.Marshal(l); bytes.Contains(b, []byte("hunter2")) {
			t.Errorf("a user's text is in %s", b)
		}
		if l.UID == nil || l.Controller != "c1" || l.Time != "2026-03-04T05:06:07.000Z" || l.Via != "local" {
			t.Errorf("line %+v", l)
		}
	}
}

// TestAuditTargetsAreBounded: limit + 1.
func TestAuditTargetsAreBounded(t *testing.T) {
	var l auditLine
	req := &ctldpb.ControlRequest{Op: ctldpb.ControlRequest_HOLD}
	for range auditTargets + 1 {
		req.JobIds = append(req.JobIds, strings.Repeat("9", auditWord+1))
	}
	l.targets(req, nil)
	if len(l.Targets) != auditTargets || l.More != 1 || len(l.Targets[0]) > auditWord+3 || l.Op != "hold" {
		t.Errorf("%d targets, %d more, of %d bytes, %s", len(l.Targets), l.More, len(l.Targets[0]), l.Op)
	}
}

// syncBuffer is a buffer for two goroutines.
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
