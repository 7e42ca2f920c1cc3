package fsm

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// ReadSubmission reads the command of an entry that holds only it, nil when it cannot be read. own
// tells whether the library was not asked.
func ReadSubmission(command []byte) (specs []*job.Spec, own bool) {
	var d decoder
	if _, own = d.submission(command); own {
		d = decoder{}
	}
	if _, _, err := d.header(protowire.AppendBytes(protowire.AppendTag(nil, fieldCommands, protowire.BytesType), command)); err != nil {
		return nil, own
	}
	list, err := d.commands(1, 1)
	if err != nil {
		return nil, own
	}
	for _, c := range list {
		specs = append(specs, c.submit.spec)
	}
	return specs, own
}
