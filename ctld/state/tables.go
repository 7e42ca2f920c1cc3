package state

import (
	"cmp"
	"hash/maphash"

	"github.com/tidwall/btree"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// none is the value of a map that is a set.
type none = struct{}

// tables are what a View freezes: copy-on-write maps whose records never change once stored, so
// that a copy costs the same whatever they hold.
type tables struct {
	index    uint64
	version  uint64
	capacity uint64 // grows when something that waits could start now
	usage    uint64 // grows when any node's usage, state or any partition changes; keys the planner's cache
	layout   uint64 // grows with configuration, partitions and the set of nodes; local to a replica
	time     int64
	nextID   uint32
	submits  uint64
	cfg      *Config
	file     *fileConfig

	jobs      *btree.Map[uint32, *Job]
	live      *btree.Map[uint32, none]       // not ended, or completing
	active    *btree.Map[uint32, *activeRun] // holding resources
	due       *btree.BTreeG[endKey]          // records with a deadline, or a grace that ends
	throttled *btree.Map[uint64, none]       // base<<32|id of waiting records of arrays with a limit of tasks at once
	promised  *btree.Map[uint32, none]       // waiting records that hold a promise
	users     *btree.Map[uint64, none]       // uid<<32|id of live records
	tasks     *btree.Map[uint64, uint32]     // base<<32|task -> record of a started task
	parted    *btree.Map[uint64, none]       // base<<32|id of records cut out of an array's waiting one
	arrays    *btree.Map[uint32, uint32]     // array base -> tasks that hold resources
	waiting   *btree.BTreeG[waitKey]
	classes   *btree.Map[string, *class]

	nodes  *btree.Map[uint32, *Node] // by position in the configuration
	nodeAt map[string]uint32         // immutable: replaced with the configuration
	parts  *partTable

	blobs *btree.Map[string, *blob]
	keys  *btree.Map[uint32, keyRecord] // by the job that the key made

	keyIndex *keyIndex

	feature uint32                // level that entries are written with
	members map[string]Controller // that joined at run time; immutable: replaced at each change
	tokens  map[string]*JoinToken // immutable: replaced at each change

	pending int
	running int

	// From FeatureSched on; empty below.
	db            *accounting.DB
	rules         *partitions.Rules              // what configuration and accounts demand
	counting      *partitions.Rules              // the same with nothing enforced: what records are counted for
	plain         bool                           // nothing is enforced and there is nobody in the accounts
	weights       map[string]*accounting.Weights // by partition; immutable
	maxTRES       bool                           // PriorityFlags: the largest weighted TRES counts, not the sum
	maxTRESGres   bool                           // PriorityFlags: the same with the sum of GRES
	licenses      []licenseTotal                 // by name; immutable
	licensed      map[heldLicense]uint64         // what runs hold; immutable
	uses          *btree.BTreeG[entityUse]       // where limits are enforced
	charges       *btree.BTreeG[entityUsage]     // decayed usage, as of usageAt
	usageAt       int64                          // up to when usage is counted, Unix ms
	chargeVersion uint64                         // changes with any usage and with the shares
	reserved      *reservedTable
	history       *btree.Map[uint32, RunTimes] // by uid
}

// waitKey orders the waiting records of all classes: within a class best first.
type waitKey struct {
	class    uint32
	id       uint32
	priority int64
	submit   uint64
}

func lessWait(a, b waitKey) bool {
	if a.class != b.class {
		return a.class < b.class
	}
	if a.priority != b.priority {
		return a.priority > b.priority
	}
	if a.submit != b.submit {
		return a.submit < b.submit
	}
	return a.id < b.id
}

// class is the waiting records of one shape, from FeatureSched on also of one rank but for how long they wait. A stored
// class never changes, but for the entry that made it.
type class struct {
	key    string
	form   string // the shape and rank themselves, of which key is the hash
	shape  string // key of what decides where they fit; "" below FeatureSched
	number uint32
	spec   *job.Spec
	avoid  []string
	fixed  int64       // priority that an administrator set; 0 = none
	sched  *schedClass // what the planner sees of it, made when it is first asked for
	count  int
	reason job.Reason // the planner's last verdict on the first of them; "" before there was one
	detail string
	start  int64
	born   uint64 // entry that made it: until that is over nobody else sees it
}

// blob is one content-addressed blob, whole or arriving. A stored blob never changes.
type blob struct {
	data  []byte
	total uint64
	whole bool
	refs  uint32
	since int64  // when it was last without a reference
	uid   uint32 // who began to send it
	used  bool   // a job has named it
}

func newTables() tables {
	return tables{
		cfg:       &Config{FirstJobID: 1},
		file:      &fileConfig{},
		nextID:    1,
		jobs:      new(btree.Map[uint32, *Job]),
		live:      new(btree.Map[uint32, none]),
		active:    new(btree.Map[uint32, *activeRun]),
		due:       byEnd(),
		throttled: new(btree.Map[uint64, none]),
		promised:  new(btree.Map[uint32, none]),
		users:     new(btree.Map[uint64, none]),
		tasks:     new(btree.Map[uint64, uint32]),
		parted:    new(btree.Map[uint64, none]),
		arrays:    new(btree.Map[uint32, uint32]),
		waiting:   btree.NewBTreeGOptions(lessWait, btree.Options{NoLocks: true}),
		classes:   new(btree.Map[string, *class]),
		nodes:     new(btree.Map[uint32, *Node]),
		nodeAt:    map[string]uint32{},
		parts:     &partTable{},
		blobs:     new(btree.Map[string, *blob]),
		keys:      new(btree.Map[uint32, keyRecord]),

		keyIndex: newKeyIndex(),
		feature:  FeatureFirst,

		uses: newUses(), charges: newUsages(), reserved: &reservedTable{}, history: new(btree.Map[uint32, RunTimes]),
	}
}

// copy gives tables that later changes of t do not touch.
func (t *tables) copy() tables {
	c := *t
	c.jobs, c.live, c.active = t.jobs.Copy(), t.live.Copy(), t.active.Copy()
	c.users, c.tasks, c.arrays = t.users.Copy(), t.tasks.Copy(), t.arrays.Copy()
	c.parted, c.due, c.promised = t.parted.Copy(), t.due.Copy(), t.promised.Copy()
	c.throttled = t.throttled.Copy()
	c.waiting, c.classes = t.waiting.Copy(), t.classes.Copy()
	c.nodes, c.blobs, c.keys = t.nodes.Copy(), t.blobs.Copy(), t.keys.Copy()
	c.uses, c.charges, c.history = t.uses.Copy(), t.charges.Copy(), t.history.Copy()
	return c
}

// private is what only commands need: it is not part of a view.
type private struct {
	interner   Interner
	owned      map[uint32]uint32                       // uid -> live jobs, each waiting array task counted
	dependents map[uint32]*btree.Map[uint32, none]     // job or array id -> waiting records that name it
	singles    map[singleName]*btree.Map[uint64, none] // waiting records that asked for singleton, by singleKey
	watching   map[uint32]*watch                       // what each record that waits for others waits for
	parsed     map[string]*parsedDep                   // dependencies of those, by text
	edges      map[uint32]int                          // uid -> jobs named by the dependencies of those
	names      *btree.BTreeG[nameKey]                  // live records by user and name; nil until a singleton asks
	nameSeed   maphash.Seed
	unstarted  int                      // records that waiting array tasks will still need
	classNums  uint32                   // last class number given
	orphanKeys *btree.BTreeG[endKey]    // keys whose job has been purged, oldest first
	openBlobs  int                      // blobs not whole
	newBlobs   map[uint32]blobShare     // uid -> what it has sent that no job has named yet
	newBytes   int                      // of all of those
	ended      *btree.BTreeG[endKey]    // ended records that hold nothing, oldest first
	freeBlobs  *btree.Map[string, none] // blobs without references
	scratch    []byte
	woken      []wakeup // waiting records whose dependencies are to be judged again
	arrayStats map[uint32]*arrayStat
	shapes     map[string]string // form of a class -> its key, so that a known shape is not hashed
	slab       []Job             // room for new records
	entry      uint64            // counts the entries of this store, so that what one has made can be told; 0 = a trial
	waking     bool

	chains  map[partitions.Job]*partitions.Chain // what limits a job of these names; forgotten when accounts change
	counted map[partitions.Job]*partitions.Chain // what records of these names are counted for
	forgot  bool                                 // some of counted was forgotten while records may be counted by it
	inside  map[string]*btree.Map[uint32, none]  // reservation -> records that are in it or wait for it
}

// singleName is what a singleton dependency goes by.
type singleName struct {
	uid  uint32
	name string
}

// endKey orders ended records by when they ended, and keys that outlived their job by when they
// were used.
type endKey struct {
	end int64
	id  uint32
}

func byEnd() *btree.BTreeG[endKey] {
	return btree.NewBTreeGOptions(func(a, b endKey) bool {
		return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.id, b.id)) < 0
	}, btree.Options{NoLocks: true})
}

