// Package simgpu stands in for the GPUs of a node on hosts that have none: it says which devices a
// board carries, so that scheduling, allocation and reports can be run for real without hardware.
package simgpu

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/gres/discover"
)

// model is one kind of GPU.
type model struct {
	gres, name, arch, cc string
	memMiB               int64
}

// models lists the kinds in the order in which messages name them. Memory is what nvidia-smi shows.
var models = []model{
	{"a100", "NVIDIA A100-SXM4-40GB", "ampere", "8.0", 40960},
	{"a100_80g", "NVIDIA A100-SXM4-80GB", "ampere", "8.0", 81920},
	{"a30", "NVIDIA A30", "ampere", "8.0", 24576},
	{"b200", "NVIDIA B200", "blackwell", "10.0", 183359},
	{"h100", "NVIDIA H100 80GB HBM3", "hopper", "9.0", 81559},
	{"h200", "NVIDIA H200", "hopper", "9.0", 143771},
	{"l40s", "NVIDIA L40S", "ada", "8.9", 46068},
	{"rtx3060", "NVIDIA GeForce RTX 3060", "ampere", "8.6", 12288},
	{"rtx3090", "NVIDIA GeForce RTX 3090", "ampere", "8.6", 24576},
	{"rtx4090", "NVIDIA GeForce RTX 4090", "ada", "8.9", 24564},
	{"t4", "Tesla T4", "turing", "7.5", 15360},
	{"v100", "Tesla V100-SXM2-32GB", "volta", "7.0", 32768},
}

// presets are whole boards by name.
var presets = []struct{ name, devices string }{
	{"dgx-a100", "a100:8"},
	{"hgx-h100", "h100:8"},
	{"hgx-h200", "h200:8"},
	{"hgx-b200", "b200:8"},
	{"a30x2", "a30:2"},
	{"consumer-mix", "rtx4090:2,rtx3090:1"},
}

// Board is the set of devices of one simulated node. It is immutable.
type Board struct{ devices []discover.Device }

// New builds the board that spec names: a preset ("dgx-a100") or a list of TYPE:N ("a100:4",
// "rtx4090:2,rtx3090:1"). The same node name gives the same UUIDs each time.
func New(nodeName, spec string) (*Board, error) {
	list := strings.ToLower(strings.TrimSpace(spec))
	for _, p := range presets {
		if p.name == list {
			list = p.devices
			break
		}
	}
	b := &Board{}
	for item := range strings.SplitSeq(list, ",") {
		m, n, err := parseItem(item)
		if err != nil {
			return nil, fmt.Errorf("SimGPU=%.100s: %w", spec, err)
		}
		if len(b.devices)+n > discover.MaxDevices {
			return nil, fmt.Errorf("SimGPU=%.100s: over the limit of %d devices a node", spec, discover.MaxDevices)
		}
		for range n {
			b.devices = append(b.devices, device(nodeName, len(b.devices), m))
		}
	}
	return b, nil
}

// Devices lists the GPUs in the order of their index.
func (b *Board) Devices() []discover.Device { return slices.Clone(b.devices) }

func parseItem(item string) (*model, int, error) {
	name, count, ok := strings.Cut(strings.TrimSpace(item), ":")
	if !ok {
		return nil, 0, fmt.Errorf("%q is neither a board (%s) nor TYPE:N", item, presetNames())
	}
	n, err := strconv.ParseUint(count, 10, 16)
	if err != nil || n == 0 {
		return nil, 0, fmt.Errorf("%q: the count has to be 1 to %d", item, discover.MaxDevices)
	}
	for i := range models {
		if models[i].gres == name {
			return &models[i], int(n), nil
		}
	}
	var known []string
	for _, m := range models {
		known = append(known, m.gres)
	}
	return nil, 0, fmt.Errorf("%q is no GPU type; known: %s", name, strings.Join(known, " "))
}

func presetNames() string {
	var names []string
	for _, p := range presets {
		names = append(names, p.name)
	}
	return strings.Join(names, " ")
}

func device(nodeName string, index int, m *model) discover.Device {
	return discover.Device{
		Index:      uint32(index),
		Name:       m.name,
		Type:       m.gres,
		UUID:       uuid(nodeName, index),
		Mem:        m.memMiB << 20,
		Minor:      uint32(index),
		PCIBusID:   fmt.Sprintf("00000000:%02X:00.0", 0x07+index*2),
		Arch:       m.arch,
		ComputeCap: m.cc,
	}
}

// uuid is made from node and index alone, so that a device keeps its name over restarts.
func uuid(nodeName string, index int) string {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(index))
	sum := sha256.Sum256(append([]byte("simgpu\x00"+nodeName+"\x00"), n[:]...))
	h := hex.EncodeToString(sum[:16])
	return "GPU-" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
