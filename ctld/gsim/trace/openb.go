package trace

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ReadOpenb reads a node list and a pod list of the openb traces. A pod with its times becomes a job that runs from
// creation to deletion. CPUs are rounded up to whole ones, and so is a share of a GPU; pods that no node could hold are
// dropped. Pods without times cannot be replayed.
func ReadOpenb(name string, nodes, pods io.Reader) (*Trace, error) {
	t := &Trace{Name: name}
	err := table(name+" nodes", nodes, []string{"sn", "cpu_milli", "memory_mib", "gpu", "model"}, func(f []string, n []int64) error {
		t.Nodes = append(t.Nodes, Node{Name: f[0], CPUs: uint32(n[1] / 1000), Mem: n[2] << 20, GPUs: uint32(n[3]), Type: f[4]})
		return nil
	})
	if err != nil {
		return nil, err
	}
	shares := 0
	err = table(name+" pods", pods, []string{"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time"}, func(f []string, n []int64) error {
		if len(t.Jobs)+t.Dropped >= MaxJobs {
			return fmt.Errorf("more than %d pods", MaxJobs)
		}
		if n[3] == 1 && n[4] < 1000 {
			shares++
		}
		j := Job{ID: uint32(len(t.Jobs) + t.Dropped + 1), Submit: n[5] * 1000, Run: (n[6] - n[5]) * 1000, Tasks: 1,
			CPUs: uint32(max((n[1]+999)/1000, 1)), Mem: n[2] << 20, GPUs: uint32(n[3])}
		j.Limit = j.Run
		if j.Run <= 0 || !slices.ContainsFunc(t.Nodes, func(n Node) bool { return n.CPUs >= j.CPUs && n.Mem >= j.Mem && n.GPUs >= j.GPUs }) {
			t.Dropped++
			return nil
		}
		t.Jobs = append(t.Jobs, j)
		return nil
	})
	if shares > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d pods ask for a share of a GPU: each gets a whole one", shares))
	}
	slices.SortStableFunc(t.Jobs, func(a, b Job) int { return cmp.Compare(a.Submit, b.Submit) })
	return t, err
}

// table reads a CSV with a header line and gives the named columns of each row, as text and, where they are whole
// numbers, as such.
func table(name string, r io.Reader, columns []string, row func([]string, []int64) error) error {
	in := csv.NewReader(r)
	in.ReuseRecord = true
	head, err := in.Read()
	if err != nil {
		return fmt.Errorf("%s: header: %w", name, err)
	}
	at := make([]int, len(columns))
	for i, c := range columns {
		if at[i] = slices.Index(head, c); at[i] < 0 {
			return fmt.Errorf("%s: there is no column %s", name, c)
		}
	}
	text, numbers := make([]string, len(columns)), make([]int64, len(columns))
	for {
		f, err := in.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		line, _ := in.FieldPos(0)
		for i, k := range at {
			text[i] = f[k]
			if i == 0 || columns[i] == "model" {
				continue
			}
			v, err := strconv.ParseFloat(f[k], 64)
			most := float64(1 << 31)
			if strings.HasSuffix(columns[i], "_time") || columns[i] == "memory_mib" {
				most = 1 << 40
			}
			if err != nil || v < 0 || v > most || v != math.Trunc(v) {
				return fmt.Errorf("%s:%d: %s: %q is no whole number of a usual size", name, line, columns[i], f[k])
			}
			numbers[i] = int64(v)
		}
		if err := row(text, numbers); err != nil {
			return fmt.Errorf("%s:%d: %w", name, line, err)
		}
	}
}
