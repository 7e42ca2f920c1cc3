package state

import (
	"crypto/sha256"
	"fmt"
)

// PutBlob takes one piece of a blob. Pieces come in order of offset; the last one is taken only
// when the whole has the SHA-256 it goes by. A piece that is already here changes nothing.
func (t *Tx) PutBlob(hash []byte, total, offset uint64, data []byte) *Refusal {
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
		b = &blob{total: total}
		t.openBlobs++
	}
	switch {
	case b.whole || offset+uint64(len(data)) <= uint64(len(b.data)) && ok && len(data) > 0:
		t.touchBlob(name, b)
		return nil
	case b.total != total || uint64(len(b.data)) != offset:
		return badBlob("%d of %d bytes are here, the piece is for %d of %d", len(b.data), b.total, offset, total)
	}
	n := &blob{total: total, refs: b.refs, since: t.now}
	n.data = append(append(make([]byte, 0, len(b.data)+len(data)), b.data...), data...)
	if uint64(len(n.data)) == total {
		if t.openBlobs--; sha256.Sum256(n.data) != [32]byte(hash) {
			t.blobs.Delete(name)
			t.freeBlobs.Delete(name)
			return badBlob("what came has another SHA-256 than %x", hash)
		}
		n.whole = true
	}
	t.blobs.Set(name, n)
	t.freeBlobs.Set(name, none{})
	return nil
}

func badBlob(why string, args ...any) *Refusal {
	return refuse("ESLURM_INVALID_BLOB", "Invalid blob", fmt.Sprintf(why, args...))
}

// touchBlob keeps an unreferenced blob that somebody has just sent again.
func (t *Tx) touchBlob(name string, b *blob) {
	if b.refs == 0 {
		n := *b
		n.since = t.now
		t.blobs.Set(name, &n)
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
	if n.refs == 0 {
		n.since = t.now
		t.freeBlobs.Set(string(hash), none{})
	} else if b.refs == 0 {
		t.freeBlobs.Delete(string(hash))
	}
	t.blobs.Set(string(hash), &n)
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
		if b, _ := t.blobs.Delete(name); !b.whole {
			t.openBlobs--
		}
		t.freeBlobs.Delete(name)
	}
}
