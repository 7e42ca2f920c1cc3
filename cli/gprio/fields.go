package gprio

import (
	"fmt"
	"math"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

// column is one thing that can be shown. weight names the weight that it is shown for when no format is given, and is
// what the line of weights has in it.
type column struct {
	letter byte
	header string
	weight string
	value  func(*ctldpb.PriorityRow) string
	number func(*ctldpb.PriorityRow) float64 // what it is sorted by; nil = by value
}

type row = ctldpb.PriorityRow

func whole(get func(*row) float64) func(*row) string {
	return func(r *row) string {
		if v := get(r); !math.IsNaN(v) {
			return fmt.Sprintf("%.0f", v)
		}
		return ""
	}
}

func part(get func(*row) float64) func(*row) string {
	return func(r *row) string {
		if v := get(r); !math.IsNaN(v) {
			return fmt.Sprintf("%.7f", v)
		}
		return ""
	}
}

func terms(letter byte, header, weight string, get func(*row) float64) column {
	return column{letter, header, weight, whole(get), get}
}

func norms(letter byte, header, weight string, get func(*row) float64) column {
	return column{letter, header, weight, part(get), get}
}

func text(letter byte, header string, get func(*row) string) column {
	return column{letter, header, "", get, nil}
}

// columns are sprio's letters, and some that it has no word for.
var columns = []column{
	text('i', "JOBID", (*row).GetJobId),
	text('r', "PARTITION", (*row).GetPartition),
	text('u', "USER", (*row).GetUser),
	text('o', "ACCOUNT", (*row).GetAccount),
	text('n', "QOSNAME", (*row).GetQos),
	{'Y', "PRIORITY", "", func(r *row) string { return fmt.Sprint(r.Priority) }, func(r *row) float64 { return float64(r.Priority) }},
	{'y', "PRIORITY", "", func(r *row) string { return fmt.Sprintf("%.10f", float64(r.Priority)/(1<<32-1)) }, func(r *row) float64 { return float64(r.Priority) }},
	{'S', "SITE", "", func(r *row) string { return fmt.Sprint(r.Site) }, func(r *row) float64 { return float64(r.Site) }},
	terms('A', "AGE", "age", (*row).GetAge), norms('a', "AGE", "age", (*row).GetNormAge),
	terms('B', "ASSOC", "assoc", (*row).GetAssoc), norms('b', "ASSOC", "assoc", (*row).GetNormAssoc),
	terms('F', "FAIRSHARE", "fairshare", (*row).GetFairShare), norms('f', "FAIRSHARE", "fairshare", (*row).GetNormFairShare),
	terms('J', "JOBSIZE", "jobsize", (*row).GetJobSize), norms('j', "JOBSIZE", "jobsize", (*row).GetNormJobSize),
	terms('P', "PARTITION", "partition", (*row).GetPart), norms('p', "PARTITION", "partition", (*row).GetNormPart),
	terms('Q', "QOS", "qos", (*row).GetQosTerm), norms('q', "QOS", "qos", (*row).GetNormQos),
	terms('D', "BID", "bid", (*row).GetBid), norms('d', "BID", "bid", (*row).GetNormBid),
	{'N', "NICE", "", func(r *row) string { return fmt.Sprint(r.Nice) }, func(r *row) float64 { return float64(r.Nice) }},
	{'T', "TRES", "tres", func(r *row) string { return r.TresTerms }, (*row).GetTres},
	{'E', "EXPANSION", "", func(r *row) string { return fmt.Sprintf("%.3f", r.Expansion) }, (*row).GetExpansion},
	{'K', "STARVED", "", func(r *row) string { return yes(r.Starved) }, nil},
	{'L', "PLACE", "", func(r *row) string { return fmt.Sprint(r.Place) }, func(r *row) float64 { return float64(r.Place) }},
	{'X', "FIXED", "", func(r *row) string { return yes(r.Fixed) }, nil},
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func byLetter(letter string) *column {
	for i := range columns {
		if letter == string(columns[i].letter) {
			return &columns[i]
		}
	}
	return nil
}

func letters() string {
	var list []string
	for i := range columns {
		list = append(list, string(columns[i].letter)+" "+columns[i].header)
	}
	return strings.Join(list, ", ") + "."
}

// weightOf is what the configuration multiplies a factor by; that of TRES is the sum of those that are set.
func weightOf(weights map[string]float64, name string) (sum float64) {
	if name != "tres" {
		return weights[name]
	}
	for key, w := range weights {
		if strings.HasPrefix(key, "tres/") {
			sum += w
		}
	}
	return sum + weights["tres"]
}

// weightText stands in the line of weights.
func weightText(weights map[string]float64, c *column) string {
	switch {
	case c.letter == 'i':
		return "Weights"
	case c.letter == 'S':
		return "1"
	case c.weight == "":
		return ""
	case c.weight == "tres":
		var list []string
		for key, w := range weights {
			if name, ok := strings.CutPrefix(key, "tres/"); ok {
				list = append(list, fmt.Sprintf("%s=%.0f", name, w))
			}
		}
		return joinSorted(list)
	}
	return fmt.Sprintf("%.0f", weightOf(weights, c.weight))
}

// ready is the format when none was given: the terms that have a weight, or with long all of them.
func ready(q *query, res *ctldpb.ListPrioritiesResponse) string {
	switch {
	case res.Policy == "expansion":
		return "%.15i %9r %.8u %.10E %.7K %.6L"
	case res.Policy == "fcfs":
		return "%.15i %9r %.8u %.10Y %.6L"
	}
	format, set := "%.15i %9r %.8u %.10Y %.10S", "ABFJPQDNT"
	if q.normal {
		format, set = "%.15i %9r %.8u %.12y", "abfjpqd"
	}
	for _, l := range set {
		c := byLetter(string(l))
		shown := q.long && c.weight != "bid" || c.weight != "" && weightOf(res.Weights, c.weight) != 0
		if c.letter == 'N' {
			shown = q.long || anyNice(res.Rows)
		}
		switch {
		case !shown:
		case c.letter == 'N':
			format += " %.11N"
		case c.letter == 'T':
			format += " %.20T"
		default:
			format += " %.10" + string(l)
		}
	}
	if q.long && q.own {
		format += " %.6L"
	}
	return format
}

func anyNice(rows []*row) bool {
	for _, r := range rows {
		if r.Nice != 0 {
			return true
		}
	}
	return false
}

// cells are one row's values.
func cells(cols []render.Column, shown []*column, get func(*column) string) []string {
	out := make([]string, len(cols))
	for i, c := range shown {
		if c != nil {
			out[i] = get(c)
		}
	}
	return out
}
