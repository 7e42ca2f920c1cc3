package accounting

import (
	"slices"
	"strings"
)

// addUsers puts users in accounts: each gets an association for each account and partition that is named.
func (e *edit) addUsers(s *selection) *Refusal {
	standard, given := s.take("defaultaccount")
	standard = strings.ToLower(standard)
	if given && !slices.Contains(s.accounts, standard) {
		s.accounts = append([]string{standard}, s.accounts...)
	}
	if len(s.accounts) == 0 {
		return badValue("add user needs an account: account=NAME")
	}
	for _, account := range s.accounts {
		if e.db.Account(account) == nil {
			return e.db.noAccount(account)
		}
	}
	if len(s.partitions) == 0 {
		s.partitions = []string{""}
	}
	for _, name := range s.names {
		if !goodName(name) {
			return badValue("%q cannot be the name of a user: at most %d letters, digits and _ - . @ +", name, MaxName)
		}
		if r := e.addUser(s, name, standard); r != nil {
			return r
		}
	}
	return nil
}

func (e *edit) addUser(s *selection, name, standard string) *Refusal {
	user := User{Name: name, DefaultAccount: s.accounts[0], Level: levelNone}
	if standard != "" {
		user.DefaultAccount = standard
	}
	old := e.db.User(name)
	if old != nil {
		user = *old
		if user.DefaultAccount == "" {
			user.DefaultAccount = s.accounts[0]
		}
		if standard != "" {
			user.DefaultAccount = standard
		}
	}
	before := user
	var added []*Association
	for _, account := range s.accounts {
		for _, partition := range s.partitions {
			if e.db.exact(account, name, partition) != nil {
				continue
			}
			a := newAssociation(account, name, partition)
			a.Parent = e.db.AccountID(account)
			if r := e.apply(s, &user, nil, a); r != nil {
				return r
			}
			added = append(added, a)
		}
	}
	if len(added) == 0 {
		user = before
		if old == nil || user == *old {
			return nil
		}
	}
	e.db.putUser(&user)
	if old == nil || user != *old {
		e.did(name)
	}
	for _, a := range added {
		e.db.addAssociation(a)
		e.touched = append(e.touched, a.ID)
		e.did(a.line())
	}
	return nil
}

// userSettings are those of the person, all others are of the associations.
var userSettings = []string{"defaultaccount", "adminlevel", "admin", "comment"}

// modifyUsers changes users, and those of their associations that the conditions match.
func (e *edit) modifyUsers(s *selection) *Refusal {
	names := s.names
	for _, name := range names {
		if e.db.User(name) == nil {
			return e.db.noUser(name)
		}
	}
	for _, account := range s.accounts {
		if e.db.Account(account) == nil {
			return e.db.noAccount(account)
		}
	}
	if len(names) == 0 {
		names = e.db.userNames()
	}
	person := selection{verb: s.verb, entity: s.entity}
	rest := selection{verb: s.verb, entity: s.entity}
	for _, c := range s.set {
		if slices.Contains(userSettings, c.Name) {
			person.set = append(person.set, c)
		} else {
			rest.set = append(rest.set, c)
		}
	}
	for _, name := range names {
		matching := e.matching(s, name)
		if len(matching) == 0 && (len(s.accounts) > 0 || len(s.partitions) > 0 || len(rest.set) > 0) {
			continue
		}
		if len(person.set) > 0 {
			if r := e.modifyUser(&person, name); r != nil {
				return r
			}
		}
		for _, a := range matching {
			if len(rest.set) == 0 {
				break
			}
			changed := *a
			if r := e.apply(&rest, nil, nil, &changed); r != nil {
				return r
			}
			e.db.putAssociation(&changed)
			e.touched = append(e.touched, a.ID)
			e.did(a.line())
		}
	}
	return nil
}

func (e *edit) modifyUser(s *selection, name string) *Refusal {
	changed := *e.db.User(name)
	own := selection{verb: s.verb, entity: s.entity, set: slices.Clone(s.set)}
	if account, given := own.take("defaultaccount"); given {
		account = strings.ToLower(account)
		if e.db.Account(account) == nil {
			return e.db.noAccount(account)
		}
		if !slices.ContainsFunc(e.db.ofUser(name), func(a *Association) bool { return a.Account == account }) {
			return refuse("ESLURM_INVALID_ACCOUNT", "Invalid account or account/partition combination specified",
				"user %s is not in account %s, which then cannot be the default; first: gacctmgr add user %s account=%s", name, account, name, account)
		}
		changed.DefaultAccount = account
	}
	if r := e.apply(&own, &changed, nil, nil); r != nil {
		return r
	}
	e.db.putUser(&changed)
	e.did(name)
	return nil
}

// matching are a user's associations that the conditions name.
func (e *edit) matching(s *selection, name string) (list []*Association) {
	for _, a := range e.db.ofUser(name) {
		if (len(s.accounts) == 0 || slices.Contains(s.accounts, a.Account)) && (len(s.partitions) == 0 || slices.Contains(s.partitions, a.Partition)) {
			list = append(list, a)
		}
	}
	return list
}

// deleteUsers removes users, or with an account or partition named only those associations.
func (e *edit) deleteUsers(s *selection) *Refusal {
	names := s.names
	for _, name := range names {
		if e.db.User(name) == nil {
			return e.db.noUser(name)
		}
	}
	if len(names) == 0 {
		names = e.db.userNames()
	}
	parts := len(s.accounts) > 0 || len(s.partitions) > 0
	gone := newRemoval()
	for _, name := range names {
		matching := e.matching(s, name)
		if name == Root && (!parts || slices.ContainsFunc(matching, func(a *Association) bool { return a.Account == Root })) {
			return refuse("ESLURM_ACCESS_DENIED", "Access/permission denied", "user root cannot be deleted from account root")
		}
		for _, a := range matching {
			gone.add(a)
		}
	}
	if r := e.keepDefaults(gone); r != nil {
		return r
	}
	e.remove(gone)
	if parts {
		for _, a := range gone.list {
			e.did(a.line())
		}
		return nil
	}
	forgotten := make(map[string]bool, len(names))
	for _, name := range names {
		forgotten[name] = true
		e.did(name)
	}
	e.forget(forgotten)
	return nil
}

// forget takes users out, and out of all lists of coordinators.
func (e *edit) forget(names map[string]bool) {
	is := func(name string) bool { return names[name] }
	e.db.users = slices.DeleteFunc(e.db.users, func(u *User) bool { return is(u.Name) })
	for i, acct := range e.db.accounts {
		if slices.ContainsFunc(acct.Coordinators, is) {
			changed := *acct
			changed.Coordinators = slices.DeleteFunc(slices.Clone(acct.Coordinators), is)
			e.db.accounts[i] = &changed
		}
	}
}
