package peers

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"time"

	"github.com/windlass-run/windlass/pkg/authority"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/seal"
)

// authorityName is in the certificates of all processes.
const authorityName = "windlass control plane"

// tlsPurpose is the purpose for which the keys of the processes' CAs are derived.
const tlsPurpose = "windlass peer tls"

// TLS returns the TLS configurations of calls between the processes of a control plane. Each process derives the same
// CAs from the keyset, one from each key. So processes still trust each other while a key is added or replaced. Each
// process makes its own CA certificates. They differ, but only their names and keys are verified, which are the same.
func TLS(box *seal.Box, now time.Time) (server, client *tls.Config, err error) {
	keys, err := box.Derive(tlsPurpose)
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	var own *authority.Authority
	for _, key := range keys {
		ca, err := authority.FromKey(authorityName, ed25519.NewKeyFromSeed(key), now)
		if err != nil {
			return nil, nil, err
		}
		if own == nil {
			own = ca // of the primary key
		}
		pool.AppendCertsFromPEM(ca.CertPEM())
	}
	certPEM, keyPEM, err := own.Issue(authority.Request{Name: authorityName, Client: true, Life: authority.Life}, now)
	if err != nil {
		return nil, nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, nil, err
	}
	server = certfile.Mutual(own.Serve, func() (*x509.CertPool, error) { return pool, nil })
	client = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{pair}}
	return server, client, nil
}
