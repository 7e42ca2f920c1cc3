package state

import (
	"sync"

	"github.com/tensorgrid/tensorgrid/partitions"
)

// Limits of the state. What would exceed one is refused with the limit's name.
const (
	// MaxJobID is the highest id ever given, as Slurm's MaxJobId. Ids do not wrap.
	MaxJobID uint32 = 67043328
	// MaxSignals bounds the user signals of one run that agents have not been told of.
	MaxSignals = 16
	// MaxAvoid bounds the nodes that one job stays away from after failures; the oldest leave.
	MaxAvoid = 32
	// MaxBlob bounds one blob in bytes, MaxChunk one piece of it in the log.
	MaxBlob  = 4 << 20
	MaxChunk = 128 << 10
	// MaxOpenBlobs bounds the blobs that have begun to arrive and are not whole.
	MaxOpenBlobs = 4096
	// MaxUserOpenBlobs and MaxUserNewBytes bound what one user has sent, or begun to send, that no
	// job has named yet; MaxNewBytes what all users have.
	MaxUserOpenBlobs = 256
	MaxUserNewBytes  = 128 << 20
	MaxNewBytes      = 1 << 30
	// MaxDependents bounds the waiting records that name one job in a dependency, MaxUserDependencies
	// the jobs that all waiting records of one user name.
	MaxDependents       = 10000
	MaxUserDependencies = 1000000
	// MaxDetail bounds one reason's text in bytes; longer ones are cut.
	MaxDetail = 1024
	// MaxNodes and MaxPartitions bound one configuration.
	MaxNodes      = 65536
	MaxPartitions = 4096
	// MaxNodeCPUs bounds the CPUs of one node, each of which costs a byte wherever they are told apart.
	MaxNodeCPUs = 1 << 20
	// KeyAge and BlobAge are how long keys and unreferenced blobs are kept at least, in ms.
	KeyAge  int64 = 24 * 3600 * 1000
	BlobAge int64 = 10 * 60 * 1000
)

// Refusal is a refusal by rule, in Slurm's words and ours.
type Refusal = partitions.Refusal

// refuse makes a refusal: Slurm's error name, its line, and the line that says why.
func refuse(code, text, why string) *Refusal { return &Refusal{Code: code, Text: text, Why: why} }

// Store is the state of the replicated machine. Entries change it through Apply, one at a time;
// readers take a View. The zero value is not usable: see New.
type Store struct {
	mu      sync.Mutex
	t       tables
	private private
	view    *View // of this version; nil when nobody has asked since the last change
	cache   *schedCache
}

// New gives an empty store: no nodes, no partitions, no jobs.
func New() *Store {
	return &Store{t: newTables(), private: newPrivate(), cache: newSchedCache(nil)}
}

// View gives the state as of the last applied entry. The same version gives the same *View.
func (s *Store) View() *View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.viewLocked()
}

func (s *Store) viewLocked() *View {
	if s.view == nil {
		s.view = &View{tables: s.t.copy(), cache: s.cache}
	}
	return s.view
}

// Apply runs f on the state under the store's lock, as one entry: readers see all of it or nothing.
// The state's time becomes the later of stamped (Unix ms) and what it was.
func (s *Store) Apply(index uint64, stamped int64, f func(*Tx)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view = nil
	s.t.index = index
	s.t.version++
	s.private.entry++
	before := s.t.time
	s.t.time = max(s.t.time, stamped)
	t := &Tx{tables: &s.t, private: &s.private, now: s.t.time}
	t.expire(before)
	f(t)
}

// Replace puts the tables of other in the place of this store's; other must not be used again.
// Views given out before keep what they show.
func (s *Store) Replace(other *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.t, s.private, s.view, s.cache = other.t, other.private, nil, newSchedCache(s.cache.versions)
}

// Tx is the state while one entry is being applied. Its methods are the commands.
type Tx struct {
	*tables
	*private
	now       int64
	restoring bool // records come from a snapshot: nothing that has a time of its own changes
}
