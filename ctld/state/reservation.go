package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// MaxReservations bounds the reservations: each start looks at all of them.
const MaxReservations = 1000

// reserved is one reservation. It never changes.
type reserved struct {
	plan *partitions.Reservation
	idle int64 // when the last job left it, Unix ms; 0 = none has
	on   map[string]bool
}

// reservedTable is all reservations, by name. Immutable.
type reservedTable struct {
	list []*reserved
	wake int64 // when the first of them begins or ends next, 0 = never
}

func newReserved(plan *partitions.Reservation, idle int64) *reserved {
	r := &reserved{plan: plan, idle: idle, on: make(map[string]bool, len(plan.Nodes))}
	for _, name := range plan.Nodes {
		r.on[name] = true
	}
	return r
}

// overlaps tells whether the reservation has its nodes at any time from now to end (0 = for ever).
func (r *reserved) overlaps(now, end int64) bool {
	from, to, ok := r.plan.At(now)
	return ok && to > now && (end <= 0 || from < end)
}

// active tells whether the reservation has its nodes at time now.
func (r *reserved) active(now int64) bool { return r.overlaps(now, now+1) }

// purges is when the reservation is over since nobody uses it, given that no job is in it; 0 = never.
func (r *reserved) purges(now int64) int64 {
	from, _, ok := r.plan.At(now)
	if !ok || r.plan.PurgeAfter <= 0 {
		return 0
	}
	return max(from, r.idle) + r.plan.PurgeAfter
}

// Reservations are all reservations, by name.
func (t *tables) Reservations() []*partitions.Reservation {
	list := make([]*partitions.Reservation, len(t.reserved.list))
	for i, r := range t.reserved.list {
		list[i] = r.plan
	}
	return list
}

// ReservationFlags is what the reservations that have a node at time now (Unix ms) make of it.
func (t *tables) ReservationFlags(name string, now int64) (f node.Flags) {
	for _, r := range t.reserved.list {
		if r.on[name] && r.active(now) {
			if f |= node.Reserved; r.plan.Has("MAINT") {
				f |= node.Maint
			}
		}
	}
	return f
}

func (t *tables) findReservation(name string) (int, *reserved) {
	i, found := slices.BinarySearchFunc(t.reserved.list, name, func(r *reserved, n string) int { return strings.Compare(r.plan.Name, n) })
	if !found {
		return i, nil
	}
	return i, t.reserved.list[i]
}

// setReservations takes a new list, and works out when something of it begins or ends.
func (t *Tx) setReservations(list []*reserved) {
	table := &reservedTable{list: list}
	for _, r := range list {
		table.wake = earlier(table.wake, t.nextOf(r))
	}
	t.reserved = table
	t.usage++
	t.capacity++
}

func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// nextOf is when a reservation begins, ends or is over for want of jobs next.
func (t *Tx) nextOf(r *reserved) int64 {
	from, to, ok := r.plan.At(t.now)
	switch {
	case !ok:
		return t.now
	case r.plan.Has("TIME_FLOAT"):
		return 0 // it stays as far away as it is
	case from > t.now:
		return from
	case r.plan.PurgeAfter > 0 && t.jobsIn(r.plan.Name) == 0:
		return earlier(to, max(t.now+1, r.purges(t.now)))
	}
	return to
}

// replaceReservation puts one in the place of that of its name, or takes it out (nil).
func (t *Tx) replaceReservation(name string, r *reserved) {
	i, known := t.findReservation(name)
	list := slices.Clone(t.reserved.list)
	switch {
	case known != nil && r != nil:
		list[i] = r
	case known != nil:
		list = slices.Delete(list, i, i+1)
	case r != nil:
		list = slices.Insert(list, i, r)
	}
	t.setReservations(list)
}

