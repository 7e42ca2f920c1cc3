package job

import (
	"encoding/binary"
	"errors"
	"strconv"
)

// stepSpan is how wide a set must be for its text to use "first-last:step": as Slurm, more than ten apart.
const stepSpan = 10

// String writes the set as Slurm does: 0-4, 1,3,5 and, when more than ten apart, 1-21:2. ParseArray reads it back.
func (s *Set) String() string { return string(s.appendText(nil, 0)) }

// appendText writes the set, stopping soon after most bytes when most > 0.
func (s *Set) appendText(b []byte, most int) []byte {
	runs := s.all()
	if len(runs) == 1 && runs[0].step > 1 && runs[0].last-runs[0].first > stepSpan {
		b = appendRange(b, runs[0].first, runs[0].last)
		return strconv.AppendUint(append(b, ':'), uint64(runs[0].step), 10)
	}
	var low, high uint32
	open := false
	put := func(first, last uint32) bool {
		if open && first == high+1 {
			high = last
			return true
		}
		if open {
			b = append(appendRange(b, low, high), ',')
		}
		low, high, open = first, last, true
		return most <= 0 || len(b) <= most
	}
	for _, r := range runs {
		if r.step == 1 {
			if !put(r.first, r.last) {
				return b
			}
			continue
		}
		for n := r.first; ; n += r.step {
			if !put(n, n) {
				return b
			}
			if n == r.last {
				break
			}
		}
	}
	if open {
		b = appendRange(b, low, high)
	}
	return b
}

func appendRange(b []byte, low, high uint32) []byte {
	b = strconv.AppendUint(b, uint64(low), 10)
	if high > low {
		b = strconv.AppendUint(append(b, '-'), uint64(high), 10)
	}
	return b
}

// ArrayText writes what still waits of an array as squeue shows it after "ID_": [1-5%2]. A list over
// most bytes ends in "..."; most 0 is no limit (Slurm's SLURM_BITSTR_LEN, 64 when not set).
func ArrayText(s *Set, limit uint32, most int) string {
	b := s.appendText([]byte{'['}, most)
	if most > 0 && len(b)-1 >= most && most > 3 {
		b = append(b[:most-3], "..."...)
	}
	if limit > 0 {
		b = strconv.AppendUint(append(b, '%'), uint64(limit), 10)
	}
	return string(append(b, ']'))
}

// errSet says that bytes are not what MarshalBinary writes.
var errSet = errors.New("job: malformed array set")

// MarshalBinary writes the set as its runs: their number, then for each the distance from the run
// before, its length and, for more than one number, its step. It never fails.
func (s *Set) MarshalBinary() ([]byte, error) {
	runs := s.all()
	b := binary.AppendUvarint(nil, uint64(len(runs)))
	var next uint64
	for _, r := range runs {
		b = binary.AppendUvarint(b, uint64(r.first)-next)
		b = binary.AppendUvarint(b, uint64(r.len()-1))
		if r.len() > 1 {
			b = binary.AppendUvarint(b, uint64(r.step))
		}
		next = uint64(r.last) + 1
	}
	return b, nil
}

// UnmarshalSet reads what MarshalBinary wrote, and nothing else: each set of runs has one form.
func UnmarshalSet(b []byte) (*Set, error) {
	count, b, err := uvarint(b)
	if err != nil || count > uint64(len(b))/2 {
		return nil, errSet
	}
	s := &Set{}
	var next uint64
	for range count {
		var skip, more uint64
		step := uint64(1)
		if skip, b, err = uvarint(b); err != nil {
			return nil, err
		}
		if more, b, err = uvarint(b); err != nil {
			return nil, err
		}
		if more > 0 {
			if step, b, err = uvarint(b); err != nil {
				return nil, err
			}
		}
		const top = 1<<32 - 1
		if skip > top || more > top || step > top || step == 0 {
			return nil, errSet
		}
		first := next + skip
		last := first + more*step
		if first > top || more > top/step || last > top {
			return nil, errSet
		}
		s.runs = append(s.runs, setRun{uint32(first), uint32(last), uint32(step)})
		next = last + 1
	}
	if len(b) != 0 {
		return nil, errSet
	}
	return s, nil
}

// uvarint reads one number in its shortest form.
func uvarint(b []byte) (uint64, []byte, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 || n > 1 && b[n-1] == 0 {
		return 0, nil, errSet
	}
	return v, b[n:], nil
}
