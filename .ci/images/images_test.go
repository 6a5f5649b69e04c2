package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
	"github.com/stretchr/testify/require"
)

var modelserver = programs[3]

// at is the time of a commit.
var at = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func repositoryRoot(t *testing.T) string {
	t.Helper()
	root, err := findRoot(".")
	require.NoError(t, err)
	return root
}

// sourceAt is the source of a commit that is checked out at root.
func sourceAt(root string) Source {
	return Source{Root: root, Version: "v0.1.0", Revision: strings.Repeat("ab", 20), Time: at}
}

func buildAt(t *testing.T, root string, arches ...string) (v1.ImageIndex, []Built) {
	t.Helper()
	idx, images, err := build(t.Context(), sourceAt(root), modelserver, arches, t.TempDir())
	require.NoError(t, err)
	return idx, images
}

// copyOf makes a second checkout of the files from which the model server is built.
func copyOf(t *testing.T, root string) string {
	t.Helper()
	other := filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.MkdirAll(filepath.Join(other, "apps"), 0o755))
	for _, module := range []string{"apps/modelserver", "pkg", "proto"} {
		require.NoError(t, os.CopyFS(filepath.Join(other, module), os.DirFS(filepath.Join(root, module))))
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.work.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(other, "go.work.sum"), sums, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(other, "go.work"),
		[]byte("go 1.26.0\n\nuse (\n\t./apps/modelserver\n\t./pkg\n\t./proto\n)\n"), 0o644))
	return other
}

func TestImage(t *testing.T) {
	root := repositoryRoot(t)
	idx, images := buildAt(t, root, "amd64")
	image := images[0].Image

	t.Run("another checkout gives the same digests", func(t *testing.T) {
		again, others := buildAt(t, copyOf(t, root), "amd64")
		require.Equal(t, digest(t, idx), digest(t, again))
		require.Equal(t, digest(t, images[0].SBOM), digest(t, others[0].SBOM))
	})

	t.Run("it runs as a user without rights, and labels describe it", func(t *testing.T) {
		config, err := image.ConfigFile()
		require.NoError(t, err)
		require.Equal(t, "65532:65532", config.Config.User)
		require.Equal(t, []string{"/modelserver"}, config.Config.Entrypoint)
		require.Equal(t, at, config.Created.Time)
		require.Equal(t, map[string]string{
			"org.opencontainers.image.title":         "modelserver",
			"org.opencontainers.image.description":   "Model server of Windlass for demos and tests",
			"org.opencontainers.image.vendor":        "Windlass",
			"org.opencontainers.image.version":       "v0.1.0",
			"org.opencontainers.image.revision":      strings.Repeat("ab", 20),
			"org.opencontainers.image.created":       "2026-11-27T12:00:00Z",
			"org.opencontainers.image.licenses":      "Apache-2.0",
			"org.opencontainers.image.source":        repository,
			"org.opencontainers.image.documentation": repository + "/tree/main/docs",
		}, config.Config.Labels)
	})

	t.Run("it has only a program, a user and CAs", func(t *testing.T) {
		modes := map[string]int64{}
		files := tar.NewReader(mutate.Extract(image))
		for {
			h, err := files.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			modes[h.Name] = h.Mode
			require.Zero(t, h.Mode&0o6000, "%s is setuid or setgid", h.Name)
			require.True(t, h.Uid == 0 || h.Name == "home/windlass/" || h.Name == "home/windlass", "%s is of user %d", h.Name, h.Uid)
			if h.Name == "etc/ssl/certs/ca-certificates.crt" {
				text, err := io.ReadAll(files)
				require.NoError(t, err)
				require.Greater(t, bytes.Count(text, []byte("BEGIN CERTIFICATE")), 100)
			}
		}
		trimmed := map[string]int64{}
		for path, mode := range modes {
			trimmed[strings.TrimSuffix(path, "/")] = mode
		}
		require.Equal(t, map[string]int64{
			"etc": 0o755, "etc/group": 0o644, "etc/passwd": 0o644, "etc/ssl": 0o755, "etc/ssl/certs": 0o755,
			"etc/ssl/certs/ca-certificates.crt": 0o644, "home": 0o755, "home/windlass": 0o700, "tmp": 0o1777, "modelserver": 0o755,
		}, trimmed)
	})

	t.Run("its program needs no files outside the image", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("chroot needs root")
		}
		dir := t.TempDir()
		unpack(t, image, dir)
		for parent := dir; parent != "/"; parent = filepath.Dir(parent) {
			if strings.HasPrefix(parent, os.TempDir()+"/") {
				require.NoError(t, os.Chmod(parent, 0o755))
			}
		}
		cmd := exec.CommandContext(t.Context(), "/modelserver", "--help")
		cmd.Dir, cmd.Env = "/", []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir, Credential: &syscall.Credential{Uid: user, Gid: user}}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "OpenAI-compatible model server")
	})

	t.Run("its SBOM is valid SPDX with the linked modules", func(t *testing.T) {
		doc, err := spdxjson.Read(bytes.NewReader(images[0].Document))
		require.NoError(t, err)
		require.NoError(t, spdxlib.ValidateDocument(doc))
		packages := map[string]string{}
		for _, p := range doc.Packages {
			packages[p.PackageName] = p.PackageVersion
		}
		require.Equal(t, "v0.1.0", packages["modelserver"])
		require.Regexp(t, `^1\.\d+`, packages["stdlib"])
		require.Regexp(t, `^v1\.`, packages["github.com/prometheus/client_golang"])
		require.Regexp(t, `^v0\.0\.0-`, packages["golang.org/x/crypto/x509roots/fallback"])
		require.NotContains(t, packages, "github.com/stretchr/testify", "the program does not link it")
	})

	t.Run("pushed, it is in the registry with its SBOM as referrer", func(t *testing.T) {
		for name, referrers := range map[string]bool{"with the referrers API": true, "with the tag scheme": false} {
			t.Run(name, func(t *testing.T) { testPush(t, referrers, idx, images) })
		}
	})

	t.Run("a layout is complete, and replaces an older layout", func(t *testing.T) {
		dir := t.TempDir()
		stale := filepath.Join(dir, "modelserver", "blobs")
		require.NoError(t, os.MkdirAll(stale, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(stale, "old"), nil, 0o644))
		require.NoError(t, writeLayout(dir, sourceAt(root), modelserver, idx, images))
		require.NoFileExists(t, filepath.Join(stale, "old"))
		require.FileExists(t, filepath.Join(dir, "modelserver-linux-amd64.spdx.json"))
		path, err := layout.FromPath(filepath.Join(dir, "modelserver"))
		require.NoError(t, err)
		all, err := path.ImageIndex()
		require.NoError(t, err)
		manifest, err := all.IndexManifest()
		require.NoError(t, err)
		require.Len(t, manifest.Manifests, 2)
		require.Equal(t, "v0.1.0", manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"])
		require.Equal(t, "application/spdx+json", manifest.Manifests[1].ArtifactType)
		stored, err := all.ImageIndex(manifest.Manifests[0].Digest)
		require.NoError(t, err)
		require.NoError(t, validate.Index(stored))
		require.Equal(t, digest(t, idx), digest(t, stored))
		left, err := filepath.Glob(filepath.Join(dir, ".*"))
		require.NoError(t, err)
		require.Empty(t, left)
	})
}

