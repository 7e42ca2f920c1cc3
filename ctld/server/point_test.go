//go:build faults

package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/fault"
)

// TestPoints: a call that a point breaks has no answer, and is made again under its key. Run it with the folder
// of the points in $GRID_FAULTS.
func TestPoints(t *testing.T) {
	dir := os.Getenv("GRID_FAULTS")
	if dir == "" || !fault.Enabled {
		t.Skip("GRID_FAULTS names no folder")
	}
	for _, point := range []string{"server.before-propose", "server.before-reply"} {
		path := filepath.Join(dir, point)
		if err := os.WriteFile(path, []byte("error EIO 1"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, s, _ := pair(t)
		resp, err := call(f.as(ann), s, "Submit", &ctldpb.SubmitRequest{Spec: script()}, notHere)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatalf("%s: %v", point, err)
		}
		if all, _, _ := f.log.View().Counts(); all != 1 || resp.(*ctldpb.SubmitResponse).Duplicate != (point == "server.before-reply") {
			t.Errorf("%s: %d jobs, %v", point, all, resp)
		}
	}
}
