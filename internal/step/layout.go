// Package step lays tasks out over the nodes of an allocation: how many run where, and which rank is which.
// It is pure.
package step

import (
	"errors"
	"fmt"
)

// Limits of one layout.
const (
	MaxNodes = 65536
	MaxTasks = 1 << 24
)

// ErrNoRoom is wrapped when the tasks do not fit the nodes.
var ErrNoRoom = errors.New("more processors requested than permitted")

// ErrLayout is wrapped when what is asked for makes no sense on any nodes.
var ErrLayout = errors.New("invalid task layout")

// Layout spreads tasks over nodes in blocks and gives how many each node runs. Each node gets one task as long as
// there are any, then the nodes are filled up in order. perNode is the most on one node (0 = as many as fit);
// cpusPerTask 0 is 1. The sum of the result is tasks.
func Layout(tasks, perNode, cpusPerTask uint32, nodeCPUs []uint32) ([]uint32, error) {
	room, err := rooms(tasks, perNode, cpusPerTask, nodeCPUs)
	if err != nil {
		return nil, err
	}
	counts := make([]uint32, len(room))
	left := tasks
	for i := range room {
		if left > 0 && room[i] > 0 {
			counts[i]++
			left--
		}
	}
	for i := range room {
		n := min(left, room[i]-counts[i])
		counts[i] += n
		left -= n
	}
	return counts, nil
}

// LayoutPlane deals tasks to the nodes in turn, size at a time, as long as they have room. Size 1 is the cyclic layout.
func LayoutPlane(tasks, perNode, cpusPerTask, size uint32, nodeCPUs []uint32) ([]uint32, error) {
	if size == 0 {
		return nil, fmt.Errorf("%w: a plane of 0 tasks", ErrLayout)
	}
	room, err := rooms(tasks, perNode, cpusPerTask, nodeCPUs)
	if err != nil {
		return nil, err
	}
	counts := make([]uint32, len(room))
	for left := tasks; left > 0; {
		for i := range room {
			n := min(size, left, room[i]-counts[i])
			counts[i] += n
			left -= n
		}
	}
	return counts, nil
}

// LayoutCyclic deals tasks to the nodes one at a time.
func LayoutCyclic(tasks, perNode, cpusPerTask uint32, nodeCPUs []uint32) ([]uint32, error) {
	return LayoutPlane(tasks, perNode, cpusPerTask, 1, nodeCPUs)
}

// rooms is how many tasks fit each node, after checking that all of them do.
func rooms(tasks, perNode, cpusPerTask uint32, nodeCPUs []uint32) ([]uint32, error) {
	switch {
	case len(nodeCPUs) == 0:
		return nil, fmt.Errorf("%w: no nodes", ErrLayout)
	case len(nodeCPUs) > MaxNodes:
		return nil, fmt.Errorf("%w: %d nodes, the limit MaxNodes is %d", ErrLayout, len(nodeCPUs), MaxNodes)
	case tasks > MaxTasks:
		return nil, fmt.Errorf("%w: %d tasks, the limit MaxTasks is %d", ErrLayout, tasks, MaxTasks)
	}
	cpusPerTask = max(cpusPerTask, 1)
	room := make([]uint32, len(nodeCPUs))
	var total uint64
	for i, cpus := range nodeCPUs {
		room[i] = cpus / cpusPerTask
		if perNode > 0 {
			room[i] = min(room[i], perNode)
		}
		total += uint64(room[i])
	}
	if total < uint64(tasks) {
		return nil, fmt.Errorf("%w: %d tasks of %d CPUs, the %d nodes have room for %d", ErrNoRoom, tasks, cpusPerTask, len(nodeCPUs), total)
	}
	return room, nil
}
