package accounting

import (
	"slices"
	"strings"
)

func (e *edit) addAccounts(s *selection) *Refusal {
	parentName, given := s.take("parent", "parentname")
	if !given {
		parentName = Root
	}
	parent := e.db.AccountAssociation(strings.ToLower(parentName))
	if parent == nil {
		return e.db.noAccount(parentName)
	}
	for _, name := range s.names {
		if !goodName(name) {
			return badValue("%q cannot be the name of an account: at most %d letters, digits and _ - . @ +", name, MaxName)
		}
		if e.db.Account(name) != nil {
			continue
		}
		acct := &Account{Name: name, Description: name, Organization: name}
		if parent.Account != Root {
			acct.Organization = parent.Account
		}
		a := newAssociation(name, "", "")
		a.Parent = parent.ID
		if r := e.apply(s, nil, acct, a); r != nil {
			return r
		}
		e.db.putAccount(acct)
		e.db.addAssociation(a)
		e.touched = append(e.touched, a.ID)
		e.did(name)
	}
	return nil
}

// apply sets all settings of a selection on copies that are not in the DB yet. user, acct and a may be nil: then a
// setting of theirs is an error.
func (e *edit) apply(s *selection, user *User, acct *Account, a *Association) *Refusal {
	for _, c := range s.set {
		known, r := false, (*Refusal)(nil)
		if c.Name == rawUsage && a != nil {
			if r := s.resets(c); r != nil {
				return r
			}
			e.out.ResetUsage = append(e.out.ResetUsage, a.ID)
			continue
		}
		if user != nil {
			known, r = user.set(c)
		}
		if !known && acct != nil {
			known, r = acct.set(c)
		}
		if !known && a != nil {
			known, r = e.db.setAssociation(a, c)
		}
		if r != nil {
			return r
		}
		if !known {
			return badValue("%q is nothing that %s %s could set%s", c.Name, s.verb, s.entity, meant(c.Name, settingNames(onAssociation)))
		}
	}
	return nil
}

func (e *edit) modifyAccounts(s *selection) *Refusal {
	for _, name := range s.names {
		acct, a := e.db.Account(name), e.db.AccountAssociation(name)
		if acct == nil || a == nil {
			return e.db.noAccount(name)
		}
		own := selection{verb: s.verb, entity: s.entity, set: slices.Clone(s.set)}
		newAcct, newA := *acct, *a
		if parent, given := own.take("parent", "parentname"); given {
			if r := e.move(&newA, strings.ToLower(parent)); r != nil {
				return r
			}
		}
		if r := e.apply(&own, nil, &newAcct, &newA); r != nil {
			return r
		}
		e.db.putAccount(&newAcct)
		e.db.putAssociation(&newA)
		e.touched = append(e.touched, a.ID)
		e.did(a.line())
	}
	return nil
}

// move gives an account another parent.
func (e *edit) move(a *Association, parent string) *Refusal {
	const code, text = "ESLURM_INVALID_PARENT_ACCOUNT", "The parent account is not valid"
	p := e.db.AccountAssociation(parent)
	switch {
	case p == nil:
		return e.db.noAccount(parent)
	case a.Account == Root:
		return refuse(code, text, "account root stays at the top")
	}
	for at := p; at != nil; at = e.db.Association(at.Parent) {
		if at.ID == a.ID {
			return refuse(code, text, "account %s cannot be below %s: %s is %s or below it", a.Account, parent, parent, a.Account)
		}
	}
	a.Parent = p.ID
	return nil
}

// deleteAccounts removes accounts with all that is below them.
func (e *edit) deleteAccounts(s *selection) *Refusal {
	gone := newRemoval()
	for _, name := range s.names {
		a := e.db.AccountAssociation(name)
		switch {
		case name == Root:
			return refuse("ESLURM_ACCESS_DENIED", "Access/permission denied", "account root cannot be deleted")
		case a == nil:
			return e.db.noAccount(name)
		}
		e.subtree(gone, a)
		e.did(name)
	}
	if r := e.keepDefaults(gone); r != nil {
		return r
	}
	e.remove(gone)
	accounts := map[string]bool{}
	for _, a := range gone.list {
		if a.User == "" {
			accounts[a.Account] = true
		}
	}
	e.db.accounts = slices.DeleteFunc(e.db.accounts, func(a *Account) bool { return accounts[a.Name] })
	return nil
}

// removal is the associations that a command takes out, each once.
type removal struct {
	list []*Association
	has  map[uint32]bool // by id
}

func newRemoval() *removal { return &removal{has: map[uint32]bool{}} }

// add tells whether a is new in it.
func (r *removal) add(a *Association) bool {
	if r.has[a.ID] {
		return false
	}
	r.list, r.has[a.ID] = append(r.list, a), true
	return true
}

func (e *edit) subtree(gone *removal, a *Association) {
	if !gone.add(a) {
		return
	}
	for _, c := range e.db.children(a.ID) {
		e.subtree(gone, c)
	}
}

// keepDefaults refuses to take a default account away from a user that keeps others.
func (e *edit) keepDefaults(gone *removal) *Refusal {
	for _, a := range gone.list {
		u := e.db.User(a.User)
		if u == nil || u.DefaultAccount != a.Account {
			continue
		}
		if any := e.db.exact(a.Account, a.User, ""); any == nil || gone.has[any.ID] {
			stays := false
			kept := ""
			for _, other := range e.db.ofUser(a.User) {
				if gone.has[other.ID] {
					continue
				}
				stays = stays || other.Account == a.Account
				kept = other.Account
			}
			if kept != "" && !stays {
				return refuse("ESLURM_NO_REMOVE_DEFAULT_ACCOUNT", "You can not remove the default account of a user",
					"%s is the default account of user %s, who is also in %s; first: gacctmgr modify user where name=%s set defaultaccount=%s", a.Account, a.User, kept, a.User, kept)
			}
		}
	}
	return nil
}

// remove takes associations out; a user whose default account is gone has none.
func (e *edit) remove(gone *removal) {
	e.db.dropAssociations(gone.has)
	for _, a := range gone.list {
		e.out.Associations = append(e.out.Associations, a.ID)
	}
	for _, a := range gone.list {
		u := e.db.User(a.User)
		if u == nil || u.DefaultAccount != a.Account || slices.ContainsFunc(e.db.ofUser(a.User), func(o *Association) bool { return o.Account == a.Account }) {
			continue
		}
		changed := *u
		changed.DefaultAccount = ""
		e.db.putUser(&changed)
	}
}

// coordinators makes users coordinators of accounts, or takes that away.
func (e *edit) coordinators(s *selection) *Refusal {
	for _, account := range s.accounts {
		acct := e.db.Account(account)
		if acct == nil {
			return e.db.noAccount(account)
		}
		changed := *acct
		changed.Coordinators = slices.Clone(acct.Coordinators)
		for _, name := range s.names {
			if e.db.User(name) == nil {
				return e.db.noUser(name)
			}
			i, found := slices.BinarySearch(changed.Coordinators, name)
			switch {
			case s.verb == "add" && !found:
				changed.Coordinators = slices.Insert(changed.Coordinators, i, name)
				e.did(name)
			case s.verb == "delete" && found:
				changed.Coordinators = slices.Delete(changed.Coordinators, i, i+1)
				e.did(name)
			case s.verb == "delete":
				return badValue("%s is no coordinator of account %s", name, account)
			}
		}
		e.db.putAccount(&changed)
	}
	return nil
}
