package state

import (
	"errors"
	"fmt"
	"iter"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// UsageRecord is the decayed usage of one entity in a snapshot.
type UsageRecord struct {
	Of    partitions.Entity
	Usage accounting.Usage
}

// ReservationRecord is one reservation of a snapshot.
type ReservationRecord struct {
	Name   string
	Fields []string
	Idle   int64 // when the last job left it, Unix ms; 0 = none has
}

// HistoryRecord is how long a user's last runs took.
type HistoryRecord struct {
	UID  uint32
	Runs RunTimes
}

// Usages walks all usage that is kept, by entity.
func (t *tables) Usages() iter.Seq[UsageRecord] {
	return func(yield func(UsageRecord) bool) {
		t.charges.Scan(func(u entityUsage) bool { return yield(UsageRecord{u.of, u.usage}) })
	}
}

// ReservationRecords walks the reservations, by name.
func (t *tables) ReservationRecords() iter.Seq[ReservationRecord] {
	return func(yield func(ReservationRecord) bool) {
		for _, r := range t.reserved.list {
			if !yield(ReservationRecord{r.plan.Name, r.plan.Fields(), r.idle}) {
				return
			}
		}
	}
}

// Histories walks the run times that are kept, by uid.
func (t *tables) Histories() iter.Seq[HistoryRecord] {
	return func(yield func(HistoryRecord) bool) {
		t.history.Scan(func(uid uint32, h RunTimes) bool { return yield(HistoryRecord{uid, h}) })
	}
}

var errLevel = errors.New("a record of a later feature level")

// Sched takes up to when usage is counted; it comes first of what FeatureSched brought.
func (r *Restorer) Sched(usageAt int64) error {
	if r.tx.feature < FeatureSched || r.begun {
		return errLevel
	}
	r.begun, r.tx.usageAt = true, usageAt
	return nil
}

// Accounting takes one account, user, association or QOS.
func (r *Restorer) Accounting(rec accounting.Record) error {
	if !r.begun {
		return errLevel
	}
	r.accounts = append(r.accounts, rec)
	return nil
}

// Usage takes the usage of one entity.
func (r *Restorer) Usage(u UsageRecord) error {
	if !r.begun {
		return errLevel
	}
	if _, twice := r.tx.charges.Get(entityUsage{of: u.Of}); twice {
		return fmt.Errorf("usage of %+v: a duplicate", u.Of)
	}
	r.tx.charges.Set(entityUsage{u.Of, u.Usage})
	return nil
}

// Reservation takes one reservation.
func (r *Restorer) Reservation(rec ReservationRecord) error {
	if !r.begun || len(r.reserved) >= MaxReservations {
		return errLevel
	}
	plan, err := partitions.ReservationFromFields(rec.Name, rec.Fields)
	if err != nil {
		return fmt.Errorf("reservation %q: %w", rec.Name, err)
	}
	if n := len(r.reserved); n > 0 && r.reserved[n-1].plan.Name >= rec.Name {
		return fmt.Errorf("reservation %q: a duplicate, or out of order", rec.Name)
	}
	r.reserved = append(r.reserved, newReserved(plan, rec.Idle))
	return nil
}

// History takes how long a user's last runs took.
func (r *Restorer) History(h HistoryRecord) error {
	if _, twice := r.tx.history.Get(h.UID); !r.begun || twice || r.tx.history.Len() >= MaxHistory {
		return fmt.Errorf("run times of uid %d: a duplicate, or too many", h.UID)
	}
	r.tx.history.Set(h.UID, h.Runs)
	return nil
}

// finishSched puts together what FeatureSched brought, when all records are there.
func (r *Restorer) finishSched() error {
	if r.tx.feature < FeatureSched {
		return nil
	}
	if !r.begun {
		return errors.New("the accounts are missing")
	}
	db, err := accounting.FromRecords(r.accounts)
	if err != nil {
		return fmt.Errorf("accounts: %w", err)
	}
	if refused := tooMany(db); refused != nil {
		return fmt.Errorf("accounts: %s", refused.Why)
	}
	r.tx.restoring = false
	r.tx.db = db
	r.tx.setReservations(r.reserved)
	r.tx.buildSched()
	return nil
}
