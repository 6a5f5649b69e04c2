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

// plaintextToTLS are texts of answers to plain HTTP on an HTTPS port, from Go's server and from other servers.
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
		return "Its certificate is not valid at this time: check the clock of this machine, or renew the certificate."
	case errors.As(err, &expired):
		return "Its certificate is not for a server: use one for server authentication."
	case errors.As(err, &name):
		return "Its certificate is for other names: use one of them in --server of `windlass login`, or a certificate for this name."
	case strings.Contains(text, "certificate required"), strings.Contains(text, "tls: bad certificate"):
		return "It asks for a client's certificate: give `windlass login` one with --client-cert and --client-key."
	case errors.As(err, &record), strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return "It uses plain HTTP on this port: write http:// in --server of `windlass login`, or the port for TLS."
	case speaksTLS(err):
		return "It uses TLS on this port: write https:// in --server of `windlass login`."
	case isConnectionClosed(err):
		return "It closed the connection: if it uses TLS on this port, write https:// in --server of `windlass login`."
	}
	return "Is it running? On this machine, `windlass dev status` shows that."
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

// isConnectionClosed reports whether a server closed the connection without an answer. The error depends on when the
// server closed it.
func isConnectionClosed(err error) bool {
	for _, end := range []error{io.ErrUnexpectedEOF, io.EOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return strings.Contains(err.Error(), "http2: client conn")
}

// isUnreached reports whether a call reached no control plane that understood it.
func isUnreached(err *connect.Error) bool {
	return err.Code() == connect.CodeUnavailable || speaksTLS(err)
}
