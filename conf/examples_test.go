package conf

import (
	"path/filepath"
	"slices"
	"testing"
)

// TestExamples: what a site may begin with is read, and every word of it has an effect.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("examples/*.conf")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range files {
		c, err := Load(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		for _, n := range slices.Concat(c.Ignored, c.Warnings) {
			t.Errorf("%s", n)
		}
	}
}
