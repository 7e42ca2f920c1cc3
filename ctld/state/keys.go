package state

import (
	"hash/maphash"
	"sync"
)

// keyRecord is one idempotency key: who used it, for which request, when. The table is by the job
// that the key made, so that keys enter at its end whatever they look like.
type keyRecord struct {
	uid    uint32
	key    string
	digest [32]byte
	time   int64
}

// keyIndex finds the job of a key. It is one for all versions of the tables, which decide whether
// the job it finds has that key in them. Nothing in it points anywhere, so that it costs a collector
// nothing however many keys there are.
type keyIndex struct {
	mu    sync.RWMutex
	seed  maphash.Seed
	jobs  map[uint64]uint32
	twins map[uint64][]uint32 // further jobs of keys that hash alike
}

func newKeyIndex() *keyIndex {
	return &keyIndex{seed: maphash.MakeSeed(), jobs: map[uint64]uint32{}, twins: map[uint64][]uint32{}}
}

func (x *keyIndex) hash(uid uint32, key string) uint64 {
	const spread = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio: users' keys are often alike
	return maphash.String(x.seed, key) ^ uint64(uid)*spread
}

// find calls is with each job that may have the key until one has it.
func (x *keyIndex) find(uid uint32, key string, is func(job uint32) bool) {
	h := x.hash(uid, key)
	x.mu.RLock()
	first, ok := x.jobs[h]
	var more []uint32
	if len(x.twins) > 0 {
		more = append(more, x.twins[h]...)
	}
	x.mu.RUnlock()
	if !ok || is(first) {
		return
	}
	for _, id := range more {
		if is(id) {
			return
		}
	}
}

func (x *keyIndex) add(uid uint32, key string, job uint32) {
	h := x.hash(uid, key)
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, taken := x.jobs[h]; taken {
		x.twins[h] = append(x.twins[h], job)
		return
	}
	x.jobs[h] = job
}

func (x *keyIndex) remove(uid uint32, key string, job uint32) {
	h := x.hash(uid, key)
	x.mu.Lock()
	defer x.mu.Unlock()
	rest := x.twins[h]
	if x.jobs[h] != job {
		for i, id := range rest {
			if id == job {
				rest = append(rest[:i:i], rest[i+1:]...)
				break
			}
		}
	} else if len(rest) == 0 {
		delete(x.jobs, h)
	} else {
		x.jobs[h], rest = rest[0], rest[1:]
	}
	if len(rest) == 0 {
		delete(x.twins, h)
	} else {
		x.twins[h] = rest
	}
}

// keyed finds the job that a user's key made and what is known of the key.
func (t *tables) keyed(uid uint32, key string) (id uint32, k keyRecord, ok bool) {
	t.keyIndex.find(uid, key, func(job uint32) bool {
		if k, ok = t.keys.Get(job); ok && (k.uid != uid || k.key != key) {
			ok = false
		}
		id = job
		return ok
	})
	return id, k, ok
}

// Key finds the job that a user's idempotency key made. A key that was forgotten since this version
// may not be found in it any more.
func (t *tables) Key(uid uint32, key string) (jobID uint32, digest []byte, ok bool) {
	id, k, ok := t.keyed(uid, key)
	if !ok {
		return 0, nil, false
	}
	return id, k.digest[:], true
}

// setKey notes the key that made a job.
func (t *Tx) setKey(id uint32, k keyRecord) {
	t.keys.Load(id, k)
	t.keyIndex.add(k.uid, k.key, id)
}

// dropKey forgets the key that made a job.
func (t *Tx) dropKey(id uint32) {
	if k, ok := t.keys.Delete(id); ok {
		t.keyIndex.remove(k.uid, k.key, id)
	}
}
