package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
)

// Reference names an artifact.
type Reference struct {
	// URL is an https, s3 or oci URL with @sha256:DIGEST at its end. See ModelArtifact.url of the
	// API.
	URL string
	// Endpoint is the base URL of an S3 service other than AWS. Region is the region of the bucket.
	Endpoint, Region string
}

// Credentials has the secrets that may be used for an artifact.
type Credentials struct {
	// Variables has values by the names of environment variables: AWS_ACCESS_KEY_ID,
	// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN for s3, and ARTIFACT_TOKEN for https.
	Variables map[string]string
	// Docker has configurations of Docker in JSON, for oci.
	Docker map[string]string
}

// parsed is a Reference whose syntax is right.
type parsed struct {
	Reference
	at *url.URL
	// digest is the SHA-256 in hexadecimal.
	digest string
}

var digestPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// parse checks a reference.
func parse(r Reference) (parsed, error) {
	text, digest, ok := strings.Cut(r.URL, "@sha256:")
	if !ok || !digestPattern.MatchString(digest) {
		return parsed{}, errors.New("the URL of the artifact has no digest: end it with @sha256: and 64 hexadecimal digits")
	}
	at, err := url.Parse(text)
	if err != nil || at.Host == "" || at.User != nil || at.RawQuery != "" || at.Fragment != "" {
		return parsed{}, errors.New("the URL of the artifact needs a host, and has no user, query or fragment")
	}
	switch at.Scheme {
	case "http", "https", "s3", "oci":
		return parsed{r, at, digest}, nil
	}
	return parsed{}, fmt.Errorf("the scheme %q of the artifact's URL is not known: use https, s3 or oci", at.Scheme)
}

// dirName returns the name of the artifact's directory. The name of a single file is part of the
// directory's name, because the file's name decides whether the file is unpacked. For lists and
// manifests, the digest covers the names of the files.
func (p parsed) dirName() string {
	if p.at.Scheme == "oci" || p.at.Scheme == "s3" && isPrefix(p.at.Path) {
		return p.digest
	}
	sum := sha256.Sum256([]byte(path.Base(p.at.Path)))
	return p.digest + "-" + hex.EncodeToString(sum[:8])
}

// isPrefix reports whether the object of an S3 URL stands for all objects with a prefix.
func isPrefix(object string) bool { return object == "" || strings.HasSuffix(object, "/") }

// sourceLabel returns the label of the source in metrics.
func (p parsed) sourceLabel() string {
	if p.at.Scheme == "http" {
		return "https"
	}
	return p.at.Scheme
}

// hostOf returns the host from which the artifact comes. Downloads are limited by it.
func (p parsed) hostOf() string {
	if p.at.Scheme != "s3" {
		return p.at.Host
	}
	if at, err := url.Parse(p.Endpoint); err == nil && at.Host != "" {
		return at.Host
	}
	return "s3." + p.regionOf() + ".amazonaws.com"
}

func (p parsed) regionOf() string {
	if p.Region == "" {
		return "us-east-1"
	}
	return p.Region
}

// pack is the form of a file that is unpacked.
type pack string

const (
	packNone pack = ""
	packTar  pack = "tar"
	packGzip pack = "tar.gz"
	packZip  pack = "zip"
)

// packOf returns the archive form that the ending of a file's name indicates.
func packOf(name string) pack {
	switch {
	case strings.HasSuffix(name, ".tar"):
		return packTar
	case strings.HasSuffix(name, ".tar.gz"), strings.HasSuffix(name, ".tgz"):
		return packGzip
	case strings.HasSuffix(name, ".zip"):
		return packZip
	}
	return packNone
}
