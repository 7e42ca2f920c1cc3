package state

import (
	"fmt"
	"iter"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Header is what a snapshot says of the state as a whole.
type Header struct {
	Index    uint64
	Version  uint64
	Capacity uint64
	Time     int64 // Unix ms
	NextID   uint32
	Submits  uint64
	Feature  uint32 // level that it is written with
}

// BlobRecord is one blob of a snapshot, whole when it has Total bytes.
type BlobRecord struct {
	Hash  string // 32 bytes
	Data  []byte
	Total uint64
	Since int64 // when it was last without a reference
	UID   uint32
	Used  bool // a job has named it
}

// KeyRecord is one idempotency key of a snapshot.
type KeyRecord struct {
	UID    uint32
	Key    string
	JobID  uint32
	Digest [32]byte
	Time   int64
}

// ClassRecord is the planner's last verdict on one class.
type ClassRecord struct {
	Key    string
	Reason job.Reason
	Detail string
	Start  int64
}

// Header gives what a snapshot begins with.
func (t *tables) Header() Header {
	return Header{Index: t.index, Version: t.version, Capacity: t.capacity, Time: t.time, NextID: t.nextID, Submits: t.submits,
		Feature: t.feature}
}

// File gives the nodes and partitions as the configuration file has them.
func (t *tables) File() ([]NodeConfig, []Partition) { return t.file.nodes, t.file.parts }

// PartitionUpdates gives the updates over the file of one partition, by lower-case parameter.
func (t *tables) PartitionUpdates(name string) map[string]string { return t.file.set[name] }

// Blobs walks the blobs, ascending by hash.
func (t *tables) Blobs() iter.Seq[BlobRecord] {
	return func(yield func(BlobRecord) bool) {
		t.blobs.Scan(func(hash string, b *blob) bool {
			return yield(BlobRecord{Hash: hash, Data: b.data, Total: b.total, Since: b.since, UID: b.uid, Used: b.used})
		})
	}
}

// Keys walks the idempotency keys, ascending by the job that each made.
func (t *tables) Keys() iter.Seq[KeyRecord] {
	return func(yield func(KeyRecord) bool) {
		t.keys.Scan(func(id uint32, k keyRecord) bool {
			return yield(KeyRecord{UID: k.uid, Key: k.key, JobID: id, Digest: k.digest, Time: k.time})
		})
	}
}

// Verdicts walks the planner's verdicts, ascending by class.
func (t *tables) Verdicts() iter.Seq[ClassRecord] {
	return func(yield func(ClassRecord) bool) {
		t.classes.Scan(func(_ string, c *class) bool {
			return c.reason == "" && c.start == 0 || yield(ClassRecord{Key: c.key, Reason: c.reason, Detail: c.detail, Start: c.start})
		})
	}
}

// Restorer builds a store from a snapshot's records, aside from any other. The order is: header,
// configuration, partition updates, nodes, blobs, jobs, keys, verdicts, controllers, join tokens, and what schedrecords.go has.
type Restorer struct {
	store *Store
	tx    Tx
	head  Header

	accounts []accounting.Record
	reserved []*reserved
	begun    bool // SchedRecord came
}

// NewRestorer begins a restore.
func NewRestorer(h Header) *Restorer {
	s := New()
	s.t.time, s.t.nextID, s.t.submits = h.Time, h.NextID, h.Submits
	s.t.feature = max(FeatureFirst, h.Feature)
	s.private.entry = 1
	return &Restorer{store: s, head: h, tx: Tx{tables: &s.t, private: &s.private, now: h.Time, restoring: true}}
}

// Config takes the configuration.
func (r *Restorer) Config(cfg Config, nodes []NodeConfig, parts []Partition) error {
	if refused := r.tx.SetConfig(cfg, nodes, parts); refused != nil {
		return fmt.Errorf("configuration: %s: %s", refused.Text, refused.Why)
	}
	return nil
}

// Partition takes the updates of one partition.
func (r *Restorer) Partition(name string, set map[string]string) error {
	if refused := r.tx.UpdatePartition(name, set, Caller{Operator: true}); refused != nil {
		return fmt.Errorf("partition %q: %s: %s", name, refused.Text, refused.Why)
	}
	return nil
}

// Node takes one node as it was; what runs hold there follows from the jobs. LastBusy and the
// rest are as given.
func (r *Restorer) Node(n Node) error {
	n.CPUsAlloc, n.MemAlloc, n.CPUsUsed, n.GresUsed, n.GresCount, n.Jobs, n.Exclusive, n.Stopped = 0, 0, nil, nil, nil, nil, false, 0
	n.gres = capacities(n.Config.Gres)
	if n.Config.CPUs > MaxNodeCPUs {
		return fmt.Errorf("node %q: %d CPUs, the limit is MaxNodeCPUs=%d", n.Name, n.Config.CPUs, MaxNodeCPUs)
	}
	at, known := r.tx.nodeAt[n.Name]
	if known == n.Removed {
		return fmt.Errorf("node %q: it disagrees with the configuration", n.Name)
	}
	if !known {
		at = uint32(len(r.tx.nodeAt))
		r.tx.nodeAt[n.Name] = at
	}
	n.oldGres = known && r.tx.file.nodes[at].Inventory.Gres != n.Config.Gres
	r.tx.nodes.Set(at, &n)
	return nil
}

// Blob takes one blob.
func (r *Restorer) Blob(b BlobRecord) error {
	if len(b.Hash) != 32 || b.Total > MaxBlob || uint64(len(b.Data)) > b.Total {
		return fmt.Errorf("blob %x: %d of %d bytes", b.Hash, len(b.Data), b.Total)
	}
	n := &blob{data: b.Data, total: b.Total, since: b.Since, uid: b.UID, used: b.Used, whole: uint64(len(b.Data)) == b.Total}
	if _, twice := r.tx.blobs.Get(b.Hash); twice {
		return fmt.Errorf("blob %x: a duplicate", b.Hash)
	}
	r.tx.setBlob(b.Hash, n)
	r.tx.freeBlobs.Set(b.Hash, none{})
	return nil
}

// Job takes one record; its class follows from its specification.
func (r *Restorer) Job(j *Job) error {
	if r.tx.Job(j.ID) != nil || j.ID == 0 || j.ID >= r.head.NextID || j.Spec == nil {
		return fmt.Errorf("job %d: a duplicate, without a specification, or not below the next id %d", j.ID, r.head.NextID)
	}
	if j.State > job.OutOfMemory || j.Dep > DepNever || j.HeldBy > HoldAdmin {
		return fmt.Errorf("job %d: state %d, dependency %d, held by %d", j.ID, j.State, j.Dep, j.HeldBy)
	}
	if len(j.Done) != len(j.Allocs) || len(j.Confirmed) != len(j.Allocs) {
		return fmt.Errorf("job %d: %d nodes, %d done, %d confirmed", j.ID, len(j.Allocs), len(j.Done), len(j.Confirmed))
	}
	if j.ArrayTask >= 0 && (j.Waiting != nil || r.tx.ArrayTask(j.ArrayID, j.ArrayTask) != nil) || j.ArrayTask < -1 || j.ArrayTask > job.MaxArrayIndex {
		return fmt.Errorf("job %d: task %d of array %d is wrong or a duplicate", j.ID, j.ArrayTask, j.ArrayID)
	}
	for i := range j.Allocs {
		if err := r.checkAlloc(j, i); err != nil {
			return fmt.Errorf("job %d: %w", j.ID, err)
		}
	}
	j.Class = ""
	r.tx.internSpec(j.Spec)
	r.tx.put(nil, j)
	return nil
}

// checkAlloc: a share that is still held must be free on a node that exists.
func (r *Restorer) checkAlloc(j *Job, i int) error {
	if !holds(j, i) {
		return nil
	}
	a := &j.Allocs[i]
	n := r.tx.Node(a.Node)
	if n == nil {
		return fmt.Errorf("node %q is not known", a.Node)
	}
	if _, twice := indexOf(n.Jobs, j.ID); twice {
		return fmt.Errorf("node %q is in the allocation twice", a.Node)
	}
	const most = 1 << 20 // of any number that becomes the length of a table
	for _, c := range a.CPUIDs {
		if c >= most || keepsCPUs(j) && int(c) < len(n.CPUsUsed) && n.CPUsUsed[c] {
			return fmt.Errorf("CPU %d of node %q is given twice, or none", c, a.Node)
		}
	}
	for _, g := range a.Gres {
		used := n.GresUsed[gresKey(g.Name, g.Type)]
		for _, x := range g.Index {
			if x >= most || int(x) < len(used) && used[x] {
				return fmt.Errorf("%s %d of node %q is given twice, or none", g.Name, x, a.Node)
			}
		}
	}
	return nil
}

// Key takes one idempotency key.
func (r *Restorer) Key(k KeyRecord) error {
	if len(k.Key) > job.MaxKey {
		return fmt.Errorf("key of %d bytes, the limit is MaxKey=%d", len(k.Key), job.MaxKey)
	}
	_, _, known := r.tx.keyed(k.UID, k.Key)
	if _, twice := r.tx.keys.Get(k.JobID); known || twice {
		return fmt.Errorf("key of job %d: a duplicate", k.JobID)
	}
	j := r.tx.Job(k.JobID)
	if j == nil {
		r.tx.orphanKeys.Set(endKey{k.Time, k.JobID})
	} else if j.Key == k.Key {
		k.Key = j.Key // one string for both
	}
	r.tx.setKey(k.JobID, keyRecord{uid: k.UID, key: k.Key, digest: k.Digest, time: k.Time})
	return nil
}

// Verdict takes the planner's verdict on one class.
func (r *Restorer) Verdict(c ClassRecord) error {
	old, ok := r.tx.classes.Get(c.Key)
	if !ok {
		return fmt.Errorf("class %q has no jobs", c.Key)
	}
	n := *old
	n.reason, n.detail, n.start = c.Reason, c.Detail, c.Start
	r.tx.classes.Set(c.Key, &n)
	return nil
}

// Controller takes one controller that joined at run time.
func (r *Restorer) Controller(c Controller) error {
	if _, twice := r.tx.members[c.Name]; twice {
		return fmt.Errorf("controller %q: a duplicate", c.Name)
	}
	if refused := r.tx.SetController(c, false); refused != nil {
		return fmt.Errorf("controller %q: %s: %s", c.Name, refused.Text, refused.Why)
	}
	return nil
}

// JoinToken takes one join token.
func (r *Restorer) JoinToken(k JoinToken) error {
	switch {
	case r.tx.tokens[k.ID] != nil:
		return fmt.Errorf("join token %q: a duplicate", k.ID)
	case len(r.tx.tokens) >= MaxJoinTokens:
		return fmt.Errorf("join token %q: the limit is MaxJoinTokens=%d", k.ID, MaxJoinTokens)
	}
	if err := k.whole(); err != nil {
		return fmt.Errorf("join token %q: %w", k.ID, err)
	}
	r.tx.setToken(&k)
	return nil
}

// Finish checks every invariant and gives the store.
func (r *Restorer) Finish() (*Store, error) {
	if err := r.finishSched(); err != nil {
		return nil, err
	}
	t := &r.store.t
	t.index, t.version, t.capacity = r.head.Index, r.head.Version, r.head.Capacity
	if err := r.store.Check(); err != nil {
		return nil, err
	}
	return r.store, nil
}

// Record gives a record that was restored already; nil when there is none.
func (r *Restorer) Record(id uint32) *Job { return r.tx.Job(id) }
