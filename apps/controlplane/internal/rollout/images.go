package rollout

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// ImageResolver finds the digest behind a tag.
type ImageResolver interface {
	// Resolve returns the reference with a digest ("host/name@sha256:..."). Logins
	// are Docker configurations (config.json) for registries that ask who is there.
	// A *FinalError means that trying again cannot help.
	Resolve(ctx context.Context, image string, logins []string) (string, error)
}

// FinalError is an error that another attempt would meet again.
type FinalError struct{ Err error }

func (e *FinalError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *FinalError) Unwrap() error { return e.Err }

// resolveTimeout bounds one look-up: a HEAD, a token, perhaps a GET.
const resolveTimeout = 15 * time.Second

// Registry resolves images at their container registry.
type Registry struct {
	// Transport for the registry; nil means the library's own.
	Transport http.RoundTripper
	// Keychain for private registries that no login is for; nil means anonymous.
	Keychain authn.Keychain
}

// Resolve implements ImageResolver. It asks once: the workflow asks again.
func (r Registry) Resolve(ctx context.Context, image string, logins []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", &FinalError{fmt.Errorf("image %q is not a reference: %w", image, err)}
	}
	options := []remote.Option{
		remote.WithContext(ctx),
		remote.WithRetryStatusCodes(),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}),
	}
	if r.Transport != nil {
		options = append(options, remote.WithTransport(r.Transport))
	}
	keychain, err := loginKeychain(logins)
	if err != nil {
		return "", &FinalError{err}
	}
	if r.Keychain != nil {
		keychain = authn.NewMultiKeychain(keychain, r.Keychain)
	}
	options = append(options, remote.WithAuthFromKeychain(keychain))
	// HEAD costs no pull quota. Some registries do not answer it, or say nothing
	// useful when it fails; the GET then tells why.
	descriptor, err := remote.Head(ref, options...)
	if err == nil {
		return ref.Context().Digest(descriptor.Digest.String()).String(), nil
	}
	full, err := remote.Get(ref, options...)
	if err != nil {
		return "", classify(fmt.Errorf("resolve %s: %w", image, err))
	}
	return ref.Context().Digest(full.Digest.String()).String(), nil
}

// classify marks the answers by which a registry says no, as opposed to not now.
func classify(err error) error {
	var answer *transport.Error
	if !errors.As(err, &answer) {
		return err
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return &FinalError{fmt.Errorf("%w; a private image needs a secret with image_pull", err)}
	case http.StatusNotFound, http.StatusBadRequest:
		return &FinalError{err}
	}
	return err
}
