// Package healthcheck checks the health of an instance over HTTP. All programs that check instances
// use this package, so that they agree on which answers pass.
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

// Range is a range of status codes, including both ends.
type Range struct{ First, Last int }

// Codes are the status codes that pass. Empty: the default, which is 200 to 399.
type Codes []Range

// firstCode and lastCode are the range of final status codes. Codes below 200 only announce another answer.
const firstCode, lastCode = 200, 599

// ParseCodes reads codes in the form of a spec: "204" or "200-299". The error is a *CodeError.
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

// CodeError says why a text is neither a status code nor a range of codes.
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
	r := Range{First: statusCode(first), Last: statusCode(last)}
	switch {
	case r.First == 0 || r.Last == 0:
		return r, fmt.Errorf("is neither a status code from %d to %d nor a range of them", firstCode, lastCode)
	case r.First > r.Last:
		return r, errors.New("is a range that ends before it begins")
	}
	return r, nil
}

// statusCode returns the status code that text states, or 0 if text is not a final status code.
func statusCode(text string) int {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n < firstCode || n > lastCode || len(text) != 3 {
		return 0
	}
	return int(n)
}

// Pass reports whether an answer with this status passes.
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

// Defaults of a check, as spec.proto states them.
const (
	DefaultPath    = "/health"
	DefaultMethod  = http.MethodGet
	DefaultTimeout = 5 * time.Second
)

// Check is a request, and the status codes with which it passes.
type Check struct {
	Method, Path string
	Codes        Codes
	// Timeout limits the whole check.
	Timeout time.Duration
	// Agent is the value of the User-Agent header.
	Agent string
}

// mostRedirects is the maximum number of redirects to follow. The kubelet has the same limit.
const mostRedirects = 10

// mostBody is the maximum number of bytes to read of an answer's body, because a body may have no end.
const mostBody = 4096

// Do makes the check once, at address ("host:port"). An error says why the check did not pass. The transport
// should open a new connection each time, because the check should also test that the instance accepts
// connections.
func (c Check) Do(ctx context.Context, transport http.RoundTripper, address string) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, c.Method, "http://"+address+c.Path, nil)
	if err != nil {
		return fmt.Errorf("health check %s: %w", c.Path, err)
	}
	req.Header.Set("User-Agent", c.Agent)
	client := http.Client{Transport: transport, CheckRedirect: c.checkRedirect}
	res, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s %s: no answer within %s", c.Method, c.Path, c.Timeout)
		}
		return fmt.Errorf("%s: %w", address, causeOf(err))
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.CopyN(io.Discard, res.Body, mostBody)
	if !c.Codes.Pass(res.StatusCode) {
		return fmt.Errorf("%s %s answered %s", c.Method, c.Path, res.Status)
	}
	return nil
}

// checkRedirect implements http.Client.CheckRedirect. Without Codes it acts like the kubelet, so that the default is
// the same on all runtimes: it follows redirects on the same host, for example from "/health" to "/health/". A
// redirect to another host is itself the answer. With Codes, every redirect is the answer.
func (c Check) checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(c.Codes) > 0, req.URL.Hostname() != via[0].URL.Hostname():
		return http.ErrUseLastResponse
	case len(via) >= mostRedirects:
		return fmt.Errorf("more than %d redirects", mostRedirects)
	}
	return nil
}

// causeOf returns the cause of err, without the method and the URL, which the caller knows.
func causeOf(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if s, ok := errors.AsType[syscall.Errno](err); ok {
		return s
	}
	return err
}
