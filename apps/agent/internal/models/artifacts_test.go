package models

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/artifact"
	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/podloader"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/guard"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestRuntime_Artifacts(t *testing.T) {
	const content, token = "weights", "token-of-fraud"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, content)
	}))
	defer server.Close()
	sum := sha256.Sum256([]byte(content))
	digest := hex.EncodeToString(sum[:])
	at := artifact.DirOf(artifact.Reference{URL: server.URL + "/model.onnx@sha256:" + digest})
	allow, err := guard.Parse([]string{"127.0.0.0/8"})
	require.NoError(t, err)

	for name, protocol := range map[string]windlassv1.ModelServer_Protocol{"v2": windlassv1.ModelServer_PROTOCOL_V2, "lora": windlassv1.ModelServer_PROTOCOL_LORA} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store, err := artifact.Open(artifact.Config{Dir: dir, Allow: allow, Log: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			loader := &fakeLoader{held: map[string]map[string]bool{}, onLoad: func(s Server, m Model) error {
				at := m.Path
				if s.Protocol == V2 {
					at = filepath.Join(artifact.RepositoryDir(dir, "env_1", s.ID), m.Name)
				}
				data, err := os.ReadFile(filepath.Join(at, "model.onnx"))
				if err == nil && string(data) != content {
					err = fmt.Errorf("the server found %q", data)
				}
				return err
			}}
			files := disk.NewMemory()
			m := newStoredRuntime(t, &fakeBase{changes: make(chan struct{}, 1)}, loader, files, store)
			defer func() { m.stop() }()
			require.NoError(t, m.apply("dep_servers", 1, &windlassv1.DeploymentSpec{Models: &windlassv1.ModelServer{Protocol: protocol, MemoryMib: 100}}))
			apply := func(token string) {
				require.NoError(t, m.Apply(t.Context(), runtime.Assignment{
					Deployment: &agentv1.Deployment{Id: "dep_fraud", AppName: "fraud", EnvironmentId: "env_1", Replicas: 1, Spec: &windlassv1.DeploymentSpec{
						Model: &windlassv1.LoadedModel{Artifact: &windlassv1.ModelArtifact{Url: server.URL + "/model.onnx@sha256:" + digest}},
					}},
					Secrets: map[string]string{"ARTIFACT_TOKEN": token}, Generation: 1, TemplateHash: "1",
				}))
			}
			message := func() string {
				observation, err := m.Observe(t.Context())
				require.NoError(t, err)
				text := ""
				for _, d := range observation.Deployments {
					for _, in := range d.Instances {
						if d.DeploymentID == "dep_fraud" {
							text += fmt.Sprintln(in.Status, in.Reason, in.Message)
						}
					}
				}
				return text
			}
			apply("wrong")
			m.base.serve(instanceOf("ins_a", ready))
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				require.Regexp(c, "LoadFailed server ins_a: artifact from 127.0.0.1:[0-9]+: it answered 403 Forbidden: check the secrets of the model\n", message())
			}, 20*time.Second, 20*time.Millisecond)
			apply(token)
			require.EventuallyWithT(t, func(c *assert.CollectT) { require.Contains(c, message(), "STATUS_READY") }, 20*time.Second, 20*time.Millisecond)

			// Another agent knows the model from its file, and the secrets only once the model is applied.
			m.stop()
			loader.mu.Lock()
			loader.held = map[string]map[string]bool{}
			loader.mu.Unlock()
			m = newStoredRuntime(t, &fakeBase{changes: make(chan struct{}, 1)}, loader, files, store)
			m.base.serve(instanceOf("ins_a", ready))
			require.EventuallyWithT(t, func(c *assert.CollectT) { require.Contains(c, message(), "server ins_a loads it") }, 20*time.Second, 20*time.Millisecond)
			require.Never(t, func() bool { return strings.Contains(message(), "LoadFailed") }, 4*appliedEvery, appliedEvery)
			apply(token)
			require.EventuallyWithT(t, func(c *assert.CollectT) { require.Contains(c, message(), "STATUS_READY") }, 20*time.Second, 20*time.Millisecond)
			require.True(t, m.needsArtifact("env_1", at))
			require.False(t, m.needsArtifact("env_2", at))
			require.NoError(t, m.Remove(t.Context(), "dep_fraud"))
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				require.Empty(c, message())
				require.False(c, m.needsArtifact("env_1", at))
				require.NoDirExists(c, filepath.Join(artifact.RepositoryDir(dir, "env_1", "ins_a"), "fraud"))
			}, 20*time.Second, 20*time.Millisecond)
		})
	}
	t.Run("refused where the agent keeps no files", func(t *testing.T) {
		m := newModelRuntime(t, &fakeBase{changes: make(chan struct{}, 1)}, &fakeLoader{held: map[string]map[string]bool{}}, disk.NewMemory())
		defer m.stop()
		err := m.apply("dep_fraud", 1, &windlassv1.DeploymentSpec{Model: &windlassv1.LoadedModel{Artifact: &windlassv1.ModelArtifact{Url: "https://models.test/m@sha256:" + digest}}})
		var refused *runtime.Rejection
		require.ErrorAs(t, err, &refused)
		require.Equal(t, runtime.ReasonUnsupported, refused.Code)
		require.Contains(t, refused.Message, "the agent of this region fetches no files")
	})
}

