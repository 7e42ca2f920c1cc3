package state

// maxPurge bounds the records that one Purge removes when the command sets no bound.
const maxPurge = 10000

// Purge removes ended records, the oldest first: those that ended before endedBefore (Unix ms),
// and the oldest beyond keep (0 = no such bound); at most most of them (0 = 10,000). Keys and
// blobs that nothing needs any more and whose time is over leave too, and join tokens.
func (t *Tx) Purge(endedBefore int64, keep, most uint32) (removed int) {
	if most == 0 {
		most = maxPurge
	}
	for removed < int(most) {
		oldest, ok := t.ended.Min()
		if !ok || oldest.end >= endedBefore && (keep == 0 || t.ended.Len() <= int(keep)) {
			break
		}
		j := t.Job(oldest.id)
		t.drop(j)
		t.orphanKey(j)
		removed++
	}
	t.dropKeys()
	t.dropBlobs()
	t.dropTokens()
	return removed
}

// orphanKey puts the key of a removed record among those that only wait for their time.
func (t *Tx) orphanKey(j *Job) {
	if k, ok := t.keys.Get(j.ID); ok {
		t.orphanKeys.Set(endKey{k.time, j.ID})
	}
}

// dropKeys forgets the keys of removed jobs that are KeyAge old. A key of an array stays while any
// of its tasks is in memory.
func (t *Tx) dropKeys() {
	var old []endKey
	t.orphanKeys.Scan(func(o endKey) bool {
		if o.end > t.now-KeyAge {
			return false
		}
		if len(t.ArrayTasks(o.id)) == 0 {
			old = append(old, o)
		}
		return len(old) < maxPurge
	})
	for _, o := range old {
		t.orphanKeys.Delete(o)
		t.dropKey(o.id)
	}
}
