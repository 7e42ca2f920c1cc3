package replica

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
)

// errEmpty guards the log: a command of no kind would stop every replica when it is applied.
var errEmpty = errors.New("command of no kind")

// Field numbers of logpb.Entry. The entry is put together from commands that are already
// encoded, so its own message is never built; a test compares the two.
const (
	fieldVersion  = 1
	fieldTime     = 2
	fieldCommands = 3
	entryHeader   = 2 * (1 + 10) // both numbers at their longest
)

// run is a stretch of one Propose that fits into an entry: command sizes were measured, and the
// sizes cached in the messages are used by encode.
type run struct {
	cmds  []*logpb.Command
	bytes int // of the commands, without the entry's framing
}

// split cuts commands into runs, each as long as an entry allows; mostly there is one. A command
// over MaxEntryBytes is a run by itself. It fails for a command of no kind or over MaxCommand.
func split(cmds []*logpb.Command) ([]run, error) {
	var runs []run
	start, bytes := 0, 0
	for i, c := range cmds {
		if c.GetOf() == nil {
			return nil, errEmpty
		}
		size := proto.Size(c)
		if size > MaxCommand {
			return nil, ErrTooLarge
		}
		if n := i - start; n > 0 && (n == MaxEntryCommands || bytes+size > MaxEntryBytes) {
			runs = append(runs, run{cmds[start:i], bytes})
			start, bytes = i, 0
		}
		bytes += size
	}
	if start < len(cmds) {
		runs = append(runs, run{cmds[start:], bytes})
	}
	return runs, nil
}

// encode gives the run as fields of an entry. It must follow split without a change to the
// commands in between.
func (r run) encode() ([]byte, error) {
	const framing = 1 + 5 // tag, length
	buf := make([]byte, 0, r.bytes+framing*len(r.cmds))
	opts := proto.MarshalOptions{UseCachedSize: true}
	for _, c := range r.cmds {
		buf = protowire.AppendTag(buf, fieldCommands, protowire.BytesType)
		buf = protowire.AppendVarint(buf, uint64(opts.Size(c)))
		var err error
		if buf, err = opts.MarshalAppend(buf, c); err != nil {
			return nil, err
		}
	}
	return buf, nil
}

// appendHeader starts an entry: who wrote it and when (Unix ms).
func appendHeader(buf []byte, version uint32, ms int64) []byte {
	buf = protowire.AppendTag(buf, fieldVersion, protowire.VarintType)
	buf = protowire.AppendVarint(buf, uint64(version))
	buf = protowire.AppendTag(buf, fieldTime, protowire.VarintType)
	return protowire.AppendVarint(buf, uint64(ms))
}
