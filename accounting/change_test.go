package accounting

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// command reads "add user bob account=x fairshare=3" or "modify qos where name=q set flags+=NoDecay".
func command(text string) Change {
	words := strings.Fields(text)
	c := Change{Verb: words[0], Entity: words[1]}
	into := &c.Where
	if c.Verb == "add" {
		into = &c.Set
	}
	for _, w := range words[2:] {
		switch w {
		case "where":
			into = &c.Where
			continue
		case "set":
			into = &c.Set
			continue
		}
		name, value, found := strings.Cut(w, "=")
		op := "="
		if n, cut := strings.CutSuffix(name, "+"); cut && found {
			name, op = n, "+="
		} else if n, cut := strings.CutSuffix(name, "-"); cut && found {
			name, op = n, "-="
		}
		if !found {
			op = ""
		}
		*into = append(*into, Clause{name, op, value})
	}
	return c
}

func do(t *testing.T, d *DB, commands ...string) *DB {
	t.Helper()
	for _, text := range commands {
		next, out, r := d.Change(command(text))
		if r != nil {
			t.Fatalf("%s: %+v", text, *r)
		}
		if len(out.Changed) == 0 {
			t.Fatalf("%s: nothing changed", text)
		}
		if err := next.check(); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		d = next
	}
	return d
}

// lab is the DB that the tests of commands work on.
func lab(t *testing.T) *DB {
	return do(t, New(), "add qos high priority=100 preempt=normal flags=DenyOnLimit maxtresperuser=cpu=8", "add qos low usagefactor=0.5", "add account physics description=Physics",
		"add account optics parent=physics fairshare=30", "add account art", "add user bob,amy account=optics,art defaultaccount=optics fairshare=5",
		"add user cy account=physics partition=gpu", "add coordinator account=physics name=cy")
}

