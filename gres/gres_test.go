package gres

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for in, want := range map[string][]Item{
		"":                            nil,
		"none":                        nil,
		"NONE":                        nil,
		"gpu":                         {{"gpu", "", 1}},
		"gpu:2":                       {{"gpu", "", 2}},
		"gpu:0":                       {{"gpu", "", 0}},
		"gpu:a100":                    {{"gpu", "a100", 1}},
		"gpu:a100:2,shard:4,gpu:1":    {{"gpu", "a100", 2}, {"shard", "", 4}, {"gpu", "", 1}},
		"gpu:1,gpu:2":                 {{"gpu", "", 3}},
		"gres/gpu:2":                  {{"gpu", "", 2}},
		"mps:1k":                      {{"mps", "", 1024}},
		"mem:2M,x:1G,y:1t":            {{"mem", "", 2 << 20}, {"x", "", 1 << 30}, {"y", "", 1 << 40}},
		"gpu:3g.20gb:2":               {{"gpu", "3g.20gb", 2}},
		"gpu:a100_3g.20gb":            {{"gpu", "a100_3g.20gb", 1}},
		"gpu:1g.10gb":                 {{"gpu", "1g.10gb", 1}},
		"bandwidth:lustre:4g,craynic": {{"bandwidth", "lustre", 4 << 30}, {"craynic", "", 1}},
	} {
		got, err := Parse(in)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Parse(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"gpu:":                       `"gpu:": "" is neither a type nor a count`,
		"gpu,":                       `"": "" is not a resource name`,
		":2":                         `":2": "" is not a resource name`,
		"2":                          `"2": "2" is not a resource name`,
		"gpu:a100:x":                 `"gpu:a100:x": "x" is not a count`,
		"gpu:a100:2x":                `"gpu:a100:2x": "2x" is not a count`,
		"gpu:-1":                     `"gpu:-1": "-1" is neither a type nor a count`,
		"gpu:a:b:2":                  `"gpu:a:b:2": more than name:type:count`,
		"gpu:a 100":                  `"gpu:a 100": "a 100" is neither a type nor a count`,
		"gpu:1,none":                 `"none": none stands alone`,
		"gpu=2":                      `"gpu=2": "gpu=2" is not a resource name`,
		"gpu:9007199254740993":       `"gpu:9007199254740993": count 9007199254740993 is above the limit of 9007199254740992`,
		"gpu:99999999999999999999":   `"gpu:99999999999999999999": count 99999999999999999999 is above the limit of 9007199254740992`,
		"gpu:9000t":                  `"gpu:9000t": count 9000t is above the limit of 9007199254740992`,
		"gpu:9007199254740992,gpu:1": `"gpu:1": the sum is above the limit of 9007199254740992`,
	} {
		got, err := Parse(in)
		if want = Invalid + ": " + want; err == nil || err.Error() != want {
			t.Errorf("Parse(%q) = %v, %v; want %s", in, got, err, want)
		}
		if word := new(Error); !errors.As(err, &word) {
			t.Errorf("Parse(%q): %T", in, err)
		}
	}
}

func TestLimits(t *testing.T) {
	if _, err := Parse(strings.Repeat("a,", MaxItems-1) + "a"); err != nil {
		t.Errorf("MaxItems: %v", err)
	}
	if _, err := Parse(strings.Repeat("a,", MaxItems) + "a"); err == nil || !strings.Contains(err.Error(), "64 resources") {
		t.Errorf("MaxItems + 1: %v", err)
	}
	if _, err := ParseInventory(strings.Repeat("a,", MaxItems) + "a"); err == nil {
		t.Error("an inventory of MaxItems + 1 was taken")
	}
	if _, err := Parse(strings.Repeat("a", MaxWord)); err != nil {
		t.Errorf("MaxWord: %v", err)
	}
	if _, err := Parse(strings.Repeat("a", MaxWord+1)); err == nil {
		t.Error("MaxWord + 1 was taken")
	}
	if _, err := ParseIndexed("gpu:1(IDX:4095)"); err != nil {
		t.Errorf("MaxIndex - 1: %v", err)
	}
	if _, err := ParseIndexed("gpu:1(IDX:4096)"); err == nil {
		t.Error("device MaxIndex was taken")
	}
}

