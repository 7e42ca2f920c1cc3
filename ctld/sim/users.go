package sim

import (
	"crypto/sha256"
	"fmt"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// maxJobs is how many records in memory let users wait with more, maxRequests how many old requests
// are kept to be sent again.
const (
	maxJobs     = 60
	maxRequests = 100
)

// userKey is a user's idempotency key.
type userKey struct {
	uid uint32
	key string
}

// request is a submission that a user may send again.
type request struct {
	userKey
	cmd   *logpb.Command
	asked int // how often
}

// given is the job that a key has made, as users were told or as the log has it.
type given struct {
	id     uint32
	time   int64 // the state's when it entered
	digest string
}

type users struct {
	next     int
	requests []*request
	keys     map[userKey]given
}

func caller(operator bool, uid uint32) *logpb.Caller {
	return &logpb.Caller{Uid: uid, User: fmt.Sprint("u", uid), Operator: operator}
}

// someone is mostly the owner of the job, or an operator.
func (s *sim) someone(j *state.Job) *logpb.Caller {
	switch s.dice.below(6) {
	case 0:
		return caller(false, uint32(s.dice.below(3)+1))
	case 1, 2:
		return caller(true, 0)
	}
	return caller(false, j.Spec.UID)
}

// someJob draws a record that exists; nil when there is none.
func (s *sim) someJob() *state.Job {
	all, _, _ := s.view.Counts()
	if all == 0 {
		return nil
	}
	n := s.dice.below(all)
	for j := range s.view.Jobs() {
		if n--; n < 0 {
			return j
		}
	}
	return nil
}

// submit sends a new job, with a key or without.
func (s *sim) submit() {
	if all, _, _ := s.view.Counts(); all > maxJobs {
		s.purge()
		return
	}
	spec := s.spec()
	s.users.next++
	r := &request{userKey: userKey{uid: spec.Uid}}
	if !s.dice.in(4) {
		r.key = fmt.Sprint("k", s.users.next/3) // users choose the same ones, and one user may by mistake
	}
	sum := sha256.Sum256([]byte(fmt.Sprint(s.users.next)))
	r.cmd = &logpb.Command{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Key: r.key, Spec: spec, Digest: sum[:]}}}
	if r.key != "" {
		if s.users.requests = append(s.users.requests, r); len(s.users.requests) > maxRequests {
			s.users.requests = s.users.requests[1:]
		}
	}
	s.ask(r)
}

// again sends an old request again, or another request under its key.
func (s *sim) again() {
	if len(s.users.requests) == 0 {
		return
	}
	r := s.users.requests[s.dice.below(len(s.users.requests))]
	if s.dice.in(10) {
		sub := r.cmd.GetSubmit()
		other := sha256.Sum256([]byte("other"))
		s.propose(nil, &logpb.Command{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Key: r.key, Spec: sub.Spec, Digest: other[:]}}})
		return
	}
	s.ask(r)
}

func (s *sim) ask(r *request) {
	r.asked++
	s.propose(func(results []fsm.Result) {
		if results == nil && r.key != "" && r.asked < 4 && s.dice.in(2) {
			s.ask(r) // unknown: the same key again
		}
	}, r.cmd)
}

// charges draws what a job takes beside nodes: licenses, its QOS, a reservation.
func (s *sim) charges(p *logpb.JobSpec) {
	if s.happens("licenses") {
		p.Rare = append(p.Rare, job.OptLicenses, pick(s, "foo:1", "foo:2"))
	}
	if s.happens("qos") {
		p.Qos = "hi"
	}
	if s.happens("inside") && len(s.view.Reservations()) > 0 {
		p.Rare = append(p.Rare, job.OptReservation, s.view.Reservations()[0].Name)
	}
}

// spec makes a specification.
func (s *sim) spec() *logpb.JobSpec {
	p := &logpb.JobSpec{Name: pick(s, "a", "b", "c"), Uid: uint32(1 + s.dice.below(3)), Requeue: int32(s.dice.below(3)) - 1, Nice: int32(s.dice.below(3)) - 1,
		TimeLimitMs: pick(s, int64(0), 30_000, 60_000, 600_000, -1), Script: []byte("#!/bin/sh\n")}
	p.User = fmt.Sprint("u", p.Uid)
	switch s.dice.below(6) {
	case 0:
		p.Ntasks = uint32(1 + s.dice.below(12))
	case 1:
		p.MinNodes = uint32(1 + s.dice.below(4))
	case 2:
		p.CpusPerTask = uint32(1 + s.dice.below(4))
		p.Ntasks = uint32(1 + s.dice.below(3))
	case 3:
		p.NtasksPerNode, p.MinNodes, p.MaxNodes = 2, 1, uint32(1+s.dice.below(3))
	}
	if s.happens("gres") {
		p.Gres = pick(s, "gpu:1", "gpu:a100:1", "gpu:2", "gpu:h100:1", "shard:3")
	}
	if s.happens("memory") {
		p.MemPerNode = pick(s, int64(1<<30), 6<<30, -1)
	}
	if s.happens("choosy") {
		switch s.dice.below(5) {
		case 0:
			p.NodeList = s.hosts[s.dice.below(len(s.hosts))].name
		case 1:
			p.Exclude = s.hosts[s.dice.below(len(s.hosts))].name
		case 2:
			p.Constraint = pick(s, "big", "big|fast", "big&fast", "none")
		case 3:
			p.Exclusive = true
		default:
			p.TimeMinMs, p.TimeLimitMs = 20_000, 600_000
		}
	}
	if s.happens("parts") {
		p.Partition = pick(s, "p", "q", "r", "q,p", "p,r")
	}
	if s.happens("array") {
		p.Array = pick(s, "0-3", "1,3,5", "0-5%2", "7", "0-7%1")
	}
	if s.happens("later") {
		p.BeginMs = s.view.Time() + int64(s.dice.below(1800_000))
	}
	if s.happens("deadline") {
		p.Rare = append(p.Rare, job.OptDeadline, fmt.Sprint(s.view.Time()+int64(s.dice.below(1200_000))))
	}
	p.Hold = s.happens("hold")
	if s.happens("depend") {
		p.Dependency = s.dependency()
		if s.dice.in(3) {
			p.Rare = append(p.Rare, job.OptInvalidDep, "yes")
		}
	}
	s.charges(p)
	if s.happens("blob") {
		for b := range s.view.Blobs() {
			if uint64(len(b.Data)) == b.Total && s.dice.in(2) {
				p.ScriptHash, p.Script = []byte(b.Hash), nil
			}
		}
	}
	return p
}

