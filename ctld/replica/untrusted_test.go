package replica

import (
	"crypto/x509"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestUntrustedIsNoSilence: what is said of controllers whose authority is another one tells them from those
// that are not there.
func TestUntrustedIsNoSilence(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("dial tcp 10.0.0.2:6817: connect: connection refused"), ""},
		{status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: `+x509.UnknownAuthorityError{}.Error()+`"`),
			"certificate signed by unknown authority"},
		{errors.New(`desc = "handshake failed: x509: certificate signed by unknown authority (possibly because of \"x509: Ed25519 verification failure\" while ...)"`),
			"certificate signed by unknown authority"},
		{status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: remote error: tls: bad certificate"`), "bad certificate"},
	} {
		if got := untrusted(tt.err); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}
