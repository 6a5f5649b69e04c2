package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestModelArtifacts tests models whose files the agent fetches: with a secret of the environment, and only with the
// digest of the app's file.
func TestModelArtifacts(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{gateways: true, regions: []string{us}})
	archive := archiveOf(t, map[string]string{"model.json": `{"memoryMib": 2}`, "2/weights": strings.Repeat("w", 1<<20)})
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer token-of-artifacts" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write(archive)
	}))
	t.Cleanup(origin.Close)
	sum := sha256.Sum256(archive)
	url := origin.URL + "/fraud.tgz@sha256:" + hex.EncodeToString(sum[:])
	must(t, s.owner.environments.SetSecret, &windlassv1.SetSecretRequest{Mutation: mutation(), Environment: env, Name: "artifacts", Value: "token-of-artifacts"})

	server := spec(replicas(1), regions(us))
	server.Args = append(server.Args, "--model-repository", "$(WINDLASS_MODEL_REPOSITORY)", "--model-memory-mib", "16")
	server.Models = &windlassv1.ModelServer{Protocol: windlassv1.ModelServer_PROTOCOL_V2, MemoryMib: 16}
	s.deployReady(t, "shared", server)
	model := func(url string, secrets ...*windlassv1.SecretReference) *windlassv1.DeploymentSpec {
		return &windlassv1.DeploymentSpec{
			Model: &windlassv1.LoadedModel{MemoryMib: 2, Artifact: &windlassv1.ModelArtifact{Url: url}}, Regions: []string{us}, Replicas: new(int32(1)),
			ProgressDeadline: seconds(150), Secrets: secrets,
		}
	}
	token := &windlassv1.SecretReference{EnvName: "ARTIFACT_TOKEN", Secret: "artifacts"}
	s.deployReady(t, "fraud", model(url, token))
	host := s.host(t, "fraud", windlassv1.Route_KIND_STABLE, 0)
	s.eventually(t, "an answer of the model", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.gateways[us]+"/v2/models/fraud", nil)
		if err != nil {
			return err
		}
		req.Host = host
		resp, err := caller.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		answer, err := io.ReadAll(resp.Body)
		if err == nil && !strings.Contains(string(answer), `"versions":["2"]`) {
			err = fmt.Errorf("%s: %.200s", resp.Status, answer)
		}
		return err
	})

	s.deploy(t, "other", model(url[:len(url)-64]+strings.Repeat("0", 64), token))
	s.deploy(t, "public", model(url[:len(url)-64]+strings.Repeat("1", 64)))
	for app, message := range map[string]string{
		"other":  "the content has the digest sha256:" + hex.EncodeToString(sum[:]),
		"public": "it answered 403 Forbidden: check the secrets of the model",
	} {
		s.eventually(t, "the reason why "+app+" is not loaded", func(ctx context.Context) error {
			resp, err := s.owner.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{App: named(app)})
			if err != nil {
				return err
			}
			for _, in := range resp.Instances {
				if in.Reason == "LoadFailed" && strings.Contains(in.Message, message) {
					return nil
				}
			}
			return fmt.Errorf("there are %v", resp.Instances)
		})
	}
	bad := model(url, &windlassv1.SecretReference{EnvName: "TOKEN", Secret: "artifacts"})
	_, err := s.owner.apps.Deploy(t.Context(), &windlassv1.DeployRequest{Mutation: mutation(), App: named("bad"), Spec: bad})
	require.ErrorContains(t, err, "no use for the variable TOKEN")
	_, err = s.owner.apps.Deploy(t.Context(), &windlassv1.DeployRequest{Mutation: mutation(), App: named("bad"), Spec: model(origin.URL + "/fraud.tgz")})
	require.ErrorContains(t, err, "artifact.url")
	for _, app := range []string{"fraud", "other", "public", "shared"} {
		s.cli(t).ok("delete", app, "--yes")
	}
}

// archiveOf returns a compressed tar archive.
func archiveOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for name, content := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}))
		_, err := io.WriteString(w, content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	return out.Bytes()
}
