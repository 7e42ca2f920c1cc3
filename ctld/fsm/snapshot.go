package fsm

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// MaxRecord bounds one record of a snapshot in bytes: the largest is a blob, or the configuration.
const MaxRecord = 16 << 20

// Field numbers of logpb.SnapshotRecord and logpb.SnapshotJob.
const (
	fieldJob     = 2
	fieldJobSpec = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Snapshot is a pinned state. Later entries do not touch it.
type Snapshot struct{ view *state.View }

// Snapshot pins the state as it is now, without copying it.
func (f *FSM) Snapshot() Snapshot { return Snapshot{f.store.View()} }

// Index is the raft index of the last entry in it.
func (s Snapshot) Index() uint64 { return s.view.Index() }

// Write writes the snapshot: length-delimited records, a trailer with their number and CRC-32C
// last. The same state gives the same bytes.
func (s Snapshot) Write(w io.Writer) error {
	b := bufio.NewWriterSize(w, 64<<10)
	rw := &recordWriter{w: b}
	writeRecords(rw, s.view)
	if rw.err != nil {
		return fmt.Errorf("write snapshot: %w", rw.err)
	}
	if _, err := b.Write(appendTrailer(rw.buf[:0], &logpb.SnapshotTrailer{Records: rw.count, Crc32C: rw.crc})); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// appendTrailer appends the last record, which nothing vouches for but itself: it is read back only
// as it is written here, since a number may be encoded in more than one way.
func appendTrailer(b []byte, t *logpb.SnapshotTrailer) []byte {
	m := &logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Trailer{Trailer: t}}
	opts := proto.MarshalOptions{Deterministic: true}
	b, _ = opts.MarshalAppend(binary.AppendUvarint(b, uint64(opts.Size(m))), m) // two numbers: never fails
	return b
}

// Hash is the SHA-256 of the snapshot of a view: equal states of different replicas have equal ones.
func Hash(v *state.View) (sum [32]byte, err error) {
	h := sha256.New()
	err = Snapshot{v}.Write(h)
	return [32]byte(h.Sum(nil)), err
}

// recordWriter writes records until one fails.
type recordWriter struct {
	w     io.Writer
	buf   []byte
	crc   uint32
	count uint64
	err   error

	spec logpb.JobSpec // of the job in hand
	body []byte        // its record
}

// put writes one record. Messages hold maps only with few keys; they are written sorted.
func (w *recordWriter) put(r *logpb.SnapshotRecord) {
	if w.err != nil {
		return
	}
	opts := proto.MarshalOptions{Deterministic: true}
	size := opts.Size(r)
	if size > MaxRecord {
		w.err = fmt.Errorf("a record of %d bytes exceeds MaxRecord=%d", size, MaxRecord)
		return
	}
	w.buf = binary.AppendUvarint(w.buf[:0], uint64(size))
	if w.buf, w.err = opts.MarshalAppend(w.buf, r); w.err != nil {
		return
	}
	w.flush()
}

// putJob writes the record of a job whose message comes without its specification. Nearly all of a
// snapshot is jobs, and a leader writes one while it takes submissions.
func (w *recordWriter) putJob(m *logpb.SnapshotJob, spec *job.Spec) {
	if spec == nil {
		w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Job{Job: m}})
		return
	}
	if w.err != nil {
		return
	}
	if w.body, w.err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(w.body[:0], m); w.err != nil {
		return
	}
	at := len(w.body)
	SpecIntoLog(&w.spec, spec)
	if w.body, w.err = AppendSpec(append(w.body, make([]byte, room)...), &w.spec); w.err != nil {
		return
	}
	w.body = closeField(w.body, at, fieldJobSpec)
	head := protowire.SizeTag(fieldJob) + protowire.SizeVarint(uint64(len(w.body)))
	if size := head + len(w.body); size > MaxRecord {
		w.err = fmt.Errorf("a record of %d bytes exceeds MaxRecord=%d", size, MaxRecord)
		return
	}
	w.buf = binary.AppendUvarint(w.buf[:0], uint64(head+len(w.body)))
	w.buf = protowire.AppendBytes(protowire.AppendTag(w.buf, fieldJob, protowire.BytesType), w.body)
	w.flush()
}