func testPush(t *testing.T, referrers bool, idx v1.ImageIndex, images []Built) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(referrers)))
	defer server.Close()
	prefix := strings.TrimPrefix(server.URL, "http://") + "/team/windlass"
	pushed, err := push(t.Context(), prefix, false, sourceAt(""), modelserver, idx, images)
	require.NoError(t, err)
	require.Equal(t, prefix+"/modelserver:v0.1.0", pushed)

	ref, err := name.ParseReference(pushed)
	require.NoError(t, err)
	got, err := remote.Index(ref)
	require.NoError(t, err)
	require.NoError(t, validate.Index(got))
	require.Equal(t, digest(t, idx), digest(t, got))
	bills, err := remote.Referrers(ref.Context().Digest(digest(t, images[0].Image)))
	require.NoError(t, err)
	manifest, err := bills.IndexManifest()
	require.NoError(t, err)
	require.Len(t, manifest.Manifests, 1)
	require.Equal(t, "application/spdx+json", manifest.Manifests[0].ArtifactType)
	bill, err := remote.Image(ref.Context().Digest(manifest.Manifests[0].Digest.String()))
	require.NoError(t, err)
	layers, err := bill.Layers()
	require.NoError(t, err)
	content, err := layers[0].Uncompressed()
	require.NoError(t, err)
	doc, err := io.ReadAll(content)
	require.NoError(t, err)
	require.Equal(t, string(images[0].Document), string(doc))
}

func digest(t *testing.T, of interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	d, err := of.Digest()
	require.NoError(t, err)
	return d.String()
}

func unpack(t *testing.T, image v1.Image, dir string) {
	t.Helper()
	files := tar.NewReader(mutate.Extract(image))
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			require.NoError(t, os.MkdirAll(path, 0o755))
			continue
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, os.FileMode(h.Mode)&0o777)
		require.NoError(t, err)
		_, err = io.Copy(f, files)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
}

