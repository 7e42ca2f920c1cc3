package accounting

import (
	"fmt"
	"strconv"
	"strings"
)

// billingUnit is the fixed point of weights: 10^-6.
const billingUnit = 1_000_000

// Weights are the TRESBillingWeights of a partition, in 10^-6.
type Weights struct{ each []weight }

type weight struct {
	name string
	n    int64 // for a unit of it; 10^-6
	unit int64 // mem: MiB that the weight is for
}

// ParseWeights reads CPU=1.0, Mem=0.25G, GRES/gpu=2.0; digits after the sixth of a fraction are not taken. The weight of
// memory is for a MiB, or for the unit that stands after it. No words: nil, which counts CPUs.
func ParseWeights(words []string) (*Weights, error) {
	if len(words) == 0 {
		return nil, nil
	}
	w := &Weights{}
	for _, word := range words {
		name, text, given := strings.Cut(word, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		if !given {
			return nil, fmt.Errorf("%w: TRESBillingWeights: %q is not NAME=WEIGHT", ErrTRES, word)
		}
		if err := checkTRESName(name); err != nil {
			return nil, fmt.Errorf("TRESBillingWeights: %w", err)
		}
		unit := int64(1)
		if name == "mem" && text != "" {
			if i := strings.IndexByte("MGTP", text[len(text)-1]&^0x20); i >= 0 && text[len(text)-1] > '9' {
				unit, text = int64(1)<<(10*i), text[:len(text)-1]
			}
		}
		n, err := ParseFixed(text)
		if err != nil {
			return nil, fmt.Errorf("%w: TRESBillingWeights: %q: %w", ErrTRES, word, err)
		}
		for _, have := range w.each {
			if have.name == name {
				return nil, fmt.Errorf("%w: TRESBillingWeights: %s is named twice", ErrTRES, name)
			}
		}
		w.each = append(w.each, weight{name, n, unit})
	}
	return w, nil
}

// Billing is what an allocation counts, rounded down. Nil weights count CPUs. maxTRES: the largest of what is on nodes
// plus the sum of what is not (licenses); maxTRESGres: the largest of cpu, mem and node plus the sum of the rest.
func (w *Weights) Billing(t TRES, maxTRES, maxTRESGres bool) int64 {
	if w == nil {
		cpus, _ := t.Get("cpu")
		return cpus
	}
	var sum, most int64
	for _, x := range w.each {
		n, _ := t.Get(x.name)
		value := multiplyDivide(n, x.n, x.unit)
		onNode := !strings.HasPrefix(x.name, "license/") && !strings.HasPrefix(x.name, "bb/")
		basic := x.name == "cpu" || x.name == "mem" || x.name == "node"
		if maxTRESGres && basic || maxTRES && !maxTRESGres && onNode {
			most = max(most, value)
		} else {
			sum = addSaturating(sum, value)
		}
	}
	return addSaturating(sum, most) / billingUnit
}

// ParseFixed reads a number that is not negative, as 2, 0.25 or .5, in 10^-6; digits after the sixth are not taken.
func ParseFixed(s string) (int64, error) {
	whole, fraction, _ := strings.Cut(s, ".")
	if whole == "" && fraction == "" {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	n := uint64(0)
	var err error
	if whole != "" {
		if n, err = strconv.ParseUint(whole, 10, 40); err != nil {
			return 0, fmt.Errorf("%q is not a number from 0 to %d", s, uint64(1)<<40-1)
		}
	}
	for i := range len(fraction) {
		if fraction[i] < '0' || fraction[i] > '9' {
			return 0, fmt.Errorf("%q is not a number", s)
		}
	}
	f, _ := strconv.ParseUint((fraction + "000000")[:6], 10, 32)
	return int64(n)*billingUnit + int64(f), nil
}

// FormatFixed writes 10^-6 as Slurm writes factors: 1.000000.
func FormatFixed(n int64) string {
	if n < 0 {
		return ""
	}
	return fmt.Sprintf("%d.%06d", n/billingUnit, n%billingUnit)
}