func (s *sim) dependency() string {
	name := func() string {
		j := s.someJob()
		switch {
		case j == nil:
			return "1"
		case j.ArrayID == 0:
			return fmt.Sprint(j.ID)
		case s.dice.in(2):
			return fmt.Sprintf("%d_%d", j.ArrayID, s.dice.below(6))
		}
		return fmt.Sprint(j.ArrayID)
	}
	text := pick(s, "after", "afterany", "afterany", "afterok", "afternotok", "aftercorr") + ":" + name()
	switch s.dice.below(6) {
	case 0:
		return "singleton"
	case 1:
		return text + pick(s, ",", "?") + "afterany:" + name()
	case 2:
		return text + ":" + name()
	}
	return text
}

func (s *sim) ref(j *state.Job) *logpb.JobRef {
	r := &logpb.JobRef{JobId: j.ID}
	if j.ArrayID != 0 {
		if r.JobId = j.ArrayID; s.dice.in(2) {
			r.HasTasks, r.Tasks = true, []uint32{uint32(s.dice.below(8)), uint32(s.dice.below(8))}
		}
	}
	return r
}

func (s *sim) cancel() {
	if j := s.someJob(); j != nil {
		c := &logpb.Cancel{Jobs: []*logpb.JobRef{s.ref(j)}, Caller: s.someone(j)}
		if s.dice.in(5) {
			c.States = []uint32{uint32(job.Pending)}
		}
		s.propose(nil, &logpb.Command{Of: &logpb.Command_Cancel{Cancel: c}})
	}
}

func (s *sim) signal() {
	if j := s.someJob(); j != nil {
		s.propose(nil, &logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: []*logpb.JobRef{s.ref(j)}, Signal: 10, Caller: s.someone(j)}}})
	}
}

func (s *sim) control(ops ...state.Op) {
	if j := s.someJob(); j != nil {
		s.propose(nil, &logpb.Command{Of: &logpb.Command_Control{Control: &logpb.Control{Op: uint32(pick(s, ops...)), Jobs: []*logpb.JobRef{s.ref(j)},
			Caller: s.someone(j), DelayMs: pick(s, int64(0), 0, 5000)}}})
	}
}

func (s *sim) update() {
	j := s.someJob()
	if j == nil {
		return
	}
	set := map[string]string{}
	switch s.dice.below(12) {
	case 0:
		set["TimeLimit"] = pick(s, "1", "5", "+1", "-1", "UNLIMITED")
	case 1:
		set["Priority"] = pick(s, "0", "10", "4294967295")
	case 2:
		set["Nice"] = pick(s, "5", "-5")
	case 3:
		set["JobName"] = pick(s, "a", "d")
	case 4:
		set["Partition"] = pick(s, "p", "q", "r", "p,q")
	case 5:
		set["ArrayTaskThrottle"] = pick(s, "0", "1", "3")
	case 6:
		set["NumNodes"] = pick(s, "1", "1-2")
	case 7:
		set["Dependency"] = pick(s, "", s.dependency())
	case 8:
		set["Gres"] = pick(s, "", "gpu:1")
	case 9:
		set["Requeue"] = pick(s, "0", "1")
	case 10:
		set["StartTime"] = pick(s, "now", "now+60")
	default:
		set["NumCPUs"], set["Comment"] = pick(s, "1", "2", "4"), "c"
	}
	s.propose(nil, &logpb.Command{Of: &logpb.Command_UpdateJob{UpdateJob: &logpb.UpdateJob{Job: s.ref(j), Set: set, Caller: s.someone(j)}}})
}

// blob sends one of few blobs: whole, in two pieces, or only the first of them.
func (s *sim) blob() {
	data := []byte(fmt.Sprint("a script that many use ", s.dice.below(5)))
	sum, half := sha256.Sum256(data), len(data)/2
	piece := func(from, to int) *logpb.Command {
		return &logpb.Command{Of: &logpb.Command_PutBlob{PutBlob: &logpb.PutBlob{Hash: sum[:], Total: uint64(len(data)), Offset: uint64(from), Data: data[from:to], Uid: uint32(1 + s.dice.below(3))}}}
	}
	switch s.dice.below(3) {
	case 0:
		s.propose(nil, piece(0, len(data)))
	case 1:
		s.propose(nil, piece(0, half))
	default:
		s.propose(nil, piece(0, half), piece(half, len(data)))
	}
}
