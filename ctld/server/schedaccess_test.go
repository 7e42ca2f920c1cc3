package server

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// schedCalls makes one call of each method that came with the scheduler.
func schedCalls(s *Server) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"StreamJobs": func(ctx context.Context) error { return s.StreamJobs(&ctldpb.ListJobsRequest{}, &jobStream{ctx: ctx}) },
		"ExplainJob": func(ctx context.Context) error {
			_, err := s.ExplainJob(ctx, &ctldpb.ExplainJobRequest{JobId: "1"})
			return err
		},
		"ChangeAccounting": func(ctx context.Context) error {
			_, err := s.ChangeAccounting(ctx, &ctldpb.ChangeAccountingRequest{Verb: "add", Entity: "account", Set: clauses("name=x")})
			return err
		},
		"ListAccounting": func(ctx context.Context) error {
			_, err := s.ListAccounting(ctx, &ctldpb.ListAccountingRequest{Entity: "account"})
			return err
		},
		"ListShares": func(ctx context.Context) error {
			_, err := s.ListShares(ctx, &ctldpb.ListSharesRequest{})
			return err
		},
		"ListPriorities": func(ctx context.Context) error {
			_, err := s.ListPriorities(ctx, &ctldpb.ListPrioritiesRequest{})
			return err
		},
		"ChangeReservation": func(ctx context.Context) error {
			_, err := s.ChangeReservation(ctx, &ctldpb.ChangeReservationRequest{Verb: "create", Name: "x", Set: clauses("nodes=n1", "users=ann", "starttime=now", "duration=5")})
			return err
		},
		"ListReservations": func(ctx context.Context) error {
			_, err := s.ListReservations(ctx, &ctldpb.ListReservationsRequest{})
			return err
		},
		"ListLicenses": func(ctx context.Context) error {
			_, err := s.ListLicenses(ctx, &ctldpb.ListLicensesRequest{})
			return err
		},
	}
}

// TestWhoMayCallTheScheduler: daemons and strangers may call nothing of it, users may look, operators may change.
func TestWhoMayCallTheScheduler(t *testing.T) {
	f := newSchedFixture(t, "")
	f.submit(ann, nil)
	changes := map[string]bool{"ChangeAccounting": true, "ChangeReservation": true}
	for name, call := range schedCalls(f.srv) {
		for _, c := range []authn.Caller{{Role: authn.RoleNode, Name: "n1"}, {Role: authn.RoleCtld, Name: "c2"}, {Role: authn.RoleLogin}, {Role: authn.RoleNobody}, {Role: authn.RoleWallet, Wallet: "0x1"}} {
			if authn.WhyNot(authn.ControllerService+name, c) == "" {
				t.Errorf("%s is open to role %s", name, c.Role)
			}
			if err := call(authn.NewContext(context.Background(), c)); RefusalOf(err) == nil || RefusalOf(err).Code != "ESLURM_ACCESS_DENIED" {
				t.Errorf("%s answered role %s: %v", name, c.Role, err)
			}
		}
		if err := call(context.Background()); RefusalOf(err) == nil {
			t.Errorf("%s answered nobody: %v", name, err)
		}
		err := call(f.as(ann))
		if changes[name] {
			wantRefusal(t, err, "ESLURM_ACCESS_DENIED")
		} else if err != nil {
			t.Errorf("%s refused a user: %v", name, err)
		}
		if err := call(f.as(olga)); err != nil {
			t.Errorf("%s refused an operator: %v", name, err)
		}
	}
}

// TestChangesOfTheSchedulerAreForwarded: a follower sends them to the leader, and knows what comes back.
func TestChangesOfTheSchedulerAreForwarded(t *testing.T) {
	for name, req := range map[string]proto.Message{
		"ChangeAccounting":  &ctldpb.ChangeAccountingRequest{Verb: "modify"},
		"ChangeReservation": &ctldpb.ChangeReservationRequest{Verb: "create"},
	} {
		r, ok := routes[authn.ControllerService+name]
		if !ok || newResponse(authn.ControllerService+name) == nil {
			t.Fatalf("%s is not forwarded", name)
		}
		if got := r.repeat(req); got != (name == "ChangeAccounting") {
			t.Errorf("%s may be repeated: %v", name, got)
		}
	}
	for _, req := range []*ctldpb.ChangeAccountingRequest{{Verb: "add"}, {Verb: "delete"}} {
		if setsLimits(req) {
			t.Errorf("%v is repeated when its outcome is not known", req)
		}
	}
}

