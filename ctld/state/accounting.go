package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
)

// Limits of the accounts. What would exceed one is refused with the limit's name.
const (
	MaxAccounts     = 20_000
	MaxUsers        = 100_000
	MaxAssociations = 200_000
	MaxQOS          = 1000
)

// Accounting is accounts, users, associations and QOS; nil below FeatureSched.
func (t *tables) Accounting() *accounting.DB { return t.db }

// UsageTime is up to when usage has been counted, Unix ms; UsageVersion changes whenever any usage does.
func (t *tables) UsageTime() int64 { return t.usageAt }

// UsageVersion counts the changes of any usage.
func (t *tables) UsageVersion() uint64 { return t.chargeVersion }

// beginSched makes what FeatureSched brings: accounts with nobody in them, and usage from now on.
func (t *Tx) beginSched() {
	t.db, t.usageAt = accounting.New(), t.now
	t.buildSched()
	t.usage++
	t.capacity++
}

// ChangeAccounting takes one command of gacctmgr; all of it or nothing.
func (t *Tx) ChangeAccounting(c accounting.Change, by Caller) (accounting.Outcome, *Refusal) {
	if r := t.needsSched("accounts"); r != nil {
		return accounting.Outcome{}, r
	}
	if r := t.mayChange(&c, by); r != nil {
		return accounting.Outcome{}, r
	}
	next, out, refused := t.db.Change(c)
	if refused != nil {
		return accounting.Outcome{}, (*Refusal)(refused)
	}
	if r := tooMany(next); r != nil {
		return accounting.Outcome{}, r
	}
	if c.Verb == "delete" {
		if r := t.stillUsed(next); r != nil {
			return accounting.Outcome{}, r
		}
	}
	if next == t.db {
		return out, nil
	}
	if len(out.ResetUsage)+len(out.ResetQOS) > 0 {
		t.resetUsage(out.ResetUsage, out.ResetQOS)
	}
	t.db = next
	t.buildRules()
	t.recountChanged()
	if c.Verb == "delete" {
		t.dropUsage()
	}
	t.chargeVersion++ // shares
	t.usage++
	t.capacity++
	return out, nil
}

// tooMany: accounts are within their limits.
func tooMany(d *accounting.DB) *Refusal {
	accounts, users, associations, qos := d.Counts()
	for _, l := range []struct {
		name     string
		n, limit int
	}{
		{"MaxAccounts", accounts, MaxAccounts}, {"MaxUsers", users, MaxUsers},
		{"MaxAssociations", associations, MaxAssociations}, {"MaxQOS", qos, MaxQOS},
	} {
		if l.n > l.limit {
			return refuse("EAGAIN", "Resource temporarily unavailable", fmt.Sprintf("%s=%d, this would make %d", l.name, l.limit, l.n))
		}
	}
	return nil
}

// stillUsed: an association or a QOS that jobs run or wait under stays, and so does the QOS of a partition.
func (t *Tx) stillUsed(next *accounting.DB) *Refusal {
	for _, p := range t.parts.list {
		if t.db.QOS(p.QOS) != nil && next.QOS(p.QOS) == nil {
			return refuse("ESLURM_INVALID_QOS", "Invalid qos specification", fmt.Sprintf("partition %s has QOS=%s; take it away there first", p.Name, p.QOS))
		}
	}
	n, first := 0, ""
	for j := range t.Live() {
		if j.State.Ended() {
			continue
		}
		at := countedIn(j)
		c := t.countedChain(j.Spec, at)
		gone := c.JobQOS != nil && next.QOSByID(c.JobQOS.ID) == nil
		if a := c.Association; a != nil && next.Association(a.ID) == nil {
			gone = gone || next.Find(j.Spec.User, a.Account, at) == nil
		}
		if gone {
			if n++; first == "" {
				first = j.Name()
			}
		}
	}
	if n == 0 {
		return nil
	}
	return refuse("ESLURM_JOBS_RUNNING_ON_ASSOC", "Job(s) active, cancel job(s) before remove",
		fmt.Sprintf("%d jobs run or wait there, job %s among them", n, first))
}

