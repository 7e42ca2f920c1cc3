package daemon

import (
	"net"
	"sync"
	"syscall"

	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// maxUserConns bounds one user's connections to the users' socket, so that nobody takes all of the
// controller's files: agents and the other controllers need some. Root has no bound.
const maxUserConns = 1024

// userConns is how many connections one user may have: maxUserConns, or a quarter of the files that
// this process may open.
func userConns() int { return fileShare(maxUserConns) }

// fileShare is most, or a quarter of the files that this process may open if that is less.
func fileShare(most int) int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return most
	}
	return int(min(uint64(most), max(files.Cur/4, 1)))
}

// userListener closes connections of a user who has too many.
type userListener struct {
	net.Listener
	most int

	mu   sync.Mutex
	open map[uint32]int // uid -> connections
}

func newUserListener(l net.Listener, most int) *userListener {
	return &userListener{Listener: l, most: most, open: map[uint32]int{}}
}

// Accept gives the next connection of somebody who may have one more.
func (l *userListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		unix, ok := c.(*net.UnixConn)
		who, err := authn.PeerOf(c)
		if !ok || err != nil || !l.take(who.UID) {
			c.Close() // whoever it is has gone, or has enough
			continue
		}
		return &userConn{UnixConn: unix, release: sync.OnceFunc(func() { l.give(who.UID) })}, nil
	}
}

func (l *userListener) take(uid uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if uid != 0 && l.open[uid] >= l.most {
		return false
	}
	l.open[uid]++
	return true
}

func (l *userListener) give(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[uid]--; l.open[uid] == 0 {
		delete(l.open, uid)
	}
}

// userConn is a counted connection.
type userConn struct {
	*net.UnixConn
	release func()
}

// Close ends the connection and gives its place to another.
func (c *userConn) Close() error {
	defer c.release()
	return c.UnixConn.Close()
}
