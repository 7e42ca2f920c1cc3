package accounting

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Record is the flat form of anything in a DB: what log and snapshots hold. Fields are name, value, ... sorted by name.
type Record struct {
	Kind   string // account, user, association, qos; next: the ids that come next
	ID     uint32 // associations and QOS; else 0
	Fields []string
}

// fields puts a record's fields together; what is "" is left out.
type fields []string

func (f *fields) put(name, value string) {
	if value != "" {
		*f = append(*f, name, value)
	}
}

func (f *fields) number(name string, n, none int64) {
	if n != none {
		*f = append(*f, name, strconv.FormatInt(n, 10))
	}
}

func (f *fields) limits(l *Limits, on int) {
	for i := range limitFields {
		lf := &limitFields[i]
		switch {
		case lf.on&on == 0:
		case lf.kind == limitTRES:
			f.put(lf.name, exactTRES(*lf.tres(l)))
		default:
			f.number(lf.name, *lf.number(l), Unset)
		}
	}
}

// exactTRES writes a vector without units.
func exactTRES(t TRES) string {
	parts := make([]string, len(t))
	for i, a := range t {
		parts[i] = a.Name + "=" + strconv.FormatInt(a.N, 10)
	}
	return strings.Join(parts, ",")
}

// record sorts the fields by name.
func (f fields) record(kind string, id uint32) Record {
	type pair struct{ name, value string }
	pairs := make([]pair, 0, len(f)/2)
	for i := 0; i < len(f); i += 2 {
		pairs = append(pairs, pair{f[i], f[i+1]})
	}
	slices.SortFunc(pairs, func(a, b pair) int { return strings.Compare(a.name, b.name) })
	out := Record{Kind: kind, ID: id}
	for _, p := range pairs {
		out.Fields = append(out.Fields, p.name, p.value)
	}
	return out
}

// Records is the whole DB: QOS and associations by id, accounts and users by name, then the ids that come next.
func (d *DB) Records() []Record {
	out := make([]Record, 0, len(d.qos)+len(d.accounts)+len(d.users)+len(d.assocs)+1)
	for _, q := range d.qos {
		out = append(out, q.record())
	}
	for _, a := range d.accounts {
		var f fields
		f.put("Name", a.Name)
		f.put("Description", a.Description)
		f.put("Organization", a.Organization)
		f.put("Coordinators", strings.Join(a.Coordinators, ","))
		out = append(out, f.record("account", 0))
	}
	for _, u := range d.users {
		var f fields
		f.put("Name", u.Name)
		f.put("DefaultAccount", u.DefaultAccount)
		f.put("AdminLevel", u.Level)
		f.put("Comment", u.Comment)
		out = append(out, f.record("user", 0))
	}
	for _, a := range d.assocs {
		out = append(out, a.record())
	}
	var f fields
	f.number("Association", int64(d.nextID), 0)
	f.number("QOS", int64(d.nextQOS), 0)
	return append(out, f.record("next", 0))
}

func (q *QOS) record() Record {
	var f fields
	f.put("Name", q.Name)
	f.put("Description", q.Description)
	f.number("Priority", int64(q.Priority), 0)
	f.put("Preempt", strings.Join(q.Preempt, ","))
	f.put("PreemptMode", q.PreemptMode)
	f.number("PreemptExemptTime", q.PreemptExempt, Unset)
	f.number("GraceTime", q.Grace, 0)
	f.number("UsageFactor", q.UsageFactor, billingUnit)
	f.number("UsageThreshold", q.UsageThreshold, Unset)
	f.number("LimitFactor", q.LimitFactor, Unset)
	f.put("Flags", strings.Join(q.Flags, ","))
	f.limits(&q.Limits, onQOS)
	return f.record("qos", q.ID)
}

func (a *Association) record() Record {
	var f fields
	f.number("Parent", int64(a.Parent), 0)
	f.put("Account", a.Account)
	f.put("User", a.User)
	f.put("Partition", a.Partition)
	f.number("Shares", a.Shares, 1)
	f.number("Priority", int64(a.Priority), 0)
	f.put("DefaultQOS", a.DefaultQOS)
	if a.QOS != nil {
		f = append(f, "QOS", strings.Join(a.QOS, ","))
	}
	f.put("Comment", a.Comment)
	f.limits(&a.Limits, onAssociation)
	return f.record("association", a.ID)
}

// FromRecords builds the DB that Records has written. The error names the record that makes no sense.
func FromRecords(records []Record) (*DB, error) {
	d := &DB{}
	for i, r := range records {
		if len(r.Fields)%2 != 0 {
			return nil, fmt.Errorf("accounting record %d (%s %d): a field has no value", i, r.Kind, r.ID)
		}
		if err := d.read(r); err != nil {
			return nil, fmt.Errorf("accounting record %d (%s %d): %w", i, r.Kind, r.ID, err)
		}
	}
	return d, d.check()
}

