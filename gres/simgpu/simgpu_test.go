package simgpu

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/gres/discover"
)

func TestBoards(t *testing.T) {
	for _, tc := range []struct{ spec, gres string }{
		{"dgx-a100", "gpu:a100:8"},
		{"hgx-h100", "gpu:h100:8"},
		{"HGX-H200", "gpu:h200:8"},
		{"hgx-b200", "gpu:b200:8"},
		{"a30x2", "gpu:a30:2"},
		{"consumer-mix", "gpu:rtx4090:2,gpu:rtx3090:1"},
		{"a100:4", "gpu:a100:4"},
		{"A100:1, t4:64", ""},
		{"a100:1, t4:63", "gpu:a100:1,gpu:t4:63"},
	} {
		t.Run(tc.spec, func(t *testing.T) {
			b, err := New("n1", tc.spec)
			if tc.gres == "" {
				if err == nil || !strings.Contains(err.Error(), "limit of 64") {
					t.Fatalf("want the limit named, got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := discover.Check(b.Devices()); err != nil {
				t.Error(err)
			}
			if got := discover.Gres("", b.Devices()); got != tc.gres {
				t.Errorf("got %q, want %q", got, tc.gres)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for spec, want := range map[string]string{
		"dgx-a1000": "neither a board",
		"":          "neither a board",
		"a100:0":    "1 to 64",
		"a100:-1":   "1 to 64",
		"a100:x":    "1 to 64",
		"a100:65":   "limit of 64",
		"a101:1":    "known: a100",
		"a100:1,":   "neither a board",
	} {
		if _, err := New("n", spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", spec, err, want)
		}
	}
}

func TestDevicesAreStableAndDistinct(t *testing.T) {
	a, _ := New("n1", "dgx-a100")
	again, _ := New("n1", "dgx-a100")
	other, _ := New("n2", "dgx-a100")
	if !slices.Equal(a.Devices(), again.Devices()) {
		t.Error("the same node got other devices")
	}
	form := regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	bus := make(map[string]bool)
	for i, d := range a.Devices() {
		if !form.MatchString(d.UUID) {
			t.Errorf("UUID %q has another form", d.UUID)
		}
		if d.UUID == other.Devices()[i].UUID {
			t.Errorf("device %d has the same UUID on two nodes", i)
		}
		if bus[d.PCIBusID] {
			t.Errorf("bus id %s twice", d.PCIBusID)
		}
		bus[d.PCIBusID] = true
		if d.Mem != 40960<<20 || d.ComputeCap != "8.0" || d.Minor != uint32(i) {
			t.Errorf("device %+v", d)
		}
	}
	a.Devices()[0].Type = "changed"
	if a.Devices()[0].Type != "a100" {
		t.Error("a caller can change the board")
	}
}

func FuzzNew(f *testing.F) {
	for _, s := range []string{"dgx-a100", "a100:4", "rtx4090:2,rtx3090:1", "a100:99999", ":", ","} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := New("n", s)
		if err != nil {
			return
		}
		if err := discover.Check(b.Devices()); err != nil {
			t.Error(err)
		}
	})
}
