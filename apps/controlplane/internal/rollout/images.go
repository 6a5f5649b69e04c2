package rollout

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/windlass-run/windlass/pkg/guard"
)

// ImageResolver finds the digest behind a tag.
type ImageResolver interface {
	// Resolve returns the reference with a digest ("host/name@sha256:..."). Logins are Docker configurations
	// (config.json) for registries that require a login. A *FinalError means that trying again cannot help. The text
	// of an error is for the tenant that named the image. The error that it wraps is for the operator.
	Resolve(ctx context.Context, image string, logins []string) (string, error)
}

// FinalError is an error that every further attempt would repeat.
type FinalError struct{ Err error }

func (e *FinalError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *FinalError) Unwrap() error { return e.Err }

// registryError has what a tenant may know of a registry's failure: its kind, and the error code of the answer. A
// body, a header or an address would show tenants what only the control plane can reach.
type registryError struct {
	text  string
	cause error
}

func (e *registryError) Error() string { return e.text }

// Unwrap returns the cause.
func (e *registryError) Unwrap() error { return e.cause }

// resolveTimeout bounds one look-up: a HEAD, a token, and maybe a GET.
const resolveTimeout = 15 * time.Second

// Registry resolves images at their container registries, which tenants name.
type Registry struct {
	// Allow are networks in which registries may be, in addition to public addresses. Plain HTTP is used only
	// there, for hosts with local names.
	Allow guard.Networks
	// Keychain is for private registries without a login. nil means anonymous.
	Keychain authn.Keychain
}

// Resolve implements ImageResolver. It tries once, because the workflow tries again.
func (r Registry) Resolve(ctx context.Context, image string, logins []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", &FinalError{fmt.Errorf("image %q is not a reference: %w", image, err)}
	}
	way := newRegistryTransport(r.Allow)
	defer way.close()
	options := []remote.Option{
		remote.WithContext(ctx),
		remote.WithTransport(way),
		remote.WithRetryStatusCodes(),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}),
	}
	keychain, err := loginKeychain(logins)
	if err != nil {
		return "", &FinalError{err}
	}
	if r.Keychain != nil {
		keychain = authn.NewMultiKeychain(keychain, r.Keychain)
	}
	options = append(options, remote.WithAuthFromKeychain(keychain))
	// HEAD costs no pull quota. Some registries do not answer it, or give no reason when it fails. The GET then
	// does.
	descriptor, err := remote.Head(ref, options...)
	if err == nil {
		return ref.Context().Digest(descriptor.Digest.String()).String(), nil
	}
	full, err := remote.Get(ref, options...)
	if err != nil {
		return "", classifyError(image, err)
	}
	return ref.Context().Digest(full.Digest.String()).String(), nil
}

// classifyError returns the error that the tenant sees. It is a FinalError if the registry's answer is a permanent
// refusal.
func classifyError(image string, err error) error {
	failed := func(format string, args ...any) error {
		return &registryError{text: fmt.Sprintf("resolve %s: its registry ", image) + fmt.Sprintf(format, args...), cause: err}
	}
	var answer *transport.Error
	switch {
	case errors.Is(err, guard.ErrRefused):
		return &FinalError{failed("has an address that is not public: use another, or ask the operator to start the control plane with --registry-allow and its network")}
	case !errors.As(err, &answer):
		return failed("could not be reached")
	}
	said := fmt.Sprintf("%d %s%s", answer.StatusCode, http.StatusText(answer.StatusCode), registryCode(answer))
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return &FinalError{failed("answered %s; a private image needs a secret with image_pull", said)}
	case http.StatusNotFound, http.StatusBadRequest:
		return &FinalError{failed("answered %s: check the image's name and tag", said)}
	}
	return failed("answered %s", said)
}

// maxRegistryCode is longer than each code of the distribution specification.
const maxRegistryCode = 32

// registryCode returns the first code of a registry's error, such as " (MANIFEST_UNKNOWN)".
func registryCode(answer *transport.Error) string {
	if len(answer.Errors) == 0 {
		return ""
	}
	code := string(answer.Errors[0].Code)
	other := func(r rune) bool { return r != '_' && (r < 'A' || r > 'Z') }
	if code == "" || len(code) > maxRegistryCode || strings.ContainsFunc(code, other) {
		return "" // not a code of the specification
	}
	return " (" + code + ")"
}

// registryTransport decides which addresses a request may go to. It is made for one look-up.
type registryTransport struct {
	// registry connects to public and to listed addresses. plain connects only to listed addresses, because
	// credentials could be read on the way to other ones. elsewhere connects to public addresses.
	registry, plain, elsewhere *http.Transport
}

func newRegistryTransport(allow guard.Networks) *registryTransport {
	way := func(d *net.Dialer) *http.Transport {
		d.Timeout = resolveTimeout
		t := guard.Transport(d, resolveTimeout)
		t.DisableKeepAlives = false // close ends them
		return t
	}
	return &registryTransport{
		registry: way(allow.Dialer()), plain: way(allow.ListedDialer()), elsewhere: way(guard.Networks(nil).Dialer()),
	}
}

func (t *registryTransport) close() {
	for _, one := range []*http.Transport{t.registry, t.plain, t.elsewhere} {
		one.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper. A redirect to another host may choose any path, which a tenant
// cannot do with an image's name. So it may lead only to public addresses, with https.
func (t *registryTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	redirected := leftHost(req)
	switch {
	case redirected && req.URL.Scheme != "https":
		return nil, errors.New("the registry redirects to another host without TLS")
	case redirected:
		return t.elsewhere.RoundTrip(req)
	case req.URL.Scheme != "https":
		return t.plain.RoundTrip(req)
	}
	return t.registry.RoundTrip(req)
}

// leftHost reports whether any redirect before the request led to another host.
func leftHost(req *http.Request) bool {
	for req.Response != nil {
		before := req.Response.Request
		if before == nil || before.URL.Host != req.URL.Host {
			return true
		}
		req = before
	}
	return false
}
