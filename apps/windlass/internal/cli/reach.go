package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"strings"
	"syscall"

	"connectrpc.com/connect"
)

// plaintextToTLS are answers of Go's and other servers to plain HTTP on their HTTPS port.
var plaintextToTLS = []string{"HTTP request to an HTTPS server", "plain HTTP request was sent to HTTPS port"}

// reachHint returns what to do about a call that reached no control plane.
func reachHint(err error) string {
	text := err.Error()
	var expired x509.CertificateInvalidError
	var name x509.HostnameError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "This machine does not know the CA of its certificate: give `windlass login` the CA's file with --server-ca."
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return "Its certificate is not valid at this time: look at the clock of this machine, or have the certificate renewed."
	case errors.As(err, &expired):
		return "Its certificate is not one for a server: have another one made."
	case errors.As(err, &name):
		return "Its certificate is for other names: use one of those in --server of `windlass login`, or have a certificate made for this one."
	case strings.Contains(text, "certificate required"), strings.Contains(text, "tls: bad certificate"):
		return "It asks for a client's certificate: give `windlass login` one with --client-cert and --client-key."
	case errors.As(err, &record), strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return "It speaks plain HTTP there: write http:// in --server of `windlass login`, or the port that it has for TLS."
	case speaksTLS(err):
		return "It speaks TLS there: write https:// in --server of `windlass login`."
	case closed(err):
		return "What listens there closed the connection: if it speaks TLS, write https:// in --server of `windlass login`."
	}
	return "Is it running? `windlass dev status` tells for this machine."
}

// speaksTLS reports whether a server refused plain HTTP because it speaks TLS.
func speaksTLS(err error) bool {
	for _, text := range plaintextToTLS {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	// A TLS alert begins with 0x15 0x03.
	return strings.Contains(err.Error(), `malformed HTTP response "\x15\x03`)
}

// closed reports whether a server closed the connection instead of answering. The error depends on which side
// is faster.
func closed(err error) bool {
	for _, end := range []error{io.ErrUnexpectedEOF, io.EOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return strings.Contains(err.Error(), "http2: client conn")
}

// unreached reports whether a call reached no control plane that understood it.
func unreached(err *connect.Error) bool {
	return err.Code() == connect.CodeUnavailable || speaksTLS(err)
}
