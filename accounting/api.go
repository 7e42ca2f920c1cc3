package accounting

// This file is the contract other packages were written against; its parts move to files of their own.

// Record is the flat form of anything in a DB: what log and snapshots hold. Fields are name, value, ... sorted by name.
type Record struct {
	Kind   string // account, user, association, qos
	ID     uint32 // associations and QOS; else 0
	Fields []string
}

// Clause is one condition or setting of gacctmgr: name (lower case), operator ("=", "+=", "-="), value.
type Clause struct{ Name, Op, Value string }

// Change is one gacctmgr command.
type Change struct {
	Verb   string // add, modify, delete
	Entity string // account, user, qos, coordinator
	Where  []Clause
	Set    []Clause
}

// Outcome is what a change did: one line a thing that changed, as gacctmgr prints it; none = nothing matched.
type Outcome struct {
	Changed  []string
	Warnings []string
}

// Refusal is a refusal by rule: Slurm's error name, its line, and the line for people.
type Refusal struct{ Code, Text, Why string }

// Unset is a limit that is not set; of shares, that the entity takes part in its parent's share.
const (
	Unset       int64 = -1
	ParentShare int64 = -1
)

// Limits are what one association or QOS sets. Numbers are Unset (-1) where nothing is set; vectors hold only what is
// set. Times are ms. TRES minutes are in TRES times minutes.
type Limits struct {
	GrpTRES, GrpTRESMins, GrpTRESRunMins             TRES
	MaxTRESPerJob, MaxTRESPerNode, MaxTRESMinsPerJob TRES
	MaxTRESPerUser, MaxTRESPerAccount                TRES // QOS only
	MaxTRESRunMinsPerUser, MaxTRESRunMinsPerAccount  TRES // QOS only
	MinTRESPerJob                                    TRES // QOS only
	GrpJobs, GrpSubmitJobs, GrpJobsAccrue, GrpWall   int64
	MaxJobs, MaxSubmitJobs, MaxJobsAccrue            int64 // association: of itself; QOS: of each user
	MaxJobsPerAccount, MaxSubmitJobsPerAccount       int64 // QOS only
	MaxWallDurationPerJob                            int64
	MinPrioThreshold                                 int64
}

// Association is an account in the tree (User empty) or a user in an account.
type Association struct {
	ID         uint32
	Parent     uint32 // 0 = this is root
	Account    string
	User       string
	Partition  string // "" = any
	Shares     int64  // ParentShare = takes part in the parent's
	Priority   uint32
	DefaultQOS string
	QOS        []string // nil = as the parent's
	Limits     Limits
	Comment    string
}

// Account, User and QOS are the other things of a DB.
type Account struct {
	Name, Description, Organization string
	Coordinators                    []string
}

// User is a person; Level is None, Operator or Admin.
type User struct {
	Name, DefaultAccount, Level string
	Comment                     string
}

// QOS is a quality of service. Times are ms, factors are in 10^-6.
type QOS struct {
	ID                uint32
	Name, Description string
	Priority          uint32
	Preempt           []string
	PreemptMode       string // "" = the cluster's
	PreemptExempt     int64  // Unset = the cluster's
	Grace             int64
	UsageFactor       int64    // 1000000 = 1
	UsageThreshold    int64    // Unset = none
	LimitFactor       int64    // Unset = none
	Flags             []string // DenyOnLimit, NoDecay, NoReserve, OverPartQOS, PartitionTimeLimit, ... as Slurm writes them
	Limits            Limits
}
