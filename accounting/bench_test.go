package accounting

import (
	"fmt"
	"testing"
)

// town is a DB of 100 accounts with n users in all.
func town(b *testing.B, n int) *DB {
	d := New().clone()
	for i := range 100 {
		name := fmt.Sprintf("a%d", i)
		d.putAccount(&Account{Name: name})
		a := newAssociation(name, "", "")
		if a.Parent = 1; i >= 10 {
			a.Parent = d.AccountID(fmt.Sprintf("a%d", i/10))
		}
		d.addAssociation(a)
	}
	for i := range n {
		name, account := fmt.Sprintf("u%d", i), fmt.Sprintf("a%d", i%100)
		d.putUser(&User{Name: name, DefaultAccount: account, Level: levelNone})
		a := newAssociation(account, name, "")
		a.Parent = d.AccountID(account)
		d.addAssociation(a)
	}
	if err := d.check(); err != nil {
		b.Fatal(err)
	}
	return d
}

func BenchmarkFairTree10k(b *testing.B) {
	d := town(b, 10_000)
	for b.Loop() {
		d.FairTree(func(id uint32) int64 { return int64(id) * 7919 % 100_003 })
	}
}

func BenchmarkChange10k(b *testing.B) {
	d, c := town(b, 10_000), command("modify user where name=u77 set fairshare=3")
	for b.Loop() {
		if _, _, r := d.Change(c); r != nil {
			b.Fatal(r)
		}
	}
}

func BenchmarkAddUser10k(b *testing.B) {
	d, c := town(b, 10_000), command("add user new account=a7")
	for b.Loop() {
		if _, _, r := d.Change(c); r != nil {
			b.Fatal(r)
		}
	}
}

func BenchmarkDecay(b *testing.B) {
	u := Usage{Raw: 1 << 40, Wall: 1 << 30, TRES: TRES{{"billing", 1 << 40}, {"cpu", 1 << 40}, {"mem", 1 << 50}, {"node", 1 << 30}}}
	for b.Loop() {
		u.Decay(300_000, 604_800_000)
	}
}
