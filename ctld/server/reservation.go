package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// flagUserDelete lets those whom a reservation is for delete it.
const flagUserDelete = "USER_DELETE"

// ChangeReservation creates, updates or deletes a reservation. It is for operators; a user may delete one that is for
// them and has the flag USER_DELETE.
func (s *Server) ChangeReservation(ctx context.Context, req *ctldpb.ChangeReservationRequest) (*ctldpb.ChangeReservationResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	verb := strings.ToLower(req.Verb)
	if verb != verbCreate && verb != verbUpdate && verb != verbDelete {
		return nil, refuse(codeInvalid, fmt.Sprintf("%q is none of create, update, delete", req.Verb))
	}
	if err := clauseBounds(req.Set); err != nil {
		return nil, err
	}
	view := s.Log.View()
	if ref := needsSched(view, "reservations"); ref != nil {
		return nil, refusalError(ref)
	}
	if ref := s.mayReserve(view, c, verb, req.Name); ref != nil {
		return nil, refusalError(ref)
	}
	if ref := magneticGroups(view, req); ref != nil {
		return nil, refusalError(ref)
	}
	if ref := s.reservedForNobody(req.Set); ref != nil {
		return nil, refusalError(ref)
	}
	set, err := s.reservationTimes(clausesFromAPI(req.Set))
	if err != nil {
		return nil, err
	}
	who := toLogCaller(c)
	who.Operator = true // mayReserve has decided
	res, err := s.Log.Propose(ctx, &logpb.Command{Of: &logpb.Command_ReservationChange{ReservationChange: &logpb.ReservationChange{
		Verb: verb, Name: req.Name, Set: clausesToLog(set), Caller: who,
	}}})
	if err != nil {
		return nil, logError(err)
	}
	if r := res[0].Refused; r != nil {
		return nil, refusalError(fromFSM(r))
	}
	out := &ctldpb.ChangeReservationResponse{Name: req.Name, Warnings: res[0].Warnings}
	if out.Name == "" && len(res[0].Changed) > 0 {
		out.Name = res[0].Changed[0]
	}
	return out, nil
}

// mayReserve decides who may change a reservation: only this controller knows the groups that a caller is in.
func (s *Server) mayReserve(view state.Viewer, c authn.Caller, verb, name string) *ctldpb.Refusal {
	if c.IsOperator() {
		return nil
	}
	if verb != verbDelete {
		return refusalOf("ESLURM_ACCESS_DENIED", "reservations are made and changed by operators")
	}
	r := reservation(view, name)
	if r == nil || !s.maySeeReservation(c, view, r) {
		return refusalOf("ESLURM_RESERVATION_INVALID", fmt.Sprintf("there is no reservation %q", name))
	}
	if !r.Has(flagUserDelete) || !s.admitted(view, c, r) {
		return refusalOf("ESLURM_ACCESS_DENIED", fmt.Sprintf("reservation %s is not one that its users may delete (Flags=%s)", name, flagUserDelete))
	}
	return nil
}

// magneticGroups refuses reservations for groups that jobs come to by themselves: the state, which lets them in, knows
// no names of groups.
func magneticGroups(view state.Viewer, req *ctldpb.ChangeReservationRequest) *ctldpb.Refusal {
	magnetic, groups := false, false
	if r := reservation(view, req.Name); r != nil && strings.EqualFold(req.Verb, verbUpdate) {
		magnetic, groups = r.Has("MAGNETIC"), len(r.Groups) > 0
	}
	for _, c := range req.Set {
		switch {
		case strings.EqualFold(c.GetName(), "flags") && c.GetOp() != "-=":
			magnetic = magnetic && c.GetOp() == "+=" || strings.Contains(strings.ToUpper(c.GetValue()), "MAGNETIC")
		case strings.EqualFold(c.GetName(), "groups"):
			groups = c.GetValue() != ""
		}
	}
	if !magnetic || !groups {
		return nil
	}
	return refusalOf("ESLURM_RESERVATION_INVALID", "Flags=MAGNETIC and Groups do not go together; name Users or Accounts")
}

// reservedForNobody refuses a reservation for users that there are not: it would hold its nodes for nobody. Where the names
// cannot be looked up they are taken.
func (s *Server) reservedForNobody(set []*ctldpb.Clause) *ctldpb.Refusal {
	for _, c := range set {
		if !strings.EqualFold(c.GetName(), "users") || c.GetOp() == "-=" {
			continue
		}
		for name := range strings.SplitSeq(c.GetValue(), ",") {
			name = strings.TrimLeft(strings.TrimSpace(name), "+-")
			if name == "" {
				continue
			}
			_, err := s.Auth.Accounts().ByName(name)
			if uid, bad := strconv.ParseUint(name, 10, 32); err != nil && bad == nil {
				_, err = s.Auth.Accounts().ByUID(uint32(uid))
			}
			if errors.Is(err, authn.ErrNoAccount) {
				return refusalOf("ESLURM_USER_ID_MISSING", fmt.Sprintf("Users=%s: there is no user %q on the controller", c.GetValue(), name))
			}
		}
	}
	return nil
}

