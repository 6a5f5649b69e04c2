// Package certificates returns the certificate for each handshake: the operator's own certificate if
// it is for the host, and otherwise a certificate from an ACME server.
//
// ACME is golang.org/x/crypto/acme/autocert. It answers http-01 and tls-alpn-01 on the
// gateway's listeners, and needs no ports and no daemon of its own. It keeps its
// state in a folder, which the gateways of a region may share: then each of them can answer a
// challenge. Other features of ACME clients (DNS challenges, OCSP) are not needed here. This
// package decides for which hosts certificates are ordered, and how often:
//
//   - only hosts that the table routes, so that a client cannot make the gateway order a
//     certificate for a name of the client's choice;
//   - a failed order is repeated after 1 min, and then after longer waits up to 6 h, with full
//     jitter, because a CA refuses clients that try too often;
//   - certificates of apps' hosts and domains are ordered before a client asks for them, a few at
//     a time. Each version has a preview host, whose certificate is ordered when a client asks;
//   - of the gateways that share a folder, only one at a time orders or renews the certificate of a
//     host; see folder.
package certificates

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/pkg/certfile"
)

// Chooser chooses the certificate for a handshake. At least one of Own and ACME is set.
type Chooser struct {
	Own  *certfile.Pair
	ACME *ACME
}

// Get implements tls.Config.GetCertificate.
func (c Chooser) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.ACME != nil && isChallenge(hello) {
		return c.ACME.manager.GetCertificate(hello)
	}
	var own *tls.Certificate
	if c.Own != nil {
		var err error
		if own, err = c.Own.Get(); err != nil {
			return nil, err
		}
		if c.ACME == nil || hello.ServerName == "" || own.Leaf.VerifyHostname(hello.ServerName) == nil {
			return own, nil
		}
	}
	if hello.ServerName == "" {
		return nil, errors.New("the client names no host")
	}
	got, err := c.ACME.Get(hello.ServerName)
	switch {
	case err == nil:
		return got, nil
	case own != nil:
		return own, nil // no certificate is for this host, but the operator's own one shows who runs the gateway
	}
	return nil, fmt.Errorf("no certificate for %q: %w", hello.ServerName, err)
}
