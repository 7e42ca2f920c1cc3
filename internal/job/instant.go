package job

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrInstant is wrapped by errors about a point in time that cannot be read.
var ErrInstant = errors.New("invalid time specification")

// Years that a point in time may lie in, so that Unix milliseconds and all printed forms stay in range.
const (
	minYear = 1970
	maxYear = 2199
)

// ParseInstant reads a point in time as Slurm does, in now's zone: HH:MM[:SS][AM|PM], MMDDYY, MM/DD[/YY],
// YYYY-MM-DD[THH:MM[:SS]] (or - for the T), now[+N[seconds|minutes|hours|days|weeks]], today, tomorrow, midnight, noon,
// elevenses, fika, teatime, or a date and a time of day together. A time of day that has passed is tomorrow's, a day
// of the year that has passed is next year's.
func ParseInstant(s string, now time.Time) (time.Time, error) { return parseInstant(s, now, false) }

// ParsePastInstant is ParseInstant for questions about the past (gacct -S): a time of day is today's, a
// day without a year is this year's.
func ParsePastInstant(s string, now time.Time) (time.Time, error) { return parseInstant(s, now, true) }

// instant is what has been read so far; -1 where nothing was said.
type instant struct {
	year, month, day  int
	hour, minute, sec int
	implied           bool // the day has no year: it may be moved a year on
}

func parseInstant(s string, now time.Time, past bool) (time.Time, error) {
	fail := func(format string, args ...any) (time.Time, error) {
		return time.Time{}, fmt.Errorf("%w %q: %s", ErrInstant, s, fmt.Sprintf(format, args...))
	}
	if len(s) > 64 {
		return time.Time{}, fmt.Errorf("%w: longer than 64 bytes", ErrInstant)
	}
	text := strings.ToLower(strings.TrimSpace(s))
	if after, ok := strings.CutPrefix(text, "now"); ok {
		offset, err := parseOffset(strings.TrimSpace(after))
		if err != nil {
			return fail("%v", err)
		}
		if t := now.Add(offset); t.Year() >= minYear && t.Year() <= maxYear {
			return t.Truncate(time.Second), nil
		}
		return fail("not between the years %d and %d", minYear, maxYear)
	}
	at := instant{year: -1, hour: -1}
	words := splitInstant(text)
	if len(words) == 0 {
		return fail("empty")
	}
	for _, word := range words {
		var err error
		switch {
		case strings.ContainsAny(word, "/.-") || len(word) >= 6 && allDigits(word) || word == "today" || word == "tomorrow":
			err = at.readDay(word, now)
		default:
			err = at.readTime(word)
		}
		if err != nil {
			return fail("%v", err)
		}
	}
	return at.resolve(now, past), nil
}

