// Package callout calls URLs that tenants set. It protects the control plane's secrets, and servers in its network
// that a tenant must not reach:
//
//   - An address is checked when a connection is made. So no name, redirect or proxy can lead to an address
//     that is not public, unless the operator allows it.
//   - Errors say only the kind of a problem. They contain no address, header or body.
package callout

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/pkg/guard"
)

// errNotPublic is the error of a connection to an address that is not allowed.
var errNotPublic = errors.New("its address is not public, and the control plane's operator does not allow it with --webhook-allow")

// NewClient makes a client for single calls. timeout is the timeout for a connection, which may continue after its
// call has ended.
func NewClient(allow guard.Networks, timeout time.Duration) *http.Client {
	dialer := allow.Dialer()
	dialer.Timeout = timeout
	return &http.Client{
		Transport:     guard.Transport(dialer, timeout),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Refused returns an error for a status that is not 2xx, nil for 2xx.
func Refused(status int) error {
	switch status / 100 {
	case 2:
		return nil
	case 3:
		return fmt.Errorf("it answered %d, but redirects are not followed: use the URL to which it redirects", status)
	}
	return fmt.Errorf("it answered %d %s", status, http.StatusText(status))
}

// Problem returns the kind of a call's error, without addresses and without parts of the answer.
func Problem(ctx context.Context, err error) error {
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var op *net.OpError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, guard.ErrRefused):
		return errNotPublic
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &name) && name.IsNotFound:
		return errors.New("its host name is not known")
	case errors.As(err, &name):
		return errors.New("its host name cannot be looked up")
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("the connection is refused")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return errors.New("its address cannot be reached")
	case errors.As(err, &certificate):
		return errors.New("its certificate is not trusted for its host name")
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &op) && op.Op == "remote error":
		return errors.New("its TLS handshake is not valid")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return errors.New("the connection ended before the answer was complete")
	case errors.As(err, &timeout) && timeout.Timeout():
		return errors.New("it did not answer in time")
	}
	return errors.New("its answer is not valid HTTP")
}
