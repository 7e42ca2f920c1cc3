package conf

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Limits of one value.
const (
	maxValue = 4 << 10 // bytes, lists and hostlists apart
	maxList  = 64 << 10
)

// key describes one key of a struct: what the tag says and where the value goes.
type key struct {
	name, unit, def, apply string
	field                  int
}

// keysOf reads the conf tags of a struct type, by lower-case name.
func keysOf(t reflect.Type) map[string]key {
	m := make(map[string]key)
	for i := range t.NumField() {
		tag := t.Field(i).Tag.Get("conf")
		if tag == "" {
			continue
		}
		p := strings.SplitN(tag, ",", 4)
		m[strings.ToLower(p[0])] = key{p[0], p[1], p[2], p[3], i}
	}
	return m
}

// set parses text by k's unit into the field of v (a pointer to struct).
func (k key) set(v reflect.Value, text, op string) error {
	f := v.Elem().Field(k.field)
	limit := maxValue
	if k.unit == "list" || k.unit == "hostlist" || k.unit == "nodes" || k.name == "NodeAddr" || k.name == "NodeHostname" {
		limit = maxList
	}
	if len(text) > limit {
		return fmt.Errorf("%s has %d bytes, the limit is %d", k.name, len(text), limit)
	}
	if err := k.assign(f, text, op); err != nil {
		return fmt.Errorf("%s=%s: %w", k.name, clip(text), err)
	}
	return nil
}

func clip(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}

func (k key) assign(f reflect.Value, text, op string) error {
	unit, words, _ := strings.Cut(k.unit, ":")
	switch unit {
	case "name":
		if !goodName(text) {
			return fmt.Errorf("a name has letters, digits, '.', '-' and '_', and at most 40 of them")
		}
		f.SetString(text)
	case "string", "hostlist":
		f.SetString(text)
	case "path":
		if text != "" && text[0] != '/' && !strings.EqualFold(text, "none") {
			return fmt.Errorf("the path must be absolute")
		}
		if strings.EqualFold(text, "none") {
			text = ""
		}
		f.SetString(text)
	case "word":
		for w := range strings.SplitSeq(words, "|") {
			if strings.EqualFold(w, text) {
				f.SetString(w)
				return nil
			}
		}
		return fmt.Errorf("one of %s was expected", strings.ReplaceAll(words, "|", ", "))
	case "list", "nodes":
		list := splitList(text)
		if unit == "nodes" && !strings.EqualFold(text, "ALL") {
			var err error
			if list, err = hostlist.Expand(text); err != nil {
				return err
			}
		}
		if op == "+=" {
			list = append(f.Interface().([]string), list...)
		}
		f.Set(reflect.ValueOf(list))
	default:
		return k.assignNumber(f, unit, text)
	}
	return nil
}

func (k key) assignNumber(f reflect.Value, unit, text string) error {
	switch unit {
	case "bool":
		b, err := parseBool(text)
		if err != nil {
			return err
		}
		f.SetBool(b)
	case "count":
		n, err := parseCount(text)
		if err != nil {
			return err
		}
		f.SetUint(uint64(n))
	case "seconds", "minutes":
		d, err := parseSpan(text, unit)
		if err != nil {
			return err
		}
		f.SetInt(int64(d))
	case "mib":
		n, err := parseMiB(text)
		if err != nil {
			return err
		}
		f.SetInt(n)
	case "lease":
		d, err := parseSpan(text, "seconds")
		if err != nil {
			return err
		}
		if f.SetInt(int64((d + time.Millisecond - 1) / time.Millisecond)); d == 0 {
			f.SetInt(int64(NoLease))
		}
	case "timelimit":
		if text == "" || strings.EqualFold(text, "NONE") {
			f.SetInt(0)
			return nil
		}
		ms, err := job.ParseTimeLimit(text)
		if err != nil {
			return err
		}
		f.SetInt(ms)
	default:
		panic("conf: unknown unit " + unit) // a tag of this package is wrong
	}
	return nil
}

func goodName(s string) bool {
	if s == "" || len(s) > 40 {
		return false
	}
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return s[0] != '-' && s[0] != '.'
}

func splitList(s string) []string {
	var out []string
	for w := range strings.SplitSeq(s, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}

func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "1", "yes", "true", "on":
		return true, nil
	case "0", "no", "false", "off":
		return false, nil
	}
	return false, fmt.Errorf("YES or NO was expected")
}

func parseCount(s string) (uint32, error) {
	if strings.EqualFold(s, "UNLIMITED") || strings.EqualFold(s, "INFINITE") {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > math.MaxUint32-16 {
		return 0, fmt.Errorf("a whole number from 0 to %d was expected", uint32(math.MaxUint32-16))
	}
	return uint32(n), nil
}

// parseSpan takes a number of the unit, or a number with a suffix (500ms, 5s, 2m, 1h).
func parseSpan(s, unit string) (time.Duration, error) {
	const most = 10 * 365 * 24 * time.Hour
	if strings.EqualFold(s, "UNLIMITED") || strings.EqualFold(s, "INFINITE") {
		return most, nil
	}
	one := time.Second
	if unit == "minutes" {
		one = time.Minute
	}
	if n, err := strconv.ParseUint(s, 10, 63); err == nil {
		if n > uint64(most/one) {
			return 0, fmt.Errorf("at most %d %s can be set", most/one, unit)
		}
		return time.Duration(n) * one, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > most {
		return 0, fmt.Errorf("a number of %s, or one with a suffix as in 500ms, 5s, 2m, 1h was expected", unit)
	}
	return d, nil
}

// parseMiB takes a number of MiB, or one with K, M, G or T; the result is bytes.
func parseMiB(s string) (int64, error) {
	if strings.EqualFold(s, "UNLIMITED") {
		return 0, nil
	}
	shift, digits := 20, s
	if s != "" {
		switch s[len(s)-1] | 0x20 {
		case 'k':
			shift, digits = 10, s[:len(s)-1]
		case 'm':
			shift, digits = 20, s[:len(s)-1]
		case 'g':
			shift, digits = 30, s[:len(s)-1]
		case 't':
			shift, digits = 40, s[:len(s)-1]
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("a number of MiB, or one with K, M, G or T was expected")
	}
	return int64(n << shift), nil
}
