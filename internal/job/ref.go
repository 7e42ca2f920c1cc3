package job

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrRef is wrapped by errors about a job id that cannot be read.
var ErrRef = errors.New("invalid job id specified")

// NoTask is the task number of a job that is no array task.
const NoTask int64 = -1

// Ref names a job, one task of an array, or some of its tasks.
type Ref struct {
	ID    uint32
	Tasks *Set // nil = the whole job
}

// ParseRef reads 12, 12_3, 12_[1-5,9] and 12_* (the same as 12). A "%N" inside the brackets, as squeue
// prints it, is read and dropped.
func ParseRef(s string) (Ref, error) {
	idText, tasks, hasTasks := strings.Cut(s, "_")
	id, ok := parseID(idText)
	if !ok {
		return Ref{}, fmt.Errorf("%w: %q", ErrRef, s)
	}
	ref := Ref{ID: id}
	switch {
	case !hasTasks || tasks == "*" || tasks == "[*]":
		return ref, nil
	case strings.HasPrefix(tasks, "[") && strings.HasSuffix(tasks, "]"):
		set, _, err := ParseArray(tasks, MaxArrayIndex)
		if err != nil {
			return Ref{}, fmt.Errorf("%w: %q: %w", ErrRef, s, err)
		}
		ref.Tasks = set
		return ref, nil
	}
	task, ok := digitsIn(tasks)
	if !ok || task >= MaxArrayIndex {
		return Ref{}, fmt.Errorf("%w: %q: %q is not a task number", ErrRef, s, tasks)
	}
	ref.Tasks = NewSet(uint32(task))
	return ref, nil
}

// parseID reads a job id; 0 is none.
func parseID(s string) (uint32, bool) {
	n, ok := digitsIn(s)
	if !ok || n == 0 || n >= 1<<32 {
		return 0, false
	}
	return uint32(n), true
}

// String writes the reference as ParseRef reads it.
func (r Ref) String() string {
	id := strconv.FormatUint(uint64(r.ID), 10)
	switch {
	case r.Tasks == nil:
		return id
	case r.Tasks.Len() == 1:
		return id + "_" + strconv.FormatUint(uint64(r.Tasks.Min()), 10)
	}
	return id + "_[" + r.Tasks.String() + "]"
}

// TaskText writes the id of an array task, 12_3.
func TaskText(array uint32, task int64) string {
	return strconv.FormatUint(uint64(array), 10) + "_" + strconv.FormatInt(task, 10)
}
