// Package accounting holds who uses the cluster on whose account: TRES vectors, accounts, users, associations and QOS with
// their limits, decayed usage, and fair share. It is pure; all of it is integers or stated fixed point, so that replicas agree.
package accounting

// Amount is so much of one trackable resource. Mem is in MiB; shares of time are in seconds of it.
type Amount struct {
	Name string // cpu, mem, node, billing, energy, gres/gpu, gres/gpu:a100, license/matlab
	N    int64
}

// TRES is a vector of trackable resources, sorted by name, each once. It is a value: nothing changes one in place.
type TRES []Amount
