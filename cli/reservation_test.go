package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

func (f *fake) ChangeReservation(_ context.Context, r *ctldpb.ChangeReservationRequest) (*ctldpb.ChangeReservationResponse, error) {
	name := r.Name
	if name == "" {
		name = "root_1"
	}
	return &ctldpb.ChangeReservationResponse{Name: name}, nil
}

func (f *fake) ListReservations(_ context.Context, r *ctldpb.ListReservationsRequest) (*ctldpb.ListReservationsResponse, error) {
	res := &ctldpb.ListReservationsResponse{Info: &ctldpb.ReadInfo{}}
	for _, v := range f.resv {
		if len(r.Names) == 0 || slices.Contains(r.Names, v.Name) {
			res.Reservations = append(res.Reservations, v)
		}
	}
	return res, nil
}

func (f *fake) ListLicenses(context.Context, *ctldpb.ListLicensesRequest) (*ctldpb.ListLicensesResponse, error) {
	return &ctldpb.ListLicensesResponse{Licenses: f.licenses}, nil
}

func someReservations(f *fake) {
	at := fakeNow.UnixMilli()
	f.resv = []*ctldpb.Reservation{
		{Name: "maint", StartMs: at, EndMs: at + 3600_000, Nodes: "n[1-2]", NodeCount: 2, CoreCount: 16, Partition: "main", Flags: []string{"MAINT", "SPEC_NODES"}, Tres: "cpu=16", Users: "root", State: "ACTIVE"},
		{Name: "course-week", StartMs: at + 86400_000, EndMs: at + 2*86400_000, Nodes: "n3", NodeCount: 1, CoreCount: 8, Flags: []string{"WEEKLY"}, Accounts: "physics", State: "INACTIVE", MaxStartDelayMs: 60000, Comment: "lessons"},
	}
	f.licenses = []*ctldpb.License{{Name: "matlab", Total: 10, Used: 3, Reserved: 2}}
}

func TestReservations(t *testing.T) {
	r := newRunner(t)
	r.want(r.call("scontrol", "show", "reservation"), 0, "No reservations in the system\n", "")
	r.want(r.call("scontrol", "show", "lic"), 0, "No licenses configured in Slurm.\n", "")
	r.want(r.call("sinfo", "-T"), 0, "No reservations in the system\n", "")
	someReservations(r.fake)
	const maint = "ReservationName=maint StartTime=2026-11-30T12:00:00 EndTime=2026-11-30T13:00:00 Duration=01:00:00\n" +
		"   Nodes=n[1-2] NodeCnt=2 CoreCnt=16 Features=(null) PartitionName=main Flags=MAINT,SPEC_NODES\n" +
		"   TRES=cpu=16\n" +
		"   Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a\n" +
		"   MaxStartDelay=(null)\n\n"
	r.want(r.call("scontrol", "show", "res", "maint"), 0, maint, "")
	r.want(r.call("scontrol", "show", "reservationname=maint"), 0, maint, "")
	if a := r.call("scontrol", "-o", "show", "res"); strings.Count(a.out, "\n") != 2 || !strings.Contains(a.out, "MaxStartDelay=00:01:00 Comment=lessons\n") {
		t.Errorf("%s", a.out)
	}
	r.want(r.call("scontrol", "show", "res", "nosuch"), 1, "", "scontrol: error: Reservation nosuch not found\n")
	r.want(r.call("sinfo", "-T"), 0, ""+
		"RESV_NAME       STATE           START_TIME             END_TIME     DURATION  NODELIST\n"+
		"maint          ACTIVE  2026-11-30T12:00:00  2026-11-30T13:00:00     01:00:00  n[1-2]\n"+
		"course-week  INACTIVE  2026-12-01T12:00:00  2026-12-02T12:00:00   1-00:00:00  n3\n", "")
	r.want(r.call("scontrol", "show", "licenses"), 0, "LicenseName=matlab\n    Total=10 Used=3 Free=5 Reserved=2 Remote=no\n", "")
	r.want(r.call("scontrol", "-o", "show", "licenses", "matlab"), 0, "LicenseName=matlab Total=10 Used=3 Free=5 Reserved=2 Remote=no\n", "")
}

