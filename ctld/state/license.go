package state

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// MaxLicenseNames bounds the licenses of a configuration.
const MaxLicenseNames = 1024

// LicenseUse is one license of the cluster: how many there are, how many runs hold, and how many more reservations keep
// that are active.
type LicenseUse struct {
	Name                  string
	Total, Used, Reserved uint64
}

// heldLicense is licenses of a name that runs of one reservation hold, or that those of none do.
type heldLicense struct{ reservation, name string }

// configured licenses, by name.
type licenseTotal struct {
	name  string
	total uint64
}

// parseTotals reads the licenses of a configuration; words that cannot be read were told of when it was loaded.
func parseTotals(words []string) []licenseTotal {
	var list []licenseTotal
	for _, w := range words {
		one, err := job.ParseLicenses(w)
		if err != nil {
			continue
		}
		for _, l := range one {
			if i, known := findLicense(list, l.Name); known {
				list[i].total += l.Count
			} else if len(list) < MaxLicenseNames {
				list = slices.Insert(list, i, licenseTotal{l.Name, l.Count})
			}
		}
	}
	return list
}

func findLicense(list []licenseTotal, name string) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(l licenseTotal, n string) int { return strings.Compare(l.name, n) })
}

// licensesOf are the licenses that a specification asks for. It was checked when it came.
func licensesOf(s *job.Spec) []job.License {
	list, _ := job.ParseLicenses(s.RareValue(job.OptLicenses))
	return list
}

// indexLicenses moves the licenses that a record holds from old to j.
func (t *Tx) indexLicenses(old, j *Job) {
	was, is := old != nil && isRunning(old), j != nil && isRunning(j)
	if !was && !is || was && is && old.Spec == j.Spec && old.Reservation == j.Reservation {
		return
	}
	if was {
		t.holdLicenses(old, false)
	}
	if is {
		t.holdLicenses(j, true)
	}
}

func (t *Tx) holdLicenses(j *Job, take bool) {
	list := licensesOf(j.Spec)
	if len(list) == 0 {
		return
	}
	next := maps.Clone(t.licensed)
	if next == nil {
		next = map[heldLicense]uint64{}
	}
	for _, l := range list {
		key := heldLicense{j.Reservation, l.Name}
		if take {
			next[key] += l.Count
		} else if next[key] -= min(next[key], l.Count); next[key] == 0 {
			delete(next, key)
		}
	}
	t.licensed = next
	t.tables.usage++
	if !take && t.feature >= FeatureSched {
		t.capacity++
	}
}

// heldOf is how many licenses of a name all runs hold.
func (t *tables) heldOf(name string) (n uint64) {
	for key, held := range t.licensed { // a sum: the order does not matter
		if key.name == name {
			n += held
		}
	}
	return n
}

// Licenses are the cluster's, by name.
func (t *tables) Licenses() []LicenseUse {
	list := make([]LicenseUse, 0, len(t.licenses))
	for _, l := range t.licenses {
		list = append(list, LicenseUse{Name: l.name, Total: l.total, Used: t.heldOf(l.name), Reserved: t.kept(l.name, t.time, t.time+1, "")})
	}
	return list
}

// licensesFree tells whether the licenses are there for a run in a reservation ("" = none) from now to end (0 = for ever).
func (t *tables) licensesFree(list []job.License, reservation string, now, end int64) bool {
	for _, l := range list {
		i, known := findLicense(t.licenses, l.Name)
		if !known {
			return false
		}
		taken := t.heldOf(l.Name) + t.kept(l.Name, now, end, reservation)
		if total := t.licenses[i].total; taken > total || l.Count > total-taken {
			return false
		}
	}
	return true
}

// kept is how many licenses reservations keep between two times (end 0 = for ever) besides what their runs hold already;
// of the reservation of the asker none are kept.
func (t *tables) kept(name string, now, end int64, but string) (n uint64) {
	for _, r := range t.reserved.list {
		if r.plan.Name == but || !r.overlaps(now, end) {
			continue
		}
		for _, l := range r.plan.Licenses {
			if held := t.licensed[heldLicense{r.plan.Name, name}]; l.Name == name && l.Count > held {
				n += l.Count - held
			}
		}
	}
	return n
}

// licenseProblem is what is wrong with licenses that a job asks for; nil when the cluster has as many.
func (t *tables) licenseProblem(s *job.Spec) *Refusal {
	text := s.RareValue(job.OptLicenses)
	if text == "" {
		return nil
	}
	list, err := job.ParseLicenses(text)
	if err != nil {
		return badLicense(err.Error())
	}
	for _, l := range list {
		i, known := findLicense(t.licenses, l.Name)
		switch {
		case !known:
			return badLicense("the cluster has no license " + strconv.Quote(l.Name) + "; Licenses= names those that it has")
		case l.Count > t.licenses[i].total:
			return badLicense(fmt.Sprintf("license %q: %d are asked for and the cluster has %d", l.Name, l.Count, t.licenses[i].total))
		}
	}
	return nil
}

func badLicense(why string) *Refusal {
	return refuse("ESLURM_INVALID_LICENSES", "Invalid license specification", why)
}
