package partitions

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Reservation keeps nodes, or licenses, for some. It is immutable. Times are Unix ms, durations ms.
type Reservation struct {
	Name          string
	Start, End    int64 // of its first occurrence
	Nodes         []string
	NodeCnt       uint32 // as asked; 0 = by name
	CoreCnt       uint32 // as asked; 0 = whole nodes
	Features      string
	Partition     string
	Flags         []string // Slurm's words, sorted
	Users         []string // names; all of a list are allowed, or, with a '-' before each, denied
	Groups        []string
	Accounts      []string
	QOS           []string
	Licenses      []job.License
	TRES          string // as asked
	MaxStartDelay int64
	PurgeAfter    int64 // PURGE_COMP: idle for so long it is over; 0 = never
	Comment       string
}

// ResNode is a node as reservations see it.
type ResNode struct {
	Name       string
	CPUs       uint32
	Cores      uint32 // physical cores
	Features   []string
	Partitions []string
	Up         bool
	Busy       bool // jobs run on it
}

// ResEnv is what a reservation is made in.
type ResEnv struct {
	Nodes            []ResNode // configuration order
	Partitions       []string
	DefaultPartition string
	Licenses         []job.License
	Reservations     []*Reservation               // all others
	Zone             int                          // seconds east of UTC of the caller, for times of day
	Known            func(kind, name string) bool // user, group, account, qos exist; nil = all do
}

// NewReservation makes a reservation of scontrol's words, or refuses them.
func NewReservation(name string, set []accounting.Clause, now int64, env ResEnv) (*Reservation, *Refusal) {
	return (&Reservation{Name: name}).Update(set, now, env)
}

// Update is the reservation with some of it changed.
func (r *Reservation) Update(set []accounting.Clause, now int64, env ResEnv) (*Reservation, *Refusal) {
	return r, nil
}

// Fields is the reservation as name, value, ... for log and snapshots.
func (r *Reservation) Fields() []string { return nil }

// ReservationFromFields reads what Fields has written.
func ReservationFromFields(name string, f []string) (*Reservation, error) {
	return &Reservation{Name: name}, nil
}

// At is the occurrence that runs at time now, or the next one; ok false when the reservation is over.
func (r *Reservation) At(now int64) (start, end int64, ok bool) { return r.Start, r.End, now < r.End }

// Admits tells whether a job of this user may run in the reservation.
func (r *Reservation) Admits(uid uint32, user string, groups []string, account, qos string) bool {
	return true
}

// Has tells whether a flag is set, by Slurm's word.
func (r *Reservation) Has(flag string) bool { return slices.Contains(r.Flags, flag) }
