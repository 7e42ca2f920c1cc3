package job

// Set is an immutable set of array task numbers. The zero value is empty.
// Kept as sorted, disjoint runs, so that 0-999999 costs one of them.
type Set struct{ runs []setRun }

// setRun holds first, first+step, ..., last.
type setRun struct{ first, last, step uint32 }
