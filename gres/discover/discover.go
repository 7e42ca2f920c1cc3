// Package discover finds out what a host has: processors, memory and disk from /proc and /sys, and
// GPUs from a device driver (in this build the simulator of gres/simgpu only).
package discover

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxDevices bounds the devices of one node.
const MaxDevices = 64

// Device is one GPU. Mem is in bytes.
type Device struct {
	Index      uint32
	Name       string // as the vendor writes it: "NVIDIA A100-SXM4-40GB"
	Type       string // the gres type, lower case: "a100"
	UUID       string // "GPU-8-4-4-4-12"
	Mem        int64
	Minor      uint32 // of /dev/nvidia<minor>
	PCIBusID   string // "00000000:07:00.0"
	Arch       string // "ampere"
	ComputeCap string // "8.0"
}

// Driver lists the GPUs of a node in the order of their index.
type Driver interface {
	Devices() []Device
}

// Mode is how devices are found (gres.conf's AutoDetect).
type Mode string

// The modes that this build knows.
const (
	Off Mode = "off"
	Sim Mode = "sim"
)

// ErrNoNVML says that this build cannot talk to NVIDIA's management library.
var ErrNoNVML = errors.New("AutoDetect=nvml: this build leaves NVML out; use AutoDetect=off with Gres= on the NodeName line, or SimGPU=")

// ParseMode reads AutoDetect's value; empty means off.
func ParseMode(s string) (Mode, error) {
	switch strings.ToLower(s) {
	case "", "off":
		return Off, nil
	case "sim":
		return Sim, nil
	case "nvml", "nvidia":
		return "", ErrNoNVML
	}
	return "", fmt.Errorf("AutoDetect=%s: not known; use off or sim", s)
}

// Gres gives the string that a node registers with: the devices, counted by type in the order of
// their first index, then what the configuration counts beside them ("shard:16"). Where devices were
// found, configured gpu entries are not taken over: what a node registers is what it has.
func Gres(configured string, devices []Device) string {
	if len(devices) == 0 {
		return configured
	}
	var types []string
	counts := make(map[string]int)
	for _, d := range devices {
		if counts[d.Type] == 0 {
			types = append(types, d.Type)
		}
		counts[d.Type]++
	}
	var items []string
	for _, t := range types {
		items = append(items, "gpu:"+t+":"+strconv.Itoa(counts[t]))
	}
	for item := range strings.SplitSeq(configured, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(item), ":")
		if name != "" && name != "gpu" {
			items = append(items, strings.TrimSpace(item))
		}
	}
	return strings.Join(items, ",")
}

// Check says what is wrong with a driver's list: too many, indexes out of order, a device twice.
func Check(devices []Device) error {
	if len(devices) > MaxDevices {
		return fmt.Errorf("%d devices on one node: over the limit of %d", len(devices), MaxDevices)
	}
	var uuids []string
	for i, d := range devices {
		if int(d.Index) != i {
			return fmt.Errorf("device %d in place %d of the list", d.Index, i)
		}
		if slices.Contains(uuids, d.UUID) {
			return fmt.Errorf("device %d: UUID %s is there twice", i, d.UUID)
		}
		uuids = append(uuids, d.UUID)
	}
	return nil
}
