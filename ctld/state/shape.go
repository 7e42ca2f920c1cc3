package state

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math"
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

// rankers lists the rare options that decide when a job starts and not where, sorted: place leaves them out.
var rankers = []string{job.OptBid, job.OptDeadline, job.OptLicenses}

// placeless lists all rare options that do not decide where a job fits, sorted.
var placeless = func() []string {
	list := slices.Concat(shapeless, rankers)
	slices.Sort(list)
	return list
}()

// fixedPriority is the priority that an administrator set; 0 = none.
func fixedPriority(j *Job) int64 {
	if j.Fixed {
		return j.Priority
	}
	return 0
}

// appendRanked appends a canonical form of everything that places or ranks a record but how long it waits. From
// FeatureSched on two waiting records with equal forms are one class.
func appendRanked(b []byte, j *Job) []byte {
	b = appendShape(b, j.Spec, j.Avoid)
	s := j.Spec
	for _, n := range [...]int64{-1, int64(s.UID), s.TimeLimit, s.TimeMin, int64(s.Nice), fixedPriority(j)} {
		b = binary.AppendVarint(b, n)
	}
	for _, text := range [...]string{s.Account, s.QOS} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	return b
}

// appendPlace appends a canonical form of everything that decides where a record fits.
func appendPlace(b []byte, j *Job) []byte {
	s := *j.Spec
	s.Rare = slices.DeleteFunc(slices.Clone(s.Rare), func(o job.Option) bool {
		_, found := slices.BinarySearch(placeless, o.Name)
		return found
	})
	return appendShape(b, &s, j.Avoid)
}

// waitRank is what a record goes by within its class, the highest first: below FeatureSched its priority, then how long
// it could have started already. Those that cannot are last.
func (t *tables) waitRank(j *Job) int64 {
	switch {
	case t.feature < FeatureSched:
		return j.Priority
	case j.Priority == 0 || j.Dep != DepMet || j.Eligible == 0:
		return math.MinInt64
	}
	return -j.Eligible
}

// reclassify gives each waiting record its class anew, as FeatureSched has them, and finds what else it brings.
func (t *Tx) reclassify() {
	var ids []uint32
	for _, k := range t.waiting.Items() {
		ids = append(ids, k.id)
	}
	slices.Sort(ids)
	t.waiting.Clear()
	t.classes.Clear()
	clear(t.shapes)
	for _, id := range ids {
		j := edit(t.Job(id))
		j.Class = ""
		t.classify(nil, j)
		t.jobs.Set(id, j)
		c, _ := t.classes.Get(j.Class)
		t.waiting.Set(waitKey{c.number, id, t.waitRank(j), j.SubmitSeq})
		t.countClass(c, 1)
	}
	for j := range t.Live() {
		t.indexDue(nil, j)
	}
	t.layout++
	t.usage++
	t.capacity++
}
