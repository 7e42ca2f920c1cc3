package accounting

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"pgregory.net/rapid"
)

func TestParseTRES(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "cpu=4": "cpu=4", "mem=8G,cpu=2": "cpu=2,mem=8G", "mem=1000": "mem=1000M", "mem=1": "mem=1M", "mem=1K": "mem=1M", "mem=1025k": "mem=2M",
		"MEM=2t": "mem=2T", "gres/gpu:a100=2,gres/gpu=3,node=1,billing=9": "node=1,billing=9,gres/gpu=3,gres/gpu:a100=2",
		"license/matlab=2,gres/x=0,fs/disk=1": "fs/disk=1,gres/x=0,license/matlab=2", "energy=7,vmem=1G": "energy=7,vmem=1G",
	} {
		got, err := ParseTRES(in)
		if err != nil || got.String() != want {
			t.Errorf("%q is %q, want %q (%v)", in, got, want, err)
		}
	}
	for in, word := range map[string]string{
		"cpu": `"cpu"`, "cpus=2": `"cpus"`, "cpu=": `"cpu="`, "cpu=-1": "-1", "cpu=1,cpu=2": "twice", "mem=4X": "4X", "mem=9999999999T": "9999999999T", "gres/=1": "gres/",
		"gres/gpu:=1": "gres/gpu:", "=3": `""`, "cpu=1,": `""`, "cpu=1.5": "1.5", "license/a b=1": "license/a b",
	} {
		if got, err := ParseTRES(in); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q is %v (%v)", in, got, err)
		}
	}
	if got, err := ParseLimitTRES("cpu=-1,mem=-1"); err != nil || !reflect.DeepEqual(got, TRES{{"cpu", -1}, {"mem", -1}}) {
		t.Errorf("%v %v", got, err)
	}
	many := strings.Repeat(",gres/x=1", MaxTRESNames)
	var b strings.Builder
	for i := range MaxTRESNames + 1 {
		b.WriteString(",gres/x")
		b.WriteString(strings.Repeat("y", i))
		b.WriteString("=1")
	}
	if _, err := ParseTRES(b.String()[1:]); err == nil || !strings.Contains(err.Error(), "MaxTRESNames") {
		t.Errorf("one too many: %v (%d)", err, len(many))
	}
}

func drawTRES(t *rapid.T, label string) TRES {
	var out TRES
	for _, name := range []string{"billing", "cpu", "gres/gpu", "gres/gpu:a", "mem", "node"} {
		if rapid.Bool().Draw(t, label+name) {
			out = append(out, Amount{name, rapid.Int64Range(1, 1<<40).Draw(t, label+" "+name)})
		}
	}
	return out
}

// TestTRESArithmetic: what is added can be taken away again; text comes back; nothing is changed in place.
func TestTRESArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawTRES(t, "a"), drawTRES(t, "b")
		before := a.String()
		sum := a.Plus(b)
		if back := sum.Minus(b); !reflect.DeepEqual(back, a) {
			t.Fatalf("%v + %v - the same is %v", a, b, back)
		}
		if !reflect.DeepEqual(sum, b.Plus(a)) || a.String() != before {
			t.Fatalf("%v + %v", a, b)
		}
		if read, err := ParseTRES(sum.String()); err != nil || !reflect.DeepEqual(read, sum) {
			t.Fatalf("%v was read as %v (%v)", sum, read, err)
		}
		for _, x := range a.Minus(sum.Times(2)) {
			if x.N < 0 {
				t.Fatal("below 0")
			}
		}
	})
	if got := (TRES{{"cpu", math.MaxInt64 - 1}}).Plus(TRES{{"cpu", 5}}).Times(7); got[0].N != math.MaxInt64 {
		t.Error(got)
	}
	if got := (TRES{{"cpu", 1}}).With("billing", 3).With("billing", 4).With("z", 1); got.String() != "cpu=1,billing=4,z=1" && len(got) != 3 {
		t.Error(got)
	}
}

