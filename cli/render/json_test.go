package render

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestJSONControls: no control character goes out raw, and the text comes back as it was.
func TestJSONControls(t *testing.T) {
	const text = "a\x1b[2J\x7fb\u0080\u009b31m\u009f\u00a0é\r\n"
	for _, compact := range []bool{false, true} {
		var b bytes.Buffer
		if err := WriteJSON(&b, "jobs", []string{text, "plain", text}, time.Unix(1, 0), NewMeta("c", "22.05.8", nil), compact); err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(b.String(), func(r rune) bool { return r < ' ' && r != '\n' || 0x7f <= r && r < 0xa0 }); i >= 0 {
			t.Errorf("control character at %d of %q", i, b.String())
		}
		var back struct{ Jobs []string }
		if err := json.Unmarshal(b.Bytes(), &back); err != nil || len(back.Jobs) != 3 || back.Jobs[0] != text || back.Jobs[2] != text {
			t.Errorf("%v %q", err, back.Jobs)
		}
	}
}
