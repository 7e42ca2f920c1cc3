package fsm_test

import (
	"encoding/binary"
	"hash/crc32"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
)

// reseal gives a snapshot whose records were changed the trailer that they need, so that a fuzzer
// gets past the checksum to what it guards.
func reseal(data []byte) []byte {
	var out []byte
	var count uint64
	for len(data) > 0 {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			break
		}
		body := data[n : n+int(size)]
		data = data[n+int(size):]
		var r logpb.SnapshotRecord
		if proto.Unmarshal(body, &r) == nil && r.GetTrailer() != nil {
			break
		}
		out = append(binary.AppendUvarint(out, size), body...)
		count++
	}
	trailer := &logpb.SnapshotRecord{Of: &logpb.SnapshotRecord_Trailer{Trailer: &logpb.SnapshotTrailer{
		Records: count, Crc32C: crc32.Checksum(out, crc32.MakeTable(crc32.Castagnoli))}}}
	body, err := proto.Marshal(trailer)
	if err != nil {
		return out
	}
	return append(binary.AppendUvarint(out, uint64(len(body))), body...)
}

// records reads the records of a snapshot.
func records(data []byte) (list []*logpb.SnapshotRecord) {
	for len(data) > 0 {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			break
		}
		r := new(logpb.SnapshotRecord)
		if proto.Unmarshal(data[n:n+int(size)], r) != nil {
			break
		}
		list, data = append(list, r), data[n+int(size):]
	}
	return list
}
