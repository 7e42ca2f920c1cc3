package plot

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/gsim/replay"
)

// result is a replay of one moment or of a day.
func result(policy string, samples int) *replay.Result {
	r := &replay.Result{Summary: replay.Summary{Trace: "t", Policy: policy, Sizes: []replay.SizeClass{{From: 1, To: 1, Jobs: 1}, {From: 3, To: 4, Jobs: 2, MeanWait: 4000, LongestWait: 90000}}}}
	for i := range samples {
		r.Samples = append(r.Samples, replay.Sample{At: int64(i) * 3600000, Queued: i % 7, CPUs: int64(i % 5)})
	}
	return r
}

func TestWrite(t *testing.T) {
	for _, samples := range []int{1, 2, 1000} {
		dir := filepath.Join(t.TempDir(), "new")
		files, err := Write(dir, []*replay.Result{result("one", samples), result("two", samples)})
		if err != nil || len(files) != 6 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			switch filepath.Ext(f) {
			case ".png":
				if pic, err := png.Decode(bytes.NewReader(data)); err != nil || pic.Bounds().Dx() < 800 {
					t.Errorf("%s: %v", f, err)
				}
			case ".svg":
				if !bytes.Contains(data, []byte("<svg")) || !bytes.Contains(data, []byte("two")) {
					t.Errorf("%s is no picture of the replays", f)
				}
			}
		}
	}
	list := make([]*replay.Result, MaxReplays+1)
	if _, err := Write(t.TempDir(), list); err == nil {
		t.Error("more replays than fit must be refused")
	}
}

func TestSteps(t *testing.T) {
	s := []replay.Sample{{At: 0, Queued: 4}, {At: 1000, Queued: 2}, {At: 2000}}
	xy := steps(s, func(s *replay.Sample) float64 { return float64(s.Queued) })
	var sum float64
	for i := range xy[:len(xy)-1] {
		sum += xy[i].Y * (xy[i+1].X - xy[i].X) * 86400
	}
	if sum < 5.999 || sum > 6.001 {
		t.Errorf("the area under the steps is %v job-seconds, want 6", sum)
	}
}
