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
	n, err := ReadLength(r, MaxFrame)
	if err != nil {
		return nil, err
	}
	return readBody(r, n)
}

// AppendRequest appends a request's whole frame.
func AppendRequest(b []byte, req *Request) ([]byte, error) {
	head, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	var payload []byte
	if req.Start != nil {
		payload = req.Start.Payload
	}
	size := 4 + len(head) + len(payload)
	if size > MaxFrame {
		return nil, fmt.Errorf("request of %d bytes is over MaxFrame %d", size, MaxFrame)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	return append(append(b, head...), payload...), nil
}

// WriteRequest writes a request with one Write.
func WriteRequest(w io.Writer, req *Request) error {
	frame, err := AppendRequest(nil, req)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// ReadLength reads how long the next frame is, at most max.
func ReadLength(r io.Reader, max int) (int, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if uint64(n) > uint64(max) {
		return 0, fmt.Errorf("frame of %d bytes, the limit MaxFrame is %d here", n, max)
	}
	return int(n), nil
}

// ReadRequest reads what follows a length.
func ReadRequest(r io.Reader, n int) (*Request, error) {
	body, err := readBody(r, n)
	if err != nil {
		return nil, err
	}
	if len(body) < 4 || uint64(binary.BigEndian.Uint32(body)) > uint64(len(body)-4) {
		return nil, fmt.Errorf("request of %d bytes is damaged", n)
	}
	end := 4 + int(binary.BigEndian.Uint32(body))
	req := new(Request)
	if err := json.Unmarshal(body[4:end], req); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	if req.Start != nil {
		req.Start.Payload = body[end:]
	} else if end < n {
		return nil, fmt.Errorf("request with %d bytes too many", n-end)
	}
	return req, nil
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
