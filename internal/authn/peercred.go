package authn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"google.golang.org/grpc/credentials"
)

// PeerInfo is what the kernel says of the process at the other end of a local socket.
type PeerInfo struct {
	credentials.CommonAuthInfo
	UID uint32
	GID uint32
	PID int32 // racy: the process may be gone and its number taken; for logs only
}

// AuthType names the mechanism.
func (PeerInfo) AuthType() string { return "peercred" }

// ErrNotLocal says that a connection is not a unix socket, so that the kernel vouches for nobody.
var ErrNotLocal = errors.New("peer credentials need a unix socket")

type peerCred struct{}

// PeerCred gives transport credentials that take the caller from SO_PEERCRED. They serve both
// ends: a client learns the server's uid the same way.
func PeerCred() credentials.TransportCredentials { return peerCred{} }

func (peerCred) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return handshake(c)
}

func (peerCred) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return handshake(c)
}

func (peerCred) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "peercred"}
}

func (peerCred) Clone() credentials.TransportCredentials { return peerCred{} }

// OverrideServerName does nothing: there is no name in it.
func (peerCred) OverrideServerName(string) error { return nil }

func handshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info, err := PeerOf(c)
	if err != nil {
		return nil, nil, err
	}
	return c, info, nil
}

// PeerOf asks the kernel who is at the other end of a unix socket.
func PeerOf(c net.Conn) (PeerInfo, error) {
	uc, ok := c.(syscall.Conn)
	if !ok || c.LocalAddr() == nil || c.LocalAddr().Network() != "unix" {
		return PeerInfo{}, ErrNotLocal
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return PeerInfo{}, fmt.Errorf("peer credentials: %w", err)
	}
	var cred *syscall.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) {
		cred, optErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err == nil {
		err = optErr
	}
	if err != nil {
		return PeerInfo{}, fmt.Errorf("peer credentials: %w", err)
	}
	// Ids that this user namespace does not map arrive as the kernel's overflow id (65534, nobody):
	// strangers share nobody's rights, and nobody's jobs.
	return PeerInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		UID:            cred.Uid, GID: cred.Gid, PID: cred.Pid,
	}, nil
}
