package sim

import "slices"

// shrinkEvents bounds the events that shrinking plays in all.
const shrinkEvents = 100_000

// Shrink looks for a smaller run that fails: fewer events, fewer kinds of actions, and at last the costly
// checks after each event, so that the failure is told where it arises. It gives the smallest found in
// which the same invariant fails.
func Shrink(f *Failure) *Failure {
	best, left := f, shrinkEvents
	try := func(o Options) bool {
		if left < 0 {
			return false
		}
		s := play(o, false)
		left -= s.event
		if s.failure == nil || s.failure.Kind != f.Kind {
			return false
		}
		best = s.failure
		return true
	}
	shorter := func() {
		for n := best.Event; n > 0 && n < best.Options.Events; n /= 2 { // up to where it failed, then half of that
			o := best.Options
			o.Events = n
			if !try(o) {
				return
			}
		}
	}
	shorter()
	for _, kind := range Kinds() {
		o := best.Options
		o.Off = append(slices.Clone(o.Off), kind)
		try(o)
	}
	shorter()
	o := best.Options
	o.Every = 1
	try(o)
	if _, told := Run(best.Options); told != nil {
		return told
	}
	return best
}