// A server that restarts loses its models without an unload.
func TestRuntime_ForgetsArtifactsThatServersLost(t *testing.T) {
	const content = "weights"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, content) }))
	defer server.Close()
	sum := sha256.Sum256([]byte(content))
	allow, err := guard.Parse([]string{"127.0.0.0/8"})
	require.NoError(t, err)
	dir := t.TempDir()
	store, err := artifact.Open(artifact.Config{Dir: dir, Allow: allow, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	loader := &fakeLoader{held: map[string]map[string]bool{}}
	m := newStoredRuntime(t, &fakeBase{changes: make(chan struct{}, 1)}, loader, disk.NewMemory(), store)
	defer m.stop()
	require.NoError(t, m.apply("dep_servers", 1, &windlassv1.DeploymentSpec{Models: &windlassv1.ModelServer{Protocol: windlassv1.ModelServer_PROTOCOL_V2, MemoryMib: 100}}))
	require.NoError(t, m.Apply(t.Context(), runtime.Assignment{
		Deployment: &agentv1.Deployment{Id: "dep_fraud", AppName: "fraud", EnvironmentId: "env_1", Replicas: 1, Spec: &windlassv1.DeploymentSpec{
			Model: &windlassv1.LoadedModel{Artifact: &windlassv1.ModelArtifact{Url: server.URL + "/model.onnx@sha256:" + hex.EncodeToString(sum[:])}},
		}},
		Generation: 1, TemplateHash: "1",
	}))
	at := filepath.Join(artifact.RepositoryDir(dir, "env_1", "ins_a"), "fraud")
	in := instanceOf("ins_a", ready)
	m.base.serve(in)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := m.Observe(t.Context())
		require.NoError(c, err)
		require.FileExists(c, filepath.Join(at, "model.onnx"))
	}, 20*time.Second, 20*time.Millisecond)

	// While the server starts, it has its repository, but no model.
	in.Status, in.Address = windlassv1.InstanceStatus_INSTANCE_STATUS_CREATING, ""
	m.base.serve(in)
	loader.mu.Lock()
	loader.held = map[string]map[string]bool{}
	loader.mu.Unlock()
	m.Runtime.mu.Lock()
	m.swept = time.Time{}
	m.Runtime.mu.Unlock()
	_, err = m.Observe(t.Context())
	require.NoError(t, err)
	require.DirExists(t, filepath.Dir(at))
	require.NoError(t, m.Remove(t.Context(), "dep_fraud"))
	in = instanceOf("ins_a", ready)
	in.Restarts = 1
	m.base.serve(in)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := m.Observe(t.Context())
		require.NoError(c, err)
		require.NoDirExists(c, at)
	}, 20*time.Second, 20*time.Millisecond)
}

// podBase is a base whose servers have loaders.
type podBase struct {
	*fakeBase

	at runtime.Loader
}

func (b *podBase) Loaders() runtime.Loaders { return b }

