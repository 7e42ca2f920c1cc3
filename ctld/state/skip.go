package state

import "fmt"

// SkipIDs moves the next job id on by n: ids that were given after a backup was made must not be given
// again by the cluster that is restored from it. It is not a command of the log.
func (s *Store) SkipIDs(n uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if uint64(s.t.nextID)+uint64(n) > uint64(MaxJobID)+1 {
		return fmt.Errorf("%d ids after %d are more than there are left (MaxJobId is %d)", n, s.t.nextID, MaxJobID)
	}
	s.t.nextID += n
	s.view = nil
	return nil
}

// Stamp gives the state's feature level and time (Unix ms) without the cost of a view: after one the next
// entry copies what it changes.
func (s *Store) Stamp() (feature uint32, ms int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.t.feature, s.t.time
}
