package gres

// Stock is one resource of one node and what is taken of it.
type Stock struct {
	Name  string
	Type  string
	Total uint64
	Used  []bool // by device number; nil for resources that are only counted
	Taken uint64 // counted resources
}

// Free is how many can still be given.
func (s *Stock) Free() uint64 {
	if s.Used == nil {
		return s.Total - min(s.Taken, s.Total)
	}
	var n uint64
	for _, used := range s.Used {
		if !used {
			n++
		}
	}
	return n
}

// Fits tells whether Pick would find something.
func Fits(stock []Stock, want []Item) bool {
	_, ok := pick(stock, want, false)
	return ok
}

// Pick chooses from what is free on one node, and does not change stock. A request with a type gets that type;
// one without gets one type when a single one can serve it, else several, in the order of stock. Of the devices the
// lowest numbers are taken. The result has at most one Alloc for each stock, in the order of stock. The same
// input always gives the same choice.
func Pick(stock []Stock, want []Item) ([]Alloc, bool) { return pick(stock, want, true) }

func pick(stock []Stock, want []Item, devices bool) ([]Alloc, bool) {
	if len(want) == 0 {
		return nil, true
	}
	free := make([]uint64, len(stock))
	for i := range stock {
		free[i] = stock[i].Free()
	}
	take := make([]uint64, len(stock))
	for _, typed := range []bool{true, false} { // those that can go to one place only come first
		for _, w := range want {
			if (w.Type != "") == typed && !serve(stock, free, take, w) {
				return nil, false
			}
		}
	}
	if !devices {
		return nil, true
	}
	var allocs []Alloc
	for i, n := range take {
		if n > 0 {
			allocs = append(allocs, Alloc{stock[i].Name, stock[i].Type, n, lowest(stock[i].Used, n)})
		}
	}
	return allocs, true
}

// serve moves what w asks for from free to take.
func serve(stock []Stock, free, take []uint64, w Item) bool {
	matches := func(i int) bool {
		return stock[i].Name == w.Name && (w.Type == "" || stock[i].Type == w.Type)
	}
	for i := range stock {
		if matches(i) && free[i] >= w.Count {
			free[i] -= w.Count
			take[i] += w.Count
			return true
		}
	}
	need := w.Count
	for i := range stock {
		if matches(i) {
			n := min(free[i], need)
			free[i] -= n
			take[i] += n
			need -= n
		}
	}
	return need == 0
}

// lowest gives the n lowest devices that are not used.
func lowest(used []bool, n uint64) []uint32 {
	if used == nil {
		return nil
	}
	index := make([]uint32, 0, n)
	for i, u := range used {
		if !u && uint64(len(index)) < n {
			index = append(index, uint32(i))
		}
	}
	return index
}

// Global turns the device numbers of an allocation into numbers among all devices of the same name on the
// node, whatever their type, which is what drivers count; inventory is what the node has, in order.
func Global(inventory []Item, a Alloc) []uint32 {
	var before uint32
	for _, item := range inventory {
		if item.Name != a.Name {
			continue
		}
		if item.Type == a.Type {
			break
		}
		before += uint32(item.Count)
	}
	global := make([]uint32, len(a.Index))
	for i, n := range a.Index {
		global[i] = n + before
	}
	return global
}
