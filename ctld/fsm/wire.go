package fsm

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Field numbers of logpb.JobSpec that are used by more than one line, and its last one.
const (
	fieldArgs    = 13
	fieldScript  = 14
	fieldRare    = 39
	fieldGroups  = 62
	maxSpecField = 66
)

// errText is what the protobuf library says of a string that is no text.
var errText = errors.New("a string that is not UTF-8")

// AppendCommand appends what proto.Marshal makes of a command. It writes submissions itself, which
// are nearly all of what a cluster writes.
func AppendCommand(b []byte, c *logpb.Command) ([]byte, error) {
	s := c.GetSubmit()
	if s == nil || s.Spec == nil || len(c.ProtoReflect().GetUnknown())+len(s.ProtoReflect().GetUnknown())+len(s.Spec.ProtoReflect().GetUnknown()) > 0 {
		return proto.MarshalOptions{}.MarshalAppend(b, c)
	}
	if !utf8.ValidString(s.Key) {
		return b, errText
	}
	// Lengths go before what they count: room is left for the longest, and what follows moves up.
	start := len(b)
	b = append(b, make([]byte, room)...)
	if s.Key != "" {
		b = appendString(b, fieldKey, s.Key)
	}
	spec := len(b)
	b = append(b, make([]byte, room)...)
	b, err := AppendSpec(b, s.Spec)
	if err != nil {
		return b[:start], err
	}
	b = closeField(b, spec, fieldSpec)
	if len(s.Digest) > 0 {
		b = protowire.AppendTag(b, fieldDigest, protowire.BytesType)
		b = protowire.AppendBytes(b, s.Digest)
	}
	return closeField(b, start, fieldSubmit), nil
}

// room is the longest head of a message within another, by the limit on a command: tag and length.
const room = 1 + 5

// closeField writes tag and length of what was appended behind room at start.
func closeField(b []byte, start int, num protowire.Number) []byte {
	size := len(b) - start - room
	head := protowire.SizeTag(num) + protowire.SizeVarint(uint64(size))
	copy(b[start+head:], b[start+room:])
	protowire.AppendVarint(protowire.AppendTag(b[start:start], num, protowire.BytesType), uint64(size))
	return b[:start+head+size]
}

func appendString(b []byte, num protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), v)
}

// specWriter appends fields that are given.
type specWriter struct {
	b   []byte
	bad bool
}

func (w *specWriter) str(num protowire.Number, v string) {
	if v != "" {
		w.bad = w.bad || !utf8.ValidString(v)
		w.b = appendString(w.b, num, v)
	}
}

func (w *specWriter) list(num protowire.Number, list []string) {
	for _, v := range list {
		w.bad = w.bad || !utf8.ValidString(v)
		w.b = appendString(w.b, num, v)
	}
}

func (w *specWriter) bytes(num protowire.Number, v []byte) {
	if len(v) > 0 {
		w.b = protowire.AppendBytes(protowire.AppendTag(w.b, num, protowire.BytesType), v)
	}
}

func (w *specWriter) num(num protowire.Number, v uint64) {
	if v != 0 {
		w.b = protowire.AppendVarint(protowire.AppendTag(w.b, num, protowire.VarintType), v)
	}
}

// AppendSpec appends what proto.Marshal makes of a specification without unknown fields.
func AppendSpec(b []byte, m *logpb.JobSpec) ([]byte, error) {
	w := specWriter{b: b}
	w.str(1, m.Name)
	w.str(2, m.Account)
	w.str(3, m.Partition)
	w.str(4, m.Qos)
	w.str(5, m.WorkDir)
	w.str(6, m.StdIn)
	w.str(7, m.StdOut)
	w.str(8, m.StdErr)
	w.str(9, m.OpenMode)
	w.str(10, m.Command)
	w.str(11, m.SubmitLine)
	w.str(12, m.SubmitHost)
	w.list(fieldArgs, m.Args)
	w.bytes(fieldScript, m.Script)
	w.bytes(15, m.ScriptHash)
	w.bytes(16, m.EnvHash)
	w.num(17, uint64(m.MinNodes))
	w.num(18, uint64(m.MaxNodes))
	w.num(19, uint64(m.Ntasks))
	w.num(20, uint64(m.NtasksPerNode))
	w.num(21, uint64(m.CpusPerTask))
	w.num(22, uint64(m.MemPerNode))
	w.num(23, uint64(m.MemPerCpu))
	w.str(24, m.Gres)
	w.str(25, m.NodeList)
	w.str(26, m.Exclude)
	w.str(27, m.Constraint)
	w.num(28, uint64(m.TimeLimitMs))
	w.num(29, uint64(m.TimeMinMs))
	w.num(30, uint64(m.BeginMs))
	w.str(31, m.Array)
	w.num(32, protowire.EncodeBool(m.Hold))
	w.num(33, uint64(int64(m.Requeue)))
	w.num(34, protowire.EncodeZigZag(int64(m.Nice)))
	w.str(35, m.Comment)
	w.str(36, m.Signal)
	w.num(37, protowire.EncodeBool(m.Exclusive))
	w.str(38, m.Dependency)
	w.list(fieldRare, m.Rare)
	w.num(40, uint64(m.Umask))
	w.str(41, m.Export)
	w.num(42, protowire.EncodeBool(m.GetUserEnv))
	w.num(43, uint64(m.MinCpusPerNode))
	w.num(44, uint64(m.MinTmpDisk))
	w.identity(m)
	if w.bad {
		return b, errText
	}
	return w.b, nil
}

