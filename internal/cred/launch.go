package cred

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Limits of one credential. UnmarshalLaunch refuses what is over them, with the limit named.
const (
	MaxCredential = 1 << 20
	MaxText       = job.MaxString
	MaxNodeList   = job.MaxList
	MaxGroups     = job.MaxGroups
	MaxCPUs       = 16384
	MaxGres       = gres.MaxItems
	MaxDevices    = gres.MaxIndex
)

// formatVersion is the first byte of the canonical bytes.
const formatVersion = 1

// ErrFormat is wrapped by errors about bytes that are not a credential in its one canonical form.
var ErrFormat = errors.New("malformed launch credential")

// Marshal gives the canonical bytes: a version, then each field in the order of fields, numbers big-endian, texts and
// lists after their length. Two credentials that differ anywhere have different bytes.
func (l *Launch) Marshal() []byte {
	w := &writer{b: make([]byte, 0, 1024)}
	w.byte(formatVersion)
	l.fields(w)
	return w.b
}

// UnmarshalLaunch reads canonical bytes and refuses all others: another version, bytes left over, a length over its
// limit, a boolean that is neither 0 nor 1.
func UnmarshalLaunch(b []byte) (*Launch, error) {
	r, err := newReader(b, MaxCredential, ErrFormat)
	if err != nil {
		return nil, err
	}
	l := &Launch{}
	l.fields(r)
	if err := r.end(); err != nil {
		return nil, err
	}
	return l, nil
}

// Validate tells whether UnmarshalLaunch would take the canonical bytes.
func (l *Launch) Validate() error {
	_, err := UnmarshalLaunch(l.Marshal())
	return err
}

// codec either writes or reads; fields calls it once for each field, so that both sides cannot differ.
type codec interface {
	text(name string, v *string, limit int)
	bytes(name string, v *[]byte, limit int)
	u32(v *uint32)
	i64(v *int64)
	u64(v *uint64)
	flag(name string, v *bool)
	hash(v *[32]byte)
	// length is the length of a list: given when writing, read and checked when reading.
	length(name string, have, limit int) int
}

// fields is the format. A new field is a new version.
func (l *Launch) fields(c codec) {
	c.text("cluster", &l.Cluster, MaxText)
	c.text("node", &l.Node, MaxText)
	c.u32(&l.JobID)
	c.u32(&l.Run)
	c.u32(&l.Step)
	c.u32(&l.UID)
	c.u32(&l.GID)
	numbers(c, "groups", &l.Groups, MaxGroups)
	c.text("user", &l.User, MaxText)
	c.text("home", &l.Home, MaxText)
	c.text("shell", &l.Shell, MaxText)
	c.i64(&l.NotBefore)
	c.i64(&l.Expires)
	allocFields(c, &l.Alloc)
	c.text("node list", &l.NodeList, MaxNodeList)
	c.u32(&l.NodeIndex)
	c.u32(&l.NumNodes)
	c.text("work directory", &l.WorkDir, MaxText)
	c.text("standard input", &l.StdIn, MaxText)
	c.text("standard output", &l.StdOut, MaxText)
	c.text("standard error", &l.StdErr, MaxText)
	c.flag("append", &l.Append)
	c.u32(&l.Umask)
	c.i64(&l.TimeLimit)
	c.i64(&l.KillWait)
	c.text("signal", &l.Signal, MaxText)
	c.flag("shared files", &l.SharedFS)
	c.flag("requeue", &l.Requeue)
	c.i64(&l.Lease)
	c.hash(&l.Payload)
	c.text("job name", &l.JobName, MaxText)
	c.text("partition", &l.Partition, MaxText)
	c.text("account", &l.Account, MaxText)
	c.u32(&l.Restarts)
}

func allocFields(c codec, a *job.NodeAlloc) {
	c.text("allocated node", &a.Node, MaxText)
	c.u32(&a.CPUs)
	c.i64(&a.Mem)
	c.u32(&a.Tasks)
	n := c.length("generic resources", len(a.Gres), MaxGres)
	if n != len(a.Gres) {
		a.Gres = make([]job.GresAlloc, n)
	}
	for i := range a.Gres {
		g := &a.Gres[i]
		c.text("resource name", &g.Name, MaxText)
		c.text("resource type", &g.Type, MaxText)
		c.u64(&g.Count)
		numbers(c, "devices", &g.Index, MaxDevices)
	}
	numbers(c, "CPU ids", &a.CPUIDs, MaxCPUs)
}