// TestChange: command, lines of the outcome, then what a list shows: "entity condition field=value ...".
func TestChange(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		changed string
		shows   []string
	}{
		"word alone":           {"add account music", "music", []string{"association account=music parentname=root fairshare=1 qos=normal"}},
		"upper case":           {"add account MUSIC", "music", nil},
		"there already":        {"add account physics", "", nil},
		"user there already":   {"add user bob account=art", "", nil},
		"user in one more":     {"add user cy account=art fairshare=2", "A = art U = cy", []string{"user user=cy defaultaccount=physics coordinators=physics"}},
		"new default":          {"add user cy defaultaccount=art", "A = art U = cy|cy", []string{"user user=cy defaultaccount=art"}},
		"limits":               {"modify user where name=bob account=art set grptres=cpu=4,mem=8G maxjobs=3 maxwall=1-0 grpwall=1", "A = art U = bob", []string{"association account=art,user=bob grptres=cpu=4,mem=8G maxjobs=3 maxwalldurationperjob=1-00:00:00 grpwall=00:01:00"}},
		"old names":            {"modify account where name=art set grpcpus=7 maxnodes=2", "A = art", []string{"association account=art,user= grptres=cpu=7 maxtresperjob=node=2"}},
		"all of a user":        {"modify user where name=bob set fairshare=parent", "A = art U = bob|A = optics U = bob", []string{"association account=art,user=bob fairshare=parent"}},
		"all in an account":    {"modify user where account=optics set priority=9", "A = optics U = amy|A = optics U = bob", nil},
		"default account":      {"modify user where name=bob set defaultaccount=art", "bob", []string{"user user=bob defaultaccount=art"}},
		"level":                {"modify user where name=bob set adminlevel=op", "bob", []string{"user user=bob adminlevel=Operator"}},
		"qos +=":               {"modify account where name=physics set qos+=high", "A = physics", []string{"association account=optics,user=amy qos=high,normal"}},
		"qos with signs":       {"modify account where name=physics set qos=+high,-normal", "A = physics", []string{"association account=optics,user=amy qos=high"}},
		"qos =":                {"modify account where name=physics set qos=low,high", "A = physics", []string{"association account=physics,user=cy qos=high,low"}},
		"default QOS":          {"modify user where name=amy set qos=low,high defaultqos=low", "A = art U = amy|A = optics U = amy", []string{"association account=art,user=amy defaultqos=low"}},
		"move":                 {"modify account where name=optics set parent=art", "A = optics", []string{"association account=optics,user= parentname=art"}},
		"preempt +=":           {"modify qos where name=high set preempt+=low", "high", []string{"qos name=high preempt=low,normal"}},
		"preempt -=":           {"modify qos where name=high set preempt-=normal", "high", nil},
		"flags":                {"modify qos where name=high set flags+=nodecay", "high", []string{"qos name=high flags=DenyOnLimit,NoDecay"}},
		"flags cleared":        {"modify qos where name=high set flags=-1", "high", nil},
		"factors":              {"modify qos where name=low set usagefactor=2.25 limitfactor=1.5 gracetime=90 preemptmode=requeue preemptexempttime=0:30", "low", []string{"qos name=low usagefactor=2.250000 limitfactor=1.500000 gracetime=00:01:30 preemptmode=requeue preemptexempttime=00:00:30"}},
		"delete user":          {"delete user where name=bob", "bob", nil},
		"delete from one":      {"delete user where name=bob account=art", "A = art U = bob", []string{"user user=bob defaultaccount=optics"}},
		"delete QOS":           {"delete qos where name=normal", "normal", []string{"association account=art,user=bob", "qos name=high"}},
		"delete tree":          {"delete account where name=physics,art", "art|physics", nil},
		"delete coordinator":   {"delete coordinator where account=physics name=cy", "cy", nil},
		"one TRES is cleared":  {"modify qos where name=high set maxtresperuser=cpu=-1,gres/gpu=2", "high", []string{"qos name=high maxtresperuser=gres/gpu=2"}},
		"other TRES is kept":   {"modify qos where name=high set maxtrespu=gres/gpu=2", "high", []string{"qos name=high maxtresperuser=cpu=8,gres/gpu=2"}},
		"all TRES are cleared": {"modify qos where name=high set maxtresperuser=-1", "high", nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := lab(t)
			records := before.Records()
			d, out, r := before.Change(command(c.command))
			if r != nil {
				t.Fatalf("%+v", *r)
			}
			slices.Sort(out.Changed)
			if got := strings.Join(out.Changed, "|"); got != c.changed {
				t.Errorf("changed %q, want %q", got, c.changed)
			}
			if err := d.check(); err != nil {
				t.Error(err)
			}
			if !slices.EqualFunc(records, before.Records(), sameRecord) {
				t.Error("the old DB was changed")
			}
			for _, line := range c.shows {
				shows(t, d, line)
			}
		})
	}
}

// shows holds one row of a list against "entity key=value,key=value field=value ...".
func shows(t *testing.T, d *DB, line string) {
	t.Helper()
	words := strings.Fields(line)
	rows, _, r := d.Rows(words[0], nil)
	if r != nil {
		t.Fatal(r)
	}
	for _, row := range rows {
		match := true
		for _, key := range strings.Split(words[1], ",") {
			name, value, _ := strings.Cut(key, "=")
			match = match && row[name] == value
		}
		if !match {
			continue
		}
		for _, w := range words[2:] {
			name, value, _ := strings.Cut(w, "=")
			if row[name] != value {
				t.Errorf("%s: %s is %q, want %q", line, name, row[name], value)
			}
		}
		return
	}
	t.Errorf("no row for %s", line)
}