func TestInventory(t *testing.T) {
	got, err := ParseInventory("gpu:a100:2(S:0),gpu:a100:2(S:1),gpu:v100:1(S:0-1,3),shard:16")
	want := []Resource{
		{Item{"gpu", "a100", 2}, []uint32{0}}, {Item{"gpu", "a100", 2}, []uint32{1}},
		{Item{"gpu", "v100", 1}, []uint32{0, 1, 3}}, {Item{"shard", "", 16}, nil},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v, %v", got, err)
	}
	if s := Format(Items(got)); s != "gpu:a100:4,gpu:v100:1,shard:16" {
		t.Errorf("items are %s", s)
	}
	for _, none := range []string{"", "none", "(null)"} {
		if got, err := ParseInventory(none); err != nil || got != nil {
			t.Errorf("ParseInventory(%q) = %v, %v", none, got, err)
		}
	}
	for _, bad := range []string{"gpu:4(S:", "gpu:4(X:0)", "gpu:4(S:0)x", "gpu:4)", "gpu:4((S:0))", "gpu:4(S:1-0)", "gpu:4(S:0,0)", "gpu:4(S:)", "gpu:4()", "gpu:4(S:a),x"} {
		if got, err := ParseInventory(bad); err == nil {
			t.Errorf("ParseInventory(%q) = %v", bad, got)
		}
	}
}

func TestIndexed(t *testing.T) {
	for text, allocs := range map[string][]Alloc{
		"":                              nil,
		"gpu:a100:2(IDX:0-1)":           {{"gpu", "a100", 2, []uint32{0, 1}}},
		"gpu:a100:3(IDX:0,2-3),shard:4": {{"gpu", "a100", 3, []uint32{0, 2, 3}}, {"shard", "", 4, nil}},
		"gpu:1(IDX:7)":                  {{"gpu", "", 1, []uint32{7}}},
	} {
		if got := FormatIndexed(allocs); got != text {
			t.Errorf("FormatIndexed(%v) = %q, want %q", allocs, got, text)
		}
		if got, err := ParseIndexed(text); err != nil || !reflect.DeepEqual(got, allocs) {
			t.Errorf("ParseIndexed(%q) = %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"gpu:2(IDX:0)", "gpu:1(IDX:0", "gpu:1(S:0)", "gpu:2(IDX:1,0)"} {
		if got, err := ParseIndexed(bad); err == nil {
			t.Errorf("ParseIndexed(%q) = %v", bad, got)
		}
	}
}

func TestPick(t *testing.T) {
	stock := []Stock{
		{Name: "gpu", Type: "a100", Total: 4, Used: []bool{true, false, false, false}},
		{Name: "gpu", Type: "v100", Total: 2, Used: []bool{false, false}},
		{Name: "shard", Total: 8, Taken: 5},
	}
	for want, got := range map[string]string{
		"none":                        "",
		"gpu:2":                       "gpu:a100:2(IDX:1-2)",
		"gpu:v100:1":                  "gpu:v100:1(IDX:0)",
		"gpu:4":                       "gpu:a100:3(IDX:1-3),gpu:v100:1(IDX:0)",
		"gpu:1,gpu:a100:3":            "gpu:a100:3(IDX:1-3),gpu:v100:1(IDX:0)",
		"gpu:a100:1,gpu:a100:1":       "gpu:a100:2(IDX:1-2)",
		"shard:3":                     "shard:3",
		"shard:1,gpu:v100:2":          "gpu:v100:2(IDX:0-1),shard:1",
		"gpu:0":                       "",
		"gpu:a100:4":                  "no",
		"gpu:6":                       "no",
		"shard:4":                     "no",
		"gpu:h100:1":                  "no",
		"nic:1":                       "no",
		"gpu:a100:3,gpu:v100:2,gpu:1": "no",
	} {
		items, err := Parse(want)
		if err != nil {
			t.Fatal(err)
		}
		allocs, ok := Pick(stock, items)
		text := FormatIndexed(allocs)
		if !ok {
			text = "no"
		}
		if text != got {
			t.Errorf("Pick(%s) = %s, want %s", want, text, got)
		}
		if Fits(stock, items) != ok {
			t.Errorf("Fits(%s) = %v", want, !ok)
		}
	}
	if !stock[0].Used[0] || stock[0].Used[1] || stock[2].Taken != 5 {
		t.Error("Pick changed the stock")
	}
}

// What is picked was free, is enough, and is the same each time.
func TestPickProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		types := []string{"", "a", "b"}
		var stock []Stock
		for _, typ := range types[rapid.IntRange(0, 2).Draw(t, "from"):] {
			used := rapid.SliceOfN(rapid.Bool(), 1, 6).Draw(t, "used")
			stock = append(stock, Stock{Name: "gpu", Type: typ, Total: uint64(len(used)), Used: used})
		}
		stock = append(stock, Stock{Name: "shard", Total: 4, Taken: rapid.Uint64Range(0, 5).Draw(t, "taken")})
		var want []Item
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			name := rapid.SampledFrom([]string{"gpu", "gpu", "shard"}).Draw(t, "name")
			item := Item{Name: name, Count: rapid.Uint64Range(0, 4).Draw(t, "count")}
			if name == "gpu" {
				item.Type = rapid.SampledFrom(types).Draw(t, "type")
			}
			want = append(want, item)
		}
		allocs, ok := Pick(stock, want)
		again, okAgain := Pick(stock, want)
		if ok != okAgain || !reflect.DeepEqual(allocs, again) || Fits(stock, want) != ok {
			t.Fatal("not the same twice")
		}
		if !ok {
			return
		}
		got := Allocated(allocs)
		for _, name := range []string{"gpu", "shard"} {
			if Total(got, name) != Total(want, name) {
				t.Fatalf("%s for %s", Format(got), Format(want))
			}
		}
		for _, a := range allocs {
			for i := range stock {
				s := &stock[i]
				if s.Name != a.Name || s.Type != a.Type {
					continue
				}
				if a.Count > s.Free() || s.Used != nil && uint64(len(a.Index)) != a.Count {
					t.Fatalf("%s of %+v", FormatIndexed(allocs), s)
				}
				for _, n := range a.Index {
					if s.Used[n] {
						t.Fatalf("device %d of %+v is in use", n, s)
					}
				}
			}
		}
	})
}