func (d *DB) read(r Record) (err error) {
	switch r.Kind {
	case "account":
		a := &Account{}
		err = eachField(r, a.read)
		d.putAccount(a)
	case "user":
		u := &User{}
		err = eachField(r, u.read)
		d.putUser(u)
	case "qos":
		q := newQOS("")
		q.ID = r.ID
		err = eachField(r, q.read)
		d.putQOS(q)
	case "association":
		a := newAssociation("", "", "")
		a.ID = r.ID
		err = eachField(r, a.read)
		d.putAssociation(a)
	case "next":
		err = eachField(r, func(name, value string) error {
			if name == "QOS" {
				return readNumber(value, &d.nextQOS)
			}
			return readNumber(value, &d.nextID)
		})
	default:
		err = fmt.Errorf("unknown kind %q", r.Kind)
	}
	return err
}

func eachField(r Record, read func(name, value string) error) error {
	for i := 0; i < len(r.Fields); i += 2 {
		if err := read(r.Fields[i], r.Fields[i+1]); err != nil {
			return fmt.Errorf("%s=%s: %w", r.Fields[i], r.Fields[i+1], err)
		}
	}
	return nil
}

func readNumber[N int64 | uint32](s string, into *N) error {
	n, err := strconv.ParseInt(s, 10, 64)
	if *into = N(n); err == nil && int64(*into) != n {
		err = fmt.Errorf("out of range")
	}
	return err
}

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func (a *Account) read(name, value string) error {
	switch name {
	case "Name":
		a.Name = value
	case "Description":
		a.Description = value
	case "Organization":
		a.Organization = value
	case "Coordinators":
		a.Coordinators = splitList(value)
	default:
		return fmt.Errorf("unknown field")
	}
	return nil
}

func (u *User) read(name, value string) error {
	switch name {
	case "Name":
		u.Name = value
	case "DefaultAccount":
		u.DefaultAccount = value
	case "AdminLevel":
		u.Level = value
	case "Comment":
		u.Comment = value
	default:
		return fmt.Errorf("unknown field")
	}
	return nil
}

func (q *QOS) read(name, value string) error {
	switch name {
	case "Name":
		q.Name = value
	case "Description":
		q.Description = value
	case "Priority":
		return readNumber(value, &q.Priority)
	case "Preempt":
		q.Preempt = splitList(value)
	case "PreemptMode":
		q.PreemptMode = value
	case "PreemptExemptTime":
		return readNumber(value, &q.PreemptExempt)
	case "GraceTime":
		return readNumber(value, &q.Grace)
	case "UsageFactor":
		return readNumber(value, &q.UsageFactor)
	case "UsageThreshold":
		return readNumber(value, &q.UsageThreshold)
	case "LimitFactor":
		return readNumber(value, &q.LimitFactor)
	case "Flags":
		q.Flags = splitList(value)
	default:
		return readLimit(&q.Limits, onQOS, name, value)
	}
	return nil
}

func (a *Association) read(name, value string) error {
	switch name {
	case "Parent":
		return readNumber(value, &a.Parent)
	case "Account":
		a.Account = value
	case "User":
		a.User = value
	case "Partition":
		a.Partition = value
	case "Shares":
		return readNumber(value, &a.Shares)
	case "Priority":
		return readNumber(value, &a.Priority)
	case "DefaultQOS":
		a.DefaultQOS = value
	case "QOS":
		a.QOS = append([]string{}, splitList(value)...)
	case "Comment":
		a.Comment = value
	default:
		return readLimit(&a.Limits, onAssociation, name, value)
	}
	return nil
}

func readLimit(l *Limits, on int, name, value string) error {
	for i := range limitFields {
		lf := &limitFields[i]
		if lf.on&on == 0 || lf.name != name {
			continue
		}
		if lf.kind == limitTRES {
			t, err := ParseTRES(value)
			*lf.tres(l) = t
			return err
		}
		return readNumber(value, lf.number(l))
	}
	return fmt.Errorf("unknown field")
}

// check refuses a DB whose parts do not belong together.
func (d *DB) check() error {
	if d.nextID == 0 || d.nextQOS == 0 {
		return fmt.Errorf("accounting records without the ids that come next")
	}
	for _, q := range d.qos {
		if q.Name == "" || q.ID == 0 || q.ID >= d.nextQOS {
			return fmt.Errorf("accounting: QOS %q has id %d", q.Name, q.ID)
		}
	}
	if len(d.byKey) != len(d.assocs) {
		return fmt.Errorf("accounting: an association is there twice")
	}
	for _, a := range d.assocs {
		parent := d.Association(a.Parent)
		switch {
		case a.ID == 0 || a.ID >= d.nextID:
			return fmt.Errorf("accounting: association %d is over the next id %d", a.ID, d.nextID)
		case a.Account == Root && a.User == "":
			if a.Parent != 0 {
				return fmt.Errorf("accounting: root has a parent")
			}
		case parent == nil || parent.User != "" || a.User != "" && parent.Account != a.Account:
			return fmt.Errorf("accounting: association %d has parent %d, which is no account above it", a.ID, a.Parent)
		case d.Account(a.Account) == nil || a.User != "" && d.User(a.User) == nil:
			return fmt.Errorf("accounting: association %d is of account %q and user %q, which are not both there", a.ID, a.Account, a.User)
		}
		steps := 0
		for at := a; at != nil; at = d.Association(at.Parent) {
			if steps++; steps > len(d.assocs) {
				return fmt.Errorf("accounting: association %d is above itself", a.ID)
			}
		}
	}
	if d.AccountAssociation(Root) == nil {
		return fmt.Errorf("accounting records without root")
	}
	return nil
}
