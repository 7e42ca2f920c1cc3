package partitions

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Reservation keeps nodes, or licenses, for some. It is immutable. Times are Unix ms, durations ms.
type Reservation struct {
	Name          string
	Start, End    int64    // of its first occurrence
	Float         int64    // TIME_FLOAT: it begins so many ms after now, always
	Nodes         []string // configuration order
	Named         bool     // the nodes were named; else NodeCnt or CoreCnt chose them
	NodeCnt       uint32   // as asked; 0 = by name
	CoreCnt       uint32   // as asked; whole nodes that have so many cores are kept
	Features      string
	Partition     string
	Flags         []string // Slurm's words, sorted
	Users         []string // names; all of a list are allowed, or, with a '-' before each, denied
	Groups        []string
	Accounts      []string
	QOS           []string
	Licenses      []job.License
	TRES          string // as asked
	MaxStartDelay int64
	PurgeAfter    int64 // PURGE_COMP: idle for so long it is over; 0 = never
	Comment       string
}

// Has tells whether a flag is set, by Slurm's word.
func (r *Reservation) Has(flag string) bool { return slices.Contains(r.Flags, flag) }

const (
	hour = 60 * minute
	day  = 24 * hour
	week = 7 * day
)

// period is after how long the reservation comes again; 0 = it does not.
func (r *Reservation) period() int64 {
	switch {
	case r.Has("HOURLY"):
		return hour
	case r.Has("DAILY"), r.Has("WEEKDAY"), r.Has("WEEKEND"):
		return day
	case r.Has("WEEKLY"):
		return week
	}
	return 0
}

// At is the occurrence that runs at time now, or the next one; ok false when the reservation is over. Repetitions are 24
// hours or 7 days apart, and days of the week those of UTC.
func (r *Reservation) At(now int64) (start, end int64, ok bool) {
	length := r.End - r.Start
	if r.Has("TIME_FLOAT") {
		return now + r.Float, now + r.Float + length, true
	}
	period := r.period()
	if period == 0 || now < r.Start {
		start = r.Start
	} else {
		start = r.Start + (now-r.Start)/period*period
		if now >= start+length {
			start += period
		}
	}
	for period > 0 && !r.onDay(start) {
		start += period
	}
	end = start + length
	return start, end, period > 0 || now < end
}

// onDay tells whether an occurrence of WEEKDAY or WEEKEND may begin at that time.
func (r *Reservation) onDay(start int64) bool {
	weekend := (start/day+4)%7 == 0 || (start/day+4)%7 == 6 // 1970-01-01 was a Thursday, day 4
	switch {
	case r.Has("WEEKDAY"):
		return !weekend
	case r.Has("WEEKEND"):
		return weekend
	}
	return true
}

// overlaps tells whether two reservations are ever there at the same time from now on.
func (r *Reservation) overlaps(o *Reservation, now int64) bool {
	if r.Has("TIME_FLOAT") || o.Has("TIME_FLOAT") {
		return true // it comes as close to any other as time goes on
	}
	if r.period() > 0 && o.period() == 0 {
		r, o = o, r
	}
	at := max(now, r.Start)
	until := at + 1
	if r.period() > 0 {
		at = max(at, o.Start)
		until = at + week + day
	}
	for at < until {
		start, end, ok := r.At(at)
		if !ok {
			return false
		}
		if s, _, ok := o.At(max(start, now)); ok && s < end {
			return true
		}
		at = end
	}
	return false
}

// Admits tells whether a job of this user may run in the reservation: it must be in each of the lists that are given, and
// in none that denies. Users may be numbers. A reservation has Users or Groups, never both.
func (r *Reservation) Admits(uid uint32, user string, groups []string, account, qos string) bool {
	return listed(r.Users, user, strconv.FormatUint(uint64(uid), 10)) && listed(r.Groups, groups...) && listed(r.Accounts, account) && listed(r.QOS, qos)
}

func denies(list []string) bool { return len(list) > 0 && list[0][0] == '-' }

func listed(list []string, names ...string) bool {
	if len(list) == 0 {
		return true
	}
	if denies(list) {
		return !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(list, "-"+n) })
	}
	return overlap(list, names)
}

// Fields is the reservation as name, value, ... for log and snapshots, sorted by name; what is not set is left out.
func (r *Reservation) Fields() []string {
	var f []string
	put := func(name, value string) {
		if value != "" && value != "0" {
			f = append(f, name, value)
		}
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	put("Accounts", strings.Join(r.Accounts, ","))
	put("Comment", r.Comment)
	put("CoreCnt", number(int64(r.CoreCnt)))
	put("End", number(r.End))
	put("Features", r.Features)
	put("Flags", strings.Join(r.Flags, ","))
	put("Float", number(r.Float))
	put("Groups", strings.Join(r.Groups, ","))
	put("Licenses", formatLicenses(r.Licenses))
	put("MaxStartDelay", number(r.MaxStartDelay))
	if r.Named {
		put("Named", "yes")
	}
	put("NodeCnt", number(int64(r.NodeCnt)))
	put("Nodes", strings.Join(r.Nodes, ","))
	put("Partition", r.Partition)
	put("PurgeAfter", number(r.PurgeAfter))
	put("QOS", strings.Join(r.QOS, ","))
	put("Start", number(r.Start))
	put("TRES", r.TRES)
	put("Users", strings.Join(r.Users, ","))
	return f
}

func formatLicenses(list []job.License) string {
	parts := make([]string, len(list))
	for i, l := range list {
		parts[i] = l.Name + ":" + strconv.FormatUint(l.Count, 10)
	}
	return strings.Join(parts, ",")
}

// ReservationFromFields reads what Fields has written; the error names the field.
func ReservationFromFields(name string, f []string) (*Reservation, error) {
	r := &Reservation{Name: name}
	if len(f)%2 != 0 {
		return nil, fmt.Errorf("reservation %s: a field has no value", name)
	}
	for i := 0; i < len(f); i += 2 {
		if err := r.read(f[i], f[i+1]); err != nil {
			return nil, fmt.Errorf("reservation %s: %s=%s: %w", name, f[i], f[i+1], err)
		}
	}
	return r, nil
}

func (r *Reservation) read(name, value string) (err error) {
	words := func(into *[]string) { *into = strings.Split(value, ",") }
	number := func(into *int64) { *into, err = strconv.ParseInt(value, 10, 64) }
	small := func(into *uint32) {
		var n uint64
		n, err = strconv.ParseUint(value, 10, 32)
		*into = uint32(n)
	}
	switch name {
	case "Accounts":
		words(&r.Accounts)
	case "Comment":
		r.Comment = value
	case "CoreCnt":
		small(&r.CoreCnt)
	case "End":
		number(&r.End)
	case "Features":
		r.Features = value
	case "Flags":
		words(&r.Flags)
	case "Float":
		number(&r.Float)
	case "Groups":
		words(&r.Groups)
	case "Licenses":
		r.Licenses, err = job.ParseLicenses(value)
	case "MaxStartDelay":
		number(&r.MaxStartDelay)
	case "Named":
		r.Named = value == "yes"
	case "NodeCnt":
		small(&r.NodeCnt)
	case "Nodes":
		words(&r.Nodes)
	case "Partition":
		r.Partition = value
	case "PurgeAfter":
		number(&r.PurgeAfter)
	case "QOS":
		words(&r.QOS)
	case "Start":
		number(&r.Start)
	case "TRES":
		r.TRES = value
	case "Users":
		words(&r.Users)
	default:
		err = fmt.Errorf("unknown field")
	}
	return err
}
