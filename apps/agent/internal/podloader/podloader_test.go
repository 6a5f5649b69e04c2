package podloader

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/artifact"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/guard"
)

const (
	content = "weights"
	token   = "token-of-fraud"
	pod     = "uid-1"
)

var key = bytes.Repeat([]byte{7}, KeySize)

// start starts a source, and a loader in a new directory.
func start(t *testing.T) (reference artifact.Reference, dir string, at runtime.Loader) {
	t.Helper()
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, content)
	}))
	t.Cleanup(source.Close)
	allow, err := guard.Parse([]string{"127.0.0.0/8"})
	require.NoError(t, err)
	dir = t.TempDir()
	l, err := New(Config{Pod: pod, Key: key, Store: artifact.Config{Dir: dir, Allow: allow, Log: slog.New(slog.DiscardHandler)}})
	require.NoError(t, err)
	require.DirExists(t, runtime.PodRepository(dir, pod), "before the server starts")
	require.Equal(t, artifact.RepositoryDir(dir, pod, server), runtime.PodRepository(dir, pod))
	s := httptest.NewServer(l)
	t.Cleanup(s.Close)
	sum := sha256.Sum256([]byte(content))
	return artifact.Reference{URL: source.URL + "/model.onnx@sha256:" + hex.EncodeToString(sum[:])}, dir, runtime.Loader{Address: strings.TrimPrefix(s.URL, "http://"), Pod: pod, Key: key}
}

func TestLoader(t *testing.T) {
	t.Parallel()
	reference, dir, at := start(t)
	c := &Client{HTTP: http.DefaultClient}
	good := artifact.Credentials{Variables: map[string]string{"ARTIFACT_TOKEN": token}}

	_, err := c.Prepare(t.Context(), at, Request{Name: "fraud", Reference: reference})
	require.ErrorContains(t, err, "it answered 403 Forbidden: check the secrets of the model")
	path, err := c.Prepare(t.Context(), at, Request{Name: "fraud", Workspace: "ws_1", Reference: reference, Credentials: good})
	require.NoError(t, err)
	require.Empty(t, path)
	file := filepath.Join(runtime.PodRepository(dir, pod), "fraud", "model.onnx")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, content, string(data))
	for _, at := range []string{file, filepath.Join(dir, pod)} {
		info, err := os.Stat(at)
		require.NoError(t, err)
		require.EqualValues(t, 0o4, info.Mode()&0o4, "the server has another user: %s", at)
	}
	require.NoError(t, c.Discard(t.Context(), at, "fraud"))
	require.NoDirExists(t, filepath.Dir(file))

	path, err = c.Prepare(t.Context(), at, Request{Name: "sql", Adapter: true, Reference: reference, Credentials: good})
	require.NoError(t, err)
	data, err = os.ReadFile(filepath.Join(path, "model.onnx"))
	require.NoError(t, err)
	require.Equal(t, content, string(data))

	res, err := http.Get("http://" + at.Address + runtime.LoaderReadyPath)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
}

func TestLoader_TakesOnlySealedRequestsForItsPod(t *testing.T) {
	t.Parallel()
	reference, dir, at := start(t)
	c := &Client{HTTP: http.DefaultClient}
	for name, change := range map[string]func(*runtime.Loader){
		"another key": func(e *runtime.Loader) { e.Key = bytes.Repeat([]byte{8}, KeySize) },
		"another pod": func(e *runtime.Loader) { e.Pod = "uid-2" },
	} {
		other := at
		change(&other)
		_, err := c.Prepare(t.Context(), other, Request{Name: "fraud", Reference: reference})
		require.ErrorContains(t, err, "has another key than the agent", name)
	}
	sealed, err := seal(key, pod, discardPath, Request{Name: "fraud"})
	require.NoError(t, err)
	require.NotContains(t, string(sealed), "fraud")
	for path, body := range map[string][]byte{preparePath: sealed, discardPath: []byte(`{"name": "fraud"}`), "/other": sealed} {
		res, err := http.Post("http://"+at.Address+path, "", bytes.NewReader(body))
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusForbidden, res.StatusCode, path)
	}
	left, err := os.ReadDir(runtime.PodRepository(dir, pod))
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = c.Prepare(t.Context(), at, Request{Name: "../other", Reference: reference, Credentials: artifact.Credentials{Variables: map[string]string{"ARTIFACT_TOKEN": token}}})
	require.ErrorContains(t, err, "cannot be the name of a directory")
	_, err = New(Config{Pod: pod, Key: []byte("short"), Store: artifact.Config{Dir: t.TempDir()}})
	require.ErrorContains(t, err, "the key has 5 bytes, and needs 32")
}