func (w *recordWriter) flush() {
	w.crc = crc32.Update(w.crc, castagnoli, w.buf)
	w.count++
	_, w.err = w.w.Write(w.buf)
}

func writeRecords(w *recordWriter, v *state.View) {
	h := v.Header()
	w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Header{Header: &logpb.SnapshotHeader{
		Version: h.Feature, TimeMs: h.Time, NextJobId: h.NextID, StateVersion: h.Version, Index: h.Index, Submits: h.Submits, Capacity: h.Capacity}}})
	nodes, parts := v.File()
	w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Config{Config: ConfigToLog(v.Config(), nodes, parts)}})
	for i := range parts {
		if set := v.PartitionUpdates(parts[i].Name); len(set) > 0 {
			w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Partition{Partition: &logpb.SnapshotPartition{Name: parts[i].Name, Set: set}}})
		}
	}
	for n := range v.Nodes() {
		w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Node{Node: nodeRecord(n)}})
	}
	for b := range v.Blobs() {
		w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Blob{Blob: &logpb.SnapshotBlob{
			Hash: []byte(b.Hash), Data: b.Data, UnreferencedMs: b.Since, Total: b.Total, Uid: b.UID, Used: b.Used}}})
	}
	owners := map[*job.Spec]uint32{}
	for j := range v.Jobs() {
		w.putJob(jobRecord(j, owners))
	}
	for k := range v.Keys() {
		w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Key{Key: &logpb.SnapshotKey{
			Uid: k.UID, Key: k.Key, JobId: k.JobID, Digest: k.Digest[:], TimeMs: k.Time}}})
	}
	for c := range v.Verdicts() {
		w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Class{Class: &logpb.SnapshotClass{
			Key: c.Key, Reason: string(c.Reason), Detail: c.Detail, StartMs: c.Start}}})
	}
	// These are there from feature level 2 on only.
	for c := range v.Controllers() {
		w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Controller{Controller: controllerToLog(&c)}})
	}
	for k := range v.JoinTokens() {
		w.put(&logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_JoinToken{JoinToken: joinTokenRecord(k)}})
	}
	if h.Feature >= state.FeatureSched {
		writeSched(w, v)
	}
}

// Restore reads a snapshot into a state aside and takes it in the place of the present one only
// when it is whole and consistent.
func (f *FSM) Restore(r io.Reader) error {
	store, err := readSnapshot(r)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	f.store.Replace(store)
	return nil
}

// recordReader reads records and keeps the sum of those before the last.
type recordReader struct {
	r     *bufio.Reader
	buf   []byte
	sum   uint32 // of the records before the last
	crc   uint32
	count uint64
}

func (r *recordReader) next() (*logpb.SnapshotRecord, error) {
	size, err := binary.ReadUvarint(r.r)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("record %d: %w: %w", r.count+1, ErrCorrupt, err)
	}
	if size > MaxRecord {
		return nil, fmt.Errorf("record %d: %w: %d bytes, the limit is MaxRecord=%d", r.count+1, ErrCorrupt, size, MaxRecord)
	}
	head := binary.AppendUvarint(r.buf[:0], size)
	if r.buf, err = readGrowing(r.r, head, int(size)); err != nil {
		return nil, fmt.Errorf("record %d: %w: %w", r.count+1, ErrCorrupt, err)
	}
	record := new(logpb.SnapshotRecord)
	if err := proto.Unmarshal(r.buf[len(head):], record); err != nil {
		return nil, fmt.Errorf("record %d: %w: %w", r.count+1, ErrCorrupt, err)
	}
	r.sum = r.crc
	r.crc = crc32.Update(r.crc, castagnoli, r.buf)
	r.count++
	return record, nil
}

