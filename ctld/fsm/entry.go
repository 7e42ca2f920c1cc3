package fsm

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Field numbers of logpb.Entry, logpb.Command and logpb.Submit.
const (
	fieldVersion  = 1
	fieldTime     = 2
	fieldCommands = 3

	fieldSubmit = 1

	fieldKey    = 1
	fieldSpec   = 2
	fieldDigest = 3
)

// command is one command of an entry: a submission, or any other.
type command struct {
	submit submission
	other  *logpb.Command // nil for a submission
}

// submission is a decoded logpb.Submit. Its digest lies in the entry's bytes.
type submission struct {
	key    string
	digest []byte
	spec   *job.Spec
}

// decoder reads entries. Submissions, which are nearly all of a log, it reads itself, without the
// messages in between; whatever does not look as AppendCommand writes it is left to the protobuf
// library, whose word on what is valid holds.
type decoder struct {
	words state.Interner
	specs []job.Spec // room for new ones
	list  []command  // of the entry in hand
	raw   [][]byte

	tails []tail
	seed  maphash.Seed

	name   *string  // of a rare option whose value comes next
	groups []uint32 // of the submission in hand
}

// slabSpecs is how many specifications share one piece of memory: few, since all of it stays while
// one of them is in use.
const slabSpecs = 8

// header reads the entry's own fields and finds its commands.
func (d *decoder) header(data []byte) (version uint32, ms int64, err error) {
	d.raw = d.raw[:0]
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return 0, 0, protowire.ParseError(n)
		}
		data = data[n:]
		switch {
		case num == fieldCommands && typ == protowire.BytesType:
			var c []byte
			if c, n = protowire.ConsumeBytes(data); n >= 0 {
				d.raw = append(d.raw, c)
			}
		case typ == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(data)
			switch num {
			case fieldVersion:
				version = uint32(v)
			case fieldTime:
				ms = int64(v)
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, data)
		}
		if n < 0 {
			return 0, 0, protowire.ParseError(n)
		}
		data = data[n:]
	}
	return version, ms, nil
}

// commands decodes what header found.
func (d *decoder) commands(index uint64, version uint32) ([]command, error) {
	clear(d.list)
	d.list = d.list[:0]
	for i, raw := range d.raw {
		var c command
		var ok bool
		if c.submit, ok = d.submission(raw); !ok {
			c.other = new(logpb.Command)
			if err := proto.Unmarshal(raw, c.other); err != nil {
				return nil, fmt.Errorf("log entry %d, command %d of %d: %w: %w", index, i+1, len(d.raw), ErrCorrupt, err)
			}
			if c.other.GetOf() == nil {
				return nil, fmt.Errorf("log entry %d of version %d, command %d of %d is not known to version %d: %w",
					index, version, i+1, len(d.raw), Version, ErrVersion)
			}
			if up := c.other.GetRaiseFeature(); up.GetLevel() > Version {
				return nil, fmt.Errorf("log entry %d, command %d of %d raises the feature level to %d, this program knows up to %d: %w",
					index, i+1, len(d.raw), up.GetLevel(), Version, ErrVersion)
			}
			if s := c.other.GetSubmit(); s != nil {
				c = command{submit: submission{key: s.Key, digest: s.Digest, spec: SpecFromLog(s.Spec)}}
			}
		}
		d.list = append(d.list, c)
	}
	return d.list, nil
}

// release forgets the entry in hand, whose bytes are not the decoder's.
func (d *decoder) release() {
	clear(d.list)
	clear(d.raw)
}

