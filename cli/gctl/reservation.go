package gctl

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// resKeys are the keys of a reservation with the shortest form that is clear; the name of a clause is the whole in lower
// case.
var resKeys = []struct {
	name  string
	short int
}{
	{"Accounts", 1}, {"Comment", 3}, {"CoreCnt", 5}, {"Duration", 1}, {"EndTime", 1}, {"Features", 2}, {"Flags", 2}, {"Groups", 1}, {"Licenses", 1},
	{"MaxStartDelay", 4}, {"NodeCnt", 5}, {"Nodes", 5}, {"PartitionName", 1}, {"QOS", 1}, {"StartTime", 1}, {"TRES", 2}, {"Users", 1},
}

// resName: the word says which reservation is meant.
func resName(key string) bool {
	low := strings.ToLower(key)
	return low == "name" || len(low) >= 3 && (strings.HasPrefix("reservationname", low))
}

// resClauses reads KEY=VALUE, KEY+=VALUE and KEY-=VALUE; times become Unix ms, since their words speak of this host's zone.
func (c *call) resClauses(args []string) (name string, set []*ctldpb.Clause, err error) {
	for _, a := range args {
		key, value, has := strings.Cut(a, "=")
		op := "="
		if n := len(key); n > 0 && (key[n-1] == '+' || key[n-1] == '-') {
			op, key = key[n-1:]+"=", key[:n-1]
		}
		if !has {
			return "", nil, fmt.Errorf("Unknown parameter %s\nwrite KEY=VALUE; quote values with blanks", a)
		}
		if resName(key) {
			name = value
			continue
		}
		low := strings.ToLower(key)
		i := slices.IndexFunc(resKeys, func(k struct {
			name  string
			short int
		}) bool {
			return len(low) >= min(k.short, len(k.name)) && strings.HasPrefix(strings.ToLower(k.name), low)
		})
		if i < 0 {
			return "", nil, fmt.Errorf("Unknown parameter %s\nknown are %s", a, resKeyNames())
		}
		clause := &ctldpb.Clause{Name: strings.ToLower(resKeys[i].name), Op: op, Value: value}
		if clause.Name == "starttime" || clause.Name == "endtime" {
			t, err := job.ParseInstant(value, c.env.Now())
			if err != nil {
				return "", nil, fmt.Errorf("Invalid %s specification\n%w", resKeys[i].name, err)
			}
			clause.Value = strconv.FormatInt(t.UnixMilli(), 10)
		}
		set = append(set, clause)
	}
	return name, set, nil
}

func resKeyNames() string {
	names := []string{"ReservationName"}
	for _, k := range resKeys {
		names = append(names, k.name)
	}
	return strings.Join(names, ", ")
}

// create makes a reservation; partitions and nodes are made in grid.conf.
func (c *call) create(args []string) int {
	if len(args) == 0 {
		c.env.Errorf("too few arguments for keyword:create")
		return 1
	}
	word, _, named := strings.Cut(strings.ToLower(args[0]), "=")
	switch {
	case !resName(word) || word == "name":
		c.env.Errorf("No valid entity in create command")
		c.env.Errorf("create reservation KEY=VALUE...; nodes and partitions are lines of grid.conf, read by: %s reconfigure", c.env.Name)
		return 1
	case !named:
		args = args[1:]
	}
	name, set, err := c.resClauses(args)
	if err == nil && len(set) == 0 {
		err = fmt.Errorf("No reservation parameters given\nwrite: %s create reservation StartTime=now Duration=60 Nodes=n1 Users=root", c.env.Name)
	}
	if err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	res, err := c.changeReservation("create", name, set)
	if err != nil {
		return c.failed("Error creating the reservation", err)
	}
	if !c.quiet {
		fmt.Fprintf(c.env.Stdout, "Reservation created: %s\n", render.Clean(res.Name))
	}
	return 0
}

// updateReservation changes one; the first words are those of update.
func (c *call) updateReservation(args []string) int {
	name, set, err := c.resClauses(args)
	switch {
	case err == nil && name == "":
		err = fmt.Errorf("Reservation must be given.  No reservation update.")
	case err == nil && len(set) == 0:
		err = fmt.Errorf("No changes specified")
	}
	if err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	if _, err := c.changeReservation("update", name, set); err != nil {
		return c.failed("Error updating the reservation", err)
	}
	if !c.quiet {
		fmt.Fprintln(c.env.Stdout, "Reservation updated.")
	}
	return 0
}

