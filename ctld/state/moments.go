package state

// NextMove is when the state changes next of its own accord once an entry says that it is so late, Unix ms: a
// reservation begins or ends. 0 = no such moment is known.
func (t *tables) NextMove() int64 { return t.reserved.wake }
