package main

import (
	"context"
	cryptorand "crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/fault"
	"github.com/tensorgrid/tensorgrid/nodeagent/enroll"
)

// identityOf opens the daemon's certificate and says what to do where there is none that is good.
func identityOf(tlsDir, own, name string, role authn.Role) (*enroll.Home, *authn.Identity, error) {
	again := "get one: on a controller's host, gctl node token " + name + " --role=" + string(role) + "; here, gnoded join"
	home, err := enroll.NewHome(tlsDir, own, name)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w (%s)", err, again)
		}
		return nil, nil, err
	}
	id, err := authn.OpenIdentity(home.Dir, name, fault.Now)
	var bad x509.CertificateInvalidError
	switch {
	case errors.Is(err, os.ErrNotExist), errors.As(err, &bad) && bad.Reason == x509.Expired:
		return nil, nil, fmt.Errorf("%w (%s)", err, again)
	case err != nil:
		return nil, nil, err
	case id.Role() != role:
		return nil, nil, fmt.Errorf("the certificate of %s in %s has role %s, this needs role %s (%s)", name, home.Dir, id.Role(), role, again)
	}
	return home, id, nil
}

// renewer keeps the certificate good by asking one controller after the other.
func renewer(home *enroll.Home, id *authn.Identity, controllers []conf.Controller, log *slog.Logger) *enroll.Renewer {
	tlsConf := id.Client()
	ask := func(ctx context.Context, k *conf.Controller, req *nodepb.RenewRequest) (*nodepb.JoinResponse, error) {
		conn, err := dial(net.JoinHostPort(k.Address, strconv.FormatUint(uint64(k.Port), 10)), tlsConf)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		return nodepb.NewEnrollClient(conn).Renew(ctx, req)
	}
	call := func(ctx context.Context, req *nodepb.RenewRequest) (*nodepb.JoinResponse, error) {
		return askEach(ctx, controllers, func(ctx context.Context, k *conf.Controller) (*nodepb.JoinResponse, error) { return ask(ctx, k, req) })
	}
	return &enroll.Renewer{Home: home, Identity: id, Call: call, Now: fault.Now, Jitter: rand.Float64, Rand: cryptorand.Reader, Log: log}
}

// askEach asks controllers in turn until one answers. Each has its share of the time that is left: one that
// takes connections and says nothing must not keep the others from being asked.
func askEach[T any](ctx context.Context, controllers []conf.Controller, ask func(context.Context, *conf.Controller) (T, error)) (out T, err error) {
	var errs []error
	for i := range controllers {
		k := &controllers[i]
		one, cancel := ctx, context.CancelFunc(func() {})
		if end, ok := ctx.Deadline(); ok {
			one, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(len(controllers)-i))
		}
		out, err = ask(one, k)
		cancel()
		if err == nil {
			return out, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", k.Name, err))
	}
	return out, errors.Join(errs...)
}

// alongside runs a helper beside the work and ends it when the work is done.
func alongside(ctx context.Context, helper func(context.Context), work func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		helper(ctx)
	}()
	err := work(ctx)
	cancel()
	<-done
	return err
}
