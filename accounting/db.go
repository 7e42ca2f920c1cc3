package accounting

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// Root is the account at the top of the tree, and its user.
const Root = "root"

// DB is all accounts, users, associations and QOS. It is immutable: Change gives a new one that shares what did not change.
type DB struct {
	accounts []*Account     // by name
	users    []*User        // by name
	qos      []*QOS         // by id
	assocs   []*Association // by id
	byKey    []*Association // by account, user, partition
	byParent []*Association // by parent, then as byKey
	byUser   []*Association // of users, by user, account, partition
	nextID   uint32         // of the next association
	nextQOS  uint32
}

// New is a DB with the root account (association 1), root in it (association 2), and QOS "normal" (id 1).
func New() *DB {
	d := &DB{nextID: 1, nextQOS: 1}
	d.putAccount(&Account{Name: Root, Description: "default root account", Organization: Root})
	d.putUser(&User{Name: Root, DefaultAccount: Root, Level: levelAdmin})
	q := newQOS("normal")
	q.Description = "Normal QOS default"
	d.addQOS(q)
	root := newAssociation(Root, "", "")
	root.QOS = []string{"normal"}
	d.addAssociation(root)
	user := newAssociation(Root, Root, "")
	user.Parent = root.ID
	d.addAssociation(user)
	return d
}

func newAssociation(account, user, partition string) *Association {
	return &Association{Account: account, User: user, Partition: partition, Shares: 1, Limits: NoLimits()}
}

func newQOS(name string) *QOS {
	return &QOS{Name: name, UsageFactor: billingUnit, UsageThreshold: Unset, LimitFactor: Unset, PreemptExempt: Unset, Limits: NoLimits()}
}

// clone is a DB that may be changed in place until it is given away.
func (d *DB) clone() *DB {
	return &DB{slices.Clone(d.accounts), slices.Clone(d.users), slices.Clone(d.qos), slices.Clone(d.assocs), slices.Clone(d.byKey),
		slices.Clone(d.byParent), slices.Clone(d.byUser), d.nextID, d.nextQOS}
}

// put replaces what is equal to x in order, or inserts it.
func put[T any](list []*T, x *T, order func(a, b *T) int) []*T {
	i, found := slices.BinarySearchFunc(list, x, order)
	if found {
		list[i] = x
		return list
	}
	return slices.Insert(list, i, x)
}

func drop[T any](list []*T, x *T, order func(a, b *T) int) []*T {
	if i, found := slices.BinarySearchFunc(list, x, order); found {
		return slices.Delete(list, i, i+1)
	}
	return list
}

func accountOrder(a, b *Account) int   { return strings.Compare(a.Name, b.Name) }
func userOrder(a, b *User) int         { return strings.Compare(a.Name, b.Name) }
func qosOrder(a, b *QOS) int           { return cmp.Compare(a.ID, b.ID) }
func assocOrder(a, b *Association) int { return cmp.Compare(a.ID, b.ID) }

func keyOrder(a, b *Association) int {
	return cmp.Or(strings.Compare(a.Account, b.Account), strings.Compare(a.User, b.User), strings.Compare(a.Partition, b.Partition))
}

func parentOrder(a, b *Association) int {
	return cmp.Or(cmp.Compare(a.Parent, b.Parent), keyOrder(a, b))
}

func personOrder(a, b *Association) int {
	return cmp.Or(strings.Compare(a.User, b.User), keyOrder(a, b))
}

func (d *DB) putAccount(a *Account) { d.accounts = put(d.accounts, a, accountOrder) }
func (d *DB) putUser(u *User)       { d.users = put(d.users, u, userOrder) }
func (d *DB) putQOS(q *QOS)         { d.qos = put(d.qos, q, qosOrder) }

func (d *DB) addQOS(q *QOS) {
	q.ID = d.nextQOS
	d.nextQOS++
	d.putQOS(q)
}

func (d *DB) addAssociation(a *Association) {
	a.ID = d.nextID
	d.nextID++
	d.putAssociation(a)
}

// putAssociation puts a in all orders, in place of the one with its id.
func (d *DB) putAssociation(a *Association) {
	if old := d.Association(a.ID); old != nil && (old.Parent != a.Parent || keyOrder(old, a) != 0) {
		d.dropAssociation(old)
	}
	d.assocs = put(d.assocs, a, assocOrder)
	d.byKey = put(d.byKey, a, keyOrder)
	d.byParent = put(d.byParent, a, parentOrder)
	if a.User != "" {
		d.byUser = put(d.byUser, a, personOrder)
	}
}

func (d *DB) dropAssociation(a *Association) {
	d.assocs = drop(d.assocs, a, assocOrder)
	d.byKey = drop(d.byKey, a, keyOrder)
	d.byParent = drop(d.byParent, a, parentOrder)
	if a.User != "" {
		d.byUser = drop(d.byUser, a, personOrder)
	}
}

// dropAssociations takes out those with the ids.
func (d *DB) dropAssociations(ids map[uint32]bool) {
	for _, list := range []*[]*Association{&d.assocs, &d.byKey, &d.byParent, &d.byUser} {
		*list = slices.DeleteFunc(*list, func(a *Association) bool { return ids[a.ID] })
	}
}

// Account by name, nil when there is none.
func (d *DB) Account(name string) *Account {
	i, found := slices.BinarySearchFunc(d.accounts, name, func(a *Account, n string) int { return strings.Compare(a.Name, n) })
	if !found {
		return nil
	}
	return d.accounts[i]
}

// User by name, nil when there is none.
func (d *DB) User(name string) *User {
	i, found := slices.BinarySearchFunc(d.users, name, func(a *User, n string) int { return strings.Compare(a.Name, n) })
	if !found {
		return nil
	}
	return d.users[i]
}

