package fsm

// Result is what applying one command gave back. Refused is set for a refusal by rule, which is
// not an error: the log holds the command and every replica refused it alike.
type Result struct {
	JobID     uint32
	Duplicate bool // Submit: the key was known, JobID is the first answer
	Refused   *Refusal
	Jobs      []JobResult // Cancel, Control, UpdateJob: one per job named
	Taken     int         // Plan: starts that still held
	Mark      bool        // HashMark: the state after the entry is to be hashed
	Check     *HashCheck  // HashCheck: what the leader's hash was
	Changed   []string    // AccountingChange: what changed, a line each; ReservationChange: the reservation's name
	Warnings  []string    // AccountingChange
}

// HashCheck is the leader's hash of the state after the entry of Index.
type HashCheck struct {
	Index  uint64
	SHA256 [32]byte
	Leader string
}

// Refusal is a refusal by rule. Code is Slurm's error name (ESLURM_...), Text its line, Why the second line for people.
type Refusal struct{ Code, Text, Why string }

// JobResult is the outcome for one job (or task "12_3") of a command that names several.
type JobResult struct {
	Job     string
	Refused *Refusal
}