func newPrivate() private {
	return private{
		owned:      map[uint32]uint32{},
		dependents: map[uint32]*btree.Map[uint32, none]{},
		singles:    map[singleName]*btree.Map[uint64, none]{},
		watching:   map[uint32]*watch{},
		parsed:     map[string]*parsedDep{},
		edges:      map[uint32]int{},
		nameSeed:   maphash.MakeSeed(),
		orphanKeys: byEnd(),
		arrayStats: map[uint32]*arrayStat{},
		shapes:     map[string]string{},
		ended:      byEnd(),
		freeBlobs:  new(btree.Map[string, none]),
		newBlobs:   map[uint32]blobShare{},
		chains:     map[partitions.Job]*partitions.Chain{},
		counted:    map[partitions.Job]*partitions.Chain{},
		inside:     map[string]*btree.Map[uint32, none]{},
	}
}

// fileConfig is what the configuration file says of nodes and partitions, and the updates over the
// latter by lower-case key. Immutable.
type fileConfig struct {
	nodes []NodeConfig
	parts []Partition
	set   map[string]map[string]string
}

// partTable is the partitions in configuration order, with those that were updated. Immutable.
type partTable struct {
	list   []*Partition
	byName map[string]*Partition
	nodes  [][]int // positions, ascending, of the nodes of list[i]
}

func pair(hi, lo uint32) uint64 { return uint64(hi)<<32 | uint64(lo) }
