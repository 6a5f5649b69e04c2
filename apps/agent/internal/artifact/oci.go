package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/windlass-run/windlass/pkg/guard"
)

// unpackAnnotation marks a layer that ORAS made from a folder.
const unpackAnnotation = "io.deis.oras.content.unpack"

// ociSource is an artifact of a registry. Its layers are its files. A layer with a title is a file
// of this name, unless ORAS made it from a folder. All other layers are archives.
type ociSource struct {
	repository *remote.Repository
	manifest   string
}

func newOCI(t http.RoundTripper, allow guard.Networks, p parsed, c Credentials) (*ociSource, error) {
	repository, err := remote.NewRepository(p.at.Host + p.at.Path)
	if err != nil {
		return nil, &contentError{"the URL of the artifact names no registry and repository: " + err.Error()}
	}
	client := &auth.Client{Client: newClient(t), Cache: auth.NewCache()}
	if len(allow) > 0 {
		// The transport allows only these networks and public addresses.
		client.BlockedRealmPrefixes = []netip.Prefix{}
	}
	if client.Credential, err = dockerCredential(c.Docker); err != nil {
		return nil, err
	}
	repository.Client = client
	repository.PlainHTTP = isPlain(p.at.Hostname(), allow)
	repository.MaxMetadataBytes = maxList
	return &ociSource{repository, "sha256:" + p.digest}, nil
}

// isPlain reports whether a registry is called without TLS.
func isPlain(host string, allow guard.Networks) bool {
	if host == "localhost" {
		return allow.Lists(netip.MustParseAddr("127.0.0.1"))
	}
	a, err := netip.ParseAddr(host)
	return err == nil && allow.Lists(a)
}

// dockerCredential returns a function that finds the credential of a registry in configurations of
// Docker.
func dockerCredential(configs map[string]string) (auth.CredentialFunc, error) {
	var stores []credentials.Store
	for name, config := range configs {
		s, err := credentials.NewMemoryStoreFromDockerConfig([]byte(config))
		if err != nil {
			return nil, &contentError{fmt.Sprintf("the secret %s is not a Docker configuration in JSON", name)}
		}
		stores = append(stores, s)
	}
	return func(ctx context.Context, registry string) (auth.Credential, error) {
		for _, s := range stores {
			if c, err := credentials.Credential(s)(ctx, registry); err != nil || c != auth.EmptyCredential {
				return c, err
			}
		}
		return auth.EmptyCredential, nil
	}, nil
}

func (o *ociSource) digestsList() bool { return false }

func (o *ociSource) list(ctx context.Context) ([]file, error) {
	desc, body, err := o.repository.Manifests().FetchReference(ctx, o.manifest)
	if err != nil {
		return nil, ociError(err)
	}
	defer body.Close()
	if desc.Size > maxList {
		return nil, &contentError{fmt.Sprintf("the manifest has more than %d bytes", maxList)}
	}
	data, err := content.ReadAll(body, desc) // It verifies the digest.
	if err != nil {
		return nil, &contentError{"the registry sent another manifest than requested: " + err.Error()}
	}
	var manifest v1.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return nil, &contentError{"the manifest cannot be read: " + err.Error()}
	}
	if len(manifest.Layers) == 0 {
		return nil, &contentError{"the digest is not that of a manifest with layers: use the digest of a manifest, and not that of an index"}
	}
	files := make([]file, 0, len(manifest.Layers))
	for _, layer := range manifest.Layers {
		f, err := fileOf(layer)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// fileOf returns the file of a layer.
func fileOf(layer v1.Descriptor) (file, error) {
	if layer.Digest.Validate() != nil || layer.Digest.Algorithm() != "sha256" {
		return file{}, &contentError{fmt.Sprintf("the digest %q of a layer is not a SHA-256", layer.Digest)}
	}
	if layer.Size < 0 {
		return file{}, &contentError{"a layer has a negative size"}
	}
	f := file{at: layer.MediaType, size: layer.Size, sha256: layer.Digest.Encoded()}
	if title := layer.Annotations[v1.AnnotationTitle]; title != "" && layer.Annotations[unpackAnnotation] != "true" {
		f.name = title
		return f, nil
	}
	switch kind := layer.MediaType; {
	case strings.HasSuffix(kind, "+gzip"), strings.HasSuffix(kind, ".gzip"), layer.Annotations[unpackAnnotation] == "true":
		f.pack = packGzip
	case strings.HasSuffix(kind, "tar"):
		f.pack = packTar
	default:
		return file{}, &contentError{fmt.Sprintf("a layer with the media type %q has no title and is no archive of a known form", kind)}
	}
	return f, nil
}

func (o *ociSource) open(ctx context.Context, f file, offset int64) (io.ReadCloser, int64, error) {
	blob := v1.Descriptor{MediaType: f.at, Digest: digest.NewDigestFromEncoded(digest.SHA256, f.sha256), Size: f.size}
	body, err := o.repository.Blobs().Fetch(ctx, blob)
	if err != nil {
		return nil, 0, ociError(err)
	}
	if seeker, ok := body.(io.Seeker); ok && offset > 0 {
		if _, err = seeker.Seek(offset, io.SeekStart); err == nil {
			return body, offset, nil
		}
		// The registry announced support for ranges, but did not send the requested one.
		_ = body.Close()
		if body, err = o.repository.Blobs().Fetch(ctx, blob); err != nil {
			return nil, 0, ociError(err)
		}
	}
	return body, 0, nil
}

// ociError returns the status of an answer as an error.
func ociError(err error) error {
	if errors.Is(err, errdef.ErrNotFound) {
		return &statusError{status: http.StatusNotFound}
	}
	if errors.Is(err, auth.ErrBasicCredentialNotFound) {
		return &statusError{status: http.StatusUnauthorized}
	}
	if known := (*errcode.ErrorResponse)(nil); errors.As(err, &known) {
		return &statusError{status: known.StatusCode}
	}
	return withoutQueries(withoutURL(err))
}

var query = regexp.MustCompile(`(https?://[^\s"?]*)\?[^\s"]*`)

// withoutQueries removes the queries of URLs from the text of an error, because the URL to which a registry
// redirects may have a signature there.
func withoutQueries(err error) error {
	text := err.Error()
	if plain := query.ReplaceAllString(text, "$1"); plain != text {
		return &textError{plain, err}
	}
	return err
}

// textError is an error with another text.
type textError struct {
	text string
	err  error
}

func (e *textError) Error() string { return e.text }

func (e *textError) Unwrap() error { return e.err }
