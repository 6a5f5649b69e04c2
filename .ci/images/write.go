package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Result is an entry of images.json.
type Result struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Digest is the digest of the index. A manifest names it after an @.
	Digest string `json:"digest"`
	// Reference is the name under which the image was pushed.
	Reference string `json:"reference,omitempty"`
	// Platforms are digests of the images and of their SBOMs.
	Platforms []Platform `json:"platforms"`
}

// Platform is the image for one architecture.
type Platform struct {
	Platform string `json:"platform"`
	Digest   string `json:"digest"`
	// Bytes is the size of the compressed layers.
	Bytes int64  `json:"bytes"`
	SBOM  string `json:"sbom"`
}

// writeLayout writes an OCI layout into dir/NAME, and the SBOMs as files next to it. It replaces an
// older layout only when the new layout is complete.
func writeLayout(dir string, s Source, p Program, idx v1.ImageIndex, images []Built) (err error) {
	fresh, err := os.MkdirTemp(dir, "."+p.Name+".")
	if err != nil {
		return err
	}
	defer func() { err = errorOr(err, os.RemoveAll(fresh)) }()
	if err := os.Chmod(fresh, 0o755); err != nil {
		return err
	}
	path, err := layout.Write(fresh, empty.Index)
	if err != nil {
		return err
	}
	tag := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": s.Version})
	if err := path.AppendIndex(idx, tag); err != nil {
		return err
	}
	for _, b := range images {
		if err := path.AppendImage(b.SBOM); err != nil {
			return err
		}
		file := filepath.Join(dir, p.Name+"-linux-"+b.Arch+".spdx.json")
		if err := os.WriteFile(file, b.Document, 0o644); err != nil {
			return err
		}
	}
	final := filepath.Join(dir, p.Name)
	if err := os.RemoveAll(final); err != nil {
		return err
	}
	return os.Rename(fresh, final)
}

// push pushes the image and its SBOMs to prefix/NAME:VERSION. It pushes the tag last, so that the tag
// never names a missing image.
func push(ctx context.Context, prefix string, insecure bool, s Source, p Program, idx v1.ImageIndex, images []Built) (string, error) {
	options := []name.Option{name.StrictValidation}
	if insecure {
		options = append(options, name.Insecure)
	}
	tag, err := name.NewTag(prefix+"/"+p.Name+":"+s.Version, options...)
	if err != nil {
		return "", fmt.Errorf("--push %s: %w: give REGISTRY/PREFIX, and a --version that can be a tag", prefix, err)
	}
	with := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, b := range images {
		for _, image := range []v1.Image{b.Image, b.SBOM} {
			digest, err := image.Digest()
			if err != nil {
				return "", err
			}
			if err := remote.Write(tag.Context().Digest(digest.String()), image, with...); err != nil {
				return "", fmt.Errorf("push %s for linux/%s: %w", tag, b.Arch, err)
			}
		}
	}
	if err := remote.WriteIndex(tag, idx, with...); err != nil {
		return "", fmt.Errorf("push %s: %w", tag, err)
	}
	return tag.String(), nil
}

// describe returns the result for an image, with digests and sizes.
func describe(s Source, p Program, idx v1.ImageIndex, images []Built) (Result, error) {
	digest, err := idx.Digest()
	if err != nil {
		return Result{}, err
	}
	r := Result{Name: p.Name, Version: s.Version, Digest: digest.String()}
	for _, b := range images {
		manifest, err := b.Image.Manifest()
		if err != nil {
			return Result{}, err
		}
		digest, err := b.Image.Digest()
		if err != nil {
			return Result{}, err
		}
		bill, err := b.SBOM.Digest()
		if err != nil {
			return Result{}, err
		}
		platform := Platform{Platform: "linux/" + b.Arch, Digest: digest.String(), SBOM: bill.String()}
		for _, l := range manifest.Layers {
			platform.Bytes += l.Size
		}
		r.Platforms = append(r.Platforms, platform)
	}
	return r, nil
}

func writeResults(dir string, results []Result) error {
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "images.json"), append(text, '\n'), 0o644)
}
