package accounting

// Association is an account in the tree (User empty) or a user in an account. It is immutable once it is part of a DB.
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

// User is a person; Level is None, Operator or Administrator.
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
	Flags             []string // of qosFlags, as Slurm writes them
	Limits            Limits
}

// Has tells whether the QOS has a flag, as Slurm writes it.
func (q *QOS) Has(flag string) bool {
	for _, f := range q.Flags {
		if f == flag {
			return true
		}
	}
	return false
}
