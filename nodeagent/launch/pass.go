package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Launcher, forker and shepherd hand each other descriptors over socket pairs that nobody else can
// reach: a big-endian uint32 length (<= MaxFrame) and so many bytes, with which at most maxPassed
// descriptors come. One message is under way at a time.

// maxPassed bounds the descriptors of one message.
const maxPassed = 8

// Pass writes one message to a blocking stream socket.
func Pass(sock int, body []byte, fds ...int) error {
	if len(body) > MaxFrame {
		return fmt.Errorf("message of %d bytes is over MaxFrame %d", len(body), MaxFrame)
	}
	msg, rights := Frame(body), []byte(nil)
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for len(msg) > 0 {
		n, err := unix.SendmsgN(sock, msg, rights, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		msg, rights = msg[n:], nil
	}
	return nil
}

// Frame puts the length in front of a message.
func Frame(body []byte) []byte {
	msg := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	return append(msg, body...)
}

// Receiver reads what Pass writes.
type Receiver struct {
	sock int
	buf  []byte
}

// NewReceiver reads from a blocking stream socket.
func NewReceiver(sock int) *Receiver { return &Receiver{sock: sock, buf: make([]byte, 16<<10)} }

// Next waits for a message. The body is good until the next call; the descriptors are the caller's
// to close. io.EOF means that the peer closed between messages.
func (r *Receiver) Next() (body []byte, fds []int, err error) {
	var oob [64]byte
	have, want := 0, -1
	defer func() {
		if err != nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
			fds = nil
		}
	}()
	for want < 0 || have < want {
		n, oobn, flags, _, err := unix.Recvmsg(r.sock, r.buf[have:], oob[:], unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fds, err
		}
		more, err := rights(oob[:oobn])
		fds = append(fds, more...)
		switch {
		case err != nil:
			return nil, fds, err
		case flags&unix.MSG_CTRUNC != 0 || len(fds) > maxPassed:
			return nil, fds, fmt.Errorf("message with more than %d descriptors", maxPassed)
		case n == 0 && have == 0:
			return nil, fds, io.EOF
		case n == 0:
			return nil, fds, io.ErrUnexpectedEOF
		}
		have += n
		if want < 0 && have >= 4 {
			size := binary.BigEndian.Uint32(r.buf)
			if size > MaxFrame {
				return nil, fds, fmt.Errorf("message of %d bytes is over MaxFrame %d", size, MaxFrame)
			}
			if want = 4 + int(size); want > len(r.buf) {
				r.buf = append(make([]byte, 0, want), r.buf[:have]...)[:want]
			}
		}
	}
	if have > want {
		return nil, fds, errors.New("two messages at once")
	}
	return r.buf[4:want], fds, nil
}

func rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range msgs {
		more, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return fds, err
		}
		fds = append(fds, more...)
	}
	return fds, nil
}
