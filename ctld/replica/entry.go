package replica

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// errEmpty guards the log: a command of no kind would stop every replica when it is applied.
var errEmpty = errors.New("command of no kind")

// ErrFeature: the command is of a feature level that the cluster has not been raised to. Nothing was done.
var ErrFeature = errors.New("the controllers do not all run a version that knows this yet")

// known refuses commands that not every member of the cluster can apply: one that cannot halts. The
// command that raises the level is the exception, its proposer has asked all members.
func (r *Replica) known(cmds []*logpb.Command) error {
	for _, c := range cmds {
		switch c.GetOf().(type) {
		case *logpb.Command_HashMark, *logpb.Command_HashCheck, *logpb.Command_SetController,
			*logpb.Command_CreateJoinToken, *logpb.Command_UseJoinToken, *logpb.Command_RevokeJoinToken:
			if level, _ := r.stamp(); level < state.FeatureMembers {
				return ErrFeature
			}
		}
	}
	return nil
}

// Field numbers of logpb.Entry. The entry is put together from commands that are already
// encoded, so its own message is never built; a test compares the two.
const (
	fieldVersion  = 1
	fieldTime     = 2
	fieldCommands = 3
	entryHeader   = 2 * (1 + 10) // both numbers at their longest
)

// encode cuts commands into proposals, each as long as an entry allows; mostly there is one. A
// command over MaxEntryBytes is a proposal by itself. It fails, before anything is proposed, for a
// command of no kind or over MaxCommand.
func (b *batcher) encode(cmds []*logpb.Command) (first *proposal, more []*proposal, err error) {
	var p *proposal
	for i, c := range cmds {
		if c.GetOf() == nil {
			return nil, nil, errEmpty
		}
		if p == nil {
			p = b.proposal()
			first = p
		}
		at := len(p.fields)
		size, err := p.append(c)
		if err != nil {
			return nil, nil, fmt.Errorf("encode command %d: %w", i+1, err)
		}
		if size > MaxCommand {
			return nil, nil, ErrTooLarge
		}
		if p.count > 0 && (p.count == MaxEntryCommands || p.bytes+size > MaxEntryBytes) {
			next := b.proposal()
			next.fields = append(next.fields, p.fields[at:]...)
			p.fields = p.fields[:at]
			p, more = next, append(more, next)
		}
		p.count++
		p.bytes += size
	}
	return first, more, nil
}

// framing is the longest head of a command in an entry: tag and length.
const framing = 1 + 5

// append adds a command as a field of an entry and gives its size without that.
func (p *proposal) append(c *logpb.Command) (size int, err error) {
	start := len(p.fields)
	p.fields = append(p.fields, make([]byte, framing)...)
	if p.fields, err = fsm.AppendCommand(p.fields, c); err != nil {
		return 0, err
	}
	size = len(p.fields) - start - framing
	head := protowire.SizeTag(fieldCommands) + protowire.SizeVarint(uint64(size))
	copy(p.fields[start+head:], p.fields[start+framing:])
	protowire.AppendVarint(protowire.AppendTag(p.fields[start:start], fieldCommands, protowire.BytesType), uint64(size))
	p.fields = p.fields[:start+head+size]
	return size, nil
}

// appendHeader starts an entry: who wrote it and when (Unix ms).
func appendHeader(buf []byte, version uint32, ms int64) []byte {
	buf = protowire.AppendTag(buf, fieldVersion, protowire.VarintType)
	buf = protowire.AppendVarint(buf, uint64(version))
	buf = protowire.AppendTag(buf, fieldTime, protowire.VarintType)
	return protowire.AppendVarint(buf, uint64(ms))
}

// stamp is the state's feature level, with which entries are written, and its time (Unix ms). A machine may
// give both without a view, which would make the next entry copy what it changes.
func (r *Replica) stamp() (feature uint32, ms int64) {
	if m, ok := r.machine.(interface {
		Stamp() (feature uint32, ms int64)
	}); ok {
		return m.Stamp()
	}
	v := r.machine.View()
	return v.Feature(), v.Time()
}