// ChangeReservation creates, updates or deletes a reservation, and gives back its name.
func (t *Tx) ChangeReservation(verb, name string, set []accounting.Clause, c Caller) (string, *Refusal) {
	if r := t.needsSched("reservations"); r != nil {
		return "", r
	}
	_, known := t.findReservation(name)
	if !c.Operator && !t.db.MayAdmin(c.User, accounting.Root) && !t.mayDelete(verb, known, c) {
		return "", denied("changing reservations is for operators")
	}
	if known == nil && verb != "create" {
		return "", badReservation("there is no reservation " + fmt.Sprintf("%q", name))
	}
	var plan *partitions.Reservation
	var r *Refusal
	switch verb {
	case "create":
		if name == "" {
			name = t.freeName(set)
		}
		switch {
		case known != nil:
			return "", badReservation(fmt.Sprintf("there is a reservation %q already; update it, or take another name", name))
		case len(t.reserved.list) >= MaxReservations:
			return "", refuse("EAGAIN", "Resource temporarily unavailable", fmt.Sprintf("MaxReservations=%d: there are as many", MaxReservations))
		}
		plan, r = partitions.NewReservation(name, set, t.now, t.reservationEnv(name))
	case "update":
		plan, r = known.plan.Update(set, t.now, t.reservationEnv(name))
	case "delete":
		return name, t.deleteReservation(name)
	default:
		return "", refuse("ESLURM_NOT_SUPPORTED", "Operation not supported", fmt.Sprintf("a reservation can be created, updated and deleted; %q is none of it", verb))
	}
	if r != nil {
		return "", r
	}
	idle := int64(0)
	if known != nil {
		idle = known.idle
	}
	t.replaceReservation(name, newReserved(plan, idle))
	return name, nil
}

// mayDelete: with USER_DELETE those who may use a reservation may end it.
func (t *tables) mayDelete(verb string, r *reserved, c Caller) bool {
	return verb == "delete" && r != nil && r.plan.Has("USER_DELETE") && slices.Contains(r.plan.Users, c.User)
}

func badReservation(why string) *Refusal {
	return refuse("ESLURM_RESERVATION_INVALID", "Requested reservation is invalid", why)
}

// freeName names a reservation that was made without a name after its first user or account.
func (t *tables) freeName(set []accounting.Clause) string {
	base := "resv"
	for _, c := range set {
		if c.Name == "users" || c.Name == "accounts" {
			first, _, _ := strings.Cut(c.Value, ",")
			if first = strings.TrimLeft(first, "-"); first != "" {
				base = first
				break
			}
		}
	}
	for n := 1; ; n++ {
		name := fmt.Sprintf("%s_%d", base, n)
		if _, r := t.findReservation(name); r == nil {
			return name
		}
	}
}

// reservationEnv is what a reservation chooses its nodes from.
func (t *tables) reservationEnv(but string) partitions.ResEnv {
	env := partitions.ResEnv{Known: t.knownTo}
	in := map[string][]string{}
	for p := range t.Partitions() {
		env.Partitions = append(env.Partitions, p.Name)
		if p.Default {
			env.DefaultPartition = p.Name
		}
		for _, name := range p.Nodes {
			in[name] = append(in[name], p.Name)
		}
	}
	for n := range t.Nodes() {
		if n.Removed {
			continue
		}
		cores := max(n.Config.Sockets, 1) * max(n.Config.CoresPerSocket, 1)
		env.Nodes = append(env.Nodes, partitions.ResNode{
			Name: n.Name, CPUs: n.Config.CPUs, Cores: cores, Features: n.Features, Partitions: in[n.Name], Up: n.Usable(),
			Busy: len(n.Jobs) > 0, BusyUntil: t.busyUntil(n),
		})
	}
	for _, l := range t.licenses {
		env.Licenses = append(env.Licenses, job.License{Name: l.name, Count: l.total})
	}
	for _, r := range t.reserved.list {
		if r.plan.Name != but {
			env.Reservations = append(env.Reservations, r.plan)
		}
	}
	return env
}

// busyUntil is when the last run on a node ends by its limit; 0 when one has none, or is past it.
func (t *tables) busyUntil(n *Node) (last int64) {
	for _, id := range n.Jobs {
		end := int64(0)
		if j := t.Job(id); j != nil {
			end = j.limitEnd()
		}
		if end <= t.time {
			return 0
		}
		last = max(last, end)
	}
	return last
}

// knownTo tells whether a name in a reservation means anything here. Users and groups are the operating system's.
func (t *tables) knownTo(kind, name string) bool {
	switch kind {
	case "account":
		return t.db.Account(name) != nil
	case "qos":
		return t.db.QOS(name) != nil
	}
	return true
}

// deleteReservation ends a reservation in which nothing runs.
func (t *Tx) deleteReservation(name string) *Refusal {
	running := 0
	for _, id := range t.idsIn(name) {
		if isRunning(t.Job(id)) {
			running++
		}
	}
	if running > 0 {
		return refuse("ESLURM_RESERVATION_BUSY", "Requested reservation is in use", fmt.Sprintf("%d jobs run in reservation %q", running, name))
	}
	t.endReservation(name, fmt.Sprintf("Reservation %s was deleted", name))
	return nil
}

