package replica

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tensorgrid/tensorgrid/api/peerpb"
)

// A replica whose folder is empty may be one of a new cluster, or one that has lost its disk. The second has
// lost votes and acknowledgements that others count on: if it went on as if it had never given them, an
// acknowledged command could be lost. So it asks the others first, and takes part only when
//
//   - all controllers of the file answer that they have no history either: it starts the cluster;
//   - or the leader has made it a learner, with the agreement of a majority of the other voters.
//
// Otherwise it waits and asks again. See MEMBERSHIP.md for why that is safe.

// How often the others are asked, and how often the log says why this replica still waits.
const (
	firstAsk  = 50 * time.Millisecond
	askEvery  = time.Second
	sayEvery  = time.Minute
	rejoinFor = 2 * changeTimeout
)

// Keys beside raft's own in the stable store.
var (
	keyRemoved   = []byte("grid.removed")   // this replica was taken out of the cluster
	keyReturning = []byte("grid.returning") // it was a voter before its folder was emptied
	keySilent    = []byte("grid.silent")    // it must not vote before it holds this entry
)

// mustAsk looks at what the folder holds. It fails for a replica that was removed, and for a folder that lacks
// the votes that belong to its snapshots.
func (r *Replica) mustAsk() (bool, error) {
	s := r.stores
	history, err := raft.HasExistingState(s.log, s.stable, s.snaps)
	if err != nil {
		return false, fmt.Errorf("look for a log: %w", err)
	}
	if marked(s.stable, keyRemoved) {
		if r.cfg.Join {
			return false, fmt.Errorf("this controller was removed from the cluster; to take it in again move its folder %s away", r.cfg.Dir)
		}
		return false, fmt.Errorf("%w; to take it in again move its folder %s away and start it with --join", ErrRemoved, r.cfg.Dir)
	}
	term, err := s.stable.GetUint64(keyTerm)
	if history && (err != nil || term == 0) {
		return false, fmt.Errorf("%s has a log or snapshots and no votes: something was taken out of it; move the folder away and it is copied from the others", r.cfg.Dir)
	}
	if history && term == 1 {
		if history, err = r.halfStarted(); err != nil {
			return false, err
		}
	}
	r.wasBlank = !history
	return r.wasBlank && !r.cfg.Bootstrap, nil
}

// halfStarted sees to a folder whose first start ended (a crash) between the library's two writes: the term is
// there, the list of controllers is not. Nothing has been said to anyone in that term, so it is taken back;
// otherwise the replica would have a history without a cluster for ever.
func (r *Replica) halfStarted() (history bool, err error) {
	last, err := r.stores.log.LastIndex()
	if err != nil {
		return false, fmt.Errorf("look for a log: %w", err)
	}
	snaps, err := r.stores.snaps.List()
	if err != nil {
		return false, fmt.Errorf("look for snapshots: %w", err)
	}
	if last > 0 || len(snaps) > 0 {
		return true, nil
	}
	return false, r.stores.stable.SetUint64(keyTerm, 0)
}

func marked(s raft.StableStore, key []byte) bool {
	v, err := s.Get(key)
	return err == nil && len(v) > 0
}

// blank tells whether this replica has no history: no log, no vote and no snapshot but the list of
// controllers that a new cluster starts with. A voter or a leader has a later term on its disk before it says
// anything to anyone.
func (r *Replica) blank() bool {
	ra := r.running()
	if ra == nil {
		return r.wasBlank
	}
	return ra.CurrentTerm() <= 1 && ra.LastIndex() <= 1
}

// others are the controllers of the file without this one.
func (c Config) others() (names []string) {
	for _, v := range c.Voters {
		if v.Name != c.Name {
			names = append(names, v.Name)
		}
	}
	return names
}

// answers are what the other controllers say, nil for those that do not answer.
type answers map[string]*peerpb.StatusResponse

