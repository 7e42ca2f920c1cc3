package accounting

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ErrTRES is wrapped by errors about trackable resources that cannot be read; the text names the word.
var ErrTRES = errors.New("invalid TRES specification")

// MaxTRESNames bounds the resources that one text may name.
const MaxTRESNames = 256

// plainTRES are the resources without a slash, in Slurm's order of printing.
var plainTRES = []string{"cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages"}

// tresFamilies are the resources with a name of their own after the slash, in the order of printing.
var tresFamilies = []string{"fs", "gres", "license", "bb", "ic"}

// ParseTRES reads cpu=4,mem=8G,gres/gpu:a100=2. Memory is MiB unless K, M, G, T or P says otherwise, rounded up to
// MiB. A resource that is named twice is an error. Errors wrap ErrTRES and name the word.
func ParseTRES(s string) (TRES, error) { return parseTRES(s, false) }

// ParseLimitTRES is ParseTRES for limits: -1 is kept as Unset and takes the limit of that resource away.
func ParseLimitTRES(s string) (TRES, error) { return parseTRES(s, true) }

func parseTRES(s string, clears bool) (TRES, error) {
	if s == "" {
		return nil, nil
	}
	var out TRES
	for word := range strings.SplitSeq(s, ",") {
		name, text, given := strings.Cut(word, "=")
		if !given {
			return nil, fmt.Errorf("%w: %q is not NAME=NUMBER", ErrTRES, word)
		}
		name = strings.ToLower(strings.TrimSpace(name))
		if err := checkTRESName(name); err != nil {
			return nil, err
		}
		n, err := parseAmount(name, strings.TrimSpace(text), clears)
		if err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrTRES, word, err)
		}
		if _, twice := out.Get(name); twice {
			return nil, fmt.Errorf("%w: %s is named twice", ErrTRES, name)
		}
		if out = append(out, Amount{name, n}); len(out) > MaxTRESNames {
			return nil, fmt.Errorf("%w: more than MaxTRESNames=%d resources", ErrTRES, MaxTRESNames)
		}
	}
	slices.SortFunc(out, func(a, b Amount) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// checkTRESName refuses what is no resource.
func checkTRESName(name string) error {
	if slices.Contains(plainTRES, name) {
		return nil
	}
	family, rest, _ := strings.Cut(name, "/")
	if slices.Contains(tresFamilies, family) && rest != "" && !strings.ContainsAny(rest, " \t=,;|/\"'") && !strings.HasSuffix(rest, ":") && rest[0] != ':' {
		return nil
	}
	return fmt.Errorf("%w: %q is none of cpu, mem, node, billing, energy, vmem, pages, fs/NAME, gres/NAME[:TYPE], license/NAME", ErrTRES, name)
}

// parseAmount reads one number.
func parseAmount(name, s string, clears bool) (int64, error) {
	if s == "-1" && clears {
		return Unset, nil
	}
	if name != "mem" && name != "vmem" {
		n, err := strconv.ParseUint(s, 10, 63)
		if err != nil {
			return 0, fmt.Errorf("%q is not a whole number from 0 to %d", s, int64(math.MaxInt64))
		}
		return int64(n), nil
	}
	digits, shift := s, 10 // from KiB; without a unit it is MiB
	if s != "" {
		if i := strings.IndexByte("KMGTP", s[len(s)-1]&^0x20); i >= 0 && s[len(s)-1] > '9' {
			digits, shift = s[:len(s)-1], 10*i
		}
	}
	n, err := strconv.ParseUint(digits, 10, 53)
	if err != nil || n > math.MaxInt64>>(shift+1) {
		return 0, fmt.Errorf("%q is not a whole number with K, M, G, T or P", s)
	}
	return int64((n<<shift + 1023) >> 10), nil
}

// String writes a vector in Slurm's order, memory in the largest unit that divides it: cpu=4,mem=8G,node=1,gres/gpu=2.
func (t TRES) String() string {
	if len(t) == 0 {
		return ""
	}
	order := slices.Clone(t)
	slices.SortStableFunc(order, func(a, b Amount) int { return tresRank(a.Name) - tresRank(b.Name) })
	var b strings.Builder
	for i, a := range order {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(a.Name)
		b.WriteByte('=')
		b.WriteString(formatAmount(a))
	}
	return b.String()
}

// FormatAmount writes one number as String does: memory as 8G.
func FormatAmount(name string, n int64) string { return formatAmount(Amount{name, n}) }

func formatAmount(a Amount) string {
	if a.Name != "mem" && a.Name != "vmem" || a.N <= 0 {
		return strconv.FormatInt(a.N, 10)
	}
	n, unit := a.N, 0
	for n%1024 == 0 && unit < len("MGTP")-1 {
		n, unit = n/1024, unit+1
	}
	return strconv.FormatInt(n, 10) + "MGTP"[unit:unit+1]
}

func tresRank(name string) int {
	if i := slices.Index(plainTRES, name); i >= 0 {
		return i
	}
	family, _, _ := strings.Cut(name, "/")
	return len(plainTRES) + slices.Index(tresFamilies, family)
}
