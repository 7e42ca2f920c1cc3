package state

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// shapeless lists the rare options that do not decide where or when a job fits, sorted. Any other
// keeps jobs that differ in it in classes of their own: that is never wrong, only slower.
var shapeless = []string{
	"acctg-freq", "admin-comment", "bell", "container-id", "ignore-pbs", "input", "kill-on-invalid-dep",
	"mail-type", "mail-user", "no-kill", "parsable", "profile", "propagate", "quiet", "verbose", "wait", "wckey",
}

// appendShape appends a canonical form of everything that decides where and when a job fits.
// Two waiting records with equal forms are one class: the planner looks at the first only.
func appendShape(b []byte, s *job.Spec, avoid []string) []byte {
	str := func(v string) {
		b = binary.AppendUvarint(b, uint64(len(v)))
		b = append(b, v...)
	}
	num := func(v int64) { b = binary.AppendVarint(b, v) }
	str(s.Partition)
	num(int64(s.MinNodes))
	num(int64(s.MaxNodes))
	num(int64(s.NTasks))
	num(int64(s.NTasksPerNode))
	num(int64(s.CPUsPerTask))
	num(int64(s.MinCPUsPerNode))
	num(s.MemPerNode)
	num(s.MemPerCPU)
	num(s.MinTmpDisk)
	str(s.Gres)
	str(s.NodeList)
	str(s.Exclude)
	str(s.Constraint)
	if s.Exclusive {
		num(1)
	} else {
		num(0)
	}
	for _, o := range s.Rare {
		if _, skip := slices.BinarySearch(shapeless, o.Name); !skip {
			str(o.Name)
			str(o.Value)
		}
	}
	num(-1) // an avoided node is never taken for an option
	for _, n := range avoid {
		str(n)
	}
	return b
}

// shapeKey names a shape: 16 bytes of its SHA-256, so that a key costs the same in the log
// whatever node lists the shape has.
func shapeKey(form []byte) string {
	sum := sha256.Sum256(form)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}