// QOS by name, nil when there is none.
func (d *DB) QOS(name string) *QOS {
	for _, q := range d.qos {
		if q.Name == name {
			return q
		}
	}
	return nil
}

// QOSByID is the QOS with that id, nil when there is none.
func (d *DB) QOSByID(id uint32) *QOS {
	i, found := slices.BinarySearchFunc(d.qos, id, func(q *QOS, id uint32) int { return cmp.Compare(q.ID, id) })
	if !found {
		return nil
	}
	return d.qos[i]
}

// AllQOS is every QOS, by id.
func (d *DB) AllQOS() iter.Seq[*QOS] { return slices.Values(d.qos) }

// Accounts is every account, by name; Users every user.
func (d *DB) Accounts() iter.Seq[*Account] { return slices.Values(d.accounts) }

// Users is every user, by name.
func (d *DB) Users() iter.Seq[*User] { return slices.Values(d.users) }

// Associations is every association, by id.
func (d *DB) Associations() iter.Seq[*Association] { return slices.Values(d.assocs) }

// Association is the one with that id, nil when there is none.
func (d *DB) Association(id uint32) *Association {
	i, found := slices.BinarySearchFunc(d.assocs, id, func(a *Association, id uint32) int { return cmp.Compare(a.ID, id) })
	if !found {
		return nil
	}
	return d.assocs[i]
}

// Find is a user's association with an account: that of the partition, else the one without a partition, else nil.
func (d *DB) Find(user, account, partition string) *Association {
	if user == "" {
		return nil
	}
	if partition != "" {
		if a := d.exact(account, user, partition); a != nil {
			return a
		}
	}
	return d.exact(account, user, "")
}

// AccountAssociation is the association of an account itself, nil when there is no such account.
func (d *DB) AccountAssociation(account string) *Association { return d.exact(account, "", "") }

func (d *DB) exact(account, user, partition string) *Association {
	i, found := slices.BinarySearchFunc(d.byKey, &Association{Account: account, User: user, Partition: partition}, keyOrder)
	if !found {
		return nil
	}
	return d.byKey[i]
}

// AccountID is the id of an account's association, 0 when there is no such account. It is an account's number in all tables.
func (d *DB) AccountID(name string) uint32 {
	if a := d.AccountAssociation(name); a != nil {
		return a.ID
	}
	return 0
}

// DefaultAccount is the account of a user's jobs that name none, "" for an unknown user.
func (d *DB) DefaultAccount(user string) string {
	if u := d.User(user); u != nil {
		return u.DefaultAccount
	}
	return ""
}

// children are the associations right below one, accounts and users together, by account, user and partition.
func (d *DB) children(id uint32) []*Association {
	first, _ := slices.BinarySearchFunc(d.byParent, id, func(a *Association, id uint32) int { return cmp.Compare(a.Parent, id) })
	last, _ := slices.BinarySearchFunc(d.byParent, id+1, func(a *Association, id uint32) int { return cmp.Compare(a.Parent, id) })
	return d.byParent[first:last]
}

// ofUser are a user's associations.
func (d *DB) ofUser(user string) []*Association {
	first, _ := slices.BinarySearchFunc(d.byUser, user, func(a *Association, u string) int { return strings.Compare(a.User, u) })
	last := first
	for last < len(d.byUser) && d.byUser[last].User == user {
		last++
	}
	return d.byUser[first:last]
}

// Chain is an association and all above it: the user's first, root last.
func (d *DB) Chain(a *Association) []*Association {
	var chain []*Association
	for ; a != nil; a = d.Association(a.Parent) {
		chain = append(chain, a)
	}
	return chain
}

// QOSOf are the names of the QOS that an association may use: its own list, or the nearest one above it.
func (d *DB) QOSOf(a *Association) []string {
	for ; a != nil; a = d.Association(a.Parent) {
		if a.QOS != nil {
			return a.QOS
		}
	}
	return nil
}

// DefaultQOSOf is the QOS of an association's jobs that name none: its own default or the nearest one above it, else
// "normal" where that is allowed, else the only one that is, else "".
func (d *DB) DefaultQOSOf(a *Association) string {
	for at := a; at != nil; at = d.Association(at.Parent) {
		if at.DefaultQOS != "" {
			return at.DefaultQOS
		}
	}
	allowed := d.QOSOf(a)
	switch {
	case slices.Contains(allowed, "normal"):
		return "normal"
	case len(allowed) == 1:
		return allowed[0]
	}
	return ""
}

// MayAdmin tells whether a user may change what is in an account: by level, or as coordinator of it or of one above.
func (d *DB) MayAdmin(user, account string) bool {
	u := d.User(user)
	if u == nil {
		return false
	}
	if u.Level == levelAdmin || u.Level == levelOperator {
		return true
	}
	for a := d.AccountAssociation(account); a != nil; a = d.Association(a.Parent) {
		if acct := d.Account(a.Account); acct != nil && slices.Contains(acct.Coordinators, user) {
			return true
		}
	}
	return false
}

// Levels of users, as Slurm writes them.
const (
	levelNone     = "None"
	levelOperator = "Operator"
	levelAdmin    = "Administrator"
)

// Counts is how many accounts, users, associations and QOS there are.
func (d *DB) Counts() (accounts, users, associations, qos int) {
	return len(d.accounts), len(d.users), len(d.assocs), len(d.qos)
}

// OfUser is every association of a user, by account and partition.
func (d *DB) OfUser(user string) iter.Seq[*Association] { return slices.Values(d.ofUser(user)) }
