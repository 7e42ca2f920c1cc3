package server

import (
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// Bounds of the lines about calls that came to nothing: the files hold so many bytes, and nobody may push what
// happened out of them by asking in vain. More are counted, not written.
const (
	idleBurst    = 20               // lines of one caller at once
	idleEvery    = 10 * time.Second // and one more in that time
	idleCallers  = 1024             // that are remembered
	strangeBurst = 200              // lines of all whom nobody knows
	strangeEvery = time.Second
)

// allowance is how many lines somebody has left.
type allowance struct {
	used       int
	since      time.Time // up to when what is given back was counted
	suppressed int
}

// take uses one of burst lines, of which one comes back in each every.
func (a *allowance) take(burst int, every time.Duration, now time.Time) bool {
	a.refill(every, now)
	if a.used >= burst {
		return false
	}
	a.used++
	return true
}

func (a *allowance) refill(every time.Duration, now time.Time) {
	if a.used == 0 {
		a.since = now
		return
	}
	n := int(now.Sub(a.since) / every)
	a.used = max(a.used-n, 0)
	a.since = a.since.Add(time.Duration(n) * every)
}

// allowances bounds what each caller, and all strangers together, may have.
type allowances struct {
	mu        sync.Mutex
	callers   map[string]*allowance
	strangers allowance
	forgotten int // suppressed ones of callers that are not remembered any more
}

// admit tells whether one more call of that caller has its line, or is answered, and how many before it had not.
func (l *allowances) admit(who string, stranger bool, now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.callers[who]
	if c == nil {
		l.makeRoom(now)
		c = &allowance{}
		l.callers[who] = c
	}
	if !c.take(idleBurst, idleEvery, now) || stranger && !l.strangers.take(strangeBurst, strangeEvery, now) {
		c.suppressed++
		return 0, false
	}
	suppressed = c.suppressed + l.forgotten
	c.suppressed, l.forgotten = 0, 0
	return suppressed, true
}

// makeRoom forgets callers who were quiet; if nobody was, all.
func (l *allowances) makeRoom(now time.Time) {
	if l.callers == nil {
		l.callers = map[string]*allowance{}
	}
	if len(l.callers) < idleCallers {
		return
	}
	quiet := func(c *allowance) bool {
		c.refill(idleEvery, now)
		return c.used == 0
	}
	all := func(*allowance) bool { return true }
	for _, forget := range []func(*allowance) bool{quiet, all} {
		for who, c := range l.callers {
			if forget(c) {
				l.forgotten += c.suppressed
				delete(l.callers, who)
			}
		}
		if len(l.callers) < idleCallers {
			return
		}
	}
}

// inVain tells whether a call certainly changed nothing that matters by itself: it was refused as a whole or for
// each of its jobs, only asked what would be, or brought a script or environment that no job has yet.
func inVain(req, resp any, err error) bool {
	if err != nil {
		r := RefusalOf(err)
		return r != nil && r.Code != codeUnknown
	}
	switch r := req.(type) {
	case *ctldpb.SubmitRequest:
		if r.TestOnly {
			return true
		}
	case *ctldpb.ChangeAccountingRequest:
		if r.DryRun {
			return true
		}
	case *ctldpb.PutBlobRequest:
		return true
	}
	results, ok := resp.(*ctldpb.JobResults)
	if !ok || results == nil {
		return false
	}
	for _, r := range results.Results {
		if r.Code == "" {
			return false
		}
	}
	return true
}

// whose names a caller for the bound. Somebody with an IPv6 network has 2^64 addresses, and counts as one.
func whose(c authn.Caller, address string) string {
	switch {
	case c.IsPerson():
		return "uid " + strconv.FormatUint(uint64(c.UID), 10)
	case c.Wallet != "":
		return c.Wallet
	case c.Name != "":
		return string(c.Role) + " " + c.Name
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return "nobody"
	}
	ip, bits := at.Addr().Unmap().WithZone(""), 32
	if ip.Is6() {
		bits = 64
	}
	network, err := ip.Prefix(bits)
	if err != nil {
		return "nobody"
	}
	return network.String()
}
