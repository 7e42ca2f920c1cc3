package replica

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var crashImages = flag.Int("crash-images", 30, "how many crash images TestCrashImages opens")

// image is the files of a folder, by path, at one moment.
type image map[string][]byte

func takeImage(t *testing.T, dir string) image {
	t.Helper()
	out := image{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		out[rel], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return out
}

func (im image) write(t *testing.T, dir string) {
	t.Helper()
	for name, data := range im {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (im image) with(name string, data []byte) image {
	out := image{}
	for n, d := range im {
		out[n] = d
	}
	out[name] = data
	return out
}

// moment is an image at a write boundary with what had been acknowledged until then.
type moment struct {
	point string
	files image
	acked []string
}

// recorder takes an image at each boundary. Between the points around one change it keeps all others out,
// so that each image is one that a crash could leave.
type recorder struct {
	t       *testing.T
	dir     string
	writing sync.Mutex
	mu      sync.Mutex
	acked   []string
	moments []moment
}

func (r *recorder) point(name string) error {
	_, what, _ := strings.Cut(name, ".")
	begins := strings.HasPrefix(what, "before-") || what == "snapshot-begin"
	switch what {
	case "before-store", "before-vote", "snapshot-begin", "after-store", "after-vote", "snapshot-end":
	default:
		return nil
	}
	if begins {
		r.writing.Lock()
	}
	r.mu.Lock()
	acked := slices.Clone(r.acked)
	r.mu.Unlock()
	m := moment{point: what, acked: acked, files: takeImage(r.t, r.dir)}
	r.mu.Lock()
	r.moments = append(r.moments, m)
	r.mu.Unlock()
	if !begins {
		r.writing.Unlock()
	}
	return nil
}

// record runs one replica through entries, snapshots and a restart.
func record(t *testing.T) *recorder {
	t.Helper()
	rec := &recorder{t: t, dir: filepath.Join(t.TempDir(), "r")}
	for round := range 2 {
		r, _, err := lone(t, rec.dir, func(c *Config, l *ledger) {
			c.SnapshotBytes, c.tail, c.point = 32<<10, 16<<10, rec.point
		})
		if err != nil {
			t.Fatal(err)
		}
		<-r.Leadership()
		for i := range 60 {
			key := fmt.Sprintf("%d/%d/", round, i) + strings.Repeat("x", 500+i*97%7000)
			if _, err := r.Propose(t.Context(), submit(key)); err != nil {
				t.Fatal(err)
			}
			rec.mu.Lock()
			rec.acked = append(rec.acked, key)
			rec.mu.Unlock()
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return rec
}

const bytesOfPage = 4096

// tear gives the files as a crash in the middle of a change leaves them: some of the data pages written in any order,
// and last the page that makes them valid, whole or in part.
func tear(before, after []byte, rng *rand.Rand) (list [][]byte) {
	if bytes.Equal(before, after) {
		return nil
	}
	var data, meta []int
	for at := 0; at < len(after); at += bytesOfPage {
		end := min(at+bytesOfPage, len(after))
		if at >= len(before) || !bytes.Equal(before[at:min(end, len(before))], after[at:end]) {
			if at < 2*bytesOfPage {
				meta = append(meta, at)
			} else {
				data = append(data, at)
			}
		}
	}
	some := func(pages []int, cut int) []byte {
		out := make([]byte, max(len(before), len(after)))
		copy(out, before)
		for _, at := range pages {
			copy(out[at:min(at+cut, len(out))], after[at:])
		}
		return out
	}
	rng.Shuffle(len(data), func(i, j int) { data[i], data[j] = data[j], data[i] })
	for _, n := range []int{0, len(data) / 2, len(data)} {
		list = append(list, some(data[:n], bytesOfPage))
	}
	for _, n := range []int{16 + 60, 16 + 30, 512} {
		torn := some(data, bytesOfPage)
		for _, at := range meta {
			copy(torn[at:at+n], after[at:])
		}
		list = append(list, torn)
	}
	return list
}

// opens tells whether a replica begins with an image and has all that was acknowledged. Otherwise the error must
// say what to do.
func opens(t *testing.T, what string, im image, acked []string) (opened bool) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "r")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	im.write(t, dir)
	r, l, err := lone(t, dir, func(c *Config, _ *ledger) { c.HeartbeatTimeout = 10 * time.Millisecond })
	if err != nil {
		if !strings.Contains(err.Error(), "move") || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: the refusal does not say what to do: %v", what, err)
		}
		return false
	}
	defer func() { _ = r.Close(); _ = os.RemoveAll(dir) }()
	select {
	case <-r.Leadership():
	case err := <-r.Fatal():
		t.Errorf("%s: ended with %v", what, err)
		return true
	case <-time.After(20 * time.Second):
		t.Errorf("%s: it opens and does not lead: %+v", what, r.Status())
		return true
	}
	if got := l.state().Order; len(got) < len(acked) || !slices.Equal(got[:len(acked)], acked) {
		t.Errorf("%s: %d entries were acknowledged, %d are there", what, len(acked), len(got))
	}
	return true
}

// TestCrashImages: whatever a crash at or between write boundaries leaves, a replica begins from it with all
// that was acknowledged.
func TestCrashImages(t *testing.T) {
	rec := record(t)
	seed := uint64(20261130)
	rng := rand.New(rand.NewPCG(seed, 0))
	type candidate struct {
		what  string
		files image
		acked []string
	}
	var all []candidate
	points := map[string]int{}
	for i, m := range rec.moments {
		points[m.point]++
		all = append(all, candidate{fmt.Sprint("at ", m.point, " ", i), m.files, m.acked})
		if i+1 == len(rec.moments) || !strings.HasPrefix(m.point, "before-") {
			continue
		}
		for k, torn := range tear(m.files[logFile], rec.moments[i+1].files[logFile], rng) {
			all = append(all, candidate{fmt.Sprintf("torn %d after %s %d", k, m.point, i), m.files.with(logFile, torn), m.acked})
		}
	}
	if points["snapshot-end"] < 3 || points["after-vote"] < 2 || points["after-store"] < 100 {
		t.Fatalf("too little happened: %v", points)
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	n := min(len(all), *crashImages)
	if testing.Short() {
		n = min(n, 10)
	}
	for _, c := range all[:n] {
		if !opens(t, c.what, c.files, c.acked) {
			t.Errorf("%s (seed %d): refused", c.what, seed)
		}
	}
	t.Logf("%d of %d images, %v", n, len(all), points)
}

// TestCutFiles: a log, a snapshot or its description that was cut at any place is used only if nothing that
// was acknowledged is missing; else the replica does not begin and says why.
func TestCutFiles(t *testing.T) {
	rec := record(t)
	last := rec.moments[len(rec.moments)-1]
	last.acked = rec.acked
	last.files = takeImage(t, rec.dir)
	tried, opened := 0, 0
	try := func(what string, m moment, name string, data []byte) {
		tried++
		if opens(t, what, m.files.with(name, data), m.acked) {
			opened++
		}
	}
	whole := last.files[logFile]
	cuts := []int{0, 1, 100, 4095, 4096, 4097, 8192, 12288, 16384, len(whole) / 3, len(whole) / 2, len(whole) - 4096, len(whole) - 1}
	for _, n := range cuts {
		try(fmt.Sprintf("log cut to %d of %d", n, len(whole)), last, logFile, whole[:n])
	}
	if opened > tried/2 { // what was cut off may be free pages: then nothing is missing, as opens has seen
		t.Errorf("%d of %d cut logs were used", opened, tried)
	}
	gone := image{}
	for n, d := range last.files {
		if n != logFile {
			gone[n] = d
		}
	}
	if opens(t, "log taken away", gone, last.acked) {
		t.Error("a folder without its log was used")
	}
	at := slices.IndexFunc(rec.moments, func(m moment) bool { return m.point == "snapshot-end" })
	second := at + 1 + slices.IndexFunc(rec.moments[at+1:], func(m moment) bool { return m.point == "snapshot-end" })
	for _, m := range []moment{rec.moments[at], rec.moments[second], last} {
		state, meta := newestSnapshot(m.files)
		if state == "" {
			t.Fatalf("at %s there is no snapshot among %v", m.point, slices.Sorted(maps.Keys(m.files)))
		}
		for _, name := range []string{state, meta} {
			data := m.files[name]
			for _, n := range []int{0, len(data) / 2, len(data) - 2} {
				try(fmt.Sprintf("%s: %s cut to %d of %d", m.point, name, n, len(data)), m, name, data[:n])
			}
		}
	}
	t.Logf("%d of %d cut images were used", opened, tried)
}

// newestSnapshot names the files of the newest snapshot.
func newestSnapshot(im image) (state, meta string) {
	var newest uint64
	for name := range im {
		var term, index, ms uint64
		if n, _ := fmt.Sscanf(name, snapshotFolder+"/%d-%d-%d", &term, &index, &ms); n == 3 && strings.HasSuffix(name, "/state.bin") && !strings.Contains(name, ".tmp/") && index >= newest {
			newest, state = index, name
		}
	}
	return state, strings.TrimSuffix(state, "state.bin") + "meta.json"
}
