package onnxserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/windlass-run/windlass/apps/onnxserver/internal/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEngine has models that answer the input x with the output y of the same data. A file's content says what is wrong
// with it: "broken" does not load, and "failing" does not run. "waiting" runs until gate is closed.
type fakeEngine struct {
	gate chan struct{}
	// entered receives a value for each run that waits.
	entered chan struct{}
	open    atomic.Int64
}

func newFakeEngine() *fakeEngine {
	return &fakeEngine{gate: make(chan struct{}), entered: make(chan struct{}, 100)}
}

func (*fakeEngine) Version() string { return "fake" }

func (e *fakeEngine) Open(file string, _ int) (Session, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(content, []byte("broken")) {
		return nil, errors.New("Load model from " + file + " failed:Protobuf parsing failed.")
	}
	e.open.Add(1)
	return &fakeSession{engine: e, content: string(content)}, nil
}

type fakeSession struct {
	engine  *fakeEngine
	content string
	closed  atomic.Bool
}

func (*fakeSession) Inputs() []tensor.Info {
	return []tensor.Info{{Name: "x", Datatype: tensor.FP32, Shape: []int64{-1, 2}}}
}

func (*fakeSession) Outputs() []tensor.Info {
	return []tensor.Info{{Name: "y", Datatype: tensor.FP32, Shape: []int64{-1, 2}}, {Name: "text", Datatype: tensor.Bytes, Shape: []int64{1}}}
}

func (s *fakeSession) Run(ctx context.Context, inputs []tensor.Tensor) ([]tensor.Tensor, error) {
	if s.closed.Load() {
		return nil, errors.New("the session is closed")
	}
	switch {
	case strings.HasPrefix(s.content, "failing"):
		return nil, errors.New("Got invalid dimensions for input: x")
	case strings.HasPrefix(s.content, "waiting"):
		s.engine.entered <- struct{}{}
		select {
		case <-s.engine.gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	y := inputs[0]
	y.Name = "y"
	return []tensor.Tensor{y, {Name: "text", Datatype: tensor.Bytes, Shape: []int64{1}, Data: tensor.AppendElement(nil, []byte(s.content))}}, nil
}

func (s *fakeSession) Close() error {
	s.closed.Store(true)
	s.engine.open.Add(-1)
	return nil
}

// harness is a server behind a listener, with a repository.
type harness struct {
	*Server
	engine     *fakeEngine
	repository string
	url        string
}

func newHarness(t *testing.T, change func(*Config)) *harness {
	t.Helper()
	h := &harness{engine: newFakeEngine(), repository: t.TempDir()}
	cfg := Config{ModelRepository: h.repository, Engine: h.engine, Concurrency: 2}
	if change != nil {
		change(&cfg)
	}
	server, err := New(cfg)
	require.NoError(t, err)
	h.Server = server
	front := httptest.NewUnstartedServer(server.Handler())
	front.Config.Protocols = new(http.Protocols)
	front.Config.Protocols.SetHTTP1(true)
	front.Config.Protocols.SetUnencryptedHTTP2(true)
	front.Start()
	h.url = front.URL
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		front.Close()
		server.models.closeAll()
		require.Zero(t, h.engine.open.Load(), "sessions are open")
	})
	return h
}

// write writes a file of the repository.
func (h *harness) write(t *testing.T, path, content string) {
	t.Helper()
	path = filepath.Join(h.repository, filepath.FromSlash(path))
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

// call calls a path. It returns the status and the body.
func (h *harness) call(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	status, answer, err := h.try(t.Context(), method, path, body)
	require.NoError(t, err)
	return status, answer
}

func (h *harness) try(ctx context.Context, method, path, body string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, h.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	return res.StatusCode, string(answer), err
}

// requireCall requires a status and a text in the answer.
func (h *harness) requireCall(t *testing.T, method, path, body string, status int, text string) {
	t.Helper()
	got, answer := h.call(t, method, path, body)
	require.Equal(t, status, got, answer)
	require.Contains(t, answer, text)
}

func (h *harness) load(t *testing.T, model string) {
	t.Helper()
	h.requireCall(t, "POST", "/v2/repository/models/"+model+"/load", "{}", http.StatusOK, "")
}

// states returns the states of the index by model.
func (h *harness) states(t *testing.T) map[string]string {
	t.Helper()
	_, answer := h.call(t, "POST", "/v2/repository/index", "")
	var index []struct{ Name, Version, State string }
	require.NoError(t, json.Unmarshal([]byte(answer), &index))
	states := map[string]string{}
	for _, e := range index {
		states[e.Name] = strings.TrimSpace(e.State + " " + e.Version)
	}
	return states
}

const pair = `{"id": "7", "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [[1, 2.5]]}]}`
