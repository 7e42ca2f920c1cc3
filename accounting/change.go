package accounting

// Clause is one condition or setting of gacctmgr: name (lower case), operator ("=", "+=", "-="), value. A word that
// stands alone has operator "" and is Name.
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
	Changed      []string
	Warnings     []string
	Associations []uint32 // that were deleted: a job of one of them must not be there
	QOS          []uint32 // that were deleted
	ResetUsage   []uint32 // associations whose usage, with that of all below them, is to be forgotten (rawusage=0)
	ResetQOS     []uint32 // QOS whose usage is
}

// Refusal is a refusal by rule: Slurm's error name, its line, and the line for people.
type Refusal struct{ Code, Text, Why string }