func TestReservationChanges(t *testing.T) {
	r := newRunner(t)
	for _, c := range []struct{ args, out, want string }{
		{"create reservation nodes=n1 users=root starttime=now duration=60", "Reservation created: root_1\n", "create  [nodes=n1 users=root starttime=1796040000000 duration=60]"},
		{"create ReservationName=x StartTime=2026-12-01T10:00:00 end=2026-12-01T12:00:00 Acc=a,-b Flags=MAINT,OVERLAP NodeCnt=2", "Reservation created: x\n",
			"create x [starttime=1796119200000 endtime=1796126400000 accounts=a,-b flags=MAINT,OVERLAP nodecnt=2]"},
		{"update ReservationName=x Users+=bob Flags-=MAINT PartitionName=main", "Reservation updated.\n", "update x [users+=bob flags-=MAINT partitionname=main]"},
		{"delete ReservationName=x", "", "delete x []"},
		{"delete reservation x", "", "delete x []"},
	} {
		a := r.call("scontrol", strings.Fields(c.args)...)
		q := request[*ctldpb.ChangeReservationRequest](r, "ChangeReservation")
		if got := q.Verb + " " + q.Name + " [" + clauses(q.Set) + "]"; got != c.want || a.code != 0 || a.out != c.out || q.Key == "" {
			t.Errorf("%s: got %s, want %s: %+v", c.args, got, c.want, a)
		}
	}
	for args, want := range map[string]string{
		"create":                           "too few arguments",
		"create partition=x":               "nodes and partitions are lines of grid.conf",
		"create reservation":               "No reservation parameters given",
		"create reservation colour=red":    "Unknown parameter colour=red",
		"create reservation starttime=yes": "Invalid StartTime specification",
		"create reservation nodes":         "write KEY=VALUE",
		"update ReservationName=x":         "No changes specified",
		"delete":                           "No valid entity in delete command",
		"delete partition=x":               "No valid entity in delete command",
	} {
		if a := r.call("scontrol", strings.Fields(args)...); a.code != 1 || !strings.Contains(a.errout, want) {
			t.Errorf("%s: %+v", args, a)
		}
	}
	r.fake.refuse["ChangeReservation"] = &ctldpb.Refusal{Code: "ESLURM_RESERVATION_OVERLAP", Text: "Requested reservation overlaps another", Why: "n1 is in maint until 13:00"}
	r.want(r.call("scontrol", "create", "res", "nodes=n1", "users=root", "start=now", "dur=60"), 1, "", "Error creating the reservation error: Requested reservation overlaps another\nscontrol: error: n1 is in maint until 13:00\n")
	// of a job, a reservation is a value
	r.call("scontrol", "update", "JobId=1", "ReservationName=x")
	if q := request[*ctldpb.UpdateJobRequest](r, "UpdateJob"); q.Set["ReservationName"] != "x" {
		t.Errorf("%v", q)
	}
}

func TestNodeStatesOfPlans(t *testing.T) {
	r := newRunner(t)
	someReservations(r.fake)
	node := func(name, state string, cpus uint32, flags ...string) *ctldpb.Node {
		return &ctldpb.Node{Name: name, State: state, Cpus: 8, CpusAlloc: cpus, Flags: flags, Partitions: []string{"main"}, LastSeenMs: 1}
	}
	r.fake.parts = []*ctldpb.Partition{{Name: "main", State: "UP", IsDefault: true, MaxTimeMs: -1, Other: map[string]string{"PreemptMode": "REQUEUE", "QoS": "part", "GraceTime": "60", "TRESBillingWeights": "CPU=1"}}}
	r.fake.nodes = []*ctldpb.Node{node("n1", "IDLE", 0, "MAINTENANCE"), node("n2", "IDLE", 0, "RESERVED", "MAINTENANCE"), node("n3", "MIXED", 4, "RESERVED"), node("n4", "IDLE", 0, "RESERVED"),
		node("n5", "IDLE", 0, "PLANNED"), node("n6", "ALLOCATED", 8, "MAINTENANCE"), node("n7", "IDLE", 0, "MAINTENANCE", "DRAIN"), node("n8", "IDLE", 0, "MAINTENANCE", "NOT_RESPONDING")}
	r.want(r.call("sinfo", "-h", "-N", "-o", "%N %t %T %i"), 0, "n1 maint maint maint\nn2 maint maint maint\nn3 mix mixed \nn4 resv reserved \nn5 plnd planned \nn6 alloc$ allocated$ \nn7 drain$ drained$ \nn8 maint* maint* \n", "")
	r.want(r.call("sinfo", "-h", "-o", "%i|%D"), 0, "maint|2\n|6\n", "")
	r.want(r.call("sinfo", "-h", "-t", "maint", "-o", "%N"), 0, "n[1-2,6-8]\n", "")
	r.want(r.call("sinfo", "-h", "-t", "plnd", "-o", "%N %M"), 0, "n5 REQUEUE\n", "")
	a := r.call("scontrol", "show", "partition", "main")
	for _, want := range []string{"Default=YES QoS=part\n", "GraceTime=60 ", "PreemptMode=REQUEUE\n", "TRESBillingWeights=CPU=1\n"} {
		if !strings.Contains(a.out, want) {
			t.Errorf("no %q in %s", want, a.out)
		}
	}
}

