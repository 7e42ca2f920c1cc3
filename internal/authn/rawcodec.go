package authn

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that rawCodec stands before
	"google.golang.org/grpc/mem"
)

// maxNoted bounds the requests whose digests wait for an interceptor. Each is taken by the interceptor
// that follows the decoder; more are there only when another interceptor stands first.
const maxNoted = 1 << 16

// frameCodec is protobuf that also passes on messages that are encoded already.
type frameCodec struct{ encoding.CodecV2 }

// rawCodec notes the digest of each request that a server decodes.
type rawCodec struct {
	frameCodec
	noted sync.Map // decoded message -> [32]byte
	count atomic.Int64
}

func protoCodec() frameCodec { return frameCodec{encoding.GetCodecV2("proto")} }

func newRawCodec() *rawCodec { return &rawCodec{frameCodec: protoCodec()} }

// rawFrame is a message that is not decoded.
type rawFrame struct{ data []byte }

func (f *rawFrame) digest() [32]byte { return sha256.Sum256(f.data) }

func (f *rawFrame) into(m any) error {
	return protoCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(f.data)}, m)
}

// encode gives the frame of a message: these very bytes are signed and sent.
func encode(m any) (*rawFrame, error) {
	out, err := protoCodec().Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	defer out.Free()
	return &rawFrame{out.Materialize()}, nil
}

func (c frameCodec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*rawFrame); ok {
		return mem.BufferSlice{mem.SliceBuffer(f.data)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*rawFrame); ok {
		f.data = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

func (c *rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if err := c.frameCodec.Unmarshal(data, v); err != nil {
		return err
	}
	if _, ok := v.(*rawFrame); ok || c.count.Load() >= maxNoted {
		return nil // a wallet whose request was not noted is refused
	}
	h := sha256.New()
	for _, b := range data {
		h.Write(b.ReadOnlyData())
	}
	c.noted.Store(v, [32]byte(h.Sum(nil)))
	c.count.Add(1)
	return nil
}

// take gives the digest of the bytes that a message came from, once.
func (c *rawCodec) take(v any) (digest [32]byte, ok bool) {
	d, ok := c.noted.LoadAndDelete(v)
	if !ok {
		return digest, false
	}
	c.count.Add(-1)
	return d.([32]byte), true
}