// endReservation takes a reservation out. What runs in it ends, as by its time limit; what waits for it alone is held, or goes
// on without it where it was made so.
func (t *Tx) endReservation(name, why string) {
	_, r := t.findReservation(name)
	ids := t.idsIn(name)
	t.replaceReservation(name, nil)
	for _, id := range ids {
		switch old := t.Job(id); {
		case isRunning(old) && !r.plan.Has("FLEX"):
			old = t.whole(target{job: old}).job // components run together
			j := edit(old)
			if j.happen(job.EventTimeLimit) {
				j.Reason, j.Detail, j.End, j.Kill, j.KillAt = job.ReasonTimeLimit, cut(why), t.now, job.WhyTimeLimit, t.now
				t.put(old, j)
			}
		case old.State == job.Pending && !t.hasReservation(old):
			t.withoutReservation(old, r, why)
		}
	}
}

// hasReservation tells whether any that a record names is left.
func (t *tables) hasReservation(j *Job) bool {
	for _, name := range reservationsOf(j.Spec) {
		if _, r := t.findReservation(name); r != nil {
			return true
		}
	}
	return false
}

// withoutReservation takes a waiting record that has no reservation left out of it, or holds it: a component with all of its job.
func (t *Tx) withoutReservation(old *Job, r *reserved, why string) {
	j := edit(old)
	if r.plan.Has("NO_HOLD_JOBS_AFTER") || r.plan.Has("NO_HOLD_JOBS_AFTER_END") {
		spec := *j.Spec
		spec.Rare = slices.DeleteFunc(slices.Clone(spec.Rare), func(o job.Option) bool { return o.Name == job.OptReservation })
		j.Spec = &spec
		j.Revision++
		t.put(old, j)
		return
	}
	old = t.whole(target{job: old}).job
	if j = edit(old); !j.happen(job.EventReservationGone) {
		return
	}
	j.HeldBy = max(j.HeldBy, HoldUser)
	j.Priority, j.Eligible = 0, 0
	j.Reason, j.Detail = job.ReasonReservationDeleted, cut(why)
	t.put(old, j)
}

// expire does what the time of an entry brings for reservations; before is what it was until then. That something may be
// due (wake) is only a hint: a replica that came by a snapshot may have another.
func (t *Tx) expire(before int64) {
	if t.reserved.wake == 0 || t.now < t.reserved.wake {
		return
	}
	changed := false
	for _, r := range t.reserved.list {
		_, _, ok := r.plan.At(t.now)
		unused := r.active(t.now) && t.jobsIn(r.plan.Name) == 0 && r.purges(t.now) > 0 && t.now >= r.purges(t.now)
		if changed = changed || r.active(before) != r.active(t.now); !ok || unused {
			t.endReservation(r.plan.Name, fmt.Sprintf("Reservation %s is over", r.plan.Name))
		}
	}
	usage, capacity := t.usage, t.capacity
	if t.setReservations(t.reserved.list); !changed {
		t.usage, t.capacity = usage, capacity
	}
}

// reservationsOf are the reservations that a specification names.
func reservationsOf(s *job.Spec) []string {
	if text := s.RareValue(job.OptReservation); text != "" {
		return strings.Split(text, ",")
	}
	return nil
}

// inReservations are the reservations that a record is in or waits for.
func inReservations(j *Job) []string {
	switch {
	case j == nil || j.State.Ended():
		return nil
	case !isRunning(j):
		return reservationsOf(j.Spec)
	case j.Reservation != "":
		return []string{j.Reservation}
	}
	return nil
}

// indexReservations moves a record between the reservations that it is in or waits for.
func (t *Tx) indexReservations(old, j *Job) {
	was, is := inReservations(old), inReservations(j)
	if slices.Equal(was, is) && (old == nil || j == nil || old.ID == j.ID) {
		return
	}
	for _, name := range is {
		addTo(t.inside, name, j.ID)
	}
	for _, name := range was {
		if slices.Contains(is, name) {
			continue
		}
		removeFrom(t.inside, name, old.ID)
		if _, r := t.findReservation(name); r != nil && r.plan.PurgeAfter > 0 && t.jobsIn(name) == 0 && !t.restoring {
			t.replaceReservation(name, &reserved{plan: r.plan, idle: t.now, on: r.on})
		}
	}
}

func (t *Tx) jobsIn(name string) int {
	if set := t.inside[name]; set != nil {
		return set.Len()
	}
	return 0
}

func (t *Tx) idsIn(name string) []uint32 {
	if set := t.inside[name]; set != nil {
		return slices.Clone(set.Keys())
	}
	return nil
}

