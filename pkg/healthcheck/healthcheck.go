// Package healthcheck asks an instance over HTTP how it is, and judges what it answers. Who
// asks an instance of its own accord asks by this package, so that all of them agree on which
// answers pass.
package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Range of status codes, with both its ends.
type Range struct{ First, Last int }

// Codes are those that pass. None: the default, which is 200 to 399.
type Codes []Range

// The codes that end an exchange and mean something to HTTP: those below 200 announce
// another.
const firstCode, lastCode = 200, 599

// ParseCodes reads codes as a spec has them: "204", or "200-299".
func ParseCodes(texts []string) (Codes, error) {
	var out Codes
	for i, text := range texts {
		r, err := parse(text)
		if err != nil {
			return nil, &CodeError{Index: i, Text: text, Why: err.Error()}
		}
		out = append(out, r)
	}
	return out, nil
}

// CodeError is why one of the texts is no code and no range of them.
type CodeError struct {
	Index     int
	Text, Why string
}

func (e *CodeError) Error() string { return fmt.Sprintf("%q: %s", e.Text, e.Why) }

func parse(text string) (Range, error) {
	first, last, ranged := strings.Cut(text, "-")
	if !ranged {
		last = first
	}
	r := Range{First: code(first), Last: code(last)}
	switch {
	case r.First == 0 || r.Last == 0:
		return r, fmt.Errorf("is neither a status code from %d to %d nor a range of them", firstCode, lastCode)
	case r.First > r.Last:
		return r, errors.New("is a range that ends before it begins")
	}
	return r, nil
}

// code is 0 for what is none.
func code(text string) int {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n < firstCode || n > lastCode || len(text) != 3 {
		return 0
	}
	return int(n)
}

// Pass reports whether an answer with this status does.
func (c Codes) Pass(status int) bool {
	if len(c) == 0 {
		return status >= 200 && status <= 399
	}
	for _, r := range c {
		if r.First <= status && status <= r.Last {
			return true
		}
	}
	return false
}

// What a check is that says nothing else, as spec.proto states.
const (
	DefaultPath    = "/health"
	DefaultMethod  = http.MethodGet
	DefaultTimeout = 5 * time.Second
)

// Check is one request and what passes.
type Check struct {
	Method, Path string
	Codes        Codes
	// Timeout of all of it.
	Timeout time.Duration
	// Agent is the User-Agent.
	Agent string
}

// mostRedirects are followed, as many as the kubelet follows.
const mostRedirects = 10

// mostBody is read of an answer: an endless one is an answer too slow, not one to read.
const mostBody = 4096

// Do asks once, at "host:port". An error says why it did not pass. The transport should make a
// connection each time: what is asked is whether the instance takes new ones.
func (c Check) Do(ctx context.Context, transport http.RoundTripper, address string) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, c.Method, "http://"+address+c.Path, nil)
	if err != nil {
		return fmt.Errorf("health check %s: %w", c.Path, err)
	}
	req.Header.Set("User-Agent", c.Agent)
	client := http.Client{Transport: transport, CheckRedirect: c.redirect}
	res, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s %s: no answer within %s", c.Method, c.Path, c.Timeout)
		}
		return fmt.Errorf("%s: %w", address, cause(err))
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.CopyN(io.Discard, res.Body, mostBody)
	if !c.Codes.Pass(res.StatusCode) {
		return fmt.Errorf("%s %s answered %s", c.Method, c.Path, res.Status)
	}
	return nil
}

// redirect does as the kubelet does, so that the default is one on all runtimes: it follows
// what stays on the host, so that "/health/" is asked where "/health" leads there, and takes
// what leads away for the answer. Where codes are named, a redirect's is one like others.
func (c Check) redirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(c.Codes) > 0, req.URL.Hostname() != via[0].URL.Hostname():
		return http.ErrUseLastResponse
	case len(via) >= mostRedirects:
		return fmt.Errorf("it was redirected %d times", mostRedirects)
	}
	return nil
}

// cause is what went wrong, without what the caller knows: whom it asked for what.
func cause(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if s, ok := errors.AsType[syscall.Errno](err); ok {
		return s
	}
	return err
}