// splitInstant cuts at blanks and at the T, or the third dash, between a date and a time.
func splitInstant(text string) []string {
	var words []string
	for _, word := range strings.Fields(text) {
		if i := strings.IndexByte(word, 't'); i > 0 && i+1 < len(word) && isDigit(word[i-1]) && isDigit(word[i+1]) {
			words = append(words, word[:i], word[i+1:])
			continue
		}
		if i := strings.LastIndexByte(word, '-'); strings.Count(word, "-") == 3 && strings.Contains(word[i:], ":") {
			words = append(words, word[:i], word[i+1:])
			continue
		}
		words = append(words, word)
	}
	return words
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func allDigits(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

// parseOffset reads what follows "now": nothing, or a sign, a number and a unit.
func parseOffset(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	sign := time.Duration(1)
	switch s[0] {
	case '+':
	case '-':
		sign = -1
	default:
		return 0, fmt.Errorf("%q after now, use + or -", s)
	}
	body := strings.TrimSpace(s[1:])
	end := 0
	for end < len(body) && isDigit(body[end]) {
		end++
	}
	n, ok := digitsIn(body[:end])
	if !ok {
		return 0, fmt.Errorf("%q is not a number and a unit", body)
	}
	unit := strings.TrimSpace(body[end:])
	for _, u := range []struct {
		name string
		d    time.Duration
	}{{"seconds", time.Second}, {"minutes", time.Minute}, {"hours", time.Hour}, {"days", 24 * time.Hour}, {"weeks", 7 * 24 * time.Hour}} {
		if strings.HasPrefix(u.name, unit) { // no unit at all is seconds
			if n > int64((250*365*24*time.Hour)/u.d) {
				return 0, fmt.Errorf("%s is too far", s)
			}
			return sign * time.Duration(n) * u.d, nil
		}
	}
	return 0, fmt.Errorf("unknown unit %q, use seconds, minutes, hours, days or weeks", unit)
}

// readDay reads MMDDYY, MMDDYYYY, MM/DD[/YY], MM.DD[.YY], YYYY-MM-DD, today or tomorrow.
func (at *instant) readDay(word string, now time.Time) error {
	if at.year >= 0 {
		return fmt.Errorf("%q is a second date", word)
	}
	var fields [3]string
	switch {
	case word == "today" || word == "tomorrow":
		if word == "tomorrow" {
			now = now.AddDate(0, 0, 1)
		}
		at.year, at.month, at.day = now.Year(), int(now.Month()), now.Day()
		return nil
	case strings.Contains(word, "-"):
		parts := strings.Split(word, "-")
		if len(parts) != 3 || len(parts[0]) != 4 {
			return fmt.Errorf("%q is not YYYY-MM-DD", word)
		}
		fields = [3]string{parts[1], parts[2], parts[0]}
	case allDigits(word):
		if len(word) != 6 && len(word) != 8 {
			return fmt.Errorf("%q is not MMDDYY", word)
		}
		fields = [3]string{word[:2], word[2:4], word[4:]}
	default:
		separator := "/"
		if !strings.Contains(word, "/") {
			separator = "."
		}
		parts := strings.Split(word, separator)
		if len(parts) < 2 || len(parts) > 3 {
			return fmt.Errorf("%q is not MM%sDD[%sYY]", word, separator, separator)
		}
		copy(fields[:], parts)
		if len(parts) == 2 {
			at.implied = true
			fields[2] = fmt.Sprint(now.Year())
		}
	}
	return at.setDay(word, fields)
}

// setDay takes month, day and year and checks that there is such a day.
func (at *instant) setDay(word string, fields [3]string) error {
	var n [3]int
	for i, f := range fields {
		v, ok := digitsIn(f)
		if !ok || len(f) > 4 || i < 2 && len(f) > 2 {
			return fmt.Errorf("%q in %q is not a number", f, word)
		}
		n[i] = int(v)
	}
	switch len(fields[2]) {
	case 1, 2:
		n[2] += 2000
	case 3:
		return fmt.Errorf("%q in %q is not a year", fields[2], word)
	}
	at.month, at.day, at.year = n[0], n[1], n[2]
	if at.year < minYear || at.year > maxYear {
		return fmt.Errorf("the year %d is not between %d and %d", at.year, minYear, maxYear)
	}
	d := time.Date(at.year, time.Month(at.month), at.day, 0, 0, 0, 0, time.UTC)
	if leap := at.implied && at.month == 2 && at.day == 29; !leap && (int(d.Month()) != at.month || d.Day() != at.day) {
		return fmt.Errorf("there is no day %q", word)
	}
	return nil
}

var namedTimes = map[string]int{"midnight": 0, "elevenses": 11, "noon": 12, "fika": 15, "teatime": 16}

// readTime reads HH:MM[:SS], AM or PM after it or on its own, or a named time.
func (at *instant) readTime(word string) error {
	if hour, ok := namedTimes[word]; ok {
		if at.hour >= 0 {
			return fmt.Errorf("%q is a second time of day", word)
		}
		at.hour = hour
		return nil
	}
	clock, half := word, ""
	if strings.HasSuffix(word, "am") || strings.HasSuffix(word, "pm") {
		clock, half = word[:len(word)-2], word[len(word)-2:]
	}
	if clock != "" {
		if at.hour >= 0 {
			return fmt.Errorf("%q is a second time of day", word)
		}
		parts := strings.Split(clock, ":")
		if len(parts) < 2 || len(parts) > 3 {
			return fmt.Errorf("%q is neither a date nor a time of day", word)
		}
		limits := []int64{23, 59, 59}
		into := []*int{&at.hour, &at.minute, &at.sec}
		for i, p := range parts {
			n, ok := digitsIn(p)
			if !ok || len(p) > 2 || n > limits[i] {
				return fmt.Errorf("%q is not a time of day", word)
			}
			*into[i] = int(n)
		}
	}
	switch {
	case half == "":
		return nil
	case at.hour < 1 || at.hour > 12:
		return fmt.Errorf("%s needs an hour from 1 to 12", strings.ToUpper(half))
	case half == "am" && at.hour == 12:
		at.hour = 0
	case half == "pm" && at.hour < 12:
		at.hour += 12
	}
	return nil
}

// resolve gives the moment, filling in the day or the time that was not said.
func (at *instant) resolve(now time.Time, past bool) time.Time {
	if at.year < 0 {
		t := time.Date(now.Year(), now.Month(), now.Day(), at.hour, at.minute, at.sec, 0, now.Location())
		if !past && !t.After(now) {
			t = time.Date(now.Year(), now.Month(), now.Day()+1, at.hour, at.minute, at.sec, 0, now.Location())
		}
		return t
	}
	date := func(year int) time.Time {
		return time.Date(year, time.Month(at.month), at.day, max(at.hour, 0), at.minute, at.sec, 0, now.Location())
	}
	t := date(at.year)
	today := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	for at.implied && (t.Day() != at.day || !past && t.Before(today)) {
		at.year++ // 02/29 waits for the next year that has one
		t = date(at.year)
	}
	return t
}
