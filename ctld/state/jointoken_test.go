package state_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/state"
)

var secret = sha256.Sum256([]byte("secret"))

// token makes one for n1 to n3 that lives an hour.
func token(w *world, change ...func(*state.NewJoinToken)) *state.NewJoinToken {
	n := &state.NewJoinToken{ID: "t", Secret: secret[:], Role: state.TokenNode, Names: "n[1-3]", Expires: w.now + 3600_000, Caller: root}
	for _, f := range change {
		f(n)
	}
	return n
}

func (w *world) createToken(change ...func(*state.NewJoinToken)) (r *state.Refusal) {
	w.Helper()
	n := token(w, change...)
	w.do(func(t *state.Tx) { r = t.CreateJoinToken(n) })
	return r
}

func (w *world) useToken(id string, secret []byte, role, name string) (r *state.Refusal) {
	w.Helper()
	w.do(func(t *state.Tx) { r = t.UseJoinToken(id, secret, role, name) })
	return r
}

func accepted(t testing.TB, r *state.Refusal) {
	t.Helper()
	if r != nil {
		t.Fatalf("refused: %+v", r)
	}
}

func TestJoinTokenIsUsedOnceByEachName(t *testing.T) {
	w := newWorld(t)
	accepted(t, w.createToken())
	view := w.s.View()
	for _, name := range []string{"n2", "n1", "n3"} {
		accepted(t, w.useToken("t", secret[:], "node", name))
		wantRefusal(t, w.useToken("t", secret[:], "node", name), "ESLURM_JOIN_TOKEN_USED", name)
	}
	if k := w.s.View().JoinToken("t"); k.Uses != 3 || !slices.Equal(k.UsedBy, []string{"n2", "n1", "n3"}) {
		t.Errorf("%+v", k)
	}
	if k := view.JoinToken("t"); len(k.UsedBy) != 0 {
		t.Errorf("an older view has the later uses %v", k.UsedBy)
	}
	accepted(t, w.createToken(func(n *state.NewJoinToken) { n.ID, n.Uses = "two", 2 }))
	accepted(t, w.useToken("two", secret[:], "node", "n1"))
	accepted(t, w.useToken("two", secret[:], "node", "n2"))
	wantRefusal(t, w.useToken("two", secret[:], "node", "n3"), "ESLURM_JOIN_TOKEN_USED", "2 names")
}

func TestJoinTokenRefusals(t *testing.T) {
	w := newWorld(t)
	accepted(t, w.createToken())
	wrong := secret
	wrong[31]++
	unknown, mistyped := w.useToken("other", secret[:], "node", "n1"), w.useToken("t", wrong[:], "node", "n1")
	wantRefusal(t, unknown, "ESLURM_JOIN_TOKEN_INVALID", "id and secret")
	if *unknown != *mistyped {
		t.Errorf("whoever has no secret learns whether there is such a token: %+v, %+v", unknown, mistyped)
	}
	var zero [32]byte
	wantRefusal(t, w.useToken("other", zero[:], "node", "n1"), "ESLURM_JOIN_TOKEN_INVALID", "")
	wantRefusal(t, w.useToken("t", nil, "node", "n1"), "ESLURM_JOIN_TOKEN_INVALID", "")
	wantRefusal(t, w.useToken("t", secret[:31], "node", "n1"), "ESLURM_JOIN_TOKEN_INVALID", "")
	wantRefusal(t, w.useToken("t", secret[:], "login", "n1"), "ESLURM_JOIN_TOKEN_ROLE", `node, not "login"`)
	wantRefusal(t, w.useToken("t", secret[:], "node", "n4"), "ESLURM_JOIN_TOKEN_NAME", `n[1-3], not for "n4"`)
	wantRefusal(t, w.useToken("t", secret[:], "node", "n[1-2]"), "ESLURM_JOIN_TOKEN_NAME", "n[1-3]")
	wantRefusal(t, w.useToken("t", secret[:], "node", ""), "ESLURM_JOIN_TOKEN_NAME", "n[1-3]")
	var r *state.Refusal
	w.do(func(tx *state.Tx) { r = tx.RevokeJoinToken("t", alice) })
	wantRefusal(t, r, "ESLURM_ACCESS_DENIED", "administrators")
	w.do(func(tx *state.Tx) { r = tx.RevokeJoinToken("other", root) })
	wantRefusal(t, r, "ESLURM_JOIN_TOKEN_INVALID", `"other"`)
	for range 2 {
		w.do(func(tx *state.Tx) { r = tx.RevokeJoinToken("t", root) })
		accepted(t, r)
	}
	wantRefusal(t, w.useToken("t", secret[:], "node", "n1"), "ESLURM_JOIN_TOKEN_REVOKED", "revoked")

	accepted(t, w.createToken(func(n *state.NewJoinToken) { n.ID, n.Expires = "short", w.now+3000 }))
	w.now = w.s.View().JoinToken("short").Expires - 1001 // the next entry is a second later
	accepted(t, w.useToken("short", secret[:], "node", "n1"))
	w.now = w.s.View().JoinToken("short").Expires - 1000
	wantRefusal(t, w.useToken("short", secret[:], "node", "n2"), "ESLURM_JOIN_TOKEN_EXPIRED", "ended")
}