// remove deletes a reservation.
func (c *call) remove(args []string) int {
	if len(args) == 2 && resName(args[0]) && !strings.Contains(args[1], "=") {
		args = []string{args[0] + "=" + args[1]}
	}
	key, name, _ := strings.Cut(strings.Join(args, " "), "=")
	if !resName(key) || name == "" || strings.Contains(name, " ") {
		c.env.Errorf("No valid entity in delete command")
		c.env.Errorf("write: %s delete ReservationName=NAME; nodes and partitions are lines of grid.conf", c.env.Name)
		return 1
	}
	if _, err := c.changeReservation("delete", name, nil); err != nil {
		return c.failed("slurm_delete_reservation", err)
	}
	return 0
}

func (c *call) changeReservation(verb, name string, set []*ctldpb.Clause) (*ctldpb.ChangeReservationResponse, error) {
	req := &ctldpb.ChangeReservationRequest{Verb: verb, Name: name, Set: set, Key: client.NewKey()}
	var res *ctldpb.ChangeReservationResponse
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ChangeReservation(ctx, req)
		return err
	})
	for _, w := range res.GetWarnings() {
		c.env.Warnf("%s", w)
	}
	return res, err
}

func (c *call) showReservations(args []string) int {
	if !c.connect() {
		return 1
	}
	var names []string
	for _, a := range args {
		names = append(names, strings.Split(a, ",")...)
	}
	var res *ctldpb.ListReservationsResponse
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ListReservations(ctx, &ctldpb.ListReservationsRequest{Read: &ctldpb.ReadOptions{Stale: c.stale}, Names: names})
		return err
	})
	if err != nil {
		return c.failed("slurm_load_reservations", err)
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	for _, r := range res.Reservations {
		c.reservationRecord(r).write(out, c.oneLine)
	}
	code := 0
	for _, n := range names {
		if !slices.ContainsFunc(res.Reservations, func(r *ctldpb.Reservation) bool { return r.Name == n }) {
			c.env.Errorf("Reservation %s not found", n)
			code = 1
		}
	}
	if len(res.Reservations) == 0 && code == 0 {
		fmt.Fprintln(out, "No reservations in the system")
	}
	return code
}

// reservationRecord is in scontrol's order.
func (c *call) reservationRecord(v *ctldpb.Reservation) *record {
	r, clock := &record{}, c.clock()
	length := "UNLIMITED"
	if v.EndMs > v.StartMs {
		length = job.FormatDuration(v.EndMs - v.StartMs)
	}
	r.line(kv("ReservationName", v.Name), kv("StartTime", clock.Time(v.StartMs, "Unknown")), kv("EndTime", clock.Time(v.EndMs, "Unknown")), kv("Duration", length))
	r.line(kv("Nodes", render.Null(v.Nodes)), kv("NodeCnt", v.NodeCount), kv("CoreCnt", v.CoreCount), kv("Features", render.Null(v.Features)),
		kv("PartitionName", render.Null(v.Partition)), kv("Flags", strings.Join(v.Flags, ",")))
	r.line(kv("TRES", render.Null(v.Tres)))
	r.line(kv("Users", render.Null(v.Users)), kv("Groups", render.Null(v.Groups)), kv("Accounts", render.Null(v.Accounts)), kv("Licenses", render.Null(v.Licenses)),
		kv("State", render.Or(v.State, "INACTIVE")), "BurstBuffer=(null)", "Watts=n/a")
	delay := "(null)"
	if v.MaxStartDelayMs > 0 {
		delay = job.FormatDuration(v.MaxStartDelayMs)
	}
	r.line(kv("MaxStartDelay", delay))
	if v.Qos != "" {
		r.line(kv("QOS", v.Qos))
	}
	if v.Comment != "" {
		r.line(kv("Comment", v.Comment))
	}
	return r
}

func (c *call) showLicenses(args []string) int {
	if !c.connect() {
		return 1
	}
	var names []string
	for _, a := range args {
		names = append(names, strings.Split(a, ",")...)
	}
	var res *ctldpb.ListLicensesResponse
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ListLicenses(ctx, &ctldpb.ListLicensesRequest{Read: &ctldpb.ReadOptions{Stale: c.stale}, Names: names})
		return err
	})
	if err != nil {
		return c.failed("slurm_load_licenses", err)
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	if len(res.Licenses) == 0 && len(names) == 0 {
		fmt.Fprintln(out, "No licenses configured in Slurm.")
	}
	for _, l := range res.Licenses {
		between := "\n    "
		if c.oneLine {
			between = " "
		}
		free := l.Total - min(l.Total, l.Used+l.Reserved)
		fmt.Fprintf(out, "LicenseName=%s%sTotal=%d Used=%d Free=%d Reserved=%d Remote=no\n", render.Clean(l.Name), between, l.Total, l.Used, free, l.Reserved)
	}
	for _, n := range names {
		if !slices.ContainsFunc(res.Licenses, func(l *ctldpb.License) bool { return l.Name == n }) {
			c.env.Errorf("License %s not found", n)
			return 1
		}
	}
	return 0
}
