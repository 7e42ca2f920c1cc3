package authn

import (
	"crypto/tls"
	"crypto/x509"
	"time"
)

// UserServer is a TLS 1.3 configuration for the port for users: it asks for no certificate, since each
// call carries a token or a wallet's signature. The CA is sent along, for joining daemons that know
// only its fingerprint. Renewed files are used by new connections.
func (id *Identity) UserServer() *tls.Config {
	base := func() *tls.Config {
		cur := id.current()
		pair := cur.pair
		pair.Certificate = append([][]byte{}, pair.Certificate...)
		for _, ca := range cur.cas {
			pair.Certificate = append(pair.Certificate, ca.Raw)
		}
		return &tls.Config{
			MinVersion:             tls.VersionTLS13,
			NextProtos:             []string{"h2"},
			Certificates:           []tls.Certificate{pair},
			ClientAuth:             tls.NoClientCert,
			Time:                   id.now,
			SessionTicketsDisabled: true,
		}
	}
	cfg := base()
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return base(), nil }
	return cfg
}

// UserClientTLS is for commands on other hosts: the server must be a controller (role ctld) of that
// cluster by a CA of caFile, which may hold several. Host names play no part.
func UserClientTLS(caFile, cluster string) (*tls.Config, error) {
	return userClientTLS(caFile, cluster, time.Now)
}

func userClientTLS(caFile, cluster string, now func() time.Time) (*tls.Config, error) {
	cas, _, err := LoadCAs(caFile)
	if err != nil {
		return nil, err
	}
	return userClient(cas, cluster, now), nil
}

func userClient(cas []*x509.Certificate, cluster string, now func() time.Time) *tls.Config {
	roots := pool(cas)
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		Time:       now,
		// Replaced, not dropped: VerifyConnection checks the chain, and then cluster and role.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if err := verifyChain(cs, roots, now()); err != nil {
				return err
			}
			return checkPeer(cs, cluster, []Role{RoleCtld})
		},
	}
}
