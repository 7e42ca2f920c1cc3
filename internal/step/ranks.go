package step

// Ranks gives the ranks of the tasks on each node, ascending, for tasks numbered in blocks: node 0 has the first
// ranks. counts is how many run on each node.
func Ranks(counts []uint32) [][]uint32 {
	ranks := make([][]uint32, len(counts))
	var next uint32
	for i, n := range counts {
		ranks[i] = make([]uint32, n)
		for j := range ranks[i] {
			ranks[i][j] = next
			next++
		}
	}
	return ranks
}

// RanksPlane gives the ranks when they are dealt to the nodes in turn, size at a time (1 = cyclic, 0 is taken as 1).
// A node that has all its tasks is passed over.
func RanksPlane(counts []uint32, size uint32) [][]uint32 {
	ranks := make([][]uint32, len(counts))
	size = max(size, 1)
	var left uint64
	for i, n := range counts {
		ranks[i] = make([]uint32, 0, n)
		left += uint64(n)
	}
	var next uint32
	for left > 0 {
		for i, n := range counts {
			deal := min(size, n-uint32(len(ranks[i])))
			for range deal {
				ranks[i] = append(ranks[i], next)
				next++
			}
			left -= uint64(deal)
		}
	}
	return ranks
}
