package launch

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// ReadFrame reads one frame into v. io.EOF means that the peer closed between frames. A frame over
// MaxFrame is refused before anything of it is read.
func ReadFrame(r io.Reader, v any) error {
	body, err := ReadMessage(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("frame: %w", err)
	}
	return nil
}

// ReadMessage reads one frame, whatever is in it.
func ReadMessage(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxFrame {
		return nil, fmt.Errorf("frame of %d bytes is over MaxFrame %d", n, MaxFrame)
	}
	return readBody(r, int(n))
}

// readBody grows as bytes arrive, so that a length alone reserves no memory.
func readBody(r io.Reader, n int) ([]byte, error) {
	const step = 64 << 10
	body := make([]byte, 0, min(n, step))
	for len(body) < n {
		from := len(body)
		grow := min(n-from, max(from, step))
		body = append(body, make([]byte, grow)...)
		if _, err := io.ReadFull(r, body[from:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return body, nil
}

// WriteFrame writes v as one frame with one Write.
func WriteFrame(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > MaxFrame {
		return fmt.Errorf("frame of %d bytes is over MaxFrame %d", len(body), MaxFrame)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	_, err = w.Write(append(frame, body...))
	return err
}
