package state

import "encoding/binary"

// maxPurge bounds the records that one Purge removes when the command sets no bound.
const maxPurge = 10000

// Purge removes ended records, the oldest first: those that ended before endedBefore (Unix ms),
// and the oldest beyond keep (0 = no such bound); at most most of them (0 = 10,000). Keys and
// blobs that nothing needs any more and whose time is over leave too.
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
	return removed
}

// orphanKey puts the key of a removed record among those that only wait for their time.
func (t *Tx) orphanKey(j *Job) {
	if j.Key == "" {
		return
	}
	name := keyName(j.Spec.UID, j.Key)
	if k, ok := t.keys.Get(name); ok {
		t.orphanKeys.Set(orphanName(k.time, name), none{})
	}
}

func orphanName(time int64, name string) orphanKey {
	return string(binary.BigEndian.AppendUint64(nil, uint64(time))) + name
}

// dropKeys forgets the keys of removed jobs that are KeyAge old. A key of an array stays while any
// of its tasks is in memory.
func (t *Tx) dropKeys() {
	var old []orphanKey
	t.orphanKeys.Scan(func(o orphanKey, _ none) bool {
		if int64(binary.BigEndian.Uint64([]byte(o[:8]))) > t.now-KeyAge {
			return false
		}
		if k, _ := t.keys.Get(o[8:]); len(t.ArrayTasks(k.job)) == 0 {
			old = append(old, o)
		}
		return len(old) < maxPurge
	})
	for _, o := range old {
		t.orphanKeys.Delete(o)
		t.keys.Delete(o[8:])
	}
}