// TestChangesOfTheSchedulerAreAudited: who changed what, with the words; what only asked has none to spare.
func TestChangesOfTheSchedulerAreAudited(t *testing.T) {
	f := newSchedFixture(t, "")
	path := filepath.Join(t.TempDir(), "audit.log")
	log, _ := loud()
	f.srv.audit.log = OpenAuditLog(path, log)
	method := authn.ControllerService + "ChangeAccounting"
	req := &ctldpb.ChangeAccountingRequest{Verb: "add", Entity: "account", Set: clauses("name=physics", "fairshare=10")}
	resp, err := f.srv.ChangeAccounting(f.as(olga), req)
	c, _ := authn.FromContext(f.as(olga))
	f.srv.record(f.as(olga), method, c, "", req, resp, err)
	res := &ctldpb.ChangeReservationRequest{Verb: "create", Name: "r", Set: clauses("nodes=n1", "users=ann", "starttime=now", "duration=5")}
	made, err := f.srv.ChangeReservation(f.as(olga), res)
	f.srv.record(f.as(olga), authn.ControllerService+"ChangeReservation", c, "", res, made, err)
	if err := f.srv.audit.log.Close(); err != nil {
		t.Fatal(err)
	}
	text := read(t, path)
	for _, want := range []string{"ChangeAccounting", "add account", "name=physics", "fairshare=10", "ChangeReservation", "create", "nodes=n1", `"user":"olga"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	if !inVain(&ctldpb.ChangeAccountingRequest{DryRun: true}, resp, nil) || inVain(req, resp, nil) {
		t.Error("a dry run counts as a change, or a change as none")
	}
}

// TestSuspendIsForOperators: they stop and continue jobs; their owners do not.
func TestSuspendIsForOperators(t *testing.T) {
	f := newSchedFixture(t, "")
	f.register("n1", "n2")
	id := f.submit(ann, nil)
	f.start(id, -1, "n1")
	f.propose(&logpb.Command{Of: &logpb.Command_Launched{Launched: &logpb.Launched{JobId: id, Node: "n1", Ok: true, StartMs: f.now.UnixMilli()}}})
	control := func(uid uint32, op ctldpb.ControlRequest_Op) string {
		t.Helper()
		resp, err := f.srv.Control(f.as(uid), &ctldpb.ControlRequest{Op: op, JobIds: []string{fmt.Sprint(id)}})
		if err != nil || len(resp.Results) != 1 {
			t.Fatalf("%v %v", resp, err)
		}
		return resp.Results[0].Code
	}
	if code := control(ann, ctldpb.ControlRequest_SUSPEND); code != "ESLURM_ACCESS_DENIED" {
		t.Errorf("its owner suspends it: %q", code)
	}
	f.pass(10 * time.Second)
	if code := control(olga, ctldpb.ControlRequest_SUSPEND); code != "" {
		t.Errorf("an operator cannot suspend it: %q", code)
	}
	f.pass(5 * time.Second)
	jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{})
	if j := jobs[0]; j.State != job.Suspended.String() || j.SuspendedMs != 5000 || j.SuspendMs == 0 {
		t.Errorf("state %s, suspended since %d for %d ms", j.State, j.SuspendMs, j.SuspendedMs)
	}
	if code := control(olga, ctldpb.ControlRequest_RESUME); code != "" {
		t.Errorf("an operator cannot resume it: %q", code)
	}
	f.pass(7 * time.Second)
	jobs, _, _ = f.list(ann, &ctldpb.ListJobsRequest{})
	if j := jobs[0]; j.State != job.Running.String() || j.SuspendedMs != 5000 {
		t.Errorf("state %s, suspended for %d ms", j.State, j.SuspendedMs)
	}
}

// TestPartitionKeys: what the scheduler brought can be updated, is shown, and names its words when it is wrong.
func TestPartitionKeys(t *testing.T) {
	f := newSchedFixture(t, "")
	set := func(m map[string]string) error {
		_, err := f.srv.UpdatePartition(f.as(olga), &ctldpb.UpdatePartitionRequest{Name: "batch", Set: m})
		return err
	}
	wantRefusal(t, set(map[string]string{"QOS": "nosuch"}), "ESLURM_INVALID_QOS", "nosuch")
	for key, value := range map[string]string{"PreemptMode": "EAT", "GraceTime": "soon", "LLN": "maybe", "MaxCPUsPerNode": "x", "TRESBillingWeights": "CPU"} {
		if r := RefusalOf(set(map[string]string{key: value})); r == nil || !strings.Contains(r.Why, value) {
			t.Errorf("%s=%s: %v", key, value, r)
		}
	}
	f.account("add", "qos", nil, clauses("name=q"))
	good := map[string]string{"QOS": "q", "PreemptMode": "requeue", "GraceTime": "30", "LLN": "yes", "ReqResv": "NO", "MaxCPUsPerNode": "2",
		"TRESBillingWeights": "CPU=1.0,Mem=0.25G", "DenyQos": "slow,free", "AllowAccounts": "physics"}
	if err := set(good); err != nil {
		t.Fatal(err)
	}
	resp, err := f.srv.ListPartitions(f.as(ann), &ctldpb.ListPartitionsRequest{Names: []string{"batch"}})
	if err != nil {
		t.Fatal(err)
	}
	p := resp.Partitions[0]
	want := map[string]string{"QoS": "q", "PreemptMode": "REQUEUE", "GraceTime": "30", "LLN": "YES", "MaxCPUsPerNode": "2",
		"TRESBillingWeights": "CPU=1.0,Mem=0.25G", "DenyQos": "slow,free"}
	if fmt.Sprint(p.Other) != fmt.Sprint(want) || p.AllowAccounts != "physics" {
		t.Errorf("shows %v, accounts %s", p.Other, p.AllowAccounts)
	}
	old := newFixture(t, "")
	_, err = old.srv.UpdatePartition(old.as(olga), &ctldpb.UpdatePartitionRequest{Name: "batch", Set: map[string]string{"LLN": "YES"}})
	if r := RefusalOf(err); r == nil || !strings.Contains(r.Why, "LLN") {
		t.Errorf("below the level: %v", err)
	}
}
