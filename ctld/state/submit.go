package state

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// basePriority is what the first job gets; each later one gets less, as Slurm's priority/basic.
const basePriority int64 = 4294901759

// Submit takes a new job or array. A key that the user has used before gives back the job it made
// then (duplicate) when digest is the same, and a refusal when it is not. spec belongs to the
// state afterwards; it is for the caller to let equal strings of many share their bytes.
func (t *Tx) Submit(key string, digest []byte, spec *job.Spec) (id uint32, duplicate bool, r *Refusal) {
	if key != "" {
		if id, r := t.known(spec.UID, key, digest); id != 0 || r != nil {
			return id, id != 0, r
		}
	}
	j, r := t.enter(spec, key, 0, 0)
	if r != nil {
		return 0, false, r
	}
	if key != "" {
		t.setKey(j.ID, keyRecord{uid: spec.UID, key: key, digest: [32]byte(digest), time: t.now})
	}
	return j.ID, false, nil
}

// enter makes the record of a new job, or of one component of a heterogeneous one (het: the id of its first).
func (t *Tx) enter(spec *job.Spec, key string, het, offset uint32) (*Job, *Refusal) {
	tasks, limit, r := t.arrayOf(spec)
	if r == nil {
		r = t.mayEnter(spec, tasks)
	}
	if r != nil {
		return nil, r
	}
	j := t.blank()
	*j = Job{
		ID: t.nextID, Spec: spec, ArrayTask: -1, ArrayLimit: limit, Waiting: tasks, State: job.Pending,
		Revision: 1, SubmitSeq: t.submits, Submit: t.now, Begin: spec.Begin, Partition: spec.Partition, Key: key,
		TimeLimit: t.effectiveLimit(spec.TimeLimit, spec.Partition), Het: het, HetOffset: offset,
	}
	if tasks != nil {
		j.ArrayID = j.ID
	}
	if spec.Hold {
		j.HeldBy = HoldUser
	}
	if !isComponent(j) {
		if r := t.dependOnSubmit(j); r != nil {
			return nil, r
		}
	}
	t.submits++
	t.nextID++
	j.Priority = j.basePriority()
	j.Eligible = j.eligibleAt(t.now)
	t.put(nil, j)
	if tasks != nil && j.Dep == DepWaits {
		t.judgeAgain(wakeup{id: j.ID, task: -1}) // tasks whose counterpart has ended already
	}
	t.slab = t.slab[1:]
	t.endInvalid(j.ID)
	return j, nil
}

// slabJobs is how many new records share one piece of memory: few, since all of it stays while one
// of them is as it was.
const slabJobs = 8

// blank gives room for a record; it is taken when the slab is cut.
func (t *Tx) blank() *Job {
	if len(t.slab) == 0 {
		t.slab = make([]Job, slabJobs)
	}
	return &t.slab[0]
}

// known looks a key up; it gives 0 and no refusal for one that has not been used.
func (t *Tx) known(uid uint32, key string, digest []byte) (uint32, *Refusal) {
	if len(key) > job.MaxKey || len(digest) != 32 {
		return 0, refuse("ESLURM_INVALID_KEY", "Invalid idempotency key",
			fmt.Sprintf("a key has at most MaxKey=%d bytes and comes with a SHA-256 digest; this one has %d and a digest of %d bytes",
				job.MaxKey, len(key), len(digest)))
	}
	id, k, ok := t.keyed(uid, key)
	if !ok {
		return 0, nil
	}
	if !bytes.Equal(k.digest[:], digest) {
		return 0, refuse("ESLURM_DUPLICATE_KEY", "Idempotency key was used for another request",
			fmt.Sprintf("the key made job %d from a different request; use a new key", id))
	}
	return id, nil
}

// arrayOf reads the array specification; nil when there is none.
func (t *Tx) arrayOf(s *job.Spec) (*job.Set, uint32, *Refusal) {
	if s.Array == "" {
		return nil, 0, nil
	}
	size := t.cfg.MaxArraySize
	if size == 0 {
		size = defaultArraySize
	}
	set, limit, err := job.ParseArray(s.Array, size)
	if err != nil {
		return nil, 0, refuse("ESLURM_INVALID_ARRAY", "Invalid job array specification", err.Error())
	}
	return set, limit, nil
}

const defaultArraySize = 1001

