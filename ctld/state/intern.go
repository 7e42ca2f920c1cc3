package state

import (
	"hash/maphash"
	"unicode/utf8"
)

// Sizes of an Interner: how many words and how many larger texts it remembers, and how long they may be.
const (
	wordSlots = 1 << 13
	maxWord   = 256
	textSlots = 1 << 8
	maxText   = 8 << 10
	listSlots = 1 << 8
	maxListed = 64
)

// Interner makes equal strings of different jobs share their bytes. It remembers the newest one at
// each place of a table, so that it stays bounded whatever passes through and costs one look. What
// it gives back does not depend on what it remembers. The zero value is ready.
type Interner struct {
	seed  maphash.Seed
	words []string
	texts [][]byte
	lists [][]uint32
}

func (n *Interner) place(b []byte, slots int) uint64 {
	return maphash.Bytes(n.seed, b) & uint64(slots-1)
}

func (n *Interner) ready() {
	if n.words == nil {
		n.seed = maphash.MakeSeed()
		n.words, n.texts, n.lists = make([]string, wordSlots), make([][]byte, textSlots), make([][]uint32, listSlots)
	}
}

// Word gives b as a string; false when it is not UTF-8.
func (n *Interner) Word(b []byte) (string, bool) {
	if len(b) == 0 {
		return "", true
	}
	if len(b) > maxWord {
		return string(b), utf8.Valid(b)
	}
	n.ready()
	slot := &n.words[n.place(b, wordSlots)]
	if *slot == string(b) {
		return *slot, true
	}
	if !utf8.Valid(b) {
		return "", false
	}
	*slot = string(b)
	return *slot, true
}

// Text gives a copy of b that nobody may change, nil for an empty one.
func (n *Interner) Text(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	if len(b) > maxText {
		return append([]byte(nil), b...)
	}
	n.ready()
	slot := &n.texts[n.place(b, textSlots)]
	if string(*slot) != string(b) {
		*slot = append([]byte(nil), b...)
	}
	return *slot
}

// List gives a copy of list that nobody may change. raw is what the list was read from.
func (n *Interner) List(raw []byte, list []uint32) []uint32 {
	if len(list) == 0 {
		return nil
	}
	if len(list) > maxListed {
		return append([]uint32(nil), list...)
	}
	n.ready()
	slot := &n.lists[n.place(raw, listSlots)]
	if !equalLists(*slot, list) {
		*slot = append([]uint32(nil), list...)
	}
	return *slot
}

func equalLists(a, b []uint32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// share gives back s, or an equal string that was seen before.
func (n *Interner) share(s string) string {
	if s == "" || len(s) > maxWord {
		return s
	}
	n.ready()
	slot := &n.words[maphash.String(n.seed, s)&(wordSlots-1)]
	if *slot != s {
		*slot = s
	}
	return *slot
}
