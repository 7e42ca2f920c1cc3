package accounting

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

type row = map[string]string

// Rows lists things of one kind: account, user, association, qos, coordinator or tres. Fields go by Slurm's names in lower
// case (maxtresperjob, defaultqos, ...); what is not set is absent. depth is that of an association in the tree, else 0.
// Conditions take = and lists; of them all must hold. Associations come in the order of the tree: an account, its users, then the
// accounts below it.
func (d *DB) Rows(entity string, where []Clause) (rows []map[string]string, depth []int, r *Refusal) {
	var all []row
	switch strings.ToLower(entity) {
	case "account", "accounts", "acct":
		all = d.accountRows()
	case "user", "users":
		all = d.userRows()
	case "qos":
		for _, q := range d.qos {
			all = append(all, q.row())
		}
	case "coordinator", "coordinators", "coord":
		for _, a := range d.accounts {
			for _, c := range a.Coordinators {
				all = append(all, row{"user": c, "account": a.Name})
			}
		}
	case "tres":
		all = d.tresRows()
	case "association", "associations", "assoc":
		all, depth = d.associationRows()
	default:
		return nil, nil, badValue("%q is none of account, user, association, qos, coordinator, tres", entity)
	}
	if depth == nil {
		depth = make([]int, len(all))
	}
	return filter(entity, all, depth, where)
}

// rowNames are other names of conditions.
var rowNames = map[string]string{"accounts": "account", "acct": "account", "users": "user", "partitions": "partition", "parent": "parentname",
	"desc": "description", "descr": "description", "org": "organization", "admin": "adminlevel", "defaultacct": "defaultaccount", "assoc": "id", "qoslevel": "qos"}

// filter keeps what all conditions match.
func filter(entity string, all []row, depth []int, where []Clause) (rows []row, depths []int, r *Refusal) {
	own := "name"
	if entity = strings.TrimSuffix(strings.ToLower(entity), "s"); entity == "account" || entity == "user" {
		own = entity
	}
	matches := make([]bool, len(all))
	for i := range matches {
		matches[i] = true
	}
	for _, c := range where {
		name, value := strings.ToLower(c.Name), c.Value
		if c.Op == "" && value == "" {
			name, value = own, c.Name
		}
		if other, found := rowNames[name]; found {
			name = other
		}
		switch name {
		case "name", "names":
			name = own
		case "cluster", "clusters":
			continue
		}
		if c.Op == "+=" || c.Op == "-=" {
			return nil, nil, badValue("condition %s%s%s: conditions take =", c.Name, c.Op, c.Value)
		}
		if !slices.ContainsFunc(conditions, func(k string) bool { return k == name }) {
			return nil, nil, badValue("%q is no condition for a list; use one of %s", c.Name, strings.Join(conditions, ", "))
		}
		words := split(value)
		for i := range all {
			matches[i] = matches[i] && overlap(words, all[i][name])
		}
	}
	for i := range all {
		if matches[i] {
			rows, depths = append(rows, all[i]), append(depths, depth[i])
		}
	}
	return rows, depths, nil
}

var conditions = []string{"account", "user", "partition", "qos", "defaultqos", "defaultaccount", "adminlevel", "parentname", "name", "id", "description", "organization", "type", "preempt", "flags"}

// overlap tells whether one of words stands in a list.
func overlap(words []string, list string) bool {
	for _, have := range strings.Split(list, ",") {
		for _, w := range words {
			if strings.EqualFold(w, have) {
				return true
			}
		}
	}
	return false
}

func show(r row, name, value string) {
	if value != "" {
		r[name] = value
	}
}

func (d *DB) accountRows() []row {
	var rows []row
	for _, a := range d.accounts {
		r := row{"account": a.Name, "description": a.Description, "organization": a.Organization}
		show(r, "coordinators", strings.Join(a.Coordinators, ","))
		rows = append(rows, r)
	}
	return rows
}