func (b *podBase) LoaderOf(id string) (runtime.Loader, error) {
	if id != "ins_a" {
		return runtime.Loader{}, runtime.ErrUnknownInstance
	}
	return b.at, nil
}

// TestRuntime_FetchesInPods has a loader next to the server, as in Kubernetes.
func TestRuntime_FetchesInPods(t *testing.T) {
	const content, token = "weights", "token-of-fraud"
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, content)
	}))
	defer source.Close()
	sum := sha256.Sum256([]byte(content))
	allow, err := guard.Parse([]string{"127.0.0.0/8"})
	require.NoError(t, err)
	for name, protocol := range map[string]windlassv1.ModelServer_Protocol{"v2": windlassv1.ModelServer_PROTOCOL_V2, "lora": windlassv1.ModelServer_PROTOCOL_LORA} {
		t.Run(name, func(t *testing.T) {
			dir, key := t.TempDir(), []byte(strings.Repeat("k", podloader.KeySize))
			l, err := podloader.New(podloader.Config{Pod: "uid-1", Key: key, Store: artifact.Config{Dir: dir, Allow: allow, Log: slog.New(slog.DiscardHandler)}})
			require.NoError(t, err)
			inPod := httptest.NewServer(l)
			defer inPod.Close()
			found := filepath.Join(runtime.PodRepository(dir, "uid-1"), "fraud")
			loader := &fakeLoader{held: map[string]map[string]bool{}, onLoad: func(s Server, m Model) error {
				at := found
				if s.Protocol == LoRA {
					at = m.Path
				}
				data, err := os.ReadFile(filepath.Join(at, "model.onnx"))
				if err == nil && string(data) != content {
					err = fmt.Errorf("the server found %q", data)
				}
				return err
			}}
			base := &podBase{&fakeBase{changes: make(chan struct{}, 1)}, runtime.Loader{Address: strings.TrimPrefix(inPod.URL, "http://"), Pod: "uid-1", Key: key}}
			m, err := Wrap(base, loader, nil, disk.NewMemory(), "models.json", slog.New(slog.DiscardHandler), nil, func() float64 { return 0.5 })
			require.NoError(t, err)
			m.UseLoaders(http.DefaultClient)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); _ = m.Run(ctx) }()
			defer func() { cancel(); <-ended }()
			apply := func(id string, spec *windlassv1.DeploymentSpec, token string) {
				require.NoError(t, m.Apply(t.Context(), runtime.Assignment{
					Deployment: &agentv1.Deployment{Id: id, AppName: "fraud", EnvironmentId: "env_1", Replicas: 1, Spec: spec},
					Secrets:    map[string]string{"ARTIFACT_TOKEN": token}, Generation: 1, TemplateHash: "1",
				}))
			}
			apply("dep_servers", &windlassv1.DeploymentSpec{Models: &windlassv1.ModelServer{Protocol: protocol, MemoryMib: 100}}, "")
			model := &windlassv1.DeploymentSpec{Model: &windlassv1.LoadedModel{Artifact: &windlassv1.ModelArtifact{Url: source.URL + "/model.onnx@sha256:" + hex.EncodeToString(sum[:])}}}
			seen := func(c *assert.CollectT) string {
				observation, err := m.Observe(t.Context())
				require.NoError(c, err)
				text := ""
				for _, d := range observation.Deployments {
					for _, in := range d.Instances {
						if d.DeploymentID == "dep_fraud" {
							text += fmt.Sprintln(in.Status, in.Reason, in.Message)
						}
					}
				}
				return text
			}
			apply("dep_fraud", model, "wrong")
			base.serve(instanceOf("ins_a", ready))
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				require.Contains(c, seen(c), "it answered 403 Forbidden: check the secrets of the model")
			}, 20*time.Second, 20*time.Millisecond)
			apply("dep_fraud", model, token)
			require.EventuallyWithT(t, func(c *assert.CollectT) { require.Contains(c, seen(c), "STATUS_READY") }, 20*time.Second, 20*time.Millisecond)
			require.NoError(t, m.Remove(t.Context(), "dep_fraud"))
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				require.Empty(c, seen(c))
				require.NoDirExists(c, found)
			}, 20*time.Second, 20*time.Millisecond)
		})
	}
}