// reservation finds one by its name; nil when there is none.
func reservation(view state.Viewer, name string) *partitions.Reservation {
	for _, r := range view.Reservations() {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// admitted tells whether the caller is one of those whom a reservation is for, on any account of theirs.
func (s *Server) admitted(view state.Viewer, c authn.Caller, r *partitions.Reservation) bool {
	var groups []string
	if acc, err := s.Auth.Accounts().ByUID(c.UID); err == nil {
		groups = acc.GroupNames
	}
	if r.Admits(c.UID, c.User, groups, view.Accounting().DefaultAccount(c.User), "") {
		return true
	}
	if c.User == "" {
		return false // associations without a user are accounts
	}
	for a := range view.Accounting().OfUser(c.User) {
		if r.Admits(c.UID, c.User, groups, a.Account, "") {
			return true
		}
	}
	return false
}

// maySeeReservation: PrivateData=reservations shows a reservation to those whom it is for.
func (s *Server) maySeeReservation(c authn.Caller, view state.Viewer, r *partitions.Reservation) bool {
	return c.IsOperator() || !s.Auth.Policy().Private("reservations") || s.admitted(view, c, r)
}

// reservationTimes turns instants into Unix ms: the state knows no clock and no zone.
func (s *Server) reservationTimes(set []accounting.Clause) ([]accounting.Clause, error) {
	out := slices.Clone(set)
	for i, c := range out {
		if c.Name != "starttime" && c.Name != "endtime" {
			continue
		}
		if len(c.Value) >= 10 && strings.Trim(c.Value, "0123456789") == "" {
			continue // Unix ms, from a client that knows its zone
		}
		at, err := job.ParseInstant(c.Value, s.Now())
		if err != nil {
			return nil, refuse("ESLURM_INVALID_TIME_VALUE", fmt.Sprintf("%s=%s: %v", c.Name, c.Value, err))
		}
		out[i].Value = strconv.FormatInt(at.UnixMilli(), 10)
	}
	return out, nil
}

// ListReservations shows the reservations, all or those named.
func (s *Server) ListReservations(ctx context.Context, req *ctldpb.ListReservationsRequest) (*ctldpb.ListReservationsResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if n := len(req.Names); n > MaxFilterNames {
		return nil, tooMany("names", "MaxFilterNames", n, MaxFilterNames)
	}
	view, info, err := s.read(ctx, req.Read)
	if err != nil {
		return nil, err
	}
	out := &ctldpb.ListReservationsResponse{Info: info}
	names := set(req.Names)
	for _, r := range view.Reservations() {
		if names != nil && !names[r.Name] || !s.maySeeReservation(c, view, r) {
			continue
		}
		out.Reservations = append(out.Reservations, reservationToAPI(view, r, info.NowMs))
	}
	return out, nil
}

func reservationToAPI(view state.Viewer, r *partitions.Reservation, now int64) *ctldpb.Reservation {
	out := &ctldpb.Reservation{
		Name: r.Name, StartMs: r.Start, EndMs: r.End, Nodes: hostlist.Compress(r.Nodes), NodeCount: uint32(len(r.Nodes)), CoreCount: r.CoreCnt,
		Features: r.Features, Partition: r.Partition, Flags: r.Flags, Users: strings.Join(r.Users, ","), Groups: strings.Join(r.Groups, ","),
		Accounts: strings.Join(r.Accounts, ","), Licenses: licenseText(r.Licenses), State: "INACTIVE", Qos: strings.Join(r.QOS, ","),
		MaxStartDelayMs: r.MaxStartDelay, Comment: r.Comment,
	}
	if start, end, ok := r.At(now); ok {
		if out.StartMs, out.EndMs = start, end; start <= now && now < end {
			out.State = "ACTIVE"
		}
	}
	var cpus, cores uint32
	for _, name := range r.Nodes {
		if n := view.Node(name); n != nil {
			cpus += n.Config.CPUs
			cores += n.Config.CPUs / max(n.Config.ThreadsPerCore, 1)
		}
	}
	if out.CoreCount == 0 {
		out.CoreCount = cores
	}
	out.Tres = fmt.Sprintf("cpu=%d", cpus)
	return out
}

func licenseText(list []job.License) string {
	words := make([]string, len(list))
	for i, l := range list {
		words[i] = fmt.Sprintf("%s:%d", l.Name, l.Count)
	}
	return strings.Join(words, ",")
}

// ListLicenses shows the cluster's licenses, all or those named.
func (s *Server) ListLicenses(ctx context.Context, req *ctldpb.ListLicensesRequest) (*ctldpb.ListLicensesResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	if n := len(req.Names); n > MaxFilterNames {
		return nil, tooMany("names", "MaxFilterNames", n, MaxFilterNames)
	}
	view, info, err := s.read(ctx, req.Read)
	if err != nil {
		return nil, err
	}
	out := &ctldpb.ListLicensesResponse{Info: info}
	names := set(req.Names)
	for _, l := range view.Licenses() {
		if names == nil || names[l.Name] {
			out.Licenses = append(out.Licenses, &ctldpb.License{Name: l.Name, Total: l.Total, Used: l.Used, Reserved: l.Reserved})
		}
	}
	return out, nil
}
