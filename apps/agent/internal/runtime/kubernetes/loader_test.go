package kubernetes_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/artifact"
	"github.com/windlass-run/windlass/apps/agent/internal/podloader"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestLoader_FetchesFilesInThePod runs the agent's program as the loader of a server's pod.
func TestLoader_FetchesFilesInThePod(t *testing.T) {
	t.Parallel()
	const content = "weights"
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, content) }))
	defer source.Close()
	mount := t.TempDir()
	h := newHarness(t, func(c *kubernetes.Config) {
		c.LoaderImage, c.ModelAllow, c.ModelsMount = healthImage(self(t)), []string{"127.0.0.0/8"}, mount
		c.NameKey = bytes.Repeat([]byte{7}, 32)
	})
	rt := h.open(t)
	r := &ownCluster{rt: rt, api: h.api}
	loaders := rt.Loaders()
	require.NotNil(t, loaders)
	id := r.apply(t, assignment("dep_servers", 1, func(s *windlassv1.DeploymentSpec) {
		s.Models = &windlassv1.ModelServer{Protocol: windlassv1.ModelServer_PROTOCOL_V2, MemoryMib: 64}
	}))
	in := r.until(t, "ready", id, readyOnes(1))[0]
	at, err := loaders.LoaderOf(in.ID)
	require.NoError(t, err)
	repository := runtime.PodRepository(mount, at.Pod)
	require.DirExists(t, repository, "before the server starts")

	sum := sha256.Sum256([]byte(content))
	loader := &podloader.Client{HTTP: http.DefaultClient}
	_, err = loader.Prepare(t.Context(), at, podloader.Request{
		Name: "fraud", Reference: artifact.Reference{URL: source.URL + "/model.onnx@sha256:" + hex.EncodeToString(sum[:])},
	})
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(repository, "fraud", "model.onnx"))
	require.NoError(t, err)
	require.Equal(t, content, string(data))
	require.NoError(t, loader.Discard(t.Context(), at, "fraud"))
	require.NoDirExists(t, filepath.Join(repository, "fraud"))

	id = r.apply(t, assignment("dep_chat", 1))
	_, err = loaders.LoaderOf(r.until(t, "ready", id, readyOnes(1))[0].ID)
	require.ErrorIs(t, err, runtime.ErrNoLoader, "it serves no models")
	_, err = loaders.LoaderOf(render.InstanceID("none"))
	require.ErrorIs(t, err, runtime.ErrUnknownInstance)
}