func (w *specWriter) identity(m *logpb.JobSpec) {
	w.num(60, uint64(m.Uid))
	w.num(61, uint64(m.Gid))
	if len(m.Groups) > 0 {
		size := 0
		for _, g := range m.Groups {
			size += protowire.SizeVarint(uint64(g))
		}
		w.b = protowire.AppendVarint(protowire.AppendTag(w.b, fieldGroups, protowire.BytesType), uint64(size))
		for _, g := range m.Groups {
			w.b = protowire.AppendVarint(w.b, uint64(g))
		}
	}
	w.str(63, m.User)
	w.str(64, m.Group)
	w.str(65, m.Home)
	w.str(66, m.Shell)
}

// setNumber takes one number of a specification.
func setNumber(s *job.Spec, num protowire.Number, v uint64) bool {
	switch num {
	case 17:
		s.MinNodes = uint32(v)
	case 18:
		s.MaxNodes = uint32(v)
	case 19:
		s.NTasks = uint32(v)
	case 20:
		s.NTasksPerNode = uint32(v)
	case 21:
		s.CPUsPerTask = uint32(v)
	case 22:
		s.MemPerNode = int64(v)
	case 23:
		s.MemPerCPU = int64(v)
	case 28:
		s.TimeLimit = int64(v)
	case 29:
		s.TimeMin = int64(v)
	case 30:
		s.Begin = int64(v)
	case 32:
		s.Hold = v != 0
	case 33:
		s.Requeue = int8(max(-1, min(int32(v), 1)))
	case 34:
		s.Nice = int32(protowire.DecodeZigZag(v & (1<<32 - 1)))
	case 37:
		s.Exclusive = v != 0
	case 40:
		s.Umask = uint32(v)
	case 42:
		s.GetUserEnv = v != 0
	case 43:
		s.MinCPUsPerNode = uint32(v)
	case 44:
		s.MinTmpDisk = int64(v)
	case 60:
		s.UID = uint32(v)
	case 61:
		s.GID = uint32(v)
	default:
		return false
	}
	return true
}

// textField is the string of a specification with that number; nil when there is none.
func textField(s *job.Spec, num protowire.Number) *string {
	switch num {
	case 1:
		return &s.Name
	case 2:
		return &s.Account
	case 3:
		return &s.Partition
	case 4:
		return &s.QOS
	case 5:
		return &s.WorkDir
	case 6:
		return &s.StdIn
	case 7:
		return &s.StdOut
	case 8:
		return &s.StdErr
	case 9:
		return &s.OpenMode
	case 10:
		return &s.Command
	case 11:
		return &s.SubmitLine
	case 12:
		return &s.SubmitHost
	case 24:
		return &s.Gres
	case 25:
		return &s.NodeList
	case 26:
		return &s.Exclude
	case 27:
		return &s.Constraint
	case 31:
		return &s.Array
	case 35:
		return &s.Comment
	case 36:
		return &s.Signal
	case 38:
		return &s.Dependency
	case 41:
		return &s.Export
	}
	return identityField(s, num)
}

func identityField(s *job.Spec, num protowire.Number) *string {
	switch num {
	case 63:
		return &s.User
	case 64:
		return &s.Group
	case 65:
		return &s.Home
	case 66:
		return &s.Shell
	}
	return nil
}

// setBytes takes one string, list or text of a specification.
func (d *decoder) setBytes(s *job.Spec, num protowire.Number, v []byte) bool {
	if field := textField(s, num); field != nil {
		var ok bool
		*field, ok = d.words.Word(v)
		return ok
	}
	switch num {
	case fieldArgs:
		arg, ok := d.words.Word(v)
		s.Args = append(s.Args, arg)
		return ok
	case fieldScript:
		s.Script = d.words.Text(v)
	case 15:
		s.ScriptHash = d.words.Text(v)
	case 16:
		s.EnvHash = d.words.Text(v)
	case fieldRare:
		return d.setRare(s, v)
	case fieldGroups:
		return d.setGroups(s, v)
	default:
		return false
	}
	return true
}

// setRare takes a name or a value of the options without a field, which come by turns.
func (d *decoder) setRare(s *job.Spec, v []byte) bool {
	word, ok := d.words.Word(v)
	if d.name == nil {
		d.name = &word
		return ok
	}
	s.Rare = append(s.Rare, job.Option{Name: *d.name, Value: word})
	d.name = nil
	return ok
}

func (d *decoder) setGroups(s *job.Spec, raw []byte) bool {
	d.groups = d.groups[:0]
	for v := raw; len(v) > 0; {
		g, n := protowire.ConsumeVarint(v)
		if n < 0 {
			return false
		}
		d.groups, v = append(d.groups, uint32(g)), v[n:]
	}
	s.Groups = d.words.List(raw, d.groups)
	return true
}
