package state

import (
	"cmp"
	"crypto/subtle"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// Limits of join tokens.
const (
	// MaxJoinTokens bounds the tokens that are remembered, MaxTokenNames the names that one is for.
	MaxJoinTokens = 1024
	MaxTokenNames = 4096
	// MaxTokenText bounds the folded list of those names in bytes, MaxTokenID an id.
	MaxTokenText = 64 << 10
	MaxTokenID   = 64
	// MaxTokenLife is how long a token is good for at most, TokenAge how long it is remembered after
	// that, in ms.
	MaxTokenLife int64 = 30 * 24 * 3600 * 1000
	TokenAge     int64 = 24 * 3600 * 1000

	maxHostName = hostlist.MaxName
)

// Roles that a join token is for.
const (
	TokenNode  = "node"
	TokenLogin = "login"
)

// JoinToken lets daemons without a certificate get one, each name once. A stored one never changes.
type JoinToken struct {
	ID      string
	Secret  [32]byte // SHA-256 of the secret half
	Role    string   // node or login
	Names   string   // hostlist of the names that it is for
	Expires int64    // Unix ms
	Created int64
	Uses    uint32   // how many names may use it
	UsedBy  []string // in the order of use
	Revoked bool
	UID     uint32 // who made it
	User    string
}

// JoinToken gives one token; nil when unknown.
func (t *tables) JoinToken(id string) *JoinToken { return t.tokens[id] }

// JoinTokens walks the tokens that have not been forgotten, oldest first.
func (t *tables) JoinTokens() iter.Seq[*JoinToken] {
	return func(yield func(*JoinToken) bool) {
		list := slices.SortedFunc(maps.Values(t.tokens), func(a, b *JoinToken) int {
			return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.ID, b.ID))
		})
		for _, k := range list {
			if !yield(k) {
				return
			}
		}
	}
}

// StaleTokens tells whether there are tokens whose time is over for so long at time now (Unix ms)
// that a Purge takes them.
func (t *tables) StaleTokens(now int64) bool {
	for _, k := range t.tokens {
		if k.stale(now) {
			return true
		}
	}
	return false
}

func (k *JoinToken) stale(now int64) bool { return now-k.Expires >= TokenAge }

// NewJoinToken is what makes a join token. Uses 0 means as many as it has names.
type NewJoinToken struct {
	ID      string
	Secret  []byte // SHA-256 of the secret half
	Role    string
	Names   string
	Expires int64
	Uses    uint32
	Caller  Caller
}

// CreateJoinToken makes a token.
func (t *Tx) CreateJoinToken(n *NewJoinToken) *Refusal {
	if !n.Caller.Operator {
		return denied("making join tokens is for administrators")
	}
	k := &JoinToken{ID: n.ID, Role: n.Role, Names: n.Names, Expires: n.Expires, Created: t.now, Uses: n.Uses, UID: n.Caller.UID, User: n.Caller.User}
	if len(n.Secret) != len(k.Secret) {
		return badToken("the hash of a secret has %d bytes, this one %d", len(k.Secret), len(n.Secret))
	}
	copy(k.Secret[:], n.Secret)
	names, r := k.check()
	if r != nil {
		return r
	}
	if k.Uses == 0 {
		k.Uses = uint32(len(names))
	}
	t.dropTokens()
	switch {
	case t.tokens[k.ID] != nil:
		return badToken("there is a join token %q already", k.ID)
	case k.Expires <= t.now:
		return badToken("it would end %d seconds ago", (t.now-k.Expires)/1000)
	case k.Expires-t.now > MaxTokenLife:
		return badToken("the longest life is %d days, this one would live %d seconds", MaxTokenLife/TokenAge, (k.Expires-t.now)/1000)
	case len(t.tokens) >= MaxJoinTokens:
		return badToken("the limit is MaxJoinTokens=%d; they are forgotten a day after they end", MaxJoinTokens)
	}
	t.setToken(k)
	return nil
}

// check finds what a token may not be, whatever the time, and gives the names that it is for.
func (k *JoinToken) check() (names []string, r *Refusal) {
	switch {
	case k.ID == "" || len(k.ID) > MaxTokenID:
		return nil, badToken("an id has 1 to %d bytes, this one %d", MaxTokenID, len(k.ID))
	case k.Role != TokenNode && k.Role != TokenLogin:
		return nil, badToken("the role is %q, not node or login", cut(k.Role))
	case len(k.Names) > MaxTokenText:
		return nil, badToken("the list of names has %d bytes, the limit is %d", len(k.Names), MaxTokenText)
	case len(k.User) > maxHostName:
		return nil, badToken("a user's name of %d bytes", len(k.User))
	}
	names, err := hostlist.ExpandMax(k.Names, MaxTokenNames)
	if err != nil {
		return nil, badToken("the names: %v", err)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case len(names) == 0:
		return nil, badToken("it is for no name")
	case k.Uses > uint32(len(names)):
		return nil, badToken("%d uses for %d names: each name may use it once", k.Uses, len(names))
	}
	return names, nil
}