func (d *DB) userRows() []row {
	var rows []row
	coordinates := map[string][]string{}
	for _, a := range d.accounts {
		for _, c := range a.Coordinators {
			coordinates[c] = append(coordinates[c], a.Name)
		}
	}
	for _, u := range d.users {
		r := row{"user": u.Name, "adminlevel": u.Level}
		show(r, "defaultaccount", u.DefaultAccount)
		show(r, "comment", u.Comment)
		show(r, "coordinators", strings.Join(coordinates[u.Name], ",")) // accounts that the user coordinates
		rows = append(rows, r)
	}
	return rows
}

func limitRows(r row, l *Limits, on int) {
	for i := range limitFields {
		f := &limitFields[i]
		switch {
		case f.on&on == 0:
		case f.kind == limitTRES:
			show(r, f.key, f.tres(l).String())
		case *f.number(l) == Unset:
		case f.kind == limitMinutes:
			r[f.key] = job.FormatDuration(*f.number(l))
		default:
			r[f.key] = strconv.FormatInt(*f.number(l), 10)
		}
	}
}

func (q *QOS) row() row {
	r := row{"name": q.Name, "id": strconv.Itoa(int(q.ID)), "priority": strconv.Itoa(int(q.Priority)), "description": q.Description,
		"gracetime": job.FormatDuration(q.Grace), "usagefactor": FormatFixed(q.UsageFactor), "preemptmode": "cluster"}
	show(r, "preempt", strings.Join(q.Preempt, ","))
	if q.PreemptMode != "" {
		r["preemptmode"] = strings.ToLower(q.PreemptMode)
	}
	if q.PreemptExempt != Unset {
		r["preemptexempttime"] = job.FormatDuration(q.PreemptExempt)
	}
	show(r, "limitfactor", FormatFixed(q.LimitFactor))
	show(r, "flags", strings.Join(q.Flags, ","))
	limitRows(r, &q.Limits, onQOS)
	return r
}

// associationRows walks the tree.
func (d *DB) associationRows() (rows []row, depth []int) {
	var walk func(a *Association, level int)
	walk = func(a *Association, level int) {
		rows, depth = append(rows, d.associationRow(a)), append(depth, level)
		for _, users := range []bool{true, false} {
			for _, c := range d.children(a.ID) {
				if (c.User != "") == users {
					walk(c, level+1)
				}
			}
		}
	}
	if root := d.AccountAssociation(Root); root != nil {
		walk(root, 0)
	}
	return rows, depth
}

func (d *DB) associationRow(a *Association) row {
	r := row{"id": strconv.Itoa(int(a.ID)), "account": a.Account, "fairshare": strconv.FormatInt(a.Shares, 10)}
	if a.Shares == ParentShare {
		r["fairshare"] = "parent"
	}
	show(r, "user", a.User)
	show(r, "partition", a.Partition)
	if p := d.Association(a.Parent); p != nil && a.User == "" {
		r["parentname"] = p.Account
	}
	if a.Priority > 0 {
		r["priority"] = strconv.Itoa(int(a.Priority))
	}
	show(r, "defaultqos", a.DefaultQOS)
	show(r, "qos", strings.Join(d.QOSOf(a), ","))
	show(r, "comment", a.Comment)
	limitRows(r, &a.Limits, onAssociation)
	return r
}

// tresRows are the resources with a fixed number and those that limits name.
func (d *DB) tresRows() []row {
	var rows []row
	for i, name := range []string{"cpu", "mem", "energy", "node", "billing"} {
		rows = append(rows, row{"type": name, "id": strconv.Itoa(i + 1)})
	}
	var names []string
	collect := func(l *Limits, on int) {
		for i := range limitFields {
			if f := &limitFields[i]; f.on&on != 0 && f.kind == limitTRES {
				for _, a := range *f.tres(l) {
					if strings.Contains(a.Name, "/") {
						names = append(names, a.Name)
					}
				}
			}
		}
	}
	for _, q := range d.qos {
		collect(&q.Limits, onQOS)
	}
	for _, a := range d.assocs {
		collect(&a.Limits, onAssociation)
	}
	slices.Sort(names)
	for i, name := range slices.Compact(names) {
		family, rest, _ := strings.Cut(name, "/")
		rows = append(rows, row{"type": family, "name": rest, "id": strconv.Itoa(1001 + i)})
	}
	return rows
}
