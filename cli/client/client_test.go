package client

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// answering is a controller that answers each ping with what is next in the list, the last for ever.
type answering struct {
	ctldpb.UnimplementedControllerServer
	answers []error
	calls   int
}

func (a *answering) Ping(context.Context, *ctldpb.PingRequest) (*ctldpb.PingResponse, error) {
	err := a.answers[min(a.calls, len(a.answers)-1)]
	a.calls++
	return &ctldpb.PingResponse{}, err
}

func serve(t *testing.T, s ctldpb.ControllerServer) Target {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	ctldpb.RegisterControllerServer(g, s)
	go g.Serve(l)
	t.Cleanup(g.Stop)
	return Target{Name: filepath.Base(filepath.Dir(path)), Socket: path}
}

func ping(c *Client) error {
	return c.Do(context.Background(), func(ctx context.Context, cc ctldpb.ControllerClient) error {
		_, err := cc.Ping(ctx, &ctldpb.PingRequest{})
		return err
	})
}

func detailed(code codes.Code, r *ctldpb.Refusal) error {
	st, err := status.New(code, r.Text).WithDetails(r)
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func TestRepeats(t *testing.T) {
	gone := status.Error(codes.Unavailable, "no leader")
	for _, c := range []struct {
		name    string
		answers []error
		calls   int
		text    string // "" = it works in the end
	}{
		{"at once", []error{nil}, 1, ""},
		{"no leader for a while", []error{gone, gone, nil}, 3, ""},
		{"lost its place", []error{status.Error(codes.Aborted, "again"), nil}, 2, ""},
		{"busy", []error{detailed(codes.ResourceExhausted, &ctldpb.Refusal{Code: "BUSY", Text: "busy"}), nil}, 2, ""},
		{"over a limit is final", []error{detailed(codes.ResourceExhausted, &ctldpb.Refusal{Code: "ESLURM_MAX_JOB_COUNT", Text: "too many jobs"})}, 1, "too many jobs"},
		{"a refusal is final", []error{detailed(codes.InvalidArgument, &ctldpb.Refusal{Code: "X", Text: "Invalid qos specification", Why: "why"})}, 1, "Invalid qos specification"},
		{"denied", []error{status.Error(codes.PermissionDenied, "not yours")}, 1, TextDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &answering{answers: c.answers}
			cl := New("lab", []Target{serve(t, a)})
			defer cl.Close()
			err := ping(cl)
			var r *Refusal
			switch {
			case c.text == "" && err != nil:
				t.Errorf("got %v", err)
			case c.text != "" && (!errors.As(err, &r) || r.Text != c.text):
				t.Errorf("got %v, want %q", err, c.text)
			}
			if a.calls != c.calls {
				t.Errorf("%d calls, want %d", a.calls, c.calls)
			}
		})
	}
}

// TestOrder: the next call begins where the last one was answered.
func TestOrder(t *testing.T) {
	first, second := &answering{answers: []error{status.Error(codes.Unavailable, "down")}}, &answering{answers: []error{nil}}
	c := New("lab", []Target{serve(t, first), serve(t, second)})
	defer c.Close()
	for range 3 {
		if err := ping(c); err != nil {
			t.Fatal(err)
		}
	}
	if first.calls != 1 || second.calls != 3 {
		t.Errorf("%d calls of the dead one, %d of the other", first.calls, second.calls)
	}
}

// hanging takes calls and answers none.
type hanging struct {
	ctldpb.UnimplementedControllerServer
}

func (hanging) Ping(ctx context.Context, _ *ctldpb.PingRequest) (*ctldpb.PingResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestHungController(t *testing.T) {
	good := &answering{answers: []error{nil}}
	c := New("lab", []Target{serve(t, hanging{}), serve(t, good)})
	defer c.Close()
	// What is looked at is that the whole time does not go to the one that hangs, at whatever speed the machine runs.
	const whole = time.Minute
	begin := time.Now()
	err := c.do(context.Background(), whole, time.Second, func(ctx context.Context, cc ctldpb.ControllerClient) error {
		_, err := cc.Ping(ctx, &ctldpb.PingRequest{})
		return err
	})
	if err != nil || good.calls != 1 || time.Since(begin) > whole/2 {
		t.Errorf("%v after %s, %d calls", err, time.Since(begin), good.calls)
	}
}

func TestNobodyThere(t *testing.T) {
	c := New("lab", []Target{{Name: "c1", Socket: filepath.Join(t.TempDir(), "none")}})
	_, err := c.PingOne(context.Background(), 0)
	var r *Refusal
	if !errors.As(err, &r) || r.Text != TextConnect || !strings.Contains(r.Why, "none") {
		t.Errorf("%v", err)
	}
	if err := ping(New("lab", nil)); !errors.As(err, &r) || r.Text != TextConnect {
		t.Errorf("no controller configured: %v", err)
	}
}

// TestSpecToAPI: each field of a specification travels, but those that say who the user is.
func TestSpecToAPI(t *testing.T) {
	identity := []string{"UID", "GID", "Groups", "User", "Group", "Home", "Shell"}
	v := reflect.ValueOf(job.Spec{}).Type()
	empty := SpecToAPI(&job.Spec{}).String()
	for i := range v.NumField() {
		var s job.Spec
		f := reflect.ValueOf(&s).Elem().Field(i)
		switch f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int8, reflect.Int32, reflect.Int64:
			f.SetInt(1)
		case reflect.Uint32:
			f.SetUint(1)
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		default:
			t.Fatalf("%s is a %s", v.Field(i).Name, f.Kind())
		}
		if travels := SpecToAPI(&s).String() != empty; travels == slices.Contains(identity, v.Field(i).Name) {
			t.Errorf("%s travels: %t", v.Field(i).Name, travels)
		}
	}
}

func TestKeys(t *testing.T) {
	a, b := NewKey(), NewKey()
	if a == b || len(a) == 0 || len(a) > job.MaxKey {
		t.Errorf("%s %s", a, b)
	}
}
