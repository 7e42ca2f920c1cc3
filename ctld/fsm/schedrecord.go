package fsm

import (
	"errors"
	"fmt"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// writeSched writes what FeatureSched brought: it comes last in a snapshot.
func writeSched(w *recordWriter, v *state.View) {
	w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Sched{Sched: &logpb.SnapshotSched{UsageMs: v.UsageTime()}}})
	for _, r := range v.Accounting().Records() {
		w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Accounting{Accounting: &logpb.AccountingRecord{Kind: r.Kind, Id: r.ID, Fields: r.Fields}}})
	}
	for u := range v.Usages() {
		m := &logpb.SnapshotUsage{Kind: uint32(u.Of.Kind), Id: u.Of.ID, Sub: u.Of.Sub, Wall: u.Usage.Wall, Raw: u.Usage.Raw}
		for _, a := range u.Usage.TRES {
			m.Tres, m.Amount = append(m.Tres, a.Name), append(m.Amount, a.N)
		}
		w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Usage{Usage: m}})
	}
	for r := range v.ReservationRecords() {
		w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Reservation{Reservation: &logpb.SnapshotReservation{Name: r.Name, Fields: r.Fields, IdleMs: r.Idle}}})
	}
	for h := range v.Histories() {
		w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_History{History: &logpb.SnapshotHistory{Uid: h.UID, RunMs: h.Runs[:]}}})
	}
}

// restoreSched takes one record of what FeatureSched brought; kind is its place in the order of a snapshot.
func restoreSched(re *state.Restorer, r *logpb.SnapshotRecord) (kind int, err error) {
	switch r := r.Of.(type) {
	case *logpb.SnapshotRecord_Sched:
		return 10, re.Sched(r.Sched.UsageMs)
	case *logpb.SnapshotRecord_Accounting:
		return 11, re.Accounting(accounting.Record{Kind: r.Accounting.Kind, ID: r.Accounting.Id, Fields: r.Accounting.Fields})
	case *logpb.SnapshotRecord_Usage:
		u, err := usageFromRecord(r.Usage)
		if err != nil {
			return 12, err
		}
		return 12, re.Usage(u)
	case *logpb.SnapshotRecord_Reservation:
		return 13, re.Reservation(state.ReservationRecord{Name: r.Reservation.Name, Fields: r.Reservation.Fields, Idle: r.Reservation.IdleMs})
	case *logpb.SnapshotRecord_History:
		h := state.HistoryRecord{UID: r.History.Uid}
		if copy(h.Runs[:], r.History.RunMs) != len(r.History.RunMs) {
			return 14, fmt.Errorf("run times of uid %d: %d of them", h.UID, len(r.History.RunMs))
		}
		return 14, re.History(h)
	}
	return 0, errors.New("a record of no kind")
}

func usageFromRecord(m *logpb.SnapshotUsage) (u state.UsageRecord, err error) {
	if len(m.Tres) != len(m.Amount) || m.Kind > 255 {
		return u, fmt.Errorf("usage of entity %d %d: %d names, %d amounts", m.Kind, m.Id, len(m.Tres), len(m.Amount))
	}
	u = state.UsageRecord{Of: partitions.Entity{Kind: uint8(m.Kind), ID: m.Id, Sub: m.Sub}, Usage: accounting.Usage{Wall: m.Wall, Raw: m.Raw}}
	for i, name := range m.Tres {
		if i > 0 && m.Tres[i-1] >= name || m.Amount[i] < 0 {
			return u, fmt.Errorf("usage of entity %d %d: TRES out of order, or below 0", m.Kind, m.Id)
		}
		u.Usage.TRES = append(u.Usage.TRES, accounting.Amount{Name: name, N: m.Amount[i]})
	}
	return u, nil
}

// clausesFromLog reads name, operator, value, ...; what is left over is dropped.
func clausesFromLog(list []string) []accounting.Clause {
	var out []accounting.Clause
	for i := 0; i+2 < len(list); i += 3 {
		out = append(out, accounting.Clause{Name: list[i], Op: list[i+1], Value: list[i+2]})
	}
	return out
}

// ClausesToLog is the reverse of what the state reads.
func ClausesToLog(list []accounting.Clause) []string {
	var out []string
	for _, c := range list {
		out = append(out, c.Name, c.Op, c.Value)
	}
	return out
}

func changeAccounting(t *state.Tx, m *logpb.AccountingChange) Result {
	out, r := t.ChangeAccounting(accounting.Change{
		Verb: m.Verb, Entity: m.Entity, Where: clausesFromLog(m.Where), Set: clausesFromLog(m.Set)}, callerFromLog(m.Caller))
	return Result{Changed: out.Changed, Warnings: out.Warnings, Refused: refusal(r)}
}

func changeReservation(t *state.Tx, m *logpb.ReservationChange) Result {
	name, r := t.ChangeReservation(m.Verb, m.Name, clausesFromLog(m.Set), callerFromLog(m.Caller))
	if r != nil {
		return Result{Refused: refusal(r)}
	}
	return Result{Changed: []string{name}}
}

func submitHet(t *state.Tx, m *logpb.SubmitHet) Result {
	specs := make([]*job.Spec, len(m.Specs))
	for i, s := range m.Specs {
		specs[i] = SpecFromLog(s)
	}
	return submitted(t.SubmitHet(m.Key, m.Digest, specs))
}
