package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// Refusal is an answer that is not the one wanted. Text is the line that Slurm prints, which
// programs match; Why is a second line for people, may be empty.
type Refusal struct {
	Code string
	Text string
	Why  string
	err  error
}

func (r *Refusal) Error() string { return r.Text }

func (r *Refusal) Unwrap() error { return r.err }

// Texts of the ways a call can fail before a controller decides.
const (
	TextConnect = "Unable to contact slurm controller (connect failure)"
	TextTimeout = "Socket timed out on send/recv operation"
	TextDenied  = "Access/permission denied"
)

// translate turns a transport's error into a Refusal; nil stays nil.
func translate(err error) error {
	if err == nil {
		return nil
	}
	var known *Refusal
	if errors.As(err, &known) {
		return err
	}
	if errors.Is(err, errConnect) {
		return &Refusal{Code: "CONNECT", Text: TextConnect, Why: fmt.Sprintf("%v", err), err: err}
	}
	st, ok := status.FromError(err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return &Refusal{Code: "TIMEOUT", Text: TextTimeout, err: err}
		}
		return err
	}
	for _, d := range st.Details() {
		if r, ok := d.(*ctldpb.Refusal); ok {
			return &Refusal{Code: r.Code, Text: r.Text, Why: r.Why, err: err}
		}
	}
	return fromCode(st, err)
}

// fromCode gives the text of a bare status.
func fromCode(st *status.Status, err error) *Refusal {
	r := &Refusal{Code: st.Code().String(), Text: st.Message(), err: err}
	switch st.Code() {
	case codes.Unavailable, codes.Aborted:
		r.Text, r.Why = TextConnect, st.Message()
	case codes.DeadlineExceeded:
		r.Text, r.Why = TextTimeout, st.Message()
	case codes.PermissionDenied, codes.Unauthenticated:
		r.Text, r.Why = TextDenied, st.Message()
	case codes.Internal:
		if strings.Contains(st.Message(), "invalid UTF-8") {
			r.Text, r.Why = "a value holds bytes that are not UTF-8", st.Message()
		}
	case codes.Unimplemented:
		r.Text = "the controller does not know this request: " + st.Message()
	}
	return r
}
