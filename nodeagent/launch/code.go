package launch

import (
	"encoding/binary"
	"errors"

	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
)

// Plans go from launcher to forker to shepherd, all of one build, in a plain binary form: numbers as
// varints, texts with their length. One list of fields serves both ways.

// Coder writes values behind each other, or reads them in the same order.
type Coder struct {
	buf     []byte
	reading bool
	bad     bool
}

// errCode means that a message is not what a Coder has written.
var errCode = errors.New("message is damaged")

// Reading gives a Coder that reads.
func Reading(data []byte) *Coder { return &Coder{buf: data, reading: true} }

// Bytes is what was written.
func (c *Coder) Bytes() []byte { return c.buf }

// Err says whether what was read was not all that there was, or too little.
func (c *Coder) Err() error {
	if c.bad || c.reading && len(c.buf) > 0 {
		return errCode
	}
	return nil
}

// Uint takes a number of any unsigned kind.
func Uint[T ~uint | ~uint8 | ~uint32 | ~uint64 | ~uintptr](c *Coder, v *T) {
	if !c.reading {
		c.buf = binary.AppendUvarint(c.buf, uint64(*v))
		return
	}
	u, n := binary.Uvarint(c.buf)
	if n <= 0 || uint64(T(u)) != u {
		c.bad, c.buf = true, nil
		return
	}
	*v, c.buf = T(u), c.buf[n:]
}

// Int takes a number of any signed kind.
func Int[T ~int | ~int64](c *Coder, v *T) {
	u := uint64(*v)<<1 ^ uint64(int64(*v)>>63)
	Uint(c, &u)
	*v = T(int64(u>>1) ^ -int64(u&1))
}

// Bool takes a truth value.
func (c *Coder) Bool(v *bool) {
	var u uint
	if *v {
		u = 1
	}
	Uint(c, &u)
	*v = u != 0
}

// Text takes a string or bytes.
func Text[T ~string | ~[]byte](c *Coder, v *T) {
	n := uint(len(*v))
	Uint(c, &n)
	if !c.reading {
		c.buf = append(c.buf, *v...)
		return
	}
	if n > uint(len(c.buf)) {
		c.bad, c.buf = true, nil
		return
	}
	*v = T(string(c.buf[:n]))
	c.buf = c.buf[n:]
}

// List takes a list; one takes each of its values.
func List[T any](c *Coder, v *[]T, one func(*Coder, *T)) {
	n := uint(len(*v))
	Uint(c, &n)
	if c.reading {
		if n > uint(len(c.buf)) { // each value has a byte at least
			c.bad, c.buf = true, nil
			return
		}
		*v = nil
		if n > 0 {
			*v = make([]T, n)
		}
	}
	for i := range *v {
		one(c, &(*v)[i])
	}
}

// Code writes or reads a plan. Short leaves out what only the start of the step needs.
func (p *Plan) Code(c *Coder, short bool) {
	Uint(c, &p.Key.Job)
	Uint(c, &p.Key.Run)
	Uint(c, &p.Key.Step)
	Text(c, &p.Node)
	Text(c, &p.Script)
	Text(c, &p.WorkDir)
	Text(c, &p.StdIn)
	Text(c, &p.StdOut)
	Text(c, &p.StdErr)
	Int(c, &p.TimeLimit)
	Int(c, &p.KillWait)
	Int(c, &p.Lease)
	Int(c, &p.Renewed)
	Int(c, &p.WarnSignal)
	Int(c, &p.WarnBefore)
	c.Bool(&p.WarnBatch)
	c.Bool(&p.Rootless)
	Text(c, &p.StepDir)
	Text(c, &p.AgentSocket)
	Text(c, &p.LaunchSocket)
	codeGroup(c, &p.Group)
	if short {
		return
	}
	Uint(c, &p.UID)
	Uint(c, &p.GID)
	List(c, &p.Groups, Uint[uint32])
	Uint(c, &p.Umask)
	List(c, &p.Args, Text[string])
	List(c, &p.Env, Text[[]byte])
	c.Bool(&p.Append)
	c.Bool(&p.Spooled)
	Int(c, &p.StepUID)
	Int(c, &p.StepGID)
	Int(c, &p.AgentGID)
}

func codeGroup(c *Coder, g **cgroup.Group) {
	if *g == nil {
		*g = new(cgroup.Group)
	}
	Text(c, &(*g).Driver)
	Text(c, &(*g).Unified)
	List(c, &(*g).Legacy, Text[string])
	Text(c, &(*g).Freezer)
	Text(c, &(*g).Memory)
}

// Code writes or reads an answer.
func (a *Started) Code(c *Coder) {
	Int(c, &a.Start)
	Text(c, &a.Err)
	Int(c, &a.Errno)
	Uint(c, &a.Cause)
	c.Bool(&a.Untouched)
}