func TestJoinTokensThatCannotBeMade(t *testing.T) {
	w := newWorld(t)
	accepted(t, w.createToken(func(n *state.NewJoinToken) { n.ID = "t0" }))
	for name, c := range map[string]struct {
		change func(*state.NewJoinToken)
		code   string
		word   string
	}{
		"by a user":        {func(n *state.NewJoinToken) { n.Caller = alice }, "ESLURM_ACCESS_DENIED", "administrators"},
		"no id":            {func(n *state.NewJoinToken) { n.ID = "" }, "ESLURM_INVALID_JOIN_TOKEN", "id has 1 to 64"},
		"a long id":        {func(n *state.NewJoinToken) { n.ID = strings.Repeat("x", state.MaxTokenID+1) }, "ESLURM_INVALID_JOIN_TOKEN", "65"},
		"an id twice":      {func(n *state.NewJoinToken) { n.ID = "t0" }, "ESLURM_INVALID_JOIN_TOKEN", `"t0"`},
		"no secret":        {func(n *state.NewJoinToken) { n.Secret = nil }, "ESLURM_INVALID_JOIN_TOKEN", "32 bytes"},
		"another role":     {func(n *state.NewJoinToken) { n.Role = "ctld" }, "ESLURM_INVALID_JOIN_TOKEN", `"ctld"`},
		"no name":          {func(n *state.NewJoinToken) { n.Names = "" }, "ESLURM_INVALID_JOIN_TOKEN", "no name"},
		"bad names":        {func(n *state.NewJoinToken) { n.Names = "n[1-" }, "ESLURM_INVALID_JOIN_TOKEN", "n[1-"},
		"too many names":   {func(n *state.NewJoinToken) { n.Names = fmt.Sprintf("n[1-%d]", state.MaxTokenNames+1) }, "ESLURM_INVALID_JOIN_TOKEN", "4096"},
		"a long list":      {func(n *state.NewJoinToken) { n.Names = strings.Repeat("n,", state.MaxTokenText) }, "ESLURM_INVALID_JOIN_TOKEN", "65536"},
		"more uses":        {func(n *state.NewJoinToken) { n.Uses = 4 }, "ESLURM_INVALID_JOIN_TOKEN", "4 uses for 3 names"},
		"over before":      {func(n *state.NewJoinToken) { n.Expires = 5 }, "ESLURM_INVALID_JOIN_TOKEN", "seconds ago"},
		"too long a life":  {func(n *state.NewJoinToken) { n.Expires = w.now + state.MaxTokenLife + 1001 }, "ESLURM_INVALID_JOIN_TOKEN", "30 days"},
		"the longest of a": {func(n *state.NewJoinToken) { n.Expires = 1<<63 - 1 }, "ESLURM_INVALID_JOIN_TOKEN", "30 days"},
	} {
		t.Run(name, func(t *testing.T) { wantRefusal(t, w.createToken(c.change), c.code, c.word) })
	}
	accepted(t, w.createToken(func(n *state.NewJoinToken) { n.Names = fmt.Sprintf("n[1-%d]", state.MaxTokenNames) }))
	accepted(t, w.createToken(func(n *state.NewJoinToken) { n.ID, n.Expires = "long", w.now+state.MaxTokenLife+1000 }))
}

