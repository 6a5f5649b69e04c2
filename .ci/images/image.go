package main

import (
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Built is the image of a program for one architecture.
type Built struct {
	Arch  string
	Image v1.Image
	// SBOM is the artifact that refers to Image. Document is the SPDX document in it.
	SBOM     v1.Image
	Document []byte
}

// labels describe an image: https://specs.opencontainers.org/image-spec/annotations
func labels(s Source, p Program) map[string]string {
	l := map[string]string{
		"org.opencontainers.image.title":         p.Name,
		"org.opencontainers.image.description":   p.Summary,
		"org.opencontainers.image.vendor":        "Windlass",
		"org.opencontainers.image.version":       s.Version,
		"org.opencontainers.image.created":       s.Time.Format(time.RFC3339),
		"org.opencontainers.image.licenses":      license,
		"org.opencontainers.image.source":        repository,
		"org.opencontainers.image.documentation": repository + "/tree/main/docs",
	}
	if s.Revision != "" {
		l["org.opencontainers.image.revision"] = s.Revision
		if s.Dirty {
			l["org.opencontainers.image.revision"] += "-dirty"
		}
	}
	return l
}

// assemble makes the image of the program at path, and its SBOM.
func assemble(s Source, p Program, arch, path string) (Built, error) {
	file, err := binary(p.Name, path)
	if err != nil {
		return Built{}, err
	}
	// The base is the same for all programs, so that a node stores it only once.
	lower, err := layer(time.Unix(0, 0), base()...)
	if err != nil {
		return Built{}, fmt.Errorf("base layer: %w", err)
	}
	upper, err := layer(time.Unix(0, 0), file)
	if err != nil {
		return Built{}, fmt.Errorf("layer of %s: %w", p.Name, err)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	history := func(what string) v1.History {
		return v1.History{Created: v1.Time{Time: s.Time}, CreatedBy: what}
	}
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: lower, History: history("user, CAs, /tmp"), MediaType: types.OCILayer},
		mutate.Addendum{Layer: upper, History: history("/" + p.Name), MediaType: types.OCILayer})
	if err != nil {
		return Built{}, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return Built{}, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	if arch == "arm64" {
		config.Variant = "v8"
	}
	config.Created = v1.Time{Time: s.Time}
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", user, user),
		Entrypoint: []string{"/" + p.Name},
		WorkingDir: "/home/windlass",
		Env:        []string{"PATH=/", "HOME=/home/windlass"},
		Labels:     labels(s, p),
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return Built{}, err
	}
	doc, err := sbom(s, p, arch, path)
	if err != nil {
		return Built{}, fmt.Errorf("SBOM of %s: %w", p.Name, err)
	}
	bill, err := attach(image, doc)
	if err != nil {
		return Built{}, fmt.Errorf("SBOM of %s: %w", p.Name, err)
	}
	return Built{Arch: arch, Image: image, SBOM: bill, Document: doc}, nil
}

// attach makes the artifact with an SPDX document that refers to image. Registries list it as
// the image's referrer.
func attach(image v1.Image, doc []byte) (v1.Image, error) {
	subject, err := partial.Descriptor(image)
	if err != nil {
		return nil, err
	}
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), spdxType)
	artifact, err = mutate.Append(artifact, mutate.Addendum{Layer: static.NewLayer(doc, spdxType), MediaType: spdxType})
	if err != nil {
		return nil, err
	}
	of := v1.Descriptor{MediaType: subject.MediaType, Size: subject.Size, Digest: subject.Digest}
	bill, ok := mutate.Subject(artifact, of).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("an artifact with a subject is not an image")
	}
	return bill, nil
}

// index is the image of a program for all architectures.
func index(s Source, p Program, images []Built) (v1.ImageIndex, error) {
	idx := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range images {
		config, err := b.Image.ConfigFile()
		if err != nil {
			return nil, err
		}
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{
			Add:        b.Image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}},
		})
	}
	annotated, ok := mutate.Annotations(idx, labels(s, p)).(v1.ImageIndex)
	if !ok {
		return nil, fmt.Errorf("an index with annotations is not an index")
	}
	return annotated, nil
}
