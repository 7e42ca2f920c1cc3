package launch_test

import (
	"reflect"
	"testing"

	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

func fullPlan() *launch.Plan {
	return &launch.Plan{Key: launch.Key{Job: 1, Run: 2, Step: 1<<32 - 5}, Node: "n", UID: 3, GID: 4, Groups: []uint32{5, 1 << 31}, Umask: 0o77,
		Script: "/s", Args: []string{"", "a b"}, Env: [][]byte{[]byte("A=\xff"), {}}, WorkDir: "/w", StdIn: "i", StdOut: "o", StdErr: "e",
		Append: true, Spooled: true, TimeLimit: -1, KillWait: 1 << 40, Lease: 7, Renewed: 1 << 41, WarnSignal: 10, WarnBefore: 8, WarnBatch: true, Rootless: true,
		StepUID: 9, StepGID: 11, AgentGID: 12, StepDir: "/d", AgentSocket: "/a", LaunchSocket: "/l",
		Group: &cgroup.Group{Driver: "v1", Unified: "/u", Legacy: []string{"/x", "/y"}, Freezer: "/f", Memory: "/m"}}
}

// TestPlanComesOverWhole fills every field, so that one that Code forgets is found.
func TestPlanComesOverWhole(t *testing.T) {
	want := fullPlan()
	for v, i := reflect.ValueOf(*want), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not filled by this test", v.Type().Field(i).Name)
		}
	}
	c := new(launch.Coder)
	want.Code(c, false)
	got, in := new(launch.Plan), launch.Reading(c.Bytes())
	if got.Code(in, false); in.Err() != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v %v\nwant %+v", got, in.Err(), want)
	}
	for n := range c.Bytes() {
		in := launch.Reading(c.Bytes()[:n])
		if new(launch.Plan).Code(in, false); in.Err() == nil {
			t.Fatalf("the first %d bytes are a plan", n)
		}
	}
	in = launch.Reading(append(c.Bytes(), 0))
	if got.Code(in, false); in.Err() == nil {
		t.Error("a byte more is read as a plan")
	}
}

func FuzzPlan(f *testing.F) {
	c := new(launch.Coder)
	fullPlan().Code(c, false)
	f.Add(c.Bytes())
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		p, in := new(launch.Plan), launch.Reading(data)
		if p.Code(in, false); in.Err() != nil {
			return
		}
		out := new(launch.Coder)
		p.Code(out, false)
		again, in := new(launch.Plan), launch.Reading(out.Bytes())
		if again.Code(in, false); in.Err() != nil || !reflect.DeepEqual(p, again) {
			t.Errorf("%+v becomes %+v %v", p, again, in.Err())
		}
	})
}