// readGrowing appends n bytes of r to buf, in steps, so that a wrong length costs no more memory
// than what is really there.
func readGrowing(r io.Reader, buf []byte, n int) ([]byte, error) {
	for n > 0 {
		step := min(n, 64<<10)
		at := len(buf)
		buf = append(buf, make([]byte, step)...)
		if _, err := io.ReadFull(r, buf[at:]); err != nil {
			return buf[:at], err
		}
		n -= step
	}
	return buf, nil
}

func readSnapshot(r io.Reader) (*state.Store, error) {
	rr := &recordReader{r: bufio.NewReaderSize(r, 64<<10)}
	first, err := rr.next()
	if err != nil {
		return nil, err
	}
	h := first.GetHeader()
	switch {
	case h == nil:
		return nil, fmt.Errorf("%w: the first record is no header", ErrCorrupt)
	case h.Version > Version:
		return nil, fmt.Errorf("snapshot of version %d, this program reads up to %d: %w", h.Version, Version, ErrVersion)
	}
	re := state.NewRestorer(state.Header{
		Index: h.Index, Version: h.StateVersion, Capacity: h.Capacity, Time: h.TimeMs, NextID: h.NextJobId, Submits: h.Submits,
		Feature: h.Version})
	for last := 0; ; {
		record, err := rr.next()
		if err != nil {
			return nil, err
		}
		if end := record.GetTrailer(); end != nil {
			if end.Records != rr.count-1 || end.Crc32C != rr.sum || !bytes.Equal(rr.buf, appendTrailer(nil, end)) {
				return nil, fmt.Errorf("%w: %d records with CRC %08x, the trailer says %d with %08x", ErrCorrupt, rr.count-1, rr.sum, end.Records, end.Crc32C)
			}
			return re.Finish()
		}
		if record.GetOf() == nil {
			return nil, fmt.Errorf("snapshot of version %d, record %d is not known to version %d: %w", h.Version, rr.count, Version, ErrVersion)
		}
		kind, err := restoreRecord(re, record)
		if err == nil && kind < last {
			err = errors.New("out of order")
		}
		if err != nil {
			return nil, fmt.Errorf("record %d: %w: %w", rr.count, ErrCorrupt, err)
		}
		last = kind
	}
}

// restoreRecord takes one record; kind is its place in the order of a snapshot.
func restoreRecord(re *state.Restorer, r *logpb.SnapshotRecord) (kind int, err error) {
	switch r := r.Of.(type) {
	case *logpb.SnapshotRecord_Config:
		return 1, re.Config(configFromLog(r.Config))
	case *logpb.SnapshotRecord_Partition:
		return 2, re.Partition(r.Partition.Name, r.Partition.Set)
	case *logpb.SnapshotRecord_Node:
		return 3, re.Node(nodeFromRecord(r.Node))
	case *logpb.SnapshotRecord_Blob:
		return 4, re.Blob(state.BlobRecord{Hash: string(r.Blob.Hash), Data: r.Blob.Data, Total: r.Blob.Total, Since: r.Blob.UnreferencedMs,
			UID: r.Blob.Uid, Used: r.Blob.Used})
	case *logpb.SnapshotRecord_Job:
		j, err := jobFromRecord(re, r.Job)
		if err != nil {
			return 5, err
		}
		return 5, re.Job(j)
	case *logpb.SnapshotRecord_Key:
		k := state.KeyRecord{UID: r.Key.Uid, Key: r.Key.Key, JobID: r.Key.JobId, Time: r.Key.TimeMs}
		copy(k.Digest[:], r.Key.Digest)
		return 6, re.Key(k)
	case *logpb.SnapshotRecord_Class:
		c := r.Class
		return 7, re.Verdict(state.ClassRecord{Key: c.Key, Reason: job.Reason(c.Reason), Detail: c.Detail, Start: c.StartMs})
	case *logpb.SnapshotRecord_Controller:
		return 8, re.Controller(controllerFromLog(r.Controller))
	case *logpb.SnapshotRecord_JoinToken:
		k, err := joinTokenFromRecord(r.JoinToken)
		if err != nil {
			return 9, err
		}
		return 9, re.JoinToken(k)
	case *logpb.SnapshotRecord_Header:
		return 0, errors.New("a second header")
	}
	return restoreSched(re, r)
}
