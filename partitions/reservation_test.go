package partitions

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"pgregory.net/rapid"
)

// monday is 2026-11-30 00:00 UTC, a Monday.
const monday = int64(20787) * day

func hall() ResEnv {
	env := ResEnv{Partitions: []string{"p", "q"}, DefaultPartition: "p", Licenses: []job.License{{Name: "m", Count: 4}},
		Known: func(kind, name string) bool { return kind != "account" || name == "physics" || name == "art" }}
	for i := 1; i <= 6; i++ {
		n := ResNode{Name: fmt.Sprintf("n%d", i), CPUs: 8, Cores: 4, Partitions: []string{"p"}, Up: i != 4}
		if i >= 5 {
			n.Partitions, n.Features = []string{"q"}, []string{"gpu"}
		}
		env.Nodes = append(env.Nodes, n)
	}
	env.Nodes[1].Busy, env.Nodes[1].BusyUntil = true, monday+3*hour
	other := &Reservation{Name: "other", Start: monday + 10*hour, End: monday + 12*hour, Nodes: []string{"n1"}, Named: true, Users: []string{"eve"}, Licenses: []job.License{{Name: "m", Count: 3}}}
	env.Reservations = []*Reservation{other}
	return env
}

// clauses reads "nodes=n1 users+=bob".
func clauses(text string) (set []accounting.Clause) {
	for _, w := range strings.Fields(text) {
		name, value, found := strings.Cut(w, "=")
		op := "="
		if last := len(name) - 1; last >= 0 && (name[last] == '+' || name[last] == '-') {
			name, op = name[:last], name[last:]+"="
		}
		if !found {
			op = ""
		}
		set = append(set, accounting.Clause{Name: name, Op: op, Value: value})
	}
	return set
}

const soon = "starttime=now+4hours duration=60 users=bob "

// TestNewReservation: words, then nodes and what else is to be seen in the fields.
func TestNewReservation(t *testing.T) {
	for name, c := range map[string]struct{ words, nodes, fields string }{
		"nodes":               {soon + "nodes=n[1-2]", "n1,n2", "SPEC_NODES"},
		"all":                 {soon + "nodes=ALL", "n1,n2,n3,n4,n5,n6", ""},
		"count":               {soon + "nodecnt=2", "n1,n2", ""},
		"count now":           {"starttime=now duration=60 users=bob nodecnt=2", "n1,n3", ""},
		"count, ignore jobs":  {"starttime=now duration=60 users=bob nodecnt=2 flags=ignore_jobs", "n1,n2", ""},
		"others' time":        {"starttime=now+10hours duration=60 users=bob nodecnt=2", "n2,n3", ""},
		"overlap":             {"starttime=now+10hours duration=60 users=bob nodecnt=2 flags=OVERLAP", "n1,n2", ""},
		"maint":               {"starttime=now+10hours duration=60 users=bob nodes=n1 flags=MAINT", "n1", "MAINT"},
		"features":            {soon + "nodecnt=1 features=gpu partitionname=q", "n5", "Partition=q"},
		"any partition":       {soon + "nodecnt=1 features=gpu flags=any_nodes", "n5", ""},
		"cores":               {soon + "corecnt=5", "n1,n2", "CoreCnt=5"},
		"TRES":                {soon + "tres=node=1,license/m=2", "n1", "Licenses=m:2"},
		"part nodes":          {soon + "nodes=ALL partitionname=q flags=part_nodes", "n5,n6", ""},
		"licenses only":       {soon + "licenses=m:2 flags=license_only", "", "Licenses=m:2"},
		"some of named":       {soon + "nodes=n[1-3] nodecnt=2", "n1,n2", ""},
		"ms":                  {fmt.Sprintf("starttime=%d endtime=%d accounts=physics nodes=n1", monday+hour, monday+2*hour), "n1", "Accounts=physics"},
		"no end":              {"starttime=now duration=infinite users=bob nodes=n3", "n3", fmt.Sprintf("End=%d", monday+endless)},
		"denied":              {"starttime=now duration=60 accounts=-art nodes=n3 flags=DAILY,PURGE_COMP=10", "n3", "PurgeAfter=600000"},
		"a word for a flag":   {soon + "nodes=n1 flags=no_hold_jobs_after_end", "n1", "NO_HOLD_JOBS_AFTER"},
		"comment":             {soon + "nodes=n1 maxstartdelay=0 comment=x", "n1", "Comment=x"},
		"end of a day before": {"starttime=now+2days endtime=now+3days users=bob nodes=n1", "n1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, refusal := NewReservation("r", clauses(c.words), monday, hall())
			if refusal != nil {
				t.Fatalf("%+v", *refusal)
			}
			if got := strings.Join(r.Nodes, ","); got != c.nodes {
				t.Errorf("nodes %s, want %s", got, c.nodes)
			}
			var text []string
			f := r.Fields()
			for i := 0; i < len(f); i += 2 {
				text = append(text, f[i]+"="+f[i+1])
			}
			if !strings.Contains(strings.Join(text, " "), c.fields) {
				t.Errorf("%v has no %s", text, c.fields)
			}
			back, err := ReservationFromFields("r", f)
			if err != nil || !reflect.DeepEqual(back.Fields(), f) || back.Start != r.Start || !slices.Equal(back.Flags, r.Flags) {
				t.Errorf("%v came back as %v (%v)", f, back, err)
			}
		})
	}
}

