package accounting

// Change applies one gacctmgr command: a new DB, or a refusal with nothing changed.
func (d *DB) Change(c Change) (*DB, Outcome, *Refusal) {
	return d, Outcome{}, refuse("ESLURM_NOT_SUPPORTED", "Requested operation not supported", "gacctmgr %s %s is not there", c.Verb, c.Entity)
}
