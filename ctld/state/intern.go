package state

// Limits of the interner: strings longer than maxInterned are not shared, and at most twice
// maxGeneration of them are remembered.
const (
	maxInterned   = 256
	maxGeneration = 1 << 15
)

// interner makes equal strings of different jobs share their bytes. It forgets in two
// generations: what was not asked for during a whole generation leaves, so that it stays
// bounded whatever passes through.
type interner struct{ young, old map[string]string }

// share gives back s, or an equal string that was seen before.
func (n *interner) share(s string) string {
	if s == "" || len(s) > maxInterned {
		return s
	}
	if v, ok := n.young[s]; ok {
		return v
	}
	if v, ok := n.old[s]; ok {
		s = v
	}
	if len(n.young) >= maxGeneration || n.young == nil {
		n.old, n.young = n.young, make(map[string]string, 64)
	}
	n.young[s] = s
	return s
}
