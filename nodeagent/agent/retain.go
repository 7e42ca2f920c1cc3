package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// Limits of the output that ended runs leave in the spool (SharedFS=no). What is over one of them
// goes, the oldest first; a run that still lives, or whose report waits, keeps its own.
const (
	MaxOutputAge   = 7 * 24 * time.Hour // since it was last written
	MaxOutputBytes = 10 << 30           // on the disk, together
	MaxOutputs     = 65536              // runs
)

const (
	retainEvery = 5 * time.Minute
	// maxRetire bounds the outputs that one look removes.
	maxRetire = 1024
)

// output is what one run has left.
type output struct {
	key   launch.Key
	bytes int64
	last  time.Time
}

// retain keeps the output in the spool within its limits.
func (a *Agent) retain(ctx context.Context) {
	for sleep(ctx, retainEvery) {
		list, err := a.spool.outputs()
		if err != nil {
			a.log.Error("looking at the output in the spool", "err", err)
			continue
		}
		list = a.retire(list, a.d.Now())
		for i := range list {
			if !a.remove(ctx, list[i].key) {
				break // the next look begins again
			}
		}
	}
}

// retire picks what has to go.
func (a *Agent) retire(list []output, now time.Time) []output {
	a.mu.Lock()
	list = slices.DeleteFunc(list, func(o output) bool { return a.runs[o.key] != nil })
	a.mu.Unlock()
	slices.SortFunc(list, func(x, y output) int {
		return cmp.Or(x.last.Compare(y.last), cmp.Compare(x.key.Job, y.key.Job), cmp.Compare(x.key.Run, y.key.Run))
	})
	var total int64
	for i := range list {
		total += list[i].bytes
	}
	n := 0
	for n < len(list) && n < maxRetire &&
		(now.Sub(list[n].last) > MaxOutputAge || total > MaxOutputBytes || len(list)-n > MaxOutputs) {
		total -= list[n].bytes
		n++
	}
	return list[:n]
}

// remove has the launcher remove a run's output: it is the user's file in a folder of root's.
func (a *Agent) remove(ctx context.Context, k launch.Key) bool {
	if !take(ctx, a.releases) {
		return false
	}
	defer give(a.releases)
	reply, err := a.launch.call(ctx, &launch.Request{Release: &launch.Release{Key: k}})
	if err == nil && reply.Err != "" {
		err = errors.New(reply.Err)
	}
	if err != nil {
		a.log.Warn("removing old output", "job", k.Job, "run", k.Run, "err", err)
		return false
	}
	a.log.Info("output removed", "job", k.Job, "run", k.Run)
	return true
}

// outputs lists what runs have left. Names that are none of ours are passed over.
func (s *spool) outputs() ([]output, error) {
	dir, err := s.openat(launch.OutputDir, unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the launcher has not been here yet
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	found := map[launch.Key]*output{}
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			k, ok := outputKey(name)
			var st unix.Stat_t
			if !ok || unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			o := found[k]
			if o == nil {
				o = &output{key: k}
				found[k] = o
			}
			o.bytes += st.Blocks * 512
			if last := time.Unix(st.Mtim.Unix()); last.After(o.last) {
				o.last = last
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("spool: %w", err)
		}
	}
	list := make([]output, 0, len(found))
	for _, o := range found {
		list = append(list, *o)
	}
	return list, nil
}

// outputKey reads the name of an output file.
func outputKey(name string) (launch.Key, bool) {
	base, ok := strings.CutSuffix(name, ".out")
	if !ok {
		if base, ok = strings.CutSuffix(name, ".err"); !ok {
			return launch.Key{}, false
		}
	}
	k, err := launch.ParseKey(base)
	return k, err == nil
}
