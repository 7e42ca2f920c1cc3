package launch_test

import (
	"strings"
	"testing"
)

// TestShepherdIsUsedAgain runs steps one after the other.
func TestShepherdIsUsedAgain(t *testing.T) {
	n := newNode(t)
	seen := map[string]int{}
	for range 50 {
		seen[strings.TrimSpace(n.output("#!/bin/sh\necho $PPID"))]++
	}
	if len(seen) > 3 {
		t.Errorf("%d shepherds for 50 steps: %v", len(seen), seen)
	}
}
