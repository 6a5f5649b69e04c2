// Package certificates returns the certificate for each handshake: the operator's own if it
// is for the host, and otherwise one from an ACME server.
//
// ACME is golang.org/x/crypto/acme/autocert. It answers http-01 and tls-alpn-01 on the
// gateway's listeners, and needs no ports and no daemon of its own. It keeps its
// state in a folder, which the gateways of a region may share: then each of them can answer a
// challenge. What other ACME clients do besides (DNS challenges, OCSP) is of no use here. This
// package decides for which hosts certificates are ordered, and how often:
//
//   - only hosts that the table routes, so that a client cannot make the gateway order a
//     certificate for a name of the client's choice;
//   - a host whose order failed is tried again after 1 min, and ever less often, to 6 h,
//     with full jitter, because a CA refuses clients that insist;
//   - apps' hosts and domains are ordered before a client asks for them, some at a time.
//     Previews, of which each version has one, are ordered when a client asks;
//   - gateways that share the folder order, and renew, each host's once; see folder.
package certificates

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/pkg/certfile"
)

// Chooser returns the certificate for a handshake. At least one of Own and ACME is set.
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
		return own, nil // no certificate fits; this one shows the client whose gateway it is
	}
	return nil, fmt.Errorf("no certificate for %q: %w", hello.ServerName, err)
}