// TestRefusals: command, code, and words of the reason.
func TestRefusals(t *testing.T) {
	for name, c := range map[string][3]string{
		"no such account":         {"add user bob account=fysics", "INVALID_ACCOUNT", "physics is there"},
		"no such parent":          {"add account x parent=opticks", "INVALID_ACCOUNT", "optics is there"},
		"no such user":            {"modify user where name=bop set fairshare=1", "USER_ID_MISSING", "bob is there"},
		"no such QOS":             {"modify account where name=art set qos=hihg", "INVALID_QOS", "high is there"},
		"no account for a user":   {"add user dan", "INVALID_VALUE", "needs an account"},
		"unknown setting":         {"modify user where name=bob set maxjob=3", "INVALID_VALUE", "maxjobs is there"},
		"unknown entity":          {"add cluster x", "INVALID_VALUE", "cluster"},
		"no condition":            {"modify user set fairshare=3", "INVALID_VALUE", "where"},
		"nothing set":             {"modify user where name=bob", "INVALID_VALUE", "set"},
		"setting without value":   {"modify user where name=bob set fairshare", "INVALID_VALUE", "fairshare"},
		"default QOS not allowed": {"modify user where name=bob set defaultqos=high", "INVALID_QOS", "default QOS high of association A = art U = bob would not be among its QOS (normal)"},
		"default QOS by parent":   {"modify account where name=art set qos=low defaultqos=normal", "INVALID_QOS", "normal"},
		"default account":         {"modify user where name=cy set defaultaccount=art", "INVALID_ACCOUNT", "not in account art"},
		"cycle":                   {"modify account where name=physics set parent=optics", "INVALID_PARENT_ACCOUNT", "cannot be below optics"},
		"cycle of one":            {"modify account where name=physics set parent=physics", "INVALID_PARENT_ACCOUNT", "physics"},
		"root moves":              {"modify account where name=root set parent=art", "INVALID_PARENT_ACCOUNT", "top"},
		"preemption loop":         {"modify qos where name=normal set preempt=high", "QOS_PREEMPTION_LOOP", "normal preempts high preempts normal"},
		"preempts itself":         {"modify qos where name=low set preempt=low", "QOS_PREEMPTION_LOOP", "low"},
		"delete root":             {"delete account where name=root", "ACCESS_DENIED", "root"},
		"delete root's user":      {"delete user where name=root", "ACCESS_DENIED", "root"},
		"delete a default":        {"delete user where name=bob account=optics", "NO_REMOVE_DEFAULT_ACCOUNT", "defaultaccount=art"},
		"delete a default's tree": {"delete account where name=physics", "NO_REMOVE_DEFAULT_ACCOUNT", "who is also in art"},
		"accrual":                 {"modify qos where name=low set grpjobsaccrue=3", "NOT_SUPPORTED", "GrpJobsAccrue"},
		"threshold":               {"modify qos where name=low set usagethreshold=0.5", "NOT_SUPPORTED", "UsageThreshold"},
		"flag":                    {"modify qos where name=low set flags=Fast", "INVALID_VALUE", "Fast"},
		"flag not built":          {"modify qos where name=low set flags=relative", "NOT_SUPPORTED", "relative"},
		"negative":                {"modify user where name=bob set maxjobs=-2", "INVALID_VALUE", "maxjobs=-2"},
		"not a number":            {"modify user where name=bob set maxjobs=many", "INVALID_VALUE", "many"},
		"operator":                {"modify user where name=bob set maxjobs+=1", "INVALID_VALUE", "+="},
		"TRES":                    {"modify user where name=bob set grptres=gpus=1", "INVALID_VALUE", `"gpus"`},
		"QOS limit on a user":     {"modify user where name=bob set maxtresperuser=cpu=1", "INVALID_VALUE", "maxtresperuser"},
		"name":                    {"add account a/b", "INVALID_VALUE", "a/b"},
		"mode":                    {"modify qos where name=low set preemptmode=gang", "INVALID_VALUE", "requeue"},
		"coordinator":             {"delete coordinator where account=art name=cy", "INVALID_VALUE", "no coordinator"},
	} {
		t.Run(name, func(t *testing.T) {
			d := lab(t)
			same, out, r := d.Change(command(c[0]))
			if r == nil {
				t.Fatalf("%s was done: %v", c[0], out.Changed)
			}
			if same != d || r.Code != "ESLURM_"+c[1] || !strings.Contains(r.Why, c[2]) || r.Text == "" {
				t.Errorf("%+v", *r)
			}
		})
	}
}

