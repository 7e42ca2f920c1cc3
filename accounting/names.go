package accounting

import "strings"

// MaxName bounds the name of an account, a user or a QOS, in bytes.
const MaxName = 64

// goodName tells whether an account, user or QOS may be called so.
func goodName(s string) bool {
	if s == "" || len(s) > MaxName || s[0] == '-' || s[0] == '+' || s[0] == '.' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !('a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("_-.@+", c) >= 0 || c >= 0x80) {
			return false
		}
	}
	return true
}

// nearest is the one of known that is closest to name, "" when none is near.
func nearest(name string, known []string) string {
	best, least := "", len(name)/3+2
	for _, k := range known {
		if n := distance(name, k, least); n < least {
			best, least = k, n
		}
	}
	return best
}

// distance is how many letters must be changed, put in or left out to get from a to b; most when it is not less.
func distance(a, b string, most int) int {
	if len(a)-len(b) >= most || len(b)-len(a) >= most {
		return most
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			left, row[j+1] = row[j+1], min(left+cost, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], most)
}

// meant is the end of a refusal for a name that does not exist: the nearest one that does.
func meant(name string, known []string) string {
	if n := nearest(name, known); n != "" {
		return "; " + n + " is there"
	}
	return ""
}

func namesOf[T any](list []*T, name func(*T) string) []string {
	out := make([]string, len(list))
	for i, x := range list {
		out[i] = name(x)
	}
	return out
}

func (d *DB) accountNames() []string {
	return namesOf(d.accounts, func(a *Account) string { return a.Name })
}
func (d *DB) userNames() []string { return namesOf(d.users, func(u *User) string { return u.Name }) }
func (d *DB) qosNames() []string  { return namesOf(d.qos, func(q *QOS) string { return q.Name }) }

func (d *DB) noAccount(name string) *Refusal {
	return refuse("ESLURM_INVALID_ACCOUNT", "Invalid account or account/partition combination specified", "there is no account %q%s", name, meant(name, d.accountNames()))
}

func (d *DB) noUser(name string) *Refusal {
	return refuse("ESLURM_USER_ID_MISSING", "Invalid user id", "there is no user %q%s", name, meant(name, d.userNames()))
}

func (d *DB) noQOS(name string) *Refusal {
	return refuse("ESLURM_INVALID_QOS", "Invalid qos specification", "there is no QOS %q%s", name, meant(name, d.qosNames()))
}

func badValue(format string, args ...any) *Refusal {
	return refuse("ESLURM_INVALID_VALUE", "Bad value for an option", format, args...)
}

// split cuts a list at commas; blanks around words and empty words do not count, double ones count once.
func split(s string) (words []string) {
	have := map[string]bool{}
	for w := range strings.SplitSeq(s, ",") {
		if w = strings.TrimSpace(w); w != "" && !have[w] {
			words, have[w] = append(words, w), true
		}
	}
	return words
}
