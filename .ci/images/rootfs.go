package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the user and group of every image, as in the manifests of deployments.
const user = 65532

// entry is a file or folder of an image.
type entry struct {
	path  string
	mode  int64
	owner int
	// dir is true for a folder. Else open returns size bytes.
	dir  bool
	size int64
	open func() (io.ReadCloser, error)
}

func folder(path string, mode int64, owner int) entry {
	return entry{path: path, mode: mode, owner: owner, dir: true}
}

func text(path string, content []byte) entry {
	return entry{path: path, mode: 0o644, size: int64(len(content)), open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}}
}

// base returns the files that every image has besides its program: a user, a folder for temporary
// files, and the CAs that browsers trust.
func base() []entry {
	return []entry{
		folder("etc/", 0o755, 0),
		text("etc/group", []byte(fmt.Sprintf("root:x:0:\nwindlass:x:%d:\n", user))),
		text("etc/passwd", []byte(fmt.Sprintf("root:x:0:0:root:/root:/sbin/nologin\nwindlass:x:%d:%d:windlass:/home/windlass:/sbin/nologin\n", user, user))),
		folder("etc/ssl/", 0o755, 0),
		folder("etc/ssl/certs/", 0o755, 0),
		text("etc/ssl/certs/ca-certificates.crt", certificates()),
		folder("home/", 0o755, 0),
		folder("home/windlass/", 0o700, user),
		folder("tmp/", 0o1777, 0),
	}
}

// certificates returns Mozilla's roots, as of the version in go.mod. It leaves out roots that Mozilla
// trusts only with a condition, because a PEM file cannot contain the condition.
func certificates() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			// Writing to a bytes.Buffer does not fail.
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}

// binary returns the entry /name for the program at path.
func binary(name, path string) (entry, error) {
	info, err := os.Stat(path)
	if err != nil {
		return entry{}, err
	}
	return entry{path: name, mode: 0o755, size: info.Size(), open: func() (io.ReadCloser, error) { return os.Open(path) }}, nil
}

// layer returns a layer with the entries, which all have the time at.
func layer(at time.Time, entries ...entry) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeTar(w, at, entries)) }()
		return r, nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

func writeTar(to io.Writer, at time.Time, entries []entry) error {
	w := tar.NewWriter(to)
	for _, e := range entries {
		header := &tar.Header{
			Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: e.path, Mode: e.mode, Size: e.size,
			Uid: e.owner, Gid: e.owner, ModTime: at,
		}
		if e.dir {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return fmt.Errorf("%s: %w", e.path, err)
		}
		if e.dir {
			continue
		}
		if err := writeFile(w, e); err != nil {
			return fmt.Errorf("%s: %w", e.path, err)
		}
	}
	return w.Close()
}

func writeFile(to io.Writer, e entry) error {
	r, err := e.open()
	if err != nil {
		return err
	}
	_, err = io.Copy(to, r)
	return errorOr(err, r.Close())
}

func errorOr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}