// poll asks peers all at once.
func (r *Replica) poll(ctx context.Context, names []string) answers {
	out := make(answers, len(names))
	var unheard []string
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() {
			st, err := r.ask(ctx, name)
			if err != nil {
				st = nil
			}
			mu.Lock()
			out[name] = st
			if why := untrusted(err); why != "" {
				name += " (" + why + ")"
			}
			if err != nil {
				unheard = append(unheard, name)
			}
			mu.Unlock()
		})
	}
	wg.Wait()
	slices.Sort(unheard)
	r.unheard = strings.Join(unheard, ", ")
	return out
}

// untrusted is why one end does not take the other's certificate, which is no silence that passes; "" for
// other errors.
func untrusted(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	for _, lead := range []string{"x509: ", "tls: "} {
		if i := strings.Index(text, lead); i >= 0 {
			text, _, _ = strings.Cut(text[i+len(lead):], " (possibly") // a guess, in quotes within quotes
			return strings.TrimRight(text, `"`)
		}
	}
	return ""
}

// history tells whether one of those asked belongs to a cluster that has begun.
func (a answers) history() bool {
	for _, st := range a {
		if st != nil && !st.GetBlank() {
			return true
		}
	}
	return false
}

// takePart tells whether raft runs at one of those asked.
func (a answers) takePart() bool {
	for _, st := range a {
		if st != nil && st.GetRole() != RoleWaiting {
			return true
		}
	}
	return false
}

// votes tells whether this replica is a voter by what one of those asked knows to be agreed on.
func (a answers) votes() bool {
	for _, st := range a {
		if st.GetAskerVotes() {
			return true
		}
	}
	return false
}