// mayChange: operators change all; a coordinator what is in the accounts that are his; everybody his own default account.
func (t *tables) mayChange(c *accounting.Change, by Caller) *Refusal {
	if by.Operator || t.db.MayAdmin(by.User, accounting.Root) {
		return nil
	}
	if own(c, by) {
		return nil
	}
	if c.Entity != "account" && c.Entity != "user" {
		return denied("changing " + c.Entity + " is for operators")
	}
	words := slices.Concat(c.Where, c.Set)
	for _, w := range words {
		if name := strings.ToLower(w.Name); name == "adminlevel" || name == "coordinators" {
			return denied("changing " + name + " is for operators")
		}
	}
	if c.Verb == "add" && c.Entity == "account" && !slices.ContainsFunc(words, func(w accounting.Clause) bool { return strings.EqualFold(w.Name, "parent") }) {
		return denied("a coordinator adds an account below one of his (parent=)")
	}
	accounts := accountsOf(c)
	if len(accounts) == 0 {
		return denied("a coordinator names the accounts (account=) that he changes something in")
	}
	for _, name := range accounts {
		if !t.db.MayAdmin(by.User, name) {
			return denied(fmt.Sprintf("%s is no coordinator of account %q", by.User, name))
		}
	}
	return t.mayGive(c, accounts)
}

// mayGive: a coordinator gives no QOS that the account above has not: what users of an account get the account has, what an
// account gets the one above it has.
func (t *tables) mayGive(c *accounting.Change, accounts []string) *Refusal {
	for _, w := range slices.Concat(c.Where, c.Set) {
		if !slices.Contains([]string{"qos", "qoslevel", "defaultqos", "defqos"}, strings.ToLower(w.Name)) || w.Op == "-=" {
			continue
		}
		for _, name := range accounts {
			a := t.db.AccountAssociation(name)
			if c.Entity == "account" && c.Verb != "add" && a != nil {
				a = t.db.Association(a.Parent)
			}
			has := t.db.QOSOf(a)
			for q := range strings.SplitSeq(strings.ToLower(w.Value), ",") {
				q = strings.TrimSpace(q)
				if q = strings.TrimPrefix(q, "+"); q != "" && q[0] != '-' && !slices.Contains(has, q) {
					return denied(fmt.Sprintf("QOS %s is not among those that a coordinator of account %s may give (%s)", q, name, strings.Join(has, ",")))
				}
			}
		}
	}
	return nil
}

// own: a user chooses his own default account.
func own(c *accounting.Change, by Caller) bool {
	return c.Verb == "modify" && c.Entity == "user" && by.User != "" && len(c.Where) == 1 && c.Where[0].Name == "name" && c.Where[0].Value == by.User &&
		len(c.Set) == 1 && c.Set[0].Name == "defaultaccount"
}

// accountsOf are the accounts that a command changes something in, whatever word it has for them: of accounts that are
// changed their own names, of those that are added their parents.
func accountsOf(c *accounting.Change) (names []string) {
	for i, list := range [][]accounting.Clause{c.Where, c.Set} {
		for _, w := range list {
			name, value := strings.ToLower(w.Name), w.Value
			if w.Op == "" && value == "" {
				name, value = "name", w.Name // a word alone
			}
			in := slices.Contains([]string{"account", "accounts", "acct"}, name) && (c.Entity == "user" || c.Verb != "add") || name == "parent"
			if in || c.Entity == "account" && c.Verb != "add" && i == 0 && (name == "name" || name == "names") {
				for one := range strings.SplitSeq(value, ",") {
					names = append(names, strings.ToLower(strings.TrimSpace(one)))
				}
			}
		}
	}
	return names
}