// TestDeleted: what a deletion takes with it, and the ids that jobs must not use.
func TestDeleted(t *testing.T) {
	d := do(t, lab(t), "modify user where name=bob set qos+=low defaultqos=low", "modify qos where name=high set preempt=low,normal")
	next, out, _ := d.Change(command("delete qos where name=low"))
	if len(out.QOS) != 1 || out.QOS[0] != d.QOS("low").ID {
		t.Errorf("%+v", out)
	}
	bob := next.Find("bob", "art", "")
	if bob.DefaultQOS != "" || !slices.Equal(bob.QOS, []string{"normal"}) || !slices.Equal(next.QOS("high").Preempt, []string{"normal"}) {
		t.Errorf("%+v, high preempts %v", bob, next.QOS("high").Preempt)
	}
	id := next.QOS("high").ID
	again := do(t, next, "add qos new")
	if q := again.QOS("new"); q.ID != 4 || again.QOSByID(id).Name != "high" {
		t.Errorf("an id was given twice: %+v", q)
	}
	next, out, _ = d.Change(command("delete user where name=cy"))
	if next.User("cy") != nil || len(next.Account("physics").Coordinators) != 0 || len(out.Associations) != 1 {
		t.Errorf("%+v", out)
	}
	if !d.MayAdmin("cy", "optics") || d.MayAdmin("cy", "art") || next.MayAdmin("cy", "optics") || !d.MayAdmin("root", "art") || d.MayAdmin("bob", "art") {
		t.Error("coordinators")
	}
}

func TestFind(t *testing.T) {
	d := do(t, lab(t), "add user bob account=art partition=gpu maxjobs=1")
	if a := d.Find("bob", "art", "gpu"); a == nil || a.Limits.MaxJobs != 1 {
		t.Errorf("%+v", a)
	}
	if a := d.Find("bob", "art", "cpu"); a == nil || a.Partition != "" {
		t.Errorf("%+v", a)
	}
	if d.Find("cy", "physics", "cpu") != nil || d.Find("cy", "physics", "gpu") == nil || d.Find("", "art", "") != nil {
		t.Error("a user of one partition was found elsewhere")
	}
	var names []string
	for _, a := range d.Chain(d.Find("bob", "optics", "")) {
		names = append(names, a.line())
	}
	if got := strings.Join(names, "; "); got != "A = optics U = bob; A = optics; A = physics; A = root" {
		t.Error(got)
	}
	rows, depth, _ := d.Rows("association", []Clause{{"user", "=", "bob"}, {"account", "=", "optics,physics"}})
	if len(rows) != 1 || depth[0] != 3 {
		t.Errorf("%v %v", rows, depth)
	}
	if _, _, r := d.Rows("association", []Clause{{"colour", "=", "red"}}); r == nil {
		t.Error("an unknown condition was taken")
	}
}

func sameRecord(a, b Record) bool {
	return a.Kind == b.Kind && a.ID == b.ID && slices.Equal(a.Fields, b.Fields)
}

// TestChangeOfMany: one command that changes or removes tens of thousands of associations does not take time by their
// square: all replicas stand still meanwhile.
func TestChangeOfMany(t *testing.T) {
	const n = 40_000
	d := do(t, New(), "add account big", "add account other")
	for _, account := range []string{"big", "other"} {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf("u%05d", i)
		}
		next, out, r := d.Change(Change{Verb: "add", Entity: "user", Set: []Clause{{"name", "=", strings.Join(list, ",")}, {"account", "=", account}}})
		if r != nil || len(out.Changed) < n {
			t.Fatalf("%d %+v", len(out.Changed), r)
		}
		d = next
	}
	start := time.Now()
	next, out, r := d.Change(command("modify user where account=big set fairshare=5"))
	if r != nil || len(out.Changed) != n {
		t.Fatalf("%d %+v", len(out.Changed), r)
	}
	next, _, r = next.Change(command("modify user where account=big set defaultaccount=other"))
	if r != nil {
		t.Fatalf("%+v", r)
	}
	gone, out, r := next.Change(command("delete account where name=big"))
	if r != nil || len(out.Associations) != n+1 {
		t.Fatalf("%d %+v", len(out.Associations), r)
	}
	if _, _, left, _ := gone.Counts(); left != n+3 {
		t.Errorf("%d associations are left", left)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("%s for three commands on %d associations", took, n)
	}
}
