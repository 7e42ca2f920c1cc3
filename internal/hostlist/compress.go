package hostlist

import (
	"cmp"
	"slices"
	"strings"
)

// Compress folds names, keeping their order, repeats and zero padding: n1,n2,n10 becomes n[1-2,10].
// Only the last number of a name is folded, and only between neighbours, as Slurm does.
// Expanding the result gives the names back, as long as none holds a bracket, comma or blank.
func Compress(names []string) string {
	var b strings.Builder
	for i := 0; i < len(names); {
		if names[i] == "" {
			i++
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		i = compressFrom(&b, names, i)
	}
	return b.String()
}

// compressFrom writes the names from i on that share a prefix and gives the index of the first that does not.
func compressFrom(b *strings.Builder, names []string, i int) int {
	prefix, first := cut(names[i])
	end := i + 1
	for first != "" && end < len(names) {
		p, n := cut(names[end])
		if p != prefix || n == "" {
			break
		}
		end++
	}
	if end == i+1 {
		b.WriteString(names[i])
		return end
	}
	b.WriteString(prefix)
	b.WriteByte('[')
	for at := i; at < end; {
		if at > i {
			b.WriteByte(',')
		}
		low := names[at][len(prefix):]
		last := at
		next, _ := number(low)
		var buf [2 * maxDigits]byte
		for last+1 < end {
			next++
			if string(appendPadded(buf[:0], next, len(low))) != names[last+1][len(prefix):] {
				break
			}
			last++
		}
		b.WriteString(low)
		if last > at {
			b.WriteByte('-')
			b.WriteString(names[last][len(prefix):])
		}
		at = last + 1
	}
	b.WriteByte(']')
	return end
}

// cut parts a name from the number at its end; number is empty when there is none.
func cut(name string) (prefix, number string) {
	i := len(name)
	for i > 0 && len(name)-i < maxDigits && '0' <= name[i-1] && name[i-1] <= '9' {
		i--
	}
	return name[:i], name[i:]
}

// CompressSorted folds names sorted by prefix and number, each once.
func CompressSorted(names []string) string {
	sorted := slices.Clone(names)
	slices.SortFunc(sorted, Compare)
	return Compress(slices.Compact(sorted))
}

// Compare orders host names as people count: by the text before the last number, then by that number,
// then by how it is written. It gives -1, 0 or 1, and 0 only for equal names.
func Compare(a, b string) int {
	pa, na := cut(a)
	pb, nb := cut(b)
	if c := cmp.Compare(pa, pb); c != 0 {
		return c
	}
	va, _ := number(na)
	vb, _ := number(nb)
	if c := cmp.Compare(va, vb); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(len(na), len(nb)), cmp.Compare(a, b))
}