func numbers(c codec, name string, list *[]uint32, limit int) {
	n := c.length(name, len(*list), limit)
	if n != len(*list) {
		*list = make([]uint32, n)
	}
	for i := range *list {
		c.u32(&(*list)[i])
	}
}

// writer appends.
type writer struct{ b []byte }

func (w *writer) byte(v byte) { w.b = append(w.b, v) }

func (w *writer) text(_ string, v *string, _ int) {
	w.length("", len(*v), 0)
	w.b = append(w.b, *v...)
}

func (w *writer) bytes(_ string, v *[]byte, _ int) {
	w.length("", len(*v), 0)
	w.b = append(w.b, *v...)
}

func (w *writer) u32(v *uint32) {
	w.b = append(w.b, byte(*v>>24), byte(*v>>16), byte(*v>>8), byte(*v))
}

func (w *writer) u64(v *uint64) {
	high, low := uint32(*v>>32), uint32(*v)
	w.u32(&high)
	w.u32(&low)
}

func (w *writer) i64(v *int64) {
	u := uint64(*v)
	w.u64(&u)
}

func (w *writer) flag(_ string, v *bool) {
	if *v {
		w.byte(1)
	} else {
		w.byte(0)
	}
}

func (w *writer) hash(v *[32]byte) { w.b = append(w.b, v[:]...) }

// length is cut to 32 bits; a list that long is over every limit, so the reader refuses it.
func (w *writer) length(_ string, have, _ int) int {
	n := uint32(min(have, math.MaxUint32))
	w.u32(&n)
	return have
}

// reader takes from the front; after the first error it gives zeros.
type reader struct {
	b    []byte
	kind error // what its errors wrap
	err  error
}

// newReader checks length and version and gives a reader of the rest, whose errors wrap kind.
func newReader(b []byte, limit int, kind error) (*reader, error) {
	if len(b) > limit {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", kind, len(b), limit)
	}
	if len(b) == 0 || b[0] != formatVersion {
		return nil, fmt.Errorf("%w: not version %d", kind, formatVersion)
	}
	return &reader{b: b[1:], kind: kind}, nil
}

// end gives the first error; bytes that nobody has read are one.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes left over", len(r.b))
	}
	return r.err
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", r.kind, fmt.Sprintf(format, args...))
	}
	r.b = nil
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n > len(r.b) {
		r.fail("it ends early")
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) text(name string, v *string, limit int) {
	n := r.length(name, 0, limit)
	*v = string(r.take(n))
	if strings.IndexByte(*v, 0) >= 0 {
		r.fail("%s holds a NUL byte", name)
	}
}

func (r *reader) bytes(name string, v *[]byte, limit int) {
	n := r.length(name, 0, limit)
	*v = bytes.Clone(r.take(n))
}

func (r *reader) u32(v *uint32) {
	if b := r.take(4); b != nil {
		*v = uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	}
}

func (r *reader) u64(v *uint64) {
	var high, low uint32
	r.u32(&high)
	r.u32(&low)
	*v = uint64(high)<<32 | uint64(low)
}

func (r *reader) i64(v *int64) {
	var u uint64
	r.u64(&u)
	*v = int64(u)
}

func (r *reader) flag(name string, v *bool) {
	if b := r.take(1); b != nil {
		if b[0] > 1 {
			r.fail("%s is neither 0 nor 1", name)
		}
		*v = b[0] == 1
	}
}

func (r *reader) hash(v *[32]byte) { copy(v[:], r.take(len(v))) }

func (r *reader) length(name string, _, limit int) int {
	var n uint32
	r.u32(&n)
	switch {
	case r.err != nil:
		return 0
	case uint64(n) > uint64(limit):
		r.fail("%s: length %d, the limit is %d", name, n, limit)
		return 0
	case uint64(n) > uint64(len(r.b)): // an element takes at least one byte: refuse before making room for it
		r.fail("it ends early")
		return 0
	}
	return int(n)
}