func TestShowPlannedJob(t *testing.T) {
	r := newRunner(t)
	at := fakeNow.UnixMilli()
	r.fake.jobs = []*ctldpb.Job{{JobId: 13, HetJobId: 12, HetOffset: 1, HetIds: "12-13", ArrayTaskId: -1, User: "alice", State: "PENDING", Partition: "main", StartMs: at + 60000, StartPromised: true, SchedNodes: "n[1-2]", DeadlineMs: at + 7200_000,
		Licenses: "m:1", Spec: &ctldpb.JobSpec{Name: "h", Dependency: "afterok:9", Rare: map[string]string{"reservation": "r1", "switches": "1@60", "prefer": "a100", "exclusive": "user", "sockets-per-node": "2", "cores-per-socket": "8", "bid": "500000"}}},
		{JobId: 14, ArrayTaskId: -1, User: "alice", State: "SUSPENDED", Partition: "main", StartMs: at - 60000, SuspendMs: at - 1000, SuspendedMs: 1000, PreemptMs: at - 1000, CheckpointMs: at - 5000, NodeList: "n1", Spec: &ctldpb.JobSpec{Name: "s"}}}
	a := r.call("gctl", "show", "job", "12+1")
	for _, want := range []string{"JobId=13 HetJobId=12 HetJobOffset=1 JobName=h\n   HetJobIdSet=12-13\n", "Deadline=2026-11-30T14:00:00\n", "Dependency=afterok:9(unfulfilled)\n", "NodeList=(null)\n   SchedNodeList=n[1-2]\n",
		"ReqB:S:C:T=0:0:8:*", "Socks/Node=2 ", "Features=(null) Prefer=a100 DelayBoot", "Reservation=r1\n", "OverSubscribe=USER ", "Licenses=m:1 ", "Switches=1@60\n", "StartKind=promised\n", "Bid=0.5\n"} {
		if !strings.Contains(a.out, want) {
			t.Errorf("no %q in %s%s", want, a.out, a.errout)
		}
	}
	if a := r.call("scontrol", "show", "job", "13"); strings.Contains(a.out, "StartKind") || strings.Contains(a.out, "Bid=") {
		t.Errorf("scontrol has lines of ours: %s", a.out)
	}
	a = r.call("scontrol", "show", "job", "14")
	for _, want := range []string{"JobState=SUSPENDED", "PreemptTime=2026-11-30T11:59:59\n", "SuspendTime=2026-11-30T11:59:59 SecsPreSuspend=59 ", "CheckpointTime=2026-11-30T11:59:55\n"} {
		if !strings.Contains(a.out, want) {
			t.Errorf("no %q in %s", want, a.out)
		}
	}
	r.call("scancel", "12+1")
	if q := request[*ctldpb.CancelRequest](r, "Cancel"); q.Filter.JobIds[0] != "13" {
		t.Errorf("%v", q)
	}
	r.call("scontrol", "hold", "12+1")
	if q := request[*ctldpb.ControlRequest](r, "Control"); q.JobIds[0] != "13" {
		t.Errorf("%v", q)
	}
}

func TestShowAssociations(t *testing.T) {
	r := newRunner(t)
	someAccounts(r.fake)
	a := r.call("scontrol", "show", "assoc_mgr")
	for _, want := range []string{"Association Records\n\nClusterName=lab Account=root ", "UserName=bob ", "SharesRaw/Norm/Level/Factor=parent/0.25/inf/1.00\n", "UsageRaw/Norm/Efctv=1200/1.00/1.00 ", "GrpTRES=cpu=100,gres/gpu=8\n", "MaxJobs=5 "} {
		if !strings.Contains(a.out, want) {
			t.Errorf("no %q in %s%s", want, a.out, a.errout)
		}
	}
}