func TestReservationRefusals(t *testing.T) {
	for name, c := range map[string][3]string{
		"no start":          {"duration=60 users=bob nodes=n1", "TIME_VALUE", "StartTime"},
		"no end":            {"starttime=now users=bob nodes=n1", "TIME_VALUE", "Duration"},
		"end before start":  {"starttime=now+60minutes endtime=now+1minutes users=bob nodes=n1", "TIME_VALUE", "before it begins"},
		"two ends":          {soon + "endtime=now+9hours nodes=n1", "TIME_VALUE", "agree"},
		"past":              {fmt.Sprintf("starttime=%d duration=60 users=bob nodes=n1", monday-hour), "TIME_VALUE", "has passed"},
		"longer than a day": {"starttime=now duration=2-0 users=bob nodes=n3 flags=DAILY", "TIME_VALUE", "2-00:00:00"},
		"nobody":            {"starttime=now duration=60 nodes=n3", "RESERVATION_USERS", "Users"},
		"users and groups":  {soon + "groups=g nodes=n1", "INVALID", "exclude"},
		"mixed":             {"starttime=now duration=60 users=a,-b nodes=n3", "INVALID", "denies"},
		"account":           {"starttime=now duration=60 accounts=maths nodes=n3", "INVALID", `"maths"`},
		"no nodes":          {soon, "INVALID", "NodeCnt"},
		"node":              {soon + "nodes=n[1-9]", "NODE_NAME", `"n7"`},
		"node list":         {soon + "nodes=n]1[", "NODE_NAME", "n]1["},
		"partition":         {soon + "nodecnt=1 partitionname=x", "PARTITION_NAME", `"x"`},
		"too many":          {soon + "nodecnt=4", "NODES_BUSY", "3 can be had in partition p; down or drained: 1"},
		"too many now":      {"starttime=now duration=60 users=bob nodecnt=3", "NODES_BUSY", "with jobs: 1"},
		"features":          {soon + "nodecnt=1 features=gpu", "NODES_BUSY", "without the features: 4"},
		"feature counts":    {soon + "nodecnt=1 features=[gpu*2]", "FEATURE", "gpu"},
		"feature text":      {soon + "nodecnt=1 features=gpu&", "FEATURE", "gpu"},
		"busy":              {"starttime=now duration=60 users=bob nodes=n2", "NODES_BUSY", "node n2"},
		"taken":             {"starttime=now+11hours duration=60 users=bob nodes=n1", "OVERLAP", "reservation other"},
		"taken daily":       {"starttime=now duration=660 users=bob nodes=n1 flags=DAILY", "OVERLAP", "reservation other"},
		"flag":              {soon + "nodes=n1 flags=FAST", "INVALID", `"FAST"`},
		"flag not built":    {soon + "nodes=n1 flags=REPLACE", "NOT_SUPPORTED", "REPLACE"},
		"two repeats":       {soon + "nodes=n1 flags=DAILY,WEEKLY", "INVALID", "exclude"},
		"key":               {soon + "nodes=n1 color=red", "INVALID", `"color"`},
		"no value":          {soon + "nodes", "INVALID", `"nodes"`},
		"operator":          {soon + "nodes=n1 nodecnt+=2", "INVALID", "+="},
		"license":           {soon + "nodes=n1 licenses=x", "LICENSES", `"x"`},
		"licenses":          {soon + "nodes=n1 licenses=m:5", "LICENSES", "there are 4"},
		"licenses at once":  {"starttime=now+10hours duration=60 users=bob nodes=n3 licenses=m:2", "LICENSES", "3 are in other"},
		"TRES":              {soon + "tres=gres/gpu=2", "NOT_SUPPORTED", "gres/gpu"},
		"license only":      {soon + "flags=license_only", "INVALID", "needs Licenses"},
		"delay":             {soon + "nodes=n1 maxstartdelay=5", "NOT_SUPPORTED", "MaxStartDelay"},
		"number":            {soon + "nodecnt=-1", "INVALID", "-1"},
	} {
		t.Run(name, func(t *testing.T) {
			r, refusal := NewReservation("r", clauses(c[0]), monday, hall())
			if refusal == nil {
				t.Fatalf("made: %v", r.Fields())
			}
			if !strings.Contains(refusal.Code, c[1]) || !strings.Contains(refusal.Why, c[2]) || refusal.Text == "" {
				t.Errorf("%+v", *refusal)
			}
		})
	}
	if _, refusal := NewReservation("other", clauses(soon+"nodes=n3"), monday, hall()); refusal == nil || refusal.Code != "ESLURM_RESERVATION_NAME_DUP" {
		t.Errorf("%+v", refusal)
	}
	if r, _ := NewReservation("", clauses(soon+"nodes=n3"), monday, hall()); r == nil || r.Name != "bob_1" {
		t.Errorf("%+v", r)
	}
}

