package job

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Names of the rare options that decide where, when or for how much a job runs. Their values are as Extra writes and
// reads them; an option that is not given is not there.
const (
	OptReservation = "reservation"         // comma list of names
	OptLicenses    = "licenses"            // name[:n] joined by ','
	OptDeadline    = "deadline"            // Unix ms
	OptSwitches    = "switches"            // count[@seconds]
	OptPrefer      = "prefer"              // a constraint
	OptContiguous  = "contiguous"          // "yes"
	OptSpread      = "spread-job"          // "yes"
	OptFewNodes    = "use-min-nodes"       // "yes"
	OptExclusive   = "exclusive"           // user or topo; "exclusive" alone is Spec.Exclusive
	OptSockets     = "sockets-per-node"    // least sockets of a node
	OptCores       = "cores-per-socket"    // least cores of a socket
	OptThreads     = "threads-per-core"    // least threads of a core
	OptOvercommit  = "overcommit"          // "yes"
	OptInvalidDep  = "kill-on-invalid-dep" // yes or no
	OptBid         = "bid"                 // 10^-6 token for a billing unit and hour
	OptHet         = "het-component"       // "offset/size", set by the controller
	OptSegment     = "segment"             // nodes that must share a block
)

// MaxLicenses bounds the licenses of one job.
const MaxLicenses = 64

// License is so many of one license.
type License struct {
	Name  string
	Count uint64
}

// ErrLicense is wrapped by errors about licenses that cannot be read.
var ErrLicense = errors.New("invalid license specification")

// ParseLicenses reads name[:count] words joined by commas; equal names are added up. Sorted by name.
func ParseLicenses(s string) ([]License, error) {
	if s == "" {
		return nil, nil
	}
	var list []License
	for word := range strings.SplitSeq(s, ",") {
		name, text, given := strings.Cut(word, ":")
		n := uint64(1)
		if given {
			var err error
			if n, err = strconv.ParseUint(text, 10, 31); err != nil || n == 0 {
				return nil, fmt.Errorf("%w: %q: a number over 0 was expected after the colon", ErrLicense, word)
			}
		}
		if name == "" || strings.ContainsAny(name, " =|;") {
			return nil, fmt.Errorf("%w: %q is not NAME[:COUNT]", ErrLicense, word)
		}
		if i := slices.IndexFunc(list, func(l License) bool { return l.Name == name }); i >= 0 {
			list[i].Count += n
			continue
		}
		if list = append(list, License{name, n}); len(list) > MaxLicenses {
			return nil, fmt.Errorf("%w: more than MaxLicenses=%d", ErrLicense, MaxLicenses)
		}
	}
	slices.SortFunc(list, func(a, b License) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Extra is what the rare options of a Spec say about where, when and for how much it runs.
type Extra struct {
	Reservations []string
	Licenses     []License
	Deadline     int64  // Unix ms; 0 = none
	Switches     uint32 // most leaf switches; 0 = any
	SwitchWait   int64  // ms that it waits for that; 0 = for ever
	Prefer       string
	Contiguous   bool
	Spread       bool
	FewNodes     bool
	Exclusive    string // "", user or topo
	Sockets      uint32
	Cores        uint32
	Threads      uint32
	Overcommit   bool
	InvalidDep   int8 // 0 = configured default, 1 = ended when a dependency can never be met, -1 = not
	Bid          int64
	Segment      uint32
}

// Extra reads the rare options. The error is a *SpecError and names the option.
func (s *Spec) Extra() (Extra, error) {
	var x Extra
	for _, o := range s.Rare {
		if err := x.read(o); err != nil {
			return Extra{}, &SpecError{Option: "--" + o.Name, Problem: err.Error(), Err: err}
		}
	}
	return x, nil
}

func (x *Extra) read(o Option) (err error) {
	switch o.Name {
	case OptReservation:
		x.Reservations = strings.Split(o.Value, ",")
	case OptLicenses:
		x.Licenses, err = ParseLicenses(o.Value)
	case OptDeadline:
		x.Deadline, err = strconv.ParseInt(o.Value, 10, 64)
	case OptSwitches:
		count, wait, timed := strings.Cut(o.Value, "@")
		if x.Switches, err = smallNumber(count); err == nil && timed {
			var seconds uint32
			seconds, err = smallNumber(wait)
			x.SwitchWait = int64(seconds) * 1000
		}
	case OptPrefer:
		x.Prefer = o.Value
	case OptContiguous:
		x.Contiguous = o.Value != "no"
	case OptSpread:
		x.Spread = o.Value != "no"
	case OptFewNodes:
		x.FewNodes = o.Value != "no"
	case OptOvercommit:
		x.Overcommit = o.Value != "no"
	case OptExclusive:
		if x.Exclusive = o.Value; o.Value != "user" && o.Value != "topo" {
			err = fmt.Errorf("%q is neither user nor topo", o.Value)
		}
	case OptSockets:
		x.Sockets, err = smallNumber(o.Value)
	case OptCores:
		x.Cores, err = smallNumber(o.Value)
	case OptThreads:
		x.Threads, err = smallNumber(o.Value)
	case OptSegment:
		x.Segment, err = smallNumber(o.Value)
	case OptInvalidDep:
		if x.InvalidDep = 1; o.Value == "no" {
			x.InvalidDep = -1
		}
	case OptBid:
		x.Bid, err = strconv.ParseInt(o.Value, 10, 64)
	}
	return err
}

func smallNumber(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return uint32(n), nil
}