// leaders are whom those asked name as the leader; those that say so of themselves come first.
func (a answers) leaders() (names []string) {
	var named []string
	for name, st := range a {
		switch lead := st.GetLeader(); {
		case st.GetRole() == raft.Leader.String():
			names = append(names, name)
		case lead != "":
			named = append(named, lead)
		}
	}
	slices.Sort(names)
	slices.Sort(named)
	for _, n := range slices.Compact(named) {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// firstStart asks until this replica may take part, and starts raft then.
func (r *Replica) firstStart(ctx context.Context) {
	others := r.cfg.others()
	var said time.Time
	for wait := firstAsk; ctx.Err() == nil; wait = min(2*wait, askEvery) {
		bootstrap, why := r.mayStart(ctx, others)
		if bootstrap {
			why = r.strangers(ctx, others)
		}
		if ctx.Err() != nil {
			return
		}
		if why == "" {
			r.startLate(bootstrap)
			return
		}
		if now := time.Now(); now.Sub(said) >= sayEvery {
			said = now
			r.log.Warn("this controller's folder is empty and it takes no part yet", "why", why)
		}
		pause(ctx, wait)
	}
}

// strangers listens for as long as the leader of a cluster stays silent at most, and gives the reason when somebody
// speaks to the raft port who is none of the file: controllers may have joined at run time that this
// one's file does not name, and their leader takes this one for a member. The cluster must not be started anew then,
// whatever those of the file say: they may all have lost their disks.
func (r *Replica) strangers(ctx context.Context, others []string) (why string) {
	if r.foreign {
		return foreignText
	}
	select { // one of the file may have knocked and have been emptied since
	case <-r.stream.knocked:
	default:
	}
	listen := r.cfg.HeartbeatTimeout
	if len(others) > 0 {
		listen *= 2 // they may be without a leader, and stand for election
	}
	t := time.NewTimer(listen)
	defer t.Stop()
	select {
	case <-t.C:
		return ""
	case <-ctx.Done():
		return ctx.Err().Error()
	case <-r.stream.knocked:
	}
	said := r.poll(ctx, others)
	switch {
	case said.history():
		return "one of the controllers has begun meanwhile"
	case said.takePart():
		return "" // it was one of the file, which starts the same cluster
	case r.unheard != "":
		return "no answer from " + r.unheard
	}
	r.foreign = true
	return foreignText
}

const foreignText = "somebody speaks to its raft port and it is none of the controllers of the file, which have no history either: " +
	"there is a cluster already; add a ControllerName line of one of its controllers and start again"

// mayStart asks the others once. why is empty when raft may be started.
func (r *Replica) mayStart(ctx context.Context, others []string) (bootstrap bool, why string) {
	said := r.poll(ctx, others)
	silent := r.unheard
	switch {
	case said.history():
		// Noted before anything is asked for: the answer may be lost, and the next leader sees a learner only.
		err := r.noteReturning(said.votes())
		if err == nil {
			err = r.askRejoin(ctx, said.leaders())
		}
		switch {
		case err == nil:
			return false, ""
		case errors.Is(err, ErrNoMember):
			if err := r.stores.stable.Set(keyReturning, nil); err != nil {
				return false, err.Error()
			}
			return false, fmt.Sprintf("the cluster does not know %s; take it in with: gctl controller add %s", r.cfg.Name, r.cfg.Name)
		}
		return false, fmt.Sprintf("the cluster has a history, and it was not taken back: %v", err)
	case r.cfg.Join && silent == "":
		return false, "it waits to be taken in (--join), and no other controller belongs to a cluster"
	case silent != "":
		return false, "no answer from " + silent + "; all controllers of the file are asked whether there is a cluster already"
	}
	return true, ""
}

// askRejoin asks each of those until one has made this replica a learner.
func (r *Replica) askRejoin(ctx context.Context, leaders []string) error {
	err := ErrNoLeader
	for _, name := range leaders {
		if err = r.askRejoinOf(ctx, name); err == nil || errors.Is(err, ErrNoMember) {
			return err
		}
	}
	return err
}

func (r *Replica) askRejoinOf(ctx context.Context, name string) error {
	client, err := r.cfg.Peers(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rejoinFor)
	defer cancel()
	resp, err := client.Rejoin(ctx, r.rejoinRequest(false))
	if err != nil {
		return fromRPC(err)
	}
	if resp.GetIndex() == 0 || resp.GetTerm() == 0 {
		return fmt.Errorf("%s does not say from which entry on this controller is a learner", name)
	}
	if err := r.noteReturning(resp.GetVoter()); err != nil {
		return err
	}
	// With the term on disk the folder is no longer empty: it is written last.
	if err := r.stores.stable.SetUint64(keySilent, resp.GetIndex()); err != nil {
		return fmt.Errorf("note the entry before which this controller may not vote: %w", err)
	}
	if err := r.stores.stable.SetUint64(keyTerm, resp.GetTerm()); err != nil {
		return fmt.Errorf("note the leader's term: %w", err)
	}
	return nil
}

// noteReturning writes down that this replica was a voter and is to be one again.
func (r *Replica) noteReturning(voter bool) error {
	if !voter || marked(r.stores.stable, keyReturning) {
		return nil
	}
	if err := r.stores.stable.Set(keyReturning, []byte{1}); err != nil {
		return fmt.Errorf("note that this controller was a voter: %w", err)
	}
	return nil
}

func (r *Replica) rejoinRequest(ready bool) *peerpb.RejoinRequest {
	req := &peerpb.RejoinRequest{Name: r.cfg.Name, Ready: ready}
	req.Address, _ = r.cfg.addr(r.cfg.Name)
	if host, port, err := net.SplitHostPort(req.GetAddress()); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			req.Address, req.RaftPort = host, uint32(n)
		}
	}
	return req
}

// startLate starts raft in a replica that is open already.
func (r *Replica) startLate(bootstrap bool) {
	if err := r.openRaft(bootstrap); err != nil {
		r.halt(err)
		return
	}
	r.log.Info("this controller takes part", "cluster started", bootstrap)
	r.begin()
}
