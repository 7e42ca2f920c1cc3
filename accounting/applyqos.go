package accounting

import (
	"slices"
	"strings"
)

func (e *edit) addQOS(s *selection) *Refusal {
	for _, name := range s.names {
		if !goodName(name) {
			return badValue("%q cannot be the name of a QOS: at most %d letters, digits and _ - . @ +", name, MaxName)
		}
		if e.db.QOS(name) != nil {
			continue
		}
		q := newQOS(name)
		q.Description = name
		e.db.addQOS(q)
		if r := e.setQOS(s, q); r != nil {
			return r
		}
		e.did(name)
	}
	return nil
}

// setQOS applies the settings to a QOS that is in the DB and belongs to this edit.
func (e *edit) setQOS(s *selection, q *QOS) *Refusal {
	for _, c := range s.set {
		if c.Name == rawUsage {
			if r := s.resets(c); r != nil {
				return r
			}
			e.out.ResetQOS = append(e.out.ResetQOS, q.ID)
			continue
		}
		known, r := e.db.setQOS(q, c)
		if r != nil {
			return r
		}
		if !known {
			return badValue("%q is nothing that %s qos could set%s", c.Name, s.verb, meant(c.Name, settingNames(onQOS)))
		}
	}
	if path := e.db.preemptsItself(q); path != nil {
		return refuse("ESLURM_QOS_PREEMPTION_LOOP", "QOS Preemption loop detected", "QOS %s would preempt itself: %s", q.Name, strings.Join(path, " preempts "))
	}
	return nil
}

func (e *edit) modifyQOS(s *selection) *Refusal {
	for _, name := range s.names {
		q := e.db.QOS(name)
		if q == nil {
			return e.db.noQOS(name)
		}
		changed := *q
		e.db.putQOS(&changed)
		if r := e.setQOS(s, &changed); r != nil {
			return r
		}
		e.did(name)
	}
	return nil
}

// preemptsItself is the way from q to itself along Preempt lists, nil when there is none.
func (d *DB) preemptsItself(q *QOS) []string {
	seen := map[uint32]bool{}
	var walk func(at *QOS, path []string) []string
	walk = func(at *QOS, path []string) []string {
		path = append(slices.Clone(path), at.Name)
		for _, name := range at.Preempt {
			next := d.QOS(name)
			switch {
			case next == nil:
			case next.ID == q.ID:
				return append(path, q.Name)
			case !seen[next.ID]:
				seen[next.ID] = true
				if found := walk(next, path); found != nil {
					return found
				}
			}
		}
		return nil
	}
	return walk(q, nil)
}

// deleteQOS removes QOS and takes them out of all lists and defaults.
func (e *edit) deleteQOS(s *selection) *Refusal {
	var gone []string
	for _, name := range s.names {
		q := e.db.QOS(name)
		if q == nil {
			return e.db.noQOS(name)
		}
		gone = append(gone, name)
		e.out.QOS = append(e.out.QOS, q.ID)
		e.db.qos = drop(e.db.qos, q, qosOrder)
		e.did(name)
	}
	is := func(name string) bool { return slices.Contains(gone, name) }
	for i, q := range e.db.qos {
		if slices.ContainsFunc(q.Preempt, is) {
			changed := *q
			changed.Preempt = slices.DeleteFunc(slices.Clone(q.Preempt), is)
			e.db.qos[i] = &changed
		}
	}
	for _, a := range slices.Clone(e.db.assocs) {
		if !is(a.DefaultQOS) && !slices.ContainsFunc(a.QOS, is) {
			continue
		}
		changed := *a
		if is(a.DefaultQOS) {
			changed.DefaultQOS = ""
		}
		if a.QOS != nil {
			changed.QOS = append([]string{}, slices.DeleteFunc(slices.Clone(a.QOS), is)...)
		}
		e.db.putAssociation(&changed)
	}
	return nil
}