// reservationProblem is what is wrong with the reservations that a job names: that none is there, or that it may use none.
// Groups are names and a specification has numbers: whoever resolves names has asked for those.
func (t *tables) reservationProblem(s *job.Spec) *Refusal {
	names := reservationsOf(s)
	if len(names) == 0 {
		return nil
	}
	for _, name := range names {
		_, r := t.findReservation(name)
		if r == nil {
			return badReservation(fmt.Sprintf("there is no reservation %q", name))
		}
		if _, _, ok := r.plan.At(t.time); !ok {
			return badReservation(fmt.Sprintf("reservation %q is over", name))
		}
		if !t.admits(r, s) {
			return refuse("ESLURM_RESERVATION_ACCESS", "Access denied to requested reservation",
				fmt.Sprintf("reservation %q is not for user %s with account %q and QOS %q", name, s.User, s.Account, s.QOS))
		}
	}
	return nil
}

func (t *tables) admits(r *reserved, s *job.Spec) bool {
	return len(r.plan.Groups) > 0 || r.plan.Admits(s.UID, s.User, nil, s.Account, s.QOS)
}

// roomInReservations finds the reservation that a run with these nodes is in ("" = none), from now to end (0 = for ever); ok
// false when it may not run there then.
func (t *tables) roomInReservations(j *Job, s *sched.Start, now, end int64) (name string, ok bool) {
	if len(t.reserved.list) == 0 {
		return "", len(reservationsOf(j.Spec)) == 0
	}
	var in *reserved
	if names := reservationsOf(j.Spec); len(names) > 0 {
		for _, name := range names {
			if _, r := t.findReservation(name); r != nil && t.mayRunIn(r, j, s, now, end) {
				in = r
				break
			}
		}
		if in == nil {
			return "", false
		}
	}
	for _, r := range t.reserved.list {
		if in == nil && r.plan.Has("MAGNETIC") && t.mayRunIn(r, j, s, now, end) && t.admits(r, j.Spec) {
			in = r
		}
	}
	for _, r := range t.reserved.list {
		if r != in && r.overlaps(now, end) && r.takes(s.Nodes) {
			return "", false
		}
	}
	if in == nil {
		return "", true
	}
	return in.plan.Name, true
}

// mayRunIn tells whether a run fits a reservation's time and nodes. FLEX opens both.
func (t *tables) mayRunIn(r *reserved, j *Job, s *sched.Start, now, end int64) bool {
	if !t.admits(r, j.Spec) {
		return false
	}
	if r.plan.Has("FLEX") {
		return true
	}
	_, to, _ := r.plan.At(now)
	if !r.active(now) || end <= 0 || end > to {
		return false
	}
	return len(r.on) == 0 || !slices.ContainsFunc(s.Nodes, func(a job.NodeAlloc) bool { return !r.on[a.Node] })
}

// takes tells whether any of the nodes is the reservation's.
func (r *reserved) takes(nodes []job.NodeAlloc) bool {
	return slices.ContainsFunc(nodes, func(a job.NodeAlloc) bool { return r.on[a.Node] })
}

// reservations checks what follows from records for reservations and licenses.
func (c *checker) reservations() {
	inside, held := map[string]*btree.Map[uint32, none]{}, map[heldLicense]uint64{}
	for j := range c.t.Jobs() {
		for _, name := range inReservations(j) {
			addTo(inside, name, j.ID)
		}
		if isRunning(j) {
			for _, l := range licensesOf(j.Spec) {
				held[heldLicense{j.Reservation, l.Name}] += l.Count
			}
		}
	}
	if len(inside) != len(c.p.inside) || len(held) != len(c.t.licensed) {
		c.fail("jobs in %d reservations and %d licenses; the records have %d and %d", len(c.p.inside), len(c.t.licensed), len(inside), len(held))
	}
	for name, set := range inside {
		if got := c.p.inside[name]; got == nil {
			c.fail("nothing is noted to be in reservation %q", name)
		} else {
			compare(c, "jobs in reservation "+name, got.Keys(), set.Keys())
		}
	}
	for key, n := range held {
		if c.t.licensed[key] != n {
			c.fail("license %q in reservation %q: %d are held, the runs have %d", key.name, key.reservation, c.t.licensed[key], n)
		}
	}
	for i, r := range c.t.reserved.list {
		if at, found := c.t.findReservation(r.plan.Name); found != r || at != i {
			c.fail("reservation %q is not found by its name", r.plan.Name)
		}
	}
}
