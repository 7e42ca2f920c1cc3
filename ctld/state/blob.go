package state

import (
	"crypto/sha256"
	"fmt"
)

// PutBlob takes one piece of a blob. Pieces come in order of offset; the last one is taken only
// when the whole has the SHA-256 it goes by. A piece that is already here changes nothing. uid is who
// sends it.
func (t *Tx) PutBlob(uid uint32, hash []byte, total, offset uint64, data []byte) *Refusal {
	switch {
	case len(hash) != sha256.Size:
		return badBlob("a hash has %d bytes, this one %d", sha256.Size, len(hash))
	case total > MaxBlob:
		return badBlob("the limit is MaxBlob=%d bytes, this one has %d", MaxBlob, total)
	case len(data) > MaxChunk:
		return badBlob("a piece has at most MaxChunk=%d bytes, this one %d", MaxChunk, len(data))
	case offset > total || uint64(len(data)) > total-offset:
		return badBlob("piece of %d bytes at %d of %d", len(data), offset, total)
	}
	name := string(hash)
	b, ok := t.blobs.Get(name)
	if !ok {
		if t.openBlobs >= MaxOpenBlobs {
			return badBlob("the limit is MaxOpenBlobs=%d unfinished blobs", MaxOpenBlobs)
		}
		if t.newBlobs[uid].open >= MaxUserOpenBlobs {
			return badBlob("the limit is MaxUserOpenBlobs=%d unfinished blobs of one user", MaxUserOpenBlobs)
		}
		b = &blob{total: total, uid: uid}
	}
	switch {
	case b.whole || offset+uint64(len(data)) <= uint64(len(b.data)) && ok && len(data) > 0:
		t.touchBlob(name, b)
		return nil
	case b.total != total || uint64(len(b.data)) != offset:
		return badBlob("%d of %d bytes are here, the piece is for %d of %d", len(b.data), b.total, offset, total)
	}
	if r := t.mayGrow(b, len(data)); r != nil {
		return r
	}
	n := &blob{total: total, refs: b.refs, since: t.now, uid: b.uid, used: b.used}
	n.data = append(append(make([]byte, 0, len(b.data)+len(data)), b.data...), data...)
	if uint64(len(n.data)) == total {
		if sha256.Sum256(n.data) != [32]byte(hash) {
			t.removeBlob(name)
			return badBlob("what came has another SHA-256 than %x", hash)
		}
		n.whole = true
	}
	t.setBlob(name, n)
	t.freeBlobs.Set(name, none{})
	return nil
}

// blobShare is what a user has sent, or begun to send, that no job has named yet.
type blobShare struct {
	open  int // not whole
	bytes int
}

// mayGrow bounds what is kept of blobs that no job has named yet.
func (t *Tx) mayGrow(b *blob, by int) *Refusal {
	switch {
	case b.used:
		return nil
	case t.newBlobs[b.uid].bytes+by > MaxUserNewBytes:
		return badBlob("the limit is MaxUserNewBytes=%d bytes of one user that no job has named; they leave %d minutes after they came",
			MaxUserNewBytes, BlobAge/60_000)
	case t.newBytes+by > MaxNewBytes:
		return badBlob("the limit is MaxNewBytes=%d bytes of all users that no job has named", MaxNewBytes)
	}
	return nil
}

// setBlob stores a blob, and removeBlob lets one go; both keep the counts.
func (t *Tx) setBlob(name string, b *blob) {
	if old, ok := t.blobs.Set(name, b); ok {
		t.countBlob(old, -1)
	}
	t.countBlob(b, 1)
}

func (t *Tx) removeBlob(name string) {
	if old, ok := t.blobs.Delete(name); ok {
		t.countBlob(old, -1)
	}
	t.freeBlobs.Delete(name)
}

func (t *Tx) countBlob(b *blob, by int) {
	if !b.whole {
		t.openBlobs += by
	}
	if b.used {
		return
	}
	s := t.newBlobs[b.uid]
	if !b.whole {
		s.open += by
	}
	s.bytes += by * len(b.data)
	t.newBytes += by * len(b.data)
	if t.newBlobs[b.uid] = s; s == (blobShare{}) {
		delete(t.newBlobs, b.uid)
	}
}

func badBlob(why string, args ...any) *Refusal {
	return refuse("ESLURM_INVALID_BLOB", "Invalid blob", fmt.Sprintf(why, args...))
}

// touchBlob keeps an unreferenced blob that somebody has just sent again.
func (t *Tx) touchBlob(name string, b *blob) {
	if b.refs == 0 {
		n := *b
		n.since = t.now
		t.setBlob(name, &n)
	}
}

// refer counts records that name a blob.
func (t *Tx) refer(hash []byte, by int) {
	if len(hash) == 0 {
		return
	}
	b, ok := t.blobs.Get(string(hash))
	if !ok {
		return
	}
	n := *b
	n.refs += uint32(by)
	n.used = true
	if n.refs == 0 {
		n.since = t.now
		t.freeBlobs.Set(string(hash), none{})
	} else if b.refs == 0 {
		t.freeBlobs.Delete(string(hash))
	}
	t.setBlob(string(hash), &n)
}

// dropBlobs removes the blobs that nothing has referred to for BlobAge.
func (t *Tx) dropBlobs() {
	var old []string
	t.freeBlobs.Scan(func(name string, _ none) bool {
		if b, _ := t.blobs.Get(name); t.now-b.since >= BlobAge {
			old = append(old, name)
		}
		return true
	})
	for _, name := range old {
		t.removeBlob(name)
	}
}
