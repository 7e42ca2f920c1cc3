package accounting

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawCommand draws a gacctmgr command, mostly one that can be done.
func drawCommand(t *rapid.T) Change {
	pick := func(label string, words ...string) string { return rapid.SampledFrom(words).Draw(t, label) }
	account := func() string { return pick("account", "root", "a", "b", "c", "d") }
	user := func() string { return pick("user", "u", "v", "w", "u,w") }
	qos := func() string { return pick("qos", "normal", "p", "q", "p,q") }
	limit := func() string {
		return pick("limit", "grptres=cpu=4", "grptres=mem=-1,gres/gpu=2", "maxjobs=3", "maxjobs=-1", "grpwall=10", "maxwall=1-0", "maxtres=node=2", "grptresmins=cpu=100",
			"fairshare=7", "fairshare=parent", "priority=4", "maxsubmitjobs=0", "comment=x")
	}
	return command(pick("verb",
		"add account "+account()+" parent="+account()+" "+limit(), "add user "+user()+" account="+account()+" partition="+pick("part", "", "gpu", "gpu,cpu"),
		"add user "+user()+" account="+account()+" "+limit(), "add qos "+qos()+" priority=5 maxtrespu=cpu=4",
		"modify account where name="+account()+" set parent="+account(), "modify account where name="+account()+" set qos"+pick("op", "=", "+=", "-=")+qos(),
		"modify account where name="+account()+" set "+limit(), "modify user where name="+user()+" set "+limit(), "modify user where name="+user()+" set defaultqos="+qos(),
		"modify user where name="+user()+" set defaultaccount="+account(), "modify qos where name="+qos()+" set preempt"+pick("op", "=", "+=", "-=")+qos(),
		"modify qos where name="+qos()+" set grptres=node=3 flags+=NoDecay usagefactor=0.1", "add coordinator account="+account()+" name="+user(),
		"delete coordinator account="+account()+" name="+user(), "delete account where name="+account(), "delete user where name="+user(),
		"delete user where name="+user()+" account="+account(), "delete qos where name="+qos()))
}

// TestRecordsRoundTrip: after any commands the DB is whole, its records give the same DB, and that DB goes on the same.
func TestRecordsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := New()
		for range rapid.IntRange(1, 25).Draw(t, "commands") {
			c := drawCommand(t)
			before := d.Records()
			read, err := FromRecords(before)
			if err != nil {
				t.Fatalf("%v after %v", err, c)
			}
			next, out, r := d.Change(c)
			next2, out2, r2 := read.Change(c)
			if !reflect.DeepEqual(out, out2) || !reflect.DeepEqual(r, r2) || !slices.EqualFunc(next.Records(), next2.Records(), sameRecord) {
				t.Fatalf("%v: %v %v is not %v %v", c, out, r, out2, r2)
			}
			if !slices.EqualFunc(before, d.Records(), sameRecord) {
				t.Fatalf("%v changed the old DB", c)
			}
			if err := next.check(); err != nil {
				t.Fatalf("%v: %v", c, err)
			}
			checkDefaults(t, next)
			d = next
		}
	})
}

// checkDefaults: each default is one that may be used.
func checkDefaults(t *rapid.T, d *DB) {
	for a := range d.Associations() {
		if q := a.DefaultQOS; q != "" && !slices.Contains(d.QOSOf(a), q) {
			t.Fatalf("%s: default QOS %s is not among %v", a.line(), q, d.QOSOf(a))
		}
	}
	for u := range d.Users() {
		has := slices.ContainsFunc(d.ofUser(u.Name), func(a *Association) bool { return a.Account == u.DefaultAccount })
		if u.DefaultAccount != "" && !has || u.DefaultAccount == "" && len(d.ofUser(u.Name)) > 0 {
			t.Fatalf("user %s: default account %q of %d associations", u.Name, u.DefaultAccount, len(d.ofUser(u.Name)))
		}
	}
	for q := range d.AllQOS() {
		if d.preemptsItself(q) != nil {
			t.Fatalf("QOS %s preempts itself", q.Name)
		}
	}
}

func TestBadRecords(t *testing.T) {
	good := New().Records()
	for name, spoil := range map[string]func([]Record) []Record{
		"no next": func(r []Record) []Record { return r[:len(r)-1] },
		"no root": func(r []Record) []Record {
			return slices.DeleteFunc(r, func(r Record) bool { return r.Kind == "association" })
		},
		"kind":   func(r []Record) []Record { return append(r, Record{Kind: "x"}) },
		"field":  func(r []Record) []Record { r[0].Fields = append(r[0].Fields, "Color", "red"); return r },
		"odd":    func(r []Record) []Record { r[0].Fields = append(r[0].Fields, "Color"); return r },
		"number": func(r []Record) []Record { r[0].Fields = append(r[0].Fields, "MaxJobsPerUser", "x"); return r },
		"parent": func(r []Record) []Record {
			return append(r, Record{"association", 1, []string{"Account", "root", "Parent", "9"}})
		},
		"id over next": func(r []Record) []Record { return append(r, Record{"qos", 99, []string{"Name", "x"}}) },
		"user is missing": func(r []Record) []Record {
			return slices.DeleteFunc(r, func(r Record) bool { return r.Kind == "user" })
		},
		"twice": func(r []Record) []Record { return append(r, Record{"association", 0, []string{"Account", "root"}}) },
	} {
		var records []Record
		for _, r := range good {
			records = append(records, Record{r.Kind, r.ID, slices.Clone(r.Fields)})
		}
		if _, err := FromRecords(spoil(records)); err == nil {
			t.Errorf("%s: was read", name)
		}
	}
}

// TestLimitTable: each limit has names of its own on each kind of thing, and comes back from records and rows.
func TestLimitTable(t *testing.T) {
	for _, on := range []int{onAssociation, onQOS} {
		seen := map[string]string{}
		for i := range limitFields {
			f := &limitFields[i]
			if f.on&on == 0 {
				continue
			}
			for _, name := range append([]string{f.key}, f.others...) {
				if other, twice := seen[name]; twice {
					t.Errorf("%s is a name of %s and of %s", name, f.name, other)
				}
				seen[name] = f.name
			}
		}
		for _, old := range slices.Sorted(maps.Keys(oldLimits)) {
			if f, tres := limitByName(old, on); f == nil && on == onQOS || f != nil && tres == "" {
				t.Errorf("%s is no limit", old)
			}
		}
		l, want := NoLimits(), NoLimits()
		for i := range limitFields {
			if f := &limitFields[i]; f.on&on != 0 {
				if f.kind == limitTRES {
					*f.tres(&want) = TRES{{"cpu", int64(i + 1)}}
				} else {
					*f.number(&want) = int64(i) * 60_000
				}
			}
		}
		var f fields
		f.limits(&want, on)
		for i := 0; i < len(f); i += 2 {
			if err := readLimit(&l, on, f[i], f[i+1]); err != nil {
				t.Error(err)
			}
		}
		if fmt.Sprint(l) != fmt.Sprint(want) {
			t.Errorf("limits came back as\n%v, not\n%v", l, want)
		}
	}
}
