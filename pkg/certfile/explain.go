package certfile

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

func dateText(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// explainServer returns an error that says what to do about a server's refused certificate. cas is nil for
// the CAs of this machine.
func explainServer(err error, leaf *x509.Certificate, host string, cas *Pool, caFlag string) error {
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)) && cas != nil:
		return fmt.Errorf("no CA in %s (%s) issued the certificate of %s, whose issuer is %q: add that CA to the file, which is read again without a restart: %w",
			cas.Path, cas.Flag, host, leaf.Issuer.CommonName, err)
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return fmt.Errorf("this machine does not know the CA of the certificate of %s, whose issuer is %q: give the file of that CA with %s: %w",
			host, leaf.Issuer.CommonName, caFlag, err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().After(leaf.NotAfter):
		return fmt.Errorf("the certificate of %s ended on %s: replace its file on the server: %w", host, dateText(leaf.NotAfter), err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().Before(leaf.NotBefore):
		return fmt.Errorf("the certificate of %s is valid only from %s: correct the clock of this machine or of the machine that issued the certificate: %w", host, dateText(leaf.NotBefore), err)
	}
	return err
}

// explainClient returns an error that says what to do about a client's refused certificate.
func explainClient(err error, state tls.ConnectionState, cas *Pool) error {
	if err == nil || len(state.PeerCertificates) == 0 {
		return err
	}
	leaf := state.PeerCertificates[0]
	name := cmp.Or(Holder(&state), "without a name")
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return fmt.Errorf("no CA in %s (%s) issued the certificate of client %q, whose issuer is %q: give the client another certificate, or add that CA to the file: %w",
			cas.Path, cas.Flag, name, leaf.Issuer.CommonName, err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().After(leaf.NotAfter):
		return fmt.Errorf("the certificate of client %q ended on %s: replace its file on the client: %w", name, dateText(leaf.NotAfter), err)
	}
	return err
}