// UseJoinToken takes one use of a token: by each name once. What it says before the secret is seen
// to be right tells nothing about the token.
func (t *Tx) UseJoinToken(id string, secret []byte, role, name string) *Refusal {
	k := t.tokens[id]
	var want [32]byte
	if k != nil {
		want = k.Secret
	}
	if same := subtle.ConstantTimeCompare(want[:], secret) == 1; k == nil || !same {
		return refuseToken("ESLURM_JOIN_TOKEN_INVALID", "no token has this id and secret; it may be mistyped, or forgotten because it ended more than a day ago")
	}
	switch {
	case k.Revoked:
		return refuseToken("ESLURM_JOIN_TOKEN_REVOKED", "it was revoked")
	case k.Expires <= t.now:
		return refuseToken("ESLURM_JOIN_TOKEN_EXPIRED", "its time ended %d seconds ago", (t.now-k.Expires)/1000)
	case k.Role != role:
		return refuseToken("ESLURM_JOIN_TOKEN_ROLE", "it is for the role %s, not %q", k.Role, cut(role))
	case !k.covers(name):
		return refuseToken("ESLURM_JOIN_TOKEN_NAME", "it is for %s, not for %q", cut(k.Names), cut(name))
	case slices.Contains(k.UsedBy, name):
		return refuseToken("ESLURM_JOIN_TOKEN_USED", "%s has used it already, and each name may once; make another", name)
	case len(k.UsedBy) >= int(k.Uses):
		return refuseToken("ESLURM_JOIN_TOKEN_USED", "it was good for %d names, and so many have used it", k.Uses)
	}
	n := *k
	n.UsedBy = append(slices.Clip(slices.Clone(k.UsedBy)), name)
	t.setToken(&n)
	return nil
}

func (k *JoinToken) covers(name string) bool {
	names, err := hostlist.ExpandMax(k.Names, MaxTokenNames)
	return err == nil && slices.Contains(names, name)
}

// RevokeJoinToken ends a token before its time. Once more changes nothing.
func (t *Tx) RevokeJoinToken(id string, c Caller) *Refusal {
	if !c.Operator {
		return denied("revoking join tokens is for administrators")
	}
	k := t.tokens[id]
	switch {
	case k == nil:
		return refuseToken("ESLURM_JOIN_TOKEN_INVALID", "there is no join token %q", cut(id))
	case k.Revoked:
		return nil
	}
	n := *k
	n.Revoked = true
	t.setToken(&n)
	return nil
}

// whole finds what a stored token cannot be.
func (k *JoinToken) whole() error {
	names, r := k.check()
	switch {
	case r != nil:
		return errors.New(r.Why)
	case k.Uses == 0 || len(k.UsedBy) > int(k.Uses):
		return fmt.Errorf("%d of %d uses are taken", len(k.UsedBy), k.Uses)
	case k.Expires <= k.Created || k.Expires-k.Created > MaxTokenLife:
		return fmt.Errorf("it lives from %d to %d", k.Created, k.Expires)
	}
	used := slices.Sorted(slices.Values(k.UsedBy))
	for i, name := range used {
		if _, ok := slices.BinarySearch(names, name); !ok || i > 0 && used[i-1] == name {
			return fmt.Errorf("%q has used it, which is not one of its names or did so twice", name)
		}
	}
	return nil
}

// setToken stores a token. The table is replaced: views have the one before.
func (t *Tx) setToken(k *JoinToken) {
	next := maps.Clone(t.tokens)
	if next == nil {
		next = map[string]*JoinToken{}
	}
	next[k.ID] = k
	t.tokens = next
}

// dropTokens forgets the tokens whose time is over for TokenAge.
func (t *Tx) dropTokens() {
	if !t.StaleTokens(t.now) {
		return
	}
	next := maps.Clone(t.tokens)
	maps.DeleteFunc(next, func(_ string, k *JoinToken) bool { return k.stale(t.now) })
	t.tokens = next
}

func badToken(why string, args ...any) *Refusal {
	return refuse("ESLURM_INVALID_JOIN_TOKEN", "Invalid join token", fmt.Sprintf(why, args...))
}

func refuseToken(code, why string, args ...any) *Refusal {
	return refuse(code, "Join token refused", fmt.Sprintf(why, args...))
}