func TestJoinTokensAreBoundedAndForgotten(t *testing.T) {
	w := newWorld(t)
	begin := w.now
	w.do(func(tx *state.Tx) {
		for i := range state.MaxJoinTokens {
			accepted(t, tx.CreateJoinToken(token(w, func(n *state.NewJoinToken) { n.ID = fmt.Sprint(i) })))
		}
		wantRefusal(t, tx.CreateJoinToken(token(w)), "ESLURM_INVALID_JOIN_TOKEN", "MaxJoinTokens=1024")
	})
	purge := func() int {
		w.do(func(tx *state.Tx) { tx.Purge(0, 0, 0) })
		return len(slices.Collect(w.s.View().JoinTokens()))
	}
	over := w.s.View().JoinToken("0").Expires
	if w.now = over + state.TokenAge - 1001; purge() != state.MaxJoinTokens || w.s.View().StaleTokens(w.now) {
		t.Errorf("tokens were forgotten %d ms before their time", 1)
	}
	if !w.s.View().StaleTokens(over + state.TokenAge) {
		t.Error("nobody is told that a Purge would take tokens")
	}
	w.now = over + state.TokenAge - 1000
	if n := purge(); n != 0 {
		t.Errorf("%d tokens are kept", n)
	}
	if w.now < begin {
		t.Fatal("time")
	}
	// Without a Purge a new one takes the place of the stale ones.
	w.do(func(tx *state.Tx) {
		for i := range state.MaxJoinTokens {
			accepted(t, tx.CreateJoinToken(token(w, func(n *state.NewJoinToken) { n.ID = fmt.Sprint(i) })))
		}
	})
	w.now += 3600_000 + state.TokenAge
	accepted(t, w.createToken())
	if n := len(slices.Collect(w.s.View().JoinTokens())); n != 1 {
		t.Errorf("%d tokens", n)
	}
}

func TestControllers(t *testing.T) {
	w := newWorld(t)
	set := func(c state.Controller, remove bool) (r *state.Refusal) {
		w.do(func(tx *state.Tx) { r = tx.SetController(c, remove) })
		return r
	}
	at := func(i int) state.Controller {
		return state.Controller{Name: fmt.Sprintf("c%02d", i), Address: "10.0.0.1", Port: 6817, RaftPort: 6816}
	}
	for i := range state.MaxControllers {
		accepted(t, set(at(i), false))
	}
	before := w.s.View()
	wantRefusal(t, set(at(99), false), "ESLURM_INVALID_CONTROLLER", "MaxControllers=16")
	moved := at(3)
	moved.Address = "10.0.0.9"
	accepted(t, set(moved, false))
	accepted(t, set(at(0), true))
	accepted(t, set(at(0), true))
	accepted(t, set(at(99), false))
	var names []string
	for c := range w.s.View().Controllers() {
		names = append(names, c.Name)
	}
	if len(names) != state.MaxControllers || names[0] != "c01" || !slices.IsSorted(names) {
		t.Errorf("%v", names)
	}
	if n := len(slices.Collect(before.Controllers())); n != state.MaxControllers {
		t.Errorf("an older view changed: %d", n)
	}
	for c := range before.Controllers() {
		if c.Name == "c03" && c.Address != "10.0.0.1" {
			t.Errorf("an older view changed: %+v", c)
		}
	}
	wantRefusal(t, set(state.Controller{Address: "a"}, false), "ESLURM_INVALID_CONTROLLER", "name")
	wantRefusal(t, set(state.Controller{Name: strings.Repeat("c", 256), Address: "a"}, false), "ESLURM_INVALID_CONTROLLER", "256")
	wantRefusal(t, set(state.Controller{Name: "c"}, false), "ESLURM_INVALID_CONTROLLER", "address")
	wantRefusal(t, set(state.Controller{Name: "c", Address: "a", UserPort: 65536}, false), "ESLURM_INVALID_CONTROLLER", "65535")
}

