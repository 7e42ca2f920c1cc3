package leader

import (
	"bytes"
	"slices"
	"sync"
)

// maxUserEnvs bounds the environments that are kept taken apart. The tasks of an array, and most
// jobs of one user, share one.
const maxUserEnvs = 64

// userEnv is a submitter's environment, taken apart and put in order once. It never changes.
type userEnv struct {
	values map[string]string
	sorted [][]byte // NAME=value
}

// consulted are the user's variables that decide what ours are.
var consulted = []string{"SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "TMPDIR", "HOME", "USER", "LOGNAME", "SHELL", "PATH"}

// noUserEnv is that of a job without one.
var noUserEnv = newUserEnv(nil)

// newUserEnv takes a blob apart: NAME=value, each ended by a zero; of two of one name the later
// counts. What describes an allocation is left out.
func newUserEnv(blob []byte) *userEnv {
	u := &userEnv{values: map[string]string{}}
	for entry := range bytes.SplitSeq(blob, []byte{0}) {
		if name, value, ok := bytes.Cut(entry, []byte{'='}); ok && len(name) > 0 {
			u.values[string(name)] = string(value)
		}
	}
	for _, name := range described {
		delete(u.values, name)
	}
	u.sorted = sortedEnv(u.values)
	return u
}

func sortedEnv(values map[string]string) [][]byte {
	out := make([][]byte, 0, len(values))
	for name, value := range values {
		out = append(out, []byte(name+"="+value))
	}
	slices.SortFunc(out, bytes.Compare)
	return out
}

// with gives the environment with v over it, sorted.
func (u *userEnv) with(v variables) [][]byte {
	ours := sortedEnv(v)
	out := make([][]byte, 0, len(ours)+len(u.sorted))
	for _, entry := range u.sorted {
		name, _, _ := bytes.Cut(entry, []byte{'='})
		if _, covered := v[string(name)]; covered {
			continue
		}
		for len(ours) > 0 && bytes.Compare(ours[0], entry) < 0 {
			out, ours = append(out, ours[0]), ours[1:]
		}
		out = append(out, entry)
	}
	return append(out, ours...)
}

// userEnvs keeps environments by the hash of their blob.
type userEnvs struct {
	mu     sync.Mutex
	byHash map[string]*userEnv
}

// get gives the environment of a blob, taken apart now if it is not known.
func (c *userEnvs) get(hash, blob []byte) *userEnv {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.byHash[string(hash)]
	if u == nil {
		if len(c.byHash) >= maxUserEnvs || c.byHash == nil {
			c.byHash = map[string]*userEnv{}
		}
		u = newUserEnv(blob)
		c.byHash[string(hash)] = u
	}
	return u
}
