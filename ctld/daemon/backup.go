package daemon

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// defaultSkip is how far the next job id moves on when a backup is restored: ids that were given after the
// backup must not be given again.
const defaultSkip = 10000

// recordKinds are the kinds of records that people are shown, by field number of logpb.SnapshotRecord.
var recordKinds = map[protowire.Number]string{2: "jobs", 3: "nodes", 4: "blobs", 5: "keys", 8: "partitions", 9: "classes", 10: "controllers", 11: "join tokens"}

// backupInfo is what a backup file holds.
type backupInfo struct {
	header  *logpb.SnapshotHeader
	counts  map[string]int
	bytes   int64
	sum     [sha256.Size]byte
	cluster string
	pending int
	running int
}

// summed counts and hashes what is read through it.
type summed struct {
	r   io.Reader
	sum hash.Hash
	n   int64
}

// Read implements io.Reader.
func (s *summed) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.n += int64(n)
	s.sum.Write(b[:n])
	return n, err
}

// inspectBackup reads a backup twice: record by record, and as a state whose invariants are checked.
func inspectBackup(path string) (*backupInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info := &backupInfo{counts: map[string]int{}}
	all := &summed{r: f, sum: sha256.New()}
	again := f
	if st, err := f.Stat(); err == nil && !st.Mode().IsRegular() { // a pipe gives it once
		if again, err = nameless(); err != nil {
			return nil, err
		}
		defer again.Close()
		all.r = io.TeeReader(f, again)
	}
	in := bufio.NewReaderSize(all, 256<<10)
	if err := info.walk(in); err != nil {
		return nil, fmt.Errorf("%s is no backup: %w", path, err)
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return nil, err
	}
	info.bytes, info.sum = all.n, [sha256.Size]byte(all.sum.Sum(nil))
	if _, err := again.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return info, info.rebuild(path, again)
}

// nameless makes a file that nobody else can open and that is gone with us: a backup is a secret.
func nameless() (*os.File, error) {
	f, err := os.CreateTemp("", "gctld-inspect-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// walk counts the records up to the trailer.
func (b *backupInfo) walk(in *bufio.Reader) error {
	var buf []byte
	for {
		size, err := binary.ReadUvarint(in)
		if errors.Is(err, io.EOF) {
			return errors.New("it ends before its trailer: it was cut off")
		}
		if err != nil {
			return err
		}
		if size > fsm.MaxRecord {
			return fmt.Errorf("a record of %d bytes exceeds MaxRecord=%d", size, fsm.MaxRecord)
		}
		buf = slices.Grow(buf[:0], int(size))[:size]
		if _, err := io.ReadFull(in, buf); err != nil {
			return errors.New("it ends in the middle of a record: it was cut off")
		}
		kind, _, n := protowire.ConsumeTag(buf)
		switch {
		case n < 0:
			return errors.New("a record cannot be decoded")
		case b.header == nil:
			record := &logpb.SnapshotRecord{}
			if err := proto.Unmarshal(buf, record); err != nil || record.GetHeader() == nil {
				return errors.New("it does not begin with a header")
			}
			b.header = record.GetHeader()
		case kind == 6: // the trailer
			return nil
		}
		if name := recordKinds[kind]; name != "" {
			b.counts[name]++
		}
	}
}

// rebuild makes the state again and checks it.
func (b *backupInfo) rebuild(path string, f io.Reader) error {
	store := state.New()
	in := bufio.NewReaderSize(f, 256<<10)
	if err := fsm.New(store).Restore(in); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s has bytes after its trailer", path)
	}
	view := store.View()
	_, b.pending, b.running = view.Counts()
	b.cluster = view.Config().Cluster
	sum, err := fsm.Hash(view)
	switch {
	case err != nil:
		return err
	case sum != b.sum:
		return fmt.Errorf("%s: the state in it has hash %x, its bytes have %x", path, sum, b.sum)
	}
	return store.Check()
}

// inspect prints what a backup holds. The exit code is 0 only for a sound one.
func inspect(path string, stdout, stderr io.Writer) int {
	info, err := inspectBackup(path)
	if info != nil {
		info.print(stdout, path)
	}
	if err != nil {
		fmt.Fprintf(stderr, "gctld: %v\n", err)
		return 1
	}
	fmt.Fprintf(stdout, "%-11s ok\n", "check")
	return 0
}

func (b *backupInfo) print(w io.Writer, path string) {
	line := func(key string, value any) { fmt.Fprintf(w, "%-11s %v\n", key, value) }
	line("file", path)
	line("version", b.header.Version)
	line("cluster", b.cluster)
	line("index", b.header.Index)
	line("time", time.UnixMilli(b.header.TimeMs).UTC().Format(time.RFC3339))
	line("next id", b.header.NextJobId)
	for _, kind := range slices.Sorted(maps.Keys(b.counts)) {
		if kind == "jobs" {
			line(kind, fmt.Sprintf("%d (%d pending, %d running)", b.counts[kind], b.pending, b.running))
			continue
		}
		line(kind, b.counts[kind])
	}
	line("bytes", b.bytes)
	line("sha256", hex.EncodeToString(b.sum[:]))
}

// restore makes a controller's folder out of a backup.
func restore(f flags, stdout io.Writer) error {
	cfg, err := loadConf(f.conf)
	if err != nil {
		return err
	}
	name, err := nameOf(f.name, cfg)
	if err != nil {
		return err
	}
	self := cfg.Controller(name)
	if self == nil {
		return fmt.Errorf("%s has no ControllerName=%s", cfg.Source, name)
	}
	if st, err := os.Stat(f.restore); err == nil && !st.Mode().IsRegular() {
		return fmt.Errorf("--restore %s: it is no plain file, and a backup is read more than once to restore it", f.restore)
	}
	info, err := inspectBackup(f.restore)
	if err != nil {
		return err
	}
	if info.cluster != cfg.ClusterName {
		return fmt.Errorf("%s is of cluster %q, %s names %q", f.restore, info.cluster, cfg.Source, cfg.ClusterName)
	}
	dir := expand(self.StateDir, name)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	saved, err := replica.RestoreDir(dir, votersOf(cfg), f.restore, uint32(f.skipIDs))
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s restored from %s: cluster %s, index %d, %d jobs; the next job id is at least %d\n",
		dir, f.restore, info.cluster, saved.Index, info.counts["jobs"], uint64(info.header.NextJobId)+uint64(f.skipIDs))
	if others := othersOf(cfg, name); others != "" {
		fmt.Fprintf(stdout, "do the same, with the same file and grid.conf, on %s, then start all of them\n", others)
	} else {
		fmt.Fprintln(stdout, "now start gctld")
	}
	return nil
}

// othersOf lists the other controllers, for people.
func othersOf(cfg *conf.Config, name string) string {
	var out []string
	for _, c := range cfg.Controllers {
		if c.Name != name {
			out = append(out, c.Name)
		}
	}
	return strings.Join(out, ", ")
}
