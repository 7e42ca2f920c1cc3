package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/gres/discover"
	"github.com/tensorgrid/tensorgrid/gres/simgpu"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// inventory is what the node registers with: what the host has; what its line says, where the host
// only simulates the node or SlurmdParameters=config_overrides says that the line is right.
func inventory(host discover.Host, c *conf.Config, n *conf.Node, spool string) (node.Inventory, error) {
	inv, err := measured(host, spool)
	if err != nil {
		return inv, err
	}
	mode, err := discover.ParseMode(c.AutoDetect)
	if err != nil {
		return inv, err
	}
	var devices []discover.Device
	if mode == discover.Sim && n.SimGPU != "" {
		board, err := simgpu.New(n.Name, n.SimGPU)
		if err != nil {
			return inv, fmt.Errorf("node %s: %w", n.Name, err)
		}
		devices = board.Devices()
	}
	if err := discover.Check(devices); err != nil {
		return inv, fmt.Errorf("node %s: %w", n.Name, err)
	}
	inv.Gres = discover.Gres(n.Gres, devices)
	if n.SimGPU != "" || slices.Contains(c.SlurmdParameters, "config_overrides") {
		override(&inv, n)
	}
	return inv, nil
}

func measured(host discover.Host, spool string) (node.Inventory, error) {
	cpus, err := host.CPUs()
	if err != nil {
		return node.Inventory{}, err
	}
	mem, _, err := host.Memory()
	if err != nil {
		return node.Inventory{}, err
	}
	disk, err := discover.Disk(spool)
	if err != nil {
		return node.Inventory{}, err
	}
	kernel, arch, err := discover.System()
	if err != nil {
		return node.Inventory{}, err
	}
	name, err := os.Hostname()
	if err != nil {
		return node.Inventory{}, err
	}
	return node.Inventory{
		CPUs: cpus.Count, Boards: cpus.Boards, Sockets: cpus.Sockets, CoresPerSocket: cpus.CoresPerSocket,
		ThreadsPerCore: cpus.ThreadsPerCore, Mem: mem, TmpDisk: disk,
		OS: kernel, Arch: arch, Hostname: name,
	}, nil
}

func override(inv *node.Inventory, n *conf.Node) {
	for _, f := range []struct {
		have *uint32
		want uint32
	}{
		{&inv.CPUs, n.CPUs}, {&inv.Boards, n.Boards}, {&inv.Sockets, n.Sockets},
		{&inv.CoresPerSocket, n.CoresPerSocket}, {&inv.ThreadsPerCore, n.ThreadsPerCore},
	} {
		if f.want != 0 {
			*f.have = f.want
		}
	}
	if n.RealMemory != 0 {
		inv.Mem = n.RealMemory
	}
	if n.TmpDisk != 0 {
		inv.TmpDisk = n.TmpDisk
	}
}

// nodeLine is what an administrator pastes into grid.conf.
func nodeLine(host discover.Host, name string) (string, error) {
	inv, err := measured(host, os.TempDir())
	if err != nil {
		return "", err
	}
	if name == "" {
		name, _, _ = strings.Cut(inv.Hostname, ".")
	}
	return fmt.Sprintf("NodeName=%s CPUs=%d Boards=%d Sockets=%d CoresPerSocket=%d ThreadsPerCore=%d RealMemory=%d TmpDisk=%d\n",
		name, inv.CPUs, inv.Boards, inv.Sockets, inv.CoresPerSocket, inv.ThreadsPerCore, inv.Mem>>20, inv.TmpDisk>>20), nil
}
