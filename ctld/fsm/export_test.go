package fsm

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// ReadSubmission reads the command of an entry that holds only it, nil when it cannot be read. own
// tells whether the library was not asked.
func ReadSubmission(command []byte) (specs []*job.Spec, own bool) {
	var d decoder
	_, own = d.submission(command) // what it remembers of it must not matter
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

// ReadSpecs reads specifications with one decoder.
func ReadSpecs(list []*logpb.JobSpec) (specs []*job.Spec) {
	var d decoder
	for _, m := range list {
		raw, err := AppendSpec(nil, m)
		if err != nil {
			panic(err)
		}
		s := new(job.Spec)
		if !d.spec(s, raw) {
			panic("a specification that was written here is not read")
		}
		specs = append(specs, s)
	}
	return specs
}
