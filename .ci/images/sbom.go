package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/package-url/packageurl-go"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

// spdxType is the media type of an SPDX document as JSON.
const spdxType = "application/spdx+json"

const noAssertion = "NOASSERTION"

// sbom returns the SPDX document of the program at path. It reads the data that Go's linker wrote
// into the program: the linked modules, their versions and checksums, and the toolchain.
func sbom(s Source, p Program, arch, path string) ([]byte, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sum, err := sha256sum(path)
	if err != nil {
		return nil, err
	}
	return writeSPDX(document(s, p, arch, sum, info))
}

func document(s Source, p Program, arch, sum string, info *debug.BuildInfo) *spdx.Document {
	program := &spdx.Package{
		PackageName:             p.Name,
		PackageSPDXIdentifier:   "Package-program",
		PackageVersion:          s.Version,
		PackageFileName:         "/" + p.Name,
		PackageDownloadLocation: noAssertion,
		PackageHomePage:         repository,
		PackageLicenseConcluded: license,
		PackageLicenseDeclared:  license,
		PackageCopyrightText:    noAssertion,
		PackageChecksums:        []common.Checksum{{Algorithm: common.SHA256, Value: sum}},
		PrimaryPackagePurpose:   "APPLICATION",
	}
	if s.Revision != "" {
		program.PackageDownloadLocation = "git+" + repository + "@" + s.Revision
	}
	doc := &spdx.Document{
		SPDXVersion:       spdx.Version,
		DataLicense:       spdx.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      p.Name + " " + s.Version + " linux/" + arch,
		DocumentNamespace: repository + "/sbom/" + p.Name + "/linux-" + arch + "/" + sum,
		CreationInfo: &spdx.CreationInfo{
			Created:  s.Time.Format("2006-01-02T15:04:05Z"),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "windlass-images"}},
		},
		Packages: []*spdx.Package{program},
		Relationships: []*spdx.Relationship{{
			RefA: common.MakeDocElementID("", "DOCUMENT"), RefB: common.MakeDocElementID("", "Package-program"), Relationship: "DESCRIBES",
		}},
	}
	add := func(pkg *spdx.Package) {
		pkg.PackageSPDXIdentifier = common.ElementID(fmt.Sprintf("Package-%d", len(doc.Packages)))
		doc.Packages = append(doc.Packages, pkg)
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", "Package-program"), RefB: common.MakeDocElementID("", string(pkg.PackageSPDXIdentifier)),
			Relationship: "DEPENDS_ON",
		})
	}
	add(library("stdlib", strings.TrimPrefix(info.GoVersion, "go"), "BSD-3-Clause"))
	for _, dep := range info.Deps {
		if dep.Path == module || strings.HasPrefix(dep.Path, module+"/") {
			// Modules of this repository do not have separate versions.
			add(library(dep.Path, s.Version, license))
			continue
		}
		if dep.Replace != nil {
			dep = dep.Replace
		}
		add(library(dep.Path, dep.Version, noAssertion))
	}
	if roots, ok := certificatesModule(); ok {
		add(library(roots.Path, roots.Version, noAssertion))
	}
	return doc
}

// certificatesModule returns the module that has the image's CAs. The program does not link it, but a
// scanner should see its version.
func certificatesModule() (*debug.Module, bool) {
	own, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, false
	}
	for _, dep := range own.Deps {
		if dep.Path == "golang.org/x/crypto/x509roots/fallback" {
			return dep, true
		}
	}
	return nil, false
}

// library returns the package of a Go module, or of the standard library.
func library(path, version, license string) *spdx.Package {
	purl := packageurl.NewPackageURL(packageurl.TypeGolang, "", path, version, nil, "")
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		purl.Namespace, purl.Name = path[:i], path[i+1:]
	}
	return &spdx.Package{
		PackageName:             path,
		PackageVersion:          version,
		PackageDownloadLocation: noAssertion,
		PackageLicenseConcluded: noAssertion,
		PackageLicenseDeclared:  license,
		PackageCopyrightText:    noAssertion,
		PrimaryPackagePurpose:   "LIBRARY",
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: purl.ToString(),
		}},
	}
}

func writeSPDX(doc *spdx.Document) ([]byte, error) {
	var out bytes.Buffer
	if err := spdxjson.Write(doc, &out, spdxjson.Indent("  ")); err != nil {
		return nil, fmt.Errorf("write SPDX: %w", err)
	}
	return out.Bytes(), nil
}

func sha256sum(path string) (sum string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errorOr(err, f.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
