package discover

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxCPUs bounds the processors of one host.
const MaxCPUs = 8192

// CPUs is how the processors of a host hang together. Sockets x CoresPerSocket x ThreadsPerCore may
// be less than CPUs on a host whose sockets differ.
type CPUs struct {
	Count          uint32
	Boards         uint32
	Sockets        uint32
	CoresPerSocket uint32
	ThreadsPerCore uint32
}

// CPUs counts the processors that are on line and how they hang together. Where /sys has no
// topology (some virtual machines), each processor counts as a core of one socket.
func (h Host) CPUs() (CPUs, error) {
	ids, err := h.online()
	if err != nil {
		return CPUs{}, err
	}
	type core struct{ socket, id int64 }
	sockets, cores := make(map[int64]bool), make(map[core]bool)
	for _, id := range ids {
		dir := "devices/system/cpu/cpu" + strconv.FormatUint(uint64(id), 10) + "/topology/"
		socket, err := h.sysInt(dir + "physical_package_id")
		if err != nil {
			return flat(ids), nil
		}
		coreID, err := h.sysInt(dir + "core_id")
		if err != nil {
			return flat(ids), nil
		}
		sockets[socket] = true
		cores[core{socket, coreID}] = true
	}
	c := CPUs{Count: uint32(len(ids)), Boards: 1, Sockets: uint32(len(sockets))}
	c.CoresPerSocket = uint32(len(cores)) / c.Sockets
	c.ThreadsPerCore = c.Count / uint32(len(cores))
	return c, nil
}

func flat(ids []uint32) CPUs {
	n := uint32(len(ids))
	return CPUs{Count: n, Boards: 1, Sockets: 1, CoresPerSocket: n, ThreadsPerCore: 1}
}

// online lists the processors, from /sys, or from /proc/cpuinfo where /sys has no list.
func (h Host) online() ([]uint32, error) {
	if text, err := read(h.Sys, "devices/system/cpu/online"); err == nil {
		return parseCPUList(strings.TrimSpace(string(text)))
	}
	text, err := read(h.Proc, "cpuinfo")
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for line := range bytes.Lines(text) {
		key, value, ok := strings.Cut(string(line), ":")
		if !ok || strings.TrimSpace(key) != "processor" {
			continue
		}
		id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
		if err != nil {
			continue // s390 and old ARM print a model name under the same key
		}
		if ids = append(ids, uint32(id)); len(ids) > MaxCPUs {
			return nil, fmt.Errorf("cpuinfo: over the limit of %d processors", MaxCPUs)
		}
	}
	if len(ids) == 0 {
		return nil, errors.New("cpuinfo: no processor")
	}
	return ids, nil
}

// parseCPUList reads the kernel's list form "0-3,8,10-11".
func parseCPUList(s string) ([]uint32, error) {
	var ids []uint32
	for part := range strings.SplitSeq(s, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.ParseUint(low, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("processor list %.100q: %q is no number", s, low)
		}
		last := first
		if isRange {
			if last, err = strconv.ParseUint(high, 10, 32); err != nil || last < first {
				return nil, fmt.Errorf("processor list %.100q: %q is no range", s, part)
			}
		}
		if uint64(len(ids))+last-first+1 > MaxCPUs {
			return nil, fmt.Errorf("processor list %.100q: over the limit of %d processors", s, MaxCPUs)
		}
		for id := first; id <= last; id++ {
			ids = append(ids, uint32(id))
		}
	}
	return ids, nil
}

func (h Host) sysInt(name string) (int64, error) {
	text, err := read(h.Sys, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
