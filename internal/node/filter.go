package node

import (
	"fmt"
	"strings"
)

// MaxFilter bounds the text of a filter, in bytes.
const MaxFilter = 4 << 10

// criterion is one word of a filter.
type criterion struct {
	names []string
	holds func(State, Flags) bool
}

func isState(want ...State) func(State, Flags) bool {
	return func(s State, f Flags) bool {
		for _, w := range want {
			if s == w {
				return f&(Drain|Fail) == 0
			}
		}
		return false
	}
}

func hasFlag(want Flags) func(State, Flags) bool {
	return func(_ State, f Flags) bool { return f&want != 0 }
}

func shownAs(long string) func(State, Flags) bool {
	return func(s State, f Flags) bool { return show(s, f).long == long }
}

// criteria are the words of sinfo -t. A state means nodes that take work in that state: a drained idle node is
// found by drain and drained, not by idle; down finds every node that is down.
var criteria = []criterion{
	{[]string{"all"}, func(State, Flags) bool { return true }},
	{[]string{"alloc", "allocated"}, isState(Allocated)},
	{[]string{"comp", "completing"}, hasFlag(Completing)},
	{[]string{"down"}, func(s State, _ Flags) bool { return s == Down }},
	{[]string{"drain"}, hasFlag(Drain)},
	{[]string{"drained"}, shownAs("drained")},
	{[]string{"drng", "draining"}, shownAs("draining")},
	{[]string{"fail"}, hasFlag(Fail)},
	{[]string{"failg", "failing"}, shownAs("failing")},
	{[]string{"futr", "future"}, isState(Future)},
	{[]string{"idle"}, isState(Idle)},
	{[]string{"inval", "invalid_reg"}, hasFlag(InvalidReg)},
	{[]string{"maint", "maintenance"}, hasFlag(Maint)},
	{[]string{"mix", "mixed"}, isState(Mixed)},
	{[]string{"no_respond", "not_responding"}, hasFlag(NotResponding)},
	{[]string{"plnd", "planned"}, hasFlag(Planned)},
	{[]string{"resv", "reserved"}, hasFlag(Reserved)},
	{[]string{"unk", "unknown"}, isState(Unknown)},
}

// ParseFilter reads sinfo's -t: names of states and flags, long or compact, in any case, separated by commas (any of
// them) or joined by '&' (all of them). It gives the test of a node.
func ParseFilter(s string) (func(State, Flags) bool, error) {
	if len(s) > MaxFilter {
		return nil, fmt.Errorf("node state filter of %d bytes, the limit MaxFilter is %d", len(s), MaxFilter)
	}
	var either [][]func(State, Flags) bool
	for _, group := range strings.Split(s, ",") {
		if group == "" {
			continue
		}
		var all []func(State, Flags) bool
		for _, word := range strings.Split(group, "&") {
			holds := criterionNamed(word)
			if holds == nil {
				return nil, fmt.Errorf("invalid node state %q", word)
			}
			all = append(all, holds)
		}
		either = append(either, all)
	}
	if either == nil {
		return nil, fmt.Errorf("invalid node state %q", s)
	}
	return func(s State, f Flags) bool {
		for _, all := range either {
			if holdAll(all, s, f) {
				return true
			}
		}
		return false
	}, nil
}

func holdAll(all []func(State, Flags) bool, s State, f Flags) bool {
	for _, holds := range all {
		if !holds(s, f) {
			return false
		}
	}
	return true
}

func criterionNamed(word string) func(State, Flags) bool {
	for _, c := range criteria {
		for _, name := range c.names {
			if strings.EqualFold(name, word) {
				return c.holds
			}
		}
	}
	return nil
}