func TestJobLeaseOfAPartition(t *testing.T) {
	w := newWorld(t)
	w.do(func(tx *state.Tx) { tx.RaiseFeature(state.FeatureMembers) })
	set := func(value string) (r *state.Refusal) {
		w.do(func(tx *state.Tx) { r = tx.UpdatePartition("p", map[string]string{"JobLease": value}, root) })
		return r
	}
	for value, want := range map[string]int64{"5": 5000, "0": -1, "": 0, "500ms": 500, "2m": 120_000, "1h": 3_600_000, "5s": 5000, "0s": -1} {
		accepted(t, set(value))
		if got := w.s.View().Partition("p").JobLease; got != want {
			t.Errorf("JobLease=%q gives %d ms, want %d", value, got, want)
		}
	}
	for _, value := range []string{"x", "-1", "5 s", "4294967296", "ms", "1.5", "+3"} {
		wantRefusal(t, set(value), "ESLURM_INVALID_VALUE", "JobLease="+value)
	}
	parts := partsOf("n1", "n2")
	parts[1].JobLease = 7000
	w.reload(state.Config{Cluster: "c", FirstJobID: 1}, nodesOf("n1", "n2"), parts)
	if p := w.s.View().Partition("q"); p.JobLease != 7000 {
		t.Errorf("%+v", p)
	}
}

// TestLeasesThatComeWithTheLevel: when the level rises the same file is proposed again, for what the
// state could not take before. What operators did to partitions since stays.
func TestLeasesThatComeWithTheLevel(t *testing.T) {
	w := newWorld(t)
	cfg := state.Config{Cluster: "c", FirstJobID: 1}
	parts := partsOf("n1", "n2")
	parts[0].JobLease = 7000
	w.reload(cfg, nodesOf("n1", "n2"), slices.Clone(parts))
	update := func(key, value string) {
		t.Helper()
		var r *state.Refusal
		w.do(func(tx *state.Tx) { r = tx.UpdatePartition("p", map[string]string{key: value}, root) })
		accepted(t, r)
	}
	update("State", "DOWN")
	w.do(func(tx *state.Tx) { tx.RaiseFeature(state.FeatureMembers) })
	w.reload(cfg, nodesOf("n1", "n2"), slices.Clone(parts))
	if p := w.s.View().Partition("p"); p.JobLease != 7000 || p.State != "DOWN" {
		t.Errorf("JobLease %d, State %s", p.JobLease, p.State)
	}
	update("JobLease", "0")
	w.reload(cfg, nodesOf("n1", "n2"), slices.Clone(parts))
	if p := w.s.View().Partition("p"); p.JobLease != -1 {
		t.Errorf("an update was lost although the file has not changed: JobLease %d", p.JobLease)
	}
	parts[0].JobLease = 9000
	w.reload(cfg, nodesOf("n1", "n2"), slices.Clone(parts))
	if p := w.s.View().Partition("p"); p.JobLease != 9000 || p.State != "DOWN" {
		t.Errorf("JobLease %d, State %s", p.JobLease, p.State)
	}
	parts[0].MaxNodes = 1
	w.reload(cfg, nodesOf("n1", "n2"), slices.Clone(parts))
	if p := w.s.View().Partition("p"); p.State != "UP" {
		t.Errorf("the file changed the partition and its updates stay: %+v", p)
	}
}