// mayEnter checks what the state itself limits: ids, records, the user's share, blobs, partitions.
func (t *Tx) mayEnter(s *job.Spec, tasks *job.Set) *Refusal {
	n := 1
	if tasks != nil {
		n = tasks.Len()
	}
	switch {
	case t.nextID > MaxJobID:
		return refuse("EAGAIN", "Resource temporarily unavailable",
			fmt.Sprintf("all job ids up to MaxJobId=%d have been given", MaxJobID))
	case t.cfg.MaxJobCount > 0 && t.jobs.Len()+t.unstarted+n > int(t.cfg.MaxJobCount):
		return refuse("EAGAIN", "Slurm temporarily unable to accept job, sleeping and retrying",
			fmt.Sprintf("MaxJobCount=%d: %d jobs are in memory and this adds %d", t.cfg.MaxJobCount, t.jobs.Len()+t.unstarted, n))
	case t.cfg.MaxSubmitPerUser > 0 && int(t.owned[s.UID])+n > int(t.cfg.MaxSubmitPerUser):
		return refuse("ESLURM_ACCOUNTING_POLICY",
			"Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
			fmt.Sprintf("MaxSubmitPerUser=%d: the user has %d jobs and this adds %d", t.cfg.MaxSubmitPerUser, t.owned[s.UID], n))
	case len(s.Script) > job.MaxInlineScript:
		return refuse("ESLURM_SCRIPT_TOO_LARGE", "Batch script is too large to be sent inline",
			fmt.Sprintf("MaxInlineScript=%d bytes, this one has %d; send it as a blob", job.MaxInlineScript, len(s.Script)))
	}
	for _, hash := range [][]byte{s.ScriptHash, s.EnvHash} {
		if _, ok := t.Blob(hash); len(hash) > 0 && !ok {
			return refuse("BLOB_MISSING", "Script or environment is not here",
				fmt.Sprintf("no blob has the SHA-256 %x; send it again", hash))
		}
	}
	if r := t.mayUsePartitions(s.Partition); r != nil {
		return r
	}
	if s.Partition == "" {
		s.Partition = t.DefaultPartition().Name
	}
	if r := t.readmit(s, int64(n)); r != nil {
		return r
	}
	return t.mayMeetDeadline(s, t.time)
}

// mayUsePartitions checks again what the server checked, since a partition may have left or been
// drained meanwhile.
func (t *tables) mayUsePartitions(names string) *Refusal {
	if names == "" {
		if t.DefaultPartition() == nil {
			return refuse("ESLURM_INVALID_PARTITION_NAME", "Invalid partition name specified",
				"no partition was named and there is no default; use -p")
		}
		names = t.DefaultPartition().Name
	}
	open := false
	for name := range strings.SplitSeq(names, ",") {
		p := t.Partition(name)
		if p == nil {
			return refuse("ESLURM_INVALID_PARTITION_NAME", "Invalid partition name specified",
				fmt.Sprintf("there is no partition %q", name))
		}
		open = open || p.State == "UP" || p.State == "DOWN"
	}
	if !open {
		return refuse("ESLURM_PARTITION_NOT_AVAIL", "Required partition not available (inactive or drain)",
			fmt.Sprintf("partition %s takes no new jobs", names))
	}
	return nil
}

// effectiveLimit is the limit that holds for an asked one in the first of the partitions.
func (t *tables) effectiveLimit(asked int64, names string) int64 {
	if asked != 0 {
		return asked
	}
	first, _, _ := strings.Cut(names, ",")
	p := t.Partition(first)
	switch {
	case p == nil, p.DefaultTime == 0 && p.MaxTime == 0:
		return job.Unlimited
	case p.DefaultTime != 0:
		return t.usualTime(p)
	}
	return p.MaxTime
}

// usualTime is the limit of a job that asks for none, 0 when MaxTime is. A MaxTime that was set below
// DefaultTime at run time bounds it: such a job asked for nothing that the partition does not allow. The
// first release lets it wait for ever, and so do all as long as not all know better.
func (t *tables) usualTime(p *Partition) int64 {
	if t.feature >= FeatureMembers && p.MaxTime > 0 && p.DefaultTime > p.MaxTime {
		return p.MaxTime
	}
	return p.DefaultTime
}

// basePriority is the priority of a record that nobody has set: later and less nice is lower.
// It is 0 for a held one.
func (j *Job) basePriority() int64 {
	if j.HeldBy != HoldNone {
		return 0
	}
	return max(1, basePriority-int64(j.SubmitSeq)-int64(j.Spec.Nice))
}

// queuePriority is the priority of a record that comes to the queue: one that an administrator set stays.
func (j *Job) queuePriority() int64 {
	if j.Fixed && j.HeldBy == HoldNone && j.Priority > 0 {
		return j.Priority
	}
	j.Fixed = false
	return j.basePriority()
}

// eligibleAt is when the record may first be looked at, 0 when that is not known.
func (j *Job) eligibleAt(now int64) int64 {
	if j.HeldBy != HoldNone || j.Dep != DepMet {
		return 0
	}
	return max(now, notBefore(j))
}

// internSpec makes what many jobs have in common one string.
func (t *Tx) internSpec(s *job.Spec) {
	for _, p := range []*string{
		&s.Name, &s.Account, &s.Partition, &s.QOS, &s.WorkDir, &s.StdIn, &s.StdOut, &s.StdErr, &s.OpenMode,
		&s.Command, &s.SubmitLine, &s.SubmitHost, &s.Gres, &s.NodeList, &s.Exclude, &s.Constraint, &s.Array, &s.Comment,
		&s.Signal, &s.Dependency, &s.Export, &s.User, &s.Group, &s.Home, &s.Shell,
	} {
		*p = t.interner.share(*p)
	}
	for i := range s.Rare {
		s.Rare[i].Name, s.Rare[i].Value = t.interner.share(s.Rare[i].Name), t.interner.share(s.Rare[i].Value)
	}
}