func TestSource(t *testing.T) {
	repo := t.TempDir()
	git := func(args ...string) {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = repo
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a",
			"GIT_COMMITTER_EMAIL=a@example.com", "GIT_COMMITTER_DATE=2026-11-27T12:00:00Z")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	write := func(content string) {
		require.NoError(t, os.WriteFile(filepath.Join(repo, "go.work"), []byte(content), 0o644))
	}
	write("go 1.26.0\n")

	t.Run("without git, a version is needed", func(t *testing.T) {
		_, err := readSource(t.Context(), repo, "", "")
		require.ErrorContains(t, err, "--version is needed")
		s, err := readSource(t.Context(), repo, "v1", "1700000000")
		require.NoError(t, err)
		require.Equal(t, Source{Root: repo, Version: "v1", Time: time.Unix(1700000000, 0).UTC()}, s)
	})

	git("init", "-q")
	git("add", "go.work")
	git("commit", "-qm", "first")
	git("tag", "v0.2.0")

	t.Run("the commit decides version, revision and time", func(t *testing.T) {
		s, err := readSource(t.Context(), repo, "", "")
		require.NoError(t, err)
		require.Equal(t, "v0.2.0", s.Version)
		require.Len(t, s.Revision, 40)
		require.False(t, s.Dirty)
		require.Equal(t, at, s.Time)
		require.Equal(t, s.Revision, labels(s, modelserver)["org.opencontainers.image.revision"])
	})

	t.Run("changed files are not pushed under the commit's name", func(t *testing.T) {
		write("go 1.26.0\n\n")
		s, err := readSource(t.Context(), repo, "", "")
		require.NoError(t, err)
		require.True(t, s.Dirty)
		require.Equal(t, "v0.2.0-dirty", s.Version)
		require.Equal(t, s.Revision+"-dirty", labels(s, modelserver)["org.opencontainers.image.revision"])
		err = run(t.Context(), []string{"--push", "127.0.0.1:1/windlass"}, repo, io.Discard)
		require.ErrorContains(t, err, "--push refused")
	})

	t.Run("an invalid time is refused", func(t *testing.T) {
		_, err := readSource(t.Context(), repo, "", "noon")
		require.ErrorContains(t, err, `SOURCE_DATE_EPOCH "noon"`)
	})
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--only agnet":   `--only "agnet": give one of controlplane, agent, gateway, modelserver`,
		"--arch riscv64": `--arch "riscv64": give one of amd64, arm64`,
	} {
		t.Run(args, func(t *testing.T) {
			require.EqualError(t, run(context.Background(), strings.Fields(args), ".", io.Discard), want)
		})
	}

	t.Run("a version that cannot be a tag is refused", func(t *testing.T) {
		s := sourceAt("")
		s.Version = "no tag"
		_, err := push(t.Context(), "registry.example/windlass", false, s, modelserver, nil, nil)
		require.ErrorContains(t, err, "a --version that can be a tag")
	})
}

func TestResults(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, writeResults(dir, []Result{{Name: "agent", Version: "v0.1.0", Digest: "sha256:ab"}}))
	text, err := os.ReadFile(filepath.Join(dir, "images.json"))
	require.NoError(t, err)
	var read []map[string]any
	require.NoError(t, json.Unmarshal(text, &read))
	require.Equal(t, "sha256:ab", read[0]["digest"])
}

// TestManifests compares the manifests with the images: their names and their user.
func TestManifests(t *testing.T) {
	root := repositoryRoot(t)
	files, err := filepath.Glob(filepath.Join(root, "deployments/kubernetes/*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	image := regexp.MustCompile(`(?:image: |WINDLASS_HEALTH_IMAGE, value: ")([^\s"]+)`)
	runAs := regexp.MustCompile(`runAs(?:User|Group): (\S+)`)
	named := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range image.FindAllStringSubmatch(string(text), -1) {
			ref, err := name.NewTag(m[1], name.StrictValidation)
			require.NoError(t, err, file)
			program := strings.TrimPrefix(ref.RepositoryStr(), "windlass/")
			_, err = choose("image", programs, func(p Program) string { return p.Name }, []string{program})
			require.NoError(t, err, file)
			named[program] = true
		}
		for _, m := range runAs.FindAllStringSubmatch(string(text), -1) {
			require.Equal(t, "65532", m[1], file)
		}
	}
	require.Equal(t, map[string]bool{"agent": true, "controlplane": true, "gateway": true}, named)
}
