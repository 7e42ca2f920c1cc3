package fsm_test

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// TestRandomCommands drives three machines with the same random entries: one that has the whole log,
// one that is now and then put in the place of itself by its own snapshot, and one that is so before
// each entry. They must stay equal, and every invariant must hold after every entry: that is what
// the hash of the state compares between replicas, of which one may have come by a snapshot.
func TestRandomCommands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machines{generator: generator{t: t, a: fsm.New(state.New()), now: 1_000_000, later: laterCommand, inConfig: laterConfig}, ids: map[uint32]bool{}}
		m.draw = func(label string, n int) int { return rapid.IntRange(0, n-1).Draw(t, label) }
		m.others = []*fsm.FSM{fsm.New(state.New()), fsm.New(state.New())}
		m.apply(config(), register("n1", "b0"), register("n2", "b0"))
		for range rapid.IntRange(1, 60).Draw(t, "entries") {
			m.pass()
			m.apply(m.commands()...)
		}
	})
}

type machines struct {
	generator
	others []*fsm.FSM
	index  uint64
	ids    map[uint32]bool // that were given
}

func (m *machines) apply(cmds ...*logpb.Command) {
	if m.index++; m.pick("cut", 10) == 0 {
		m.others[0] = m.restored(m.others[0])
	}
	m.others[1] = m.restored(m.others[1])
	data := entryOf(m.t, m.a.View().Feature(), m.now, cmds)
	results, err := m.a.ApplyEntry(m.index, data)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := m.a.Store().Check(); err != nil {
		m.t.Fatal(fmt.Sprintf("after %v:\n%v", cmds, err))
	}
	want := m.hash(m.a)
	for i, f := range m.others {
		other, err := f.ApplyEntry(m.index, data)
		if err != nil {
			m.t.Fatal(err)
		}
		if a, b := fmt.Sprint(describe(results)), fmt.Sprint(describe(other)); a != b {
			m.t.Fatal(fmt.Sprintf("machine %d has other results:\n%s\n%s\nof %v", i, a, b, cmds))
		}
		if m.hash(f) != want {
			m.t.Fatal(fmt.Sprintf("machine %d has another state after %v\n%s", i, cmds, firstDifference(m.a, f)))
		}
		if m.a.View().Capacity() != f.View().Capacity() {
			m.t.Fatal(fmt.Sprintf("machine %d counts capacity otherwise after %v", i, cmds))
		}
	}
	for _, r := range results {
		if r.JobID != 0 && !r.Duplicate {
			if m.ids[r.JobID] {
				m.t.Fatal(fmt.Sprintf("id %d was given twice", r.JobID))
			}
			m.ids[r.JobID] = true
		}
	}
}

func describe(list []fsm.Result) (out []string) {
	for _, r := range list {
		out = append(out, fmt.Sprint(r.JobID, r.Duplicate, r.Taken, r.Refused, r.Mark, r.Check))
		for _, j := range r.Jobs {
			out = append(out, fmt.Sprint(j.Job, j.Refused))
		}
	}
	return out
}

func (m *machines) hash(f *fsm.FSM) [32]byte {
	sum, err := fsm.Hash(f.View())
	if err != nil {
		m.t.Fatal(err)
	}
	return sum
}

// restored gives a machine that was made from the snapshot of f.
func (m *machines) restored(f *fsm.FSM) *fsm.FSM {
	var buf bytes.Buffer
	if err := f.Snapshot().Write(&buf); err != nil {
		m.t.Fatal(err)
	}
	again := fsm.New(state.New())
	if err := again.Restore(&buf); err != nil {
		m.t.Fatal(err)
	}
	if m.hash(f) != m.hash(again) {
		m.t.Fatal("a restored state differs\n" + firstDifference(f, again))
	}
	if a, b := everything(f), everything(again); a != b {
		m.t.Fatal("a restored state has another field than what it was made from\n" + firstLine(a, b))
	}
	return again
}

// everything shows all fields of all records, those that a snapshot may have left out too, and the
// indexes that readers see.
func everything(f *fsm.FSM) string {
	var b strings.Builder
	v := f.View()
	for j := range v.Jobs() {
		reason, detail := v.Reason(j)
		fmt.Fprintf(&b, "job %s %+v %v %v %s %s %d\n", fields(*j), *j.Spec, j.Promise, j.Name(), reason, detail, v.ExpectedStart(j))
	}
	for n := range v.Nodes() {
		fmt.Fprintf(&b, "node %s %v\n", fields(*n), v.ReservationFlags(n.Name, v.Time()))
	}
	for p := range v.Partitions() {
		fmt.Fprintf(&b, "partition %+v\n", *p)
	}
	for x := range v.Blobs() {
		fmt.Fprintf(&b, "blob %+v\n", x)
	}
	for k := range v.Keys() {
		fmt.Fprintf(&b, "key %+v\n", k)
	}
	for c := range v.Controllers() {
		fmt.Fprintf(&b, "controller %+v\n", c)
	}
	for k := range v.JoinTokens() {
		fmt.Fprintf(&b, "token %+v\n", *k)
	}
	fmt.Fprintf(&b, "%+v %+v\n", *v.Config(), v.Header())
	if v.Accounting() != nil {
		fmt.Fprintf(&b, "usage %d %v %v %v\n", v.UsageTime(), v.Licenses(), v.Timers(v.Time()), v.NextTimer())
		for u := range v.Usages() {
			use := v.Limits().Use(u.Of)
			fmt.Fprintf(&b, "usage %+v %+v %d nodes\n", u, fields(use), use.Nodes.Len())
		}
		for r := range v.ReservationRecords() {
			fmt.Fprintf(&b, "reservation %+v\n", r)
		}
	}
	return b.String()
}

// fields shows the fields of a record that readers see, without what is only pointed at.
func fields(record any) string {
	var b strings.Builder
	v := reflect.ValueOf(record)
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && f.Type.Kind() != reflect.Pointer {
			fmt.Fprintf(&b, "%s:%+v ", f.Name, v.Field(i))
		}
	}
	return b.String()
}

func firstLine(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return x[i] + "\n" + y[i]
		}
	}
	return "one has more"
}

// firstDifference shows the first record in which two snapshots differ.
func firstDifference(a, b *fsm.FSM) string {
	var x, y bytes.Buffer
	if err := a.Snapshot().Write(&x); err != nil {
		return err.Error()
	}
	if err := b.Snapshot().Write(&y); err != nil {
		return err.Error()
	}
	as, bs := records(x.Bytes()), records(y.Bytes())
	for i := range min(len(as), len(bs)) {
		if p, q := as[i].String(), bs[i].String(); p != q {
			return fmt.Sprintf("record %d:\n%s\n%s", i+1, p, q)
		}
	}
	return fmt.Sprintf("%d and %d records", len(as), len(bs))
}