func TestSums(t *testing.T) {
	a, b := []Item{{"gpu", "a", 1}, {"shard", "", 2}}, []Item{{"gpu", "b", 3}, {"gpu", "a", 4}}
	if s := Format(Sum(a, b)); s != "gpu:a:5,shard:2,gpu:b:3" {
		t.Errorf("Sum = %s", s)
	}
	if a[0].Count != 1 {
		t.Error("Sum changed its argument")
	}
	if n := Total(Sum(a, b), "gpu"); n != 8 {
		t.Errorf("Total = %d", n)
	}
	if s := Format(Times(a, 3)); s != "gpu:a:3,shard:6" || a[0].Count != 1 {
		t.Errorf("Times = %s", s)
	}
	huge := []Item{{"gpu", "", 1 << 63}}
	if s := Sum(huge, huge); s[0].Count != 1<<64-1 || Times(huge, 3)[0].Count != 1<<64-1 {
		t.Error("a sum ran over")
	}
}

func TestGlobal(t *testing.T) {
	inventory := []Item{{"gpu", "a100", 4}, {"shard", "", 8}, {"gpu", "v100", 2}}
	if got := Global(inventory, Alloc{"gpu", "v100", 2, []uint32{0, 1}}); !reflect.DeepEqual(got, []uint32{4, 5}) {
		t.Errorf("second type: %v", got)
	}
	if got := Global(inventory, Alloc{"gpu", "a100", 1, []uint32{3}}); !reflect.DeepEqual(got, []uint32{3}) {
		t.Errorf("first type: %v", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"gpu:a100:2,shard:4,gpu:1", "none", "gpu:1k", "gpu:", "gres/gpu:2", "gpu:a:b:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		items, err := Parse(s)
		if err != nil {
			return
		}
		back, err := Parse(Format(items))
		if err != nil || !reflect.DeepEqual(back, items) {
			t.Fatalf("%q: %v, then %v, %v", s, items, back, err)
		}
	})
}

func FuzzParseIndexed(f *testing.F) {
	for _, s := range []string{"gpu:a100:2(IDX:0-1)", "gpu:1(IDX:7),shard:4", "gpu:4(S:0)", "gpu(", "a()"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_, _ = ParseInventory(s)
		allocs, err := ParseIndexed(s)
		if err != nil {
			return
		}
		back, err := ParseIndexed(FormatIndexed(allocs))
		if err != nil || !reflect.DeepEqual(back, allocs) {
			t.Fatalf("%q: %v, then %v, %v", s, allocs, back, err)
		}
	})
}
