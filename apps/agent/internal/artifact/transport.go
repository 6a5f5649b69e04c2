package artifact

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/windlass-run/windlass/pkg/guard"
)

const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	// headerTimeout is how long a source may take to begin an answer.
	headerTimeout = 30 * time.Second
	maxRedirects  = 5
)

// guarded connects to public addresses by TLS, and to listed networks also without TLS.
type guarded struct{ secure, plain *http.Transport }

func newTransport(allow guard.Networks) *guarded {
	make1 := func(d *net.Dialer) *http.Transport {
		d.Timeout = dialTimeout
		t := guard.Transport(d, handshakeTimeout)
		t.ResponseHeaderTimeout = headerTimeout
		return t
	}
	return &guarded{secure: make1(allow.Dialer()), plain: make1(allow.ListedDialer())}
}

// RoundTrip implements http.RoundTripper.
func (g *guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	t := g.secure
	if r.URL.Scheme != "https" {
		t = g.plain
	}
	res, err := t.RoundTrip(r)
	if errors.Is(err, guard.ErrRefused) {
		return nil, &refusedError{r.URL.Scheme, r.URL.Hostname()}
	}
	return res, err
}

// refusedError means that the operator does not allow a connection.
type refusedError struct{ scheme, host string }

func (e *refusedError) Error() string {
	if e.scheme == "https" {
		return fmt.Sprintf("%s has a private address: the operator of the region may allow its network with --model-allow", e.host)
	}
	return fmt.Sprintf("%s is not called without TLS: use https, or the operator of the region may allow its network with --model-allow", e.host)
}

// newClient returns a client that follows redirects. It sends no credentials to other hosts. By
// itself, Go's client would send them to subdomains and to other ports.
func newClient(t http.RoundTripper) *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return &contentError{fmt.Sprintf("it redirects more than %d times", maxRedirects)}
		}
		if r.URL.Scheme != "https" && via[0].URL.Scheme == "https" {
			return &contentError{"it redirects from https to " + r.URL.Scheme}
		}
		if r.URL.Host != via[0].URL.Host {
			r.Header.Del("Authorization")
		}
		return nil
	}}
}

// withoutURL removes the URL from an error of a client, because a redirect's URL may have a
// signature.
func withoutURL(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	if err == io.EOF { //nolint:errorlint // a wrapped one has a text of its own
		return errors.New("the source closed the connection")
	}
	return err
}