func TestUpdateReservation(t *testing.T) {
	made, refusal := NewReservation("r", clauses(soon+"nodecnt=2"), monday, hall())
	if refusal != nil {
		t.Fatal(*refusal)
	}
	for words, want := range map[string]string{
		"nodecnt=1":                  "n1|bob||4-5",
		"nodecnt=3":                  "n1,n2,n3|bob||4-5",
		"nodes+=n5":                  "n1,n2,n5|bob||4-5",
		"nodes=n3":                   "n3|bob|SPEC_NODES|4-5",
		"users+=amy":                 "n1,n2|amy,bob||4-5",
		"users=amy":                  "n1,n2|amy||4-5",
		"flags+=FLEX":                "n1,n2|bob|FLEX|4-5",
		"duration=120":               "n1,n2|bob||4-6",
		"starttime=now+6hours":       "|||",
		"endtime=now+7hours":         "n1,n2|bob||4-7",
		"nodes-=n1":                  "n2|bob||4-5",
		"comment=later":              "n1,n2|bob||4-5",
		"starttime=now+1hours":       "n1,n3|bob||1-5",
		"duration=600 flags+=MAINT":  "n1,n2|bob|MAINT|4-14",
		"nodes-=n1,n2 flags+=MAINT":  "|||",
		"users-=eve":                 "|||",
		"users-=bob":                 "|||",
		"duration=600 nodes-=n2":     "|||",
		"flags+=DAILY duration=1501": "|||",
	} {
		r, refusal := made.Update(clauses(words), monday, hall())
		got := "|||"
		if refusal == nil {
			got = fmt.Sprintf("%s|%s|%s|%d-%d", strings.Join(r.Nodes, ","), strings.Join(r.Users, ","), strings.Join(r.Flags, ","), (r.Start-monday)/hour, (r.End-monday)/hour)
		}
		if got != want && !(words == "starttime=now+1hours" && refusal == nil) {
			t.Errorf("%s: %s, want %s (%+v)", words, got, want, refusal)
		}
	}
	if !slices.Equal(made.Nodes, []string{"n1", "n2"}) || len(made.Flags) != 0 {
		t.Error("the old one was changed")
	}
}

