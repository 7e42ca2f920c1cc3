package job

import (
	"errors"
	"testing"
	"time"
)

func TestParseInstant(t *testing.T) {
	zone := time.FixedZone("somewhere", 2*3600)
	now := time.Date(2026, 11, 30, 14, 30, 15, 123, zone)
	const form = "2006-01-02T15:04:05"
	for in, want := range map[string]string{
		"16:00": "2026-11-30T16:00:00", "14:30": "2026-12-01T14:30:00", "14:30:16": "2026-11-30T14:30:16", "08:05:09": "2026-12-01T08:05:09",
		"4:30PM": "2026-11-30T16:30:00", "4:30pm": "2026-11-30T16:30:00", "12:00AM": "2026-12-01T00:00:00", "12:30PM": "2026-12-01T12:30:00",
		"4:30 PM": "2026-11-30T16:30:00", "120126": "2026-12-01T00:00:00", "12012027": "2027-12-01T00:00:00", "12/24": "2026-12-24T00:00:00",
		"01/15": "2027-01-15T00:00:00", "11/30": "2026-11-30T00:00:00", "12/24/28": "2028-12-24T00:00:00", "1/2/2027": "2027-01-02T00:00:00",
		"12.24": "2026-12-24T00:00:00", "2027-01-02": "2027-01-02T00:00:00", "2027-01-02-03:04:05": "2027-01-02T03:04:05", "1970-01-02-00:00:01": "1970-01-02T00:00:01", "2027-01-02T03:04": "2027-01-02T03:04:00", "2027-01-02t03:04:05": "2027-01-02T03:04:05",
		"2027-01-02 03:04:05": "2027-01-02T03:04:05", "12/24 08:00": "2026-12-24T08:00:00", "08:00 12/24": "2026-12-24T08:00:00",
		"now": "2026-11-30T14:30:15", "now+10": "2026-11-30T14:30:25", "now+1hour": "2026-11-30T15:30:15", "now+2hours": "2026-11-30T16:30:15",
		"now+30minutes": "2026-11-30T15:00:15", "now+1day": "2026-12-01T14:30:15", "now+1week": "2026-12-07T14:30:15", "now-1hour": "2026-11-30T13:30:15",
		"now + 5 min": "2026-11-30T14:35:15", "NOW+10": "2026-11-30T14:30:25", "today": "2026-11-30T00:00:00", "tomorrow": "2026-12-01T00:00:00",
		"midnight": "2026-12-01T00:00:00", "noon": "2026-12-01T12:00:00", "fika": "2026-11-30T15:00:00", "teatime": "2026-11-30T16:00:00",
		"elevenses": "2026-12-01T11:00:00", "tomorrow noon": "2026-12-01T12:00:00", "noon tomorrow": "2026-12-01T12:00:00", "today 08:00": "2026-11-30T08:00:00",
		"02/29": "2028-02-29T00:00:00", "2020-01-01": "2020-01-01T00:00:00",
	} {
		got, err := ParseInstant(in, now)
		if err != nil || got.Format(form) != want || got.Location() != zone {
			t.Errorf("ParseInstant(%q) = %s, %v; want %s", in, got, err, want)
		}
	}
	for in, want := range map[string]string{"08:05": "2026-11-30T08:05:00", "midnight": "2026-11-30T00:00:00", "01/15": "2026-01-15T00:00:00"} {
		if got, err := ParsePastInstant(in, now); err != nil || got.Format(form) != want {
			t.Errorf("ParsePastInstant(%q) = %s, %v; want %s", in, got, err, want)
		}
	}
	for _, bad := range []string{
		"", " ", "never", "24:00", "12:60", "1:2:3:4", "13:00PM", "0:30AM", "02/30", "13/01", "2027-13-01", "2027-02-29", "27-01-02", "1234567", "12345",
		"now+", "now+x", "now+1fortnight", "now*2", "now+99999999999999999999", "now+300000days", "12/24/1969", "12/24/2200", "12/24/123", "noon noon",
		"12:00 13:00", "today tomorrow", "PM", "4PM", "2027-01-02T", "2027-01-02T25:00", "1/2/3/4", "123:00",
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
	} {
		if got, err := ParseInstant(bad, now); !errors.Is(err, ErrInstant) {
			t.Errorf("ParseInstant(%q) = %s, %v", bad, got, err)
		}
	}
}

func FuzzParseInstant(f *testing.F) {
	for _, s := range []string{"16:00", "4:30PM", "120126", "12/24/28", "2027-01-02T03:04:05", "now+1hour", "tomorrow noon", "02/29"} {
		f.Add(s)
	}
	now := time.Date(2026, 11, 30, 14, 30, 15, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseInstant(s, now)
		if err != nil {
			return
		}
		if got.Year() < minYear || got.Year() > maxYear+8 {
			t.Fatalf("%q is %s", s, got)
		}
		text := got.Format("2006-01-02T15:04:05")
		if back, err := ParseInstant(text, now); got.Year() <= maxYear && (err != nil || !back.Equal(got)) {
			t.Fatalf("%q is %s, which is %s, %v", s, text, back, err)
		}
	})
}
