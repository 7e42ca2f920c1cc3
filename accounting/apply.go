package accounting

import (
	"slices"
	"strings"
)

// MaxAssociations bounds the associations of a DB; MaxQOS its QOS.
const (
	MaxAssociations = 1 << 20
	MaxQOS          = 4096
)

// edit is one Change under way: db is a copy that it may change in place.
type edit struct {
	db      *DB
	out     Outcome
	touched []uint32 // associations whose default QOS must be looked at again
	done    map[string]bool
}

// did notes a line of the outcome, once.
func (e *edit) did(line string) {
	if !e.done[line] {
		e.out.Changed, e.done[line] = append(e.out.Changed, line), true
	}
}

// Change applies one gacctmgr command: a new DB, or a refusal with nothing changed. Names of what is added stand in Set
// (name=bob,amy or a word alone), those of what is modified or deleted in Where. Lines of Outcome name accounts, users and
// QOS as such, associations as "A = physics U = bob". What exists already is added silently: no line.
func (d *DB) Change(c Change) (*DB, Outcome, *Refusal) {
	entity, known := entities[strings.ToLower(c.Entity)]
	if !known {
		return d, Outcome{}, badValue("%q is none of account, user, qos, coordinator", c.Entity)
	}
	e := &edit{db: d.clone(), done: map[string]bool{}}
	var do func(*edit, *selection) *Refusal
	clauses := c.Where
	switch c.Verb {
	case "add":
		clauses = append(slices.Clone(c.Where), c.Set...)
		do = map[string]func(*edit, *selection) *Refusal{"account": (*edit).addAccounts, "user": (*edit).addUsers, "qos": (*edit).addQOS, "coordinator": (*edit).coordinators}[entity]
	case "modify":
		do = map[string]func(*edit, *selection) *Refusal{"account": (*edit).modifyAccounts, "user": (*edit).modifyUsers, "qos": (*edit).modifyQOS}[entity]
	case "delete":
		do = map[string]func(*edit, *selection) *Refusal{"account": (*edit).deleteAccounts, "user": (*edit).deleteUsers, "qos": (*edit).deleteQOS, "coordinator": (*edit).coordinators}[entity]
	}
	if do == nil {
		return d, Outcome{}, badValue("%s %s is not there: add, modify or delete an account, a user or a qos; add or delete a coordinator", c.Verb, entity)
	}
	s := &selection{verb: c.Verb, entity: entity}
	r := s.read(clauses)
	if r == nil && c.Verb == "modify" {
		s.set = append(s.set, c.Set...)
		r = s.settable()
	}
	if r == nil {
		r = do(e, s)
	}
	if r == nil {
		r = e.verify()
	}
	if r != nil {
		return d, Outcome{}, r
	}
	if len(e.out.Changed) == 0 {
		return d, e.out, nil
	}
	return e.db, e.out, nil
}

var entities = map[string]string{"account": "account", "accounts": "account", "acct": "account", "user": "user", "users": "user", "qos": "qos",
	"coordinator": "coordinator", "coordinators": "coordinator", "coord": "coordinator"}

// selection is what the clauses name, and what is to be set.
type selection struct {
	verb, entity string
	names        []string // of the entity itself
	accounts     []string // of users and coordinators: in which accounts
	partitions   []string
	set          []Clause
	given        bool // some condition was given
}