// TestAt: a moment in hours after that Monday, the occurrence in hours.
func TestAt(t *testing.T) {
	for _, c := range []struct {
		flags      string
		now        int64
		start, end int64
		over       bool
	}{
		{"", 0, 4, 5, false}, {"", 4, 4, 5, false}, {"", 5, 0, 0, true},
		{"DAILY", 4, 4, 5, false}, {"DAILY", 5, 28, 29, false}, {"DAILY", 28, 28, 29, false}, {"DAILY", 0, 4, 5, false},
		{"HOURLY", 7, 7, 8, false}, {"WEEKLY", 5, 172, 173, false},
		{"WEEKDAY", 100, 100, 101, false}, {"WEEKDAY", 101, 172, 173, false}, {"WEEKEND", 0, 124, 125, false}, {"WEEKEND", 149, 292, 293, false},
	} {
		r := &Reservation{Start: monday + 4*hour, End: monday + 5*hour}
		if c.flags != "" {
			r.Flags = []string{c.flags}
		}
		start, end, ok := r.At(monday + c.now*hour)
		if ok == c.over || ok && (start != monday+c.start*hour || end != monday+c.end*hour) {
			t.Errorf("%s at %d h: %d to %d h, %v", c.flags, c.now, (start-monday)/hour, (end-monday)/hour, ok)
		}
	}
	r := &Reservation{Start: monday, End: monday + hour, Float: 2 * hour, Flags: []string{"TIME_FLOAT"}}
	if start, end, ok := r.At(monday + 9*hour); start != monday+11*hour || end != monday+12*hour || !ok {
		t.Error("TIME_FLOAT")
	}
}

// TestOverlaps holds the search for common times against looking at each quarter of an hour.
func TestOverlaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) *Reservation {
			r := &Reservation{Start: monday + rapid.Int64Range(0, 200).Draw(t, label)*15*minute}
			if f := rapid.SampledFrom([]string{"", "HOURLY", "DAILY", "WEEKLY", "WEEKDAY", "WEEKEND"}).Draw(t, label+" flag"); f != "" {
				r.Flags = []string{f}
			}
			longest := int64(100)
			if p := r.period(); p > 0 {
				longest = p / (15 * minute)
			}
			r.End = r.Start + rapid.Int64Range(1, min(longest, 100)).Draw(t, label+" length")*15*minute
			return r
		}
		a, b := draw("a"), draw("b")
		now := monday + rapid.Int64Range(0, 100).Draw(t, "now")*15*minute
		want := false
		for at := now; at < monday+4*week && !want; at += 15 * minute {
			s1, _, ok1 := a.At(at)
			s2, _, ok2 := b.At(at)
			want = ok1 && ok2 && s1 <= at && s2 <= at
		}
		if got := a.overlaps(b, now); got != want || got != b.overlaps(a, now) {
			t.Fatalf("%v and %v at %d: %v, want %v", a.Fields(), b.Fields(), now, got, want)
		}
	})
}

func TestAdmits(t *testing.T) {
	for _, c := range []struct {
		r    Reservation
		want bool
	}{
		{Reservation{Users: []string{"amy", "bob"}}, true}, {Reservation{Users: []string{"1001"}}, true}, {Reservation{Users: []string{"amy"}}, false},
		{Reservation{Users: []string{"-bob"}}, false}, {Reservation{Users: []string{"-amy"}}, true}, {Reservation{Groups: []string{"g2"}}, true},
		{Reservation{Groups: []string{"-g2"}}, false}, {Reservation{Accounts: []string{"physics"}}, true}, {Reservation{Accounts: []string{"-physics"}}, false},
		{Reservation{Users: []string{"bob"}, Accounts: []string{"art"}}, false}, {Reservation{Users: []string{"bob"}, Accounts: []string{"physics"}, QOS: []string{"high"}}, true},
		{Reservation{QOS: []string{"-high"}}, false},
	} {
		if got := c.r.Admits(1001, "bob", []string{"g1", "g2"}, "physics", "high"); got != c.want {
			t.Errorf("%v: %v", c.r.Fields(), got)
		}
	}
}

func FuzzReservation(f *testing.F) {
	f.Add(soon + "nodes=n[1-2] flags=DAILY,PURGE_COMP=5")
	f.Add("starttime=now duration=1 accounts=-art nodecnt=2 features=gpu|x flags=any_nodes")
	f.Fuzz(func(t *testing.T, words string) {
		r, refusal := NewReservation("r", clauses(words), monday, hall())
		if refusal != nil {
			return
		}
		back, err := ReservationFromFields("r", r.Fields())
		if err != nil || !reflect.DeepEqual(back.Fields(), r.Fields()) {
			t.Errorf("%q: %v, then %v (%v)", words, r.Fields(), back, err)
		}
	})
}
