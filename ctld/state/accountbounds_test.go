package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/accounting"
)

// grown gives accounts with so many more accounts below root, users in account a, and associations of those users with
// account b.
func grown(t *testing.T, accounts, users, second int) *accounting.DB {
	d := accounting.New()
	add := func(entity string, words ...string) {
		c := accounting.Change{Verb: "add", Entity: entity}
		for _, w := range words {
			name, value, _ := strings.Cut(w, "=")
			c.Set = append(c.Set, accounting.Clause{Name: name, Op: "=", Value: value})
		}
		next, _, r := d.Change(c)
		if r != nil {
			t.Fatal(r)
		}
		d = next
	}
	add("account", "name=a,b")
	add("user", "name=u", "account=a")
	add("user", "name=u", "account=b")
	list := d.Records()
	next := list[len(list)-1]
	list = list[:len(list)-1]
	id := uint32(100)
	like := func(kind, field, value, name string, n int) {
		i := slices.IndexFunc(list, func(r accounting.Record) bool {
			return r.Kind == kind && has(r, field, value) && (field == "Account") == has(r, "User", "u")
		})
		if i < 0 {
			t.Fatalf("no %s with %s=%s", kind, field, value)
		}
		for k := range n {
			r := list[i]
			if r.ID != 0 {
				r.ID, id = id, id+1
			}
			r.Fields = slices.Clone(r.Fields)
			for f := 1; f < len(r.Fields); f += 2 {
				if r.Fields[f] == name {
					r.Fields[f] = fmt.Sprintf("%s%06d", name, k)
				}
			}
			list = append(list, r)
		}
	}
	account := slices.IndexFunc(list, func(r accounting.Record) bool {
		return r.Kind == "association" && has(r, "Account", "a") && !has(r, "User", "u")
	})
	for k := range accounts {
		r := list[account]
		r.ID, id = id, id+1
		r.Fields = slices.Clone(r.Fields)
		r.Fields[slices.Index(r.Fields, "Account")+1] = fmt.Sprintf("a%06d", k)
		list = append(list, r)
	}
	like("account", "Name", "a", "a", accounts)
	like("user", "Name", "u", "u", users)
	like("association", "Account", "a", "u", users)
	like("association", "Account", "b", "u", second)
	next.Fields = slices.Clone(next.Fields)
	next.Fields[slices.Index(next.Fields, "Association")+1] = fmt.Sprint(id)
	d, err := accounting.FromRecords(append(list, next))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// has tells whether a record has a field of a value.
func has(r accounting.Record, field, value string) bool {
	i := slices.Index(r.Fields, field)
	return i >= 0 && i%2 == 0 && r.Fields[i+1] == value
}

// TestAccountBounds: as many accounts, users and associations as the limits say are there, and one more is refused with
// the limit's name.
func TestAccountBounds(t *testing.T) {
	a0, u0, n0, _ := grown(t, 0, 0, 0).Counts()
	on := func(db *accounting.DB, try func(add func(entity, name, account string) *Refusal)) {
		New().Apply(1, 1000, func(tx *Tx) {
			tx.RaiseFeature(FeatureSched)
			tx.db = db
			tx.buildSched()
			try(func(entity, name, account string) *Refusal {
				set := []accounting.Clause{{Name: "name", Op: "=", Value: name}}
				if account != "" {
					set = append(set, accounting.Clause{Name: "account", Op: "=", Value: account})
				}
				_, r := tx.ChangeAccounting(accounting.Change{Verb: "add", Entity: entity, Set: set}, Caller{Operator: true})
				return r
			})
		})
	}
	fits := func(r *Refusal) {
		t.Helper()
		if r != nil {
			t.Errorf("the last that may be was refused: %+v", r)
		}
	}
	over := func(limit string, value int, r *Refusal) {
		t.Helper()
		if want := fmt.Sprintf("%s=%d, this would make %d", limit, value, value+1); r == nil || r.Code != "EAGAIN" || r.Why != want {
			t.Errorf("got %+v, want %s", r, want)
		}
	}
	on(grown(t, MaxAccounts-a0-1, 0, 0), func(add func(entity, name, account string) *Refusal) {
		fits(add("account", "last", ""))
		over("MaxAccounts", MaxAccounts, add("account", "more", ""))
	})
	users, accounts := MaxUsers-u0-1, 5000
	second := MaxAssociations - n0 - accounts - users - 2
	on(grown(t, accounts, users, second), func(add func(entity, name, account string) *Refusal) {
		fits(add("user", "last", "a"))
		over("MaxUsers", MaxUsers, add("user", "more", "a"))
		fits(add("user", fmt.Sprintf("u%06d", second), "b"))
		over("MaxAssociations", MaxAssociations, add("user", fmt.Sprintf("u%06d", second+1), "b"))
	})
}