// read sorts the clauses. Of add, what is no name is a setting; else it is an error.
func (s *selection) read(clauses []Clause) *Refusal {
	for _, c := range clauses {
		name, value := strings.ToLower(c.Name), c.Value
		if c.Op == "" && value == "" {
			name, value = "name", c.Name // a word alone
		}
		if c.Op == "+=" || c.Op == "-=" {
			if s.verb != "add" {
				return badValue("condition %s%s%s: conditions take =", c.Name, c.Op, c.Value)
			}
		}
		words := split(value)
		switch {
		case name == "name" || name == "names" || name == s.entity || name == s.entity+"s":
			s.names = append(s.names, words...)
		case name == "user" && s.entity == "coordinator":
			s.names = append(s.names, words...)
		case (name == "account" || name == "accounts" || name == "acct") && (s.entity == "user" || s.entity == "coordinator"):
			s.accounts = append(s.accounts, words...)
		case (name == "partition" || name == "partitions") && s.entity == "user":
			s.partitions = append(s.partitions, words...)
		case name == "cluster" || name == "clusters":
			continue // there is one
		case s.verb == "add" && s.entity != "coordinator":
			s.set = append(s.set, Clause{name, c.Op, value})
			continue
		default:
			return badValue("%q is no condition for %s %s", c.Name, s.verb, s.entity)
		}
		s.given = true
	}
	if s.entity != "user" {
		lower(s.names)
	}
	lower(s.accounts)
	return s.complete()
}

// lower: names of accounts and QOS have no upper case, as in Slurm.
func lower(names []string) {
	for i := range names {
		names[i] = strings.ToLower(names[i])
	}
}

// complete refuses a command that names nothing.
func (s *selection) complete() *Refusal {
	switch {
	case s.entity == "coordinator" && (len(s.accounts) == 0 || len(s.names) == 0):
		return badValue("%s coordinator needs names and accounts: account=physics name=bob", s.verb)
	case s.verb == "add" && len(s.names) == 0:
		return badValue("add %s needs a name", s.entity)
	case s.verb != "add" && !s.given:
		return badValue("%s %s needs a condition: where name=...", s.verb, s.entity)
	case s.verb == "delete" && s.entity != "user" && len(s.names) == 0:
		return badValue("delete %s needs a name", s.entity)
	}
	return nil
}

// settable refuses a modify without settings, and one without operators.
func (s *selection) settable() *Refusal {
	if len(s.set) == 0 {
		return badValue("modify %s needs something to set: set fairshare=10", s.entity)
	}
	for i, c := range s.set {
		if c.Op != "=" && c.Op != "+=" && c.Op != "-=" {
			return badValue("%q has no value: NAME=VALUE", c.Name)
		}
		s.set[i].Name = strings.ToLower(c.Name)
	}
	return nil
}

// verify refuses what would leave an association with a default QOS that it may not use, and too many of anything.
func (e *edit) verify() *Refusal {
	if len(e.db.assocs) > MaxAssociations || len(e.db.qos) > MaxQOS {
		return badValue("more than %d associations or %d QOS", MaxAssociations, MaxQOS)
	}
	for _, id := range e.touched {
		if a := e.db.Association(id); a != nil {
			if r := e.verifyBelow(a); r != nil {
				return r
			}
		}
	}
	return nil
}

func (e *edit) verifyBelow(a *Association) *Refusal {
	if q := e.db.DefaultQOSOf(a); q != "" && !slices.Contains(e.db.QOSOf(a), q) {
		return refuse("ESLURM_INVALID_QOS", "Invalid qos specification", "the default QOS %s of association %s would not be among its QOS (%s)", q, a.line(), strings.Join(e.db.QOSOf(a), ","))
	}
	for _, c := range e.db.children(a.ID) {
		if r := e.verifyBelow(c); r != nil {
			return r
		}
	}
	return nil
}

// line is how an association is named in outcomes.
func (a *Association) line() string {
	line := "A = " + a.Account
	if a.User != "" {
		line += " U = " + a.User
	}
	if a.Partition != "" {
		line += " P = " + a.Partition
	}
	return line
}

// take finds the last setting of a name and takes all of that name out of the list.
func (s *selection) take(names ...string) (value string, given bool) {
	s.set = slices.DeleteFunc(s.set, func(c Clause) bool {
		if !slices.Contains(names, c.Name) {
			return false
		}
		value, given = c.Value, true
		return true
	})
	return value, given
}
