package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// DataParser is the version of Slurm's JSON shape that --json keeps.
const DataParser = "data_parser/v0.0.41"

// Number is Slurm's number that may be missing or infinite.
type Number struct {
	Set      bool  `json:"set"`
	Infinite bool  `json:"infinite"`
	Number   int64 `json:"number"`
}

// Num is a number that is set.
func Num[T int | int32 | int64 | uint32 | uint64](n T) Number {
	return Number{Set: true, Number: int64(n)}
}

// NumIf is a number that is set unless it is zero.
func NumIf[T int | int32 | int64 | uint32 | uint64](n T) Number {
	return Number{Set: n != 0, Number: int64(n)}
}

// Minutes is a duration of milliseconds in minutes; negative = infinite, 0 = not set.
func Minutes(ms int64) Number {
	if ms < 0 {
		return Number{Infinite: true}
	}
	return NumIf(ms / 60000)
}

// Meta describes who made the answer.
type Meta struct {
	Plugin struct {
		Type       string `json:"type"`
		Name       string `json:"name"`
		DataParser string `json:"data_parser"`
	} `json:"plugin"`
	Command []string `json:"command"`
	Slurm   struct {
		Version struct {
			Major string `json:"major"`
			Micro string `json:"micro"`
			Minor string `json:"minor"`
		} `json:"version"`
		Release string `json:"release"`
		Cluster string `json:"cluster"`
	} `json:"slurm"`
}

// NewMeta fills the description in. release is like "22.05.8".
func NewMeta(cluster, release string, command []string) Meta {
	var m Meta
	m.Plugin.DataParser = DataParser
	m.Plugin.Name = "TensorGrid"
	m.Command = command
	m.Slurm.Cluster, m.Slurm.Release = cluster, release
	v := strings.SplitN(release+"..", ".", 4)
	m.Slurm.Version.Major, m.Slurm.Version.Minor, m.Slurm.Version.Micro = v[0], v[1], v[2]
	return m
}

// Stamp is a Unix time in seconds, set unless it is zero.
func Stamp(ms int64) Number { return NumIf(ms / 1000) }

// WriteJSON prints {"<name>": list, "last_update": ..., "meta": ..., "errors": [], "warnings": []}.
// compact is SLURM_JSON's word.
func WriteJSON(w io.Writer, name string, list any, now time.Time, meta Meta, compact bool) error {
	doc := map[string]any{
		name: list, "last_update": Num(now.Unix()), "meta": meta, "errors": []string{}, "warnings": []string{},
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if !compact {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(doc); err != nil {
		return err
	}
	_, err := w.Write(escapeControls(text.Bytes()))
	return err
}

// escapeControls writes DEL and the control characters from U+0080 to U+009F as escapes, as the encoder does
// with those below a space: some terminals obey them. In JSON they can stand in strings only.
func escapeControls(text []byte) []byte {
	const del, lead, first, last = 0x7f, 0xc2, 0x80, 0x9f // U+0080 is C2 80 in UTF-8
	var out []byte
	done := 0
	for i := 0; i < len(text); i++ {
		width := 0
		switch {
		case text[i] == del:
			width = 1
		case text[i] == lead && i+1 < len(text) && first <= text[i+1] && text[i+1] <= last:
			width = 2
		default:
			continue
		}
		out = append(out, text[done:i]...)
		out = fmt.Appendf(out, `\u00%02x`, text[i+width-1])
		i += width - 1
		done = i + 1
	}
	if done == 0 {
		return text
	}
	return append(out, text[done:]...)
}