func TestDemand(t *testing.T) {
	allocs := []job.NodeAlloc{{Node: "a", CPUs: 2, Mem: 4 << 30, Gres: []job.GresAlloc{{Name: "gpu", Type: "a100", Count: 2}}}, {Node: "b", CPUs: 6, Mem: 1 << 30}}
	if got := AllocTRES(allocs, []job.License{{Name: "m", Count: 3}}).String(); got != "cpu=8,mem=5G,node=2,gres/gpu=2,gres/gpu:a100=2,license/m=3" {
		t.Error(got)
	}
	if got := PerNode(allocs).String(); got != "cpu=6,mem=4G,gres/gpu=2,gres/gpu:a100=2" {
		t.Error(got)
	}
	for want, s := range map[string]job.Spec{
		"cpu=1,mem=2G,node=1|cpu=1,mem=2G": {}, "cpu=8,mem=8G,node=4,gres/gpu=4|cpu=2,mem=2G,gres/gpu=1": {MinNodes: 4, NTasksPerNode: 2, Gres: "gpu:1", MemPerCPU: 1 << 30},
		"cpu=10,mem=3G,node=1|cpu=5,mem=3G": {NTasks: 10, MinNodes: 1, MaxNodes: 2, MemPerNode: 3 << 30}, "cpu=1,node=1|cpu=1": {MemPerNode: job.WholeNode},
	} {
		r := s.Request()
		if got := RequestTRES(&s, &r, nil, 2<<30, 0).String() + "|" + RequestPerNode(&s, &r, 2<<30, 0).String(); got != want {
			t.Errorf("%+v\n got %s\nwant %s", s, got, want)
		}
	}
}

func TestBilling(t *testing.T) {
	alloc := TRES{{"cpu", 4}, {"gres/gpu", 2}, {"license/m", 3}, {"mem", 64 << 10}, {"node", 1}}
	for words, want := range map[string][3]int64{ // plain, MAX_TRES, MAX_TRES_GRES
		"":                                  {4, 4, 4},
		"CPU=1.0,Mem=0.25G,GRES/gpu=2.0":    {24, 16, 20},
		"CPU=1.0,license/m=1.5":             {8, 8, 8},
		"CPU=0.1,GRES/gpu=0.1":              {0, 0, 0},
		"Mem=0.001":                         {65, 65, 65},
		"CPU=3,Mem=0.5G,GRES/gpu=50,node=7": {151, 100, 132},
	} {
		var list []string
		if words != "" {
			list = strings.Split(words, ",")
		}
		w, err := ParseWeights(list)
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]int64{w.Billing(alloc, false, false), w.Billing(alloc, true, false), w.Billing(alloc, false, true)}; got != want {
			t.Errorf("%s: %v, want %v", words, got, want)
		}
	}
	for _, bad := range []string{"CPU", "cores=1", "CPU=x", "CPU=-1", "CPU=1,CPU=2", "Mem=G", "CPU="} {
		if _, err := ParseWeights(strings.Split(bad, ",")); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}

func FuzzParseTRES(f *testing.F) {
	for _, s := range []string{"cpu=1,mem=4G", "gres/gpu:a=2", "mem=-1", "=,", "license/x=9223372036854775807", "mem=9007199254740991K"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTRES(s)
		if err != nil {
			return
		}
		again, err := ParseTRES(got.String())
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%q: %v, then %v (%v)", s, got, again, err)
		}
	})
}

func FuzzChange(f *testing.F) {
	for _, s := range []string{"add user x account=art", "modify qos where name=high set flags+=NoDecay", "delete account where name=physics,art", "modify user where name=bob set grptres=cpu=-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(strings.Fields(s)) < 2 {
			return
		}
		d, _, _ := lab(t).Change(command(s))
		if err := d.check(); err != nil {
			t.Error(err)
		}
		if _, err := FromRecords(d.Records()); err != nil {
			t.Error(err)
		}
	})
}
