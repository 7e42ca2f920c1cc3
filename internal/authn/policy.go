package authn

import (
	"slices"
	"strconv"
	"strings"
)

// Policy is what the configuration says about people. It is immutable.
type Policy struct {
	Operators   []string // user names or uids
	Admins      []string
	PrivateData []string // jobs, nodes, partitions, usage, users, ... any case
	LoginNodes  []string // certificate names of the hosts that may vouch for users
	// Wallets says for which user a wallet stands: address as ParseWallets gives it -> user name.
	Wallets map[string]string
}

// Role is what a person is. Root is an admin whatever the lists say.
func (p *Policy) Role(uid uint32, user string) Role {
	switch {
	case uid == 0:
		return RoleAdmin
	case p == nil:
		return RoleUser
	case lists(p.Admins, uid, user):
		return RoleAdmin
	case lists(p.Operators, uid, user):
		return RoleOperator
	}
	return RoleUser
}

// MayVouch tells whether a login host may vouch for users.
func (p *Policy) MayVouch(host string) bool {
	return p != nil && host != "" && slices.Contains(p.LoginNodes, host)
}

// Private tells whether data of that kind is hidden from those who do not own it.
func (p *Policy) Private(kind string) bool {
	if p == nil {
		return false
	}
	return slices.ContainsFunc(p.PrivateData, func(s string) bool {
		return strings.EqualFold(s, kind) || strings.EqualFold(s, "all")
	})
}

// MaySeeJob tells whether a job of owner is visible at all to c.
func (p *Policy) MaySeeJob(c Caller, owner uint32) bool {
	return !p.Private("jobs") || c.MayChange(owner)
}

// IsOperator tells whether c may act on what is not its own.
func (c Caller) IsOperator() bool { return c.Role == RoleOperator || c.Role == RoleAdmin }

// IsPerson tells whether c is a person and not a daemon.
func (c Caller) IsPerson() bool { return c.Role == RoleUser || c.IsOperator() }

// MayChange tells whether c may signal, steer and change what belongs to owner, and read its
// script, environment and output.
func (c Caller) MayChange(owner uint32) bool {
	return c.IsOperator() || c.Role == RoleUser && c.UID == owner
}

func lists(names []string, uid uint32, user string) bool {
	number := strconv.FormatUint(uint64(uid), 10)
	return slices.ContainsFunc(names, func(n string) bool {
		return n != "" && (n == user || n == number)
	})
}