// submission reads a command that is one Submit and nothing else.
func (d *decoder) submission(raw []byte) (s submission, ok bool) {
	num, typ, n := protowire.ConsumeTag(raw)
	if n < 0 || num != fieldSubmit || typ != protowire.BytesType {
		return s, false
	}
	body, m := protowire.ConsumeBytes(raw[n:])
	if m < 0 || n+m != len(raw) {
		return s, false
	}
	var spec []byte
	for last := protowire.Number(0); len(body) > 0; last = num {
		if num, typ, n = protowire.ConsumeTag(body); n < 0 || typ != protowire.BytesType || num <= last {
			return s, false
		}
		v, m := protowire.ConsumeBytes(body[n:])
		if m < 0 {
			return s, false
		}
		body = body[n+m:]
		switch num {
		case fieldKey:
			if !utf8.Valid(v) {
				return s, false
			}
			s.key = string(v)
		case fieldSpec:
			spec = v
		case fieldDigest:
			s.digest = v
		default:
			return s, false
		}
	}
	if len(d.specs) == 0 {
		d.specs = make([]job.Spec, slabSpecs)
	}
	s.spec = &d.specs[0]
	if !d.spec(s.spec, spec) {
		*s.spec = job.Spec{}
		return submission{}, false
	}
	d.specs = d.specs[1:]
	return s, true
}

// spec reads the fields of a logpb.JobSpec. It says no to whatever AppendSpec does not write, and
// has then filled in a part.
func (d *decoder) spec(s *job.Spec, b []byte) bool {
	last := protowire.Number(0)
	d.name = nil // one without a value is dropped, as SpecFromLog does
	var tail []byte
	for len(b) > 0 {
		tag, n := protowire.ConsumeVarint(b)
		num := protowire.Number(tag >> 3)
		if n < 0 || num == 0 || tag>>3 > maxSpecField || num < last || num == last && num != fieldArgs && num != fieldRare {
			return false
		}
		if num >= fieldScript && last < fieldScript {
			if d.recall(s, b) {
				return true
			}
			tail = b
		}
		last = num
		b = b[n:]
		switch protowire.Type(tag & 7) {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 || !setNumber(s, num, v) {
				return false
			}
			b = b[n:]
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 || !d.setBytes(s, num, v) {
				return false
			}
			b = b[n:]
		default:
			return false
		}
	}
	d.remember(s, tail)
	return true
}

// tails is how many tails a decoder remembers.
const tails = 64

// tail is what the fields from the script on said: the script itself, the shape and whose job it is.
// A user who submits many jobs mostly changes what stands before, so that it need not be read again.
type tail struct {
	raw  []byte
	spec job.Spec // without what stands before
}

func (d *decoder) place(raw []byte) *tail {
	if d.tails == nil {
		d.tails, d.seed = make([]tail, tails), maphash.MakeSeed()
	}
	return &d.tails[maphash.Bytes(d.seed, raw)%tails]
}

// recall fills in the fields that raw holds when it was read before. Those before it are in s.
func (d *decoder) recall(s *job.Spec, raw []byte) bool {
	t := d.place(raw)
	if !bytes.Equal(t.raw, raw) {
		return false
	}
	whole := t.spec
	copyHead(&whole, s)
	*s = whole
	return true
}

// remember keeps what raw was read as.
func (d *decoder) remember(s *job.Spec, raw []byte) {
	if len(raw) == 0 || len(raw) > maxTail {
		return
	}
	t := d.place(raw)
	t.raw = append(t.raw[:0], raw...)
	t.spec = *s
	copyHead(&t.spec, &job.Spec{})
}

// maxTail is the longest tail that is remembered.
const maxTail = 4 << 10

// copyHead copies the fields with numbers below the script's.
func copyHead(to, from *job.Spec) {
	to.Name, to.Account, to.Partition, to.QOS, to.WorkDir = from.Name, from.Account, from.Partition, from.QOS, from.WorkDir
	to.StdIn, to.StdOut, to.StdErr, to.OpenMode, to.Command = from.StdIn, from.StdOut, from.StdErr, from.OpenMode, from.Command
	to.SubmitLine, to.SubmitHost, to.Args = from.SubmitLine, from.SubmitHost, from.Args
}
