package gres

import (
	"strconv"
	"strings"
)

// Alloc is a part of one resource of one node.
type Alloc struct {
	Name  string // "gpu"
	Type  string // "a100"; may be empty
	Count uint64
	Index []uint32 // device numbers among those of Name and Type, ascending; empty for resources without devices
}

// FormatIndexed writes allocations as scontrol does: gpu:a100:2(IDX:0-1),shard:4.
func FormatIndexed(allocs []Alloc) string {
	var b strings.Builder
	for i, a := range allocs {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(Item{a.Name, a.Type, a.Count}.String())
		if len(a.Index) > 0 {
			b.WriteString("(IDX:")
			b.WriteString(FormatIndex(a.Index))
			b.WriteByte(')')
		}
	}
	return b.String()
}

// FormatIndex writes ascending numbers as 0-1,3.
func FormatIndex(index []uint32) string {
	var b strings.Builder
	for i := 0; i < len(index); {
		last := i
		for last+1 < len(index) && index[last+1] == index[last]+1 {
			last++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(uint64(index[i]), 10))
		if last > i {
			b.WriteByte('-')
			b.WriteString(strconv.FormatUint(uint64(index[last]), 10))
		}
		i = last + 1
	}
	return b.String()
}

// ParseIndexed reads what FormatIndexed writes. The error is an *Error.
func ParseIndexed(s string) ([]Alloc, error) {
	if s == "" {
		return nil, nil
	}
	words, err := splitOutside(s)
	if err != nil {
		return nil, err
	}
	var allocs []Alloc
	for _, word := range words {
		body, tail, hasTail := strings.Cut(word, "(")
		item, err := parseItem(body)
		if err != nil {
			return nil, err
		}
		a := Alloc{Name: item.Name, Type: item.Type, Count: item.Count}
		if hasTail {
			index, ok := strings.CutPrefix(strings.TrimSuffix(tail, ")"), "IDX:")
			if !ok {
				return nil, bad(word, "after the count only (IDX:numbers) is known")
			}
			if a.Index, err = parseNumbers(word, index); err != nil {
				return nil, err
			}
			if uint64(len(a.Index)) != a.Count {
				return nil, bad(word, "%d devices for a count of %d", len(a.Index), a.Count)
			}
		}
		allocs = append(allocs, a)
	}
	return allocs, nil
}

// Allocated adds up what allocations hold.
func Allocated(allocs []Alloc) []Item {
	items := make([]Item, len(allocs))
	for i, a := range allocs {
		items[i] = Item{a.Name, a.Type, a.Count}
	}
	return Sum(items)
}
