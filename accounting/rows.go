package accounting

// Rows lists things of one kind: account, user, association, qos, coordinator, tres or cluster. Fields go by Slurm's names in lower
// case; depth is that of an association in the tree.
func (d *DB) Rows(entity string, where []Clause) (rows []map[string]string, depth []int, r *Refusal) {
	return nil, nil, nil
}
