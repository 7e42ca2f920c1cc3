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
	call := func(ctx context.Context, req *nodepb.RenewRequest) (*nodepb.JoinResponse, error) {
		var errs []error
		for _, k := range controllers {
			conn, err := dial(net.JoinHostPort(k.Address, strconv.FormatUint(uint64(k.Port), 10)), tlsConf)
			if err != nil {
				return nil, err
			}
			res, err := nodepb.NewEnrollClient(conn).Renew(ctx, req)
			conn.Close()
			if err == nil {
				return res, nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", k.Name, err))
		}
		return nil, errors.Join(errs...)
	}
	return &enroll.Renewer{Home: home, Identity: id, Call: call, Now: fault.Now, Jitter: rand.Float64, Rand: cryptorand.Reader, Log: log}
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
