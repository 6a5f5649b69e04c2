package modelserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience limits every wait of a test. A test that passes waits much less.
const patience = time.Minute

// endpoint is a server that runs on a real socket.
type endpoint struct {
	t      *testing.T
	server *Server
	url    string
	client *http.Client
	stop   context.CancelFunc // has the effect of SIGTERM
	result chan error         // gets the result of Run, once
	bearer string             // the API key of requests, or empty
}

func start(t *testing.T, cfg Config) *endpoint {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cfg.Listener = listener
	server, err := New(cfg)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	e := &endpoint{
		t: t, server: server, stop: stop, result: make(chan error, 1),
		url:    "http://" + listener.Addr().String(),
		client: &http.Client{Timeout: patience, Transport: &http.Transport{}},
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.result <- server.Run(ctx)
	}()
	t.Cleanup(func() {
		// A fault that the test did not clear must not block the end of the server.
		_, _ = server.faults.changeFaults(time.Now(), func(f *Faults) error { *f = Faults{}; return nil })
		stop()
		e.client.CloseIdleConnections()
		<-ended
	})
	return e
}

func startReady(t *testing.T, cfg Config) *endpoint {
	t.Helper()
	e := start(t, cfg)
	e.awaitHealth(http.StatusOK)
	return e
}

func (e *endpoint) eventually(condition func() bool, what string) {
	e.t.Helper()
	require.Eventually(e.t, condition, patience, 2*time.Millisecond, what)
}

func (e *endpoint) awaitHealth(status int) {
	e.t.Helper()
	e.eventually(func() bool {
		r, err := e.client.Get(e.url + "/health")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		_, _ = io.Copy(io.Discard, r.Body)
		return r.StatusCode == status
	}, "health becomes "+http.StatusText(status))
}

func (e *endpoint) exit() error {
	e.t.Helper()
	select {
	case err := <-e.result:
		return err
	case <-time.After(patience):
		require.FailNow(e.t, "the server did not end")
		return nil
	}
}

type reply struct {
	status int
	header http.Header
	body   []byte
}

func (e *endpoint) do(method, path, body string) reply {
	e.t.Helper()
	r, err := e.try(method, path, body)
	require.NoError(e.t, err)
	return r
}

func (e *endpoint) try(method, path, body string) (reply, error) {
	req, err := http.NewRequest(method, e.url+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if e.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+e.bearer)
	}
	r, err := e.client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	return reply{r.StatusCode, r.Header, data}, err
}

// clientCompletion and the next types are those of an OpenAI client. They follow the API's reference and not this
// package's own types, so that a test fails for an answer that a client cannot parse.
type clientCompletion struct {
	ID, Object, Model string
	Created           int64
	SystemFingerprint string `json:"system_fingerprint"`
	Choices           []struct {
		Index   int
		Message struct{ Role, Content string }
		Delta   struct {
			Role    string
			Content *string
		}
		Text         string
		FinishReason *string `json:"finish_reason"`
	}
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		TotalTokens      int `json:"total_tokens"`
	}
}

type clientError struct {
	Error struct {
		Message, Type string
		Param, Code   *string
	}
}

func parse[T any](t *testing.T, data []byte) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal(data, &v), "body: %s", data)
	return v
}

// events is a stream of server-sent events as a client reads it.
type events struct {
	t      *testing.T
	reader *bufio.Reader
}

// next returns the next event's data, and false at the end of the stream.
func (e *events) next() (string, bool) {
	e.t.Helper()
	line, err := e.reader.ReadString('\n')
	if err != nil {
		return "", false
	}
	data, ok := strings.CutPrefix(line, "data: ")
	require.True(e.t, ok, "an event line begins with data: %q", line)
	blank, err := e.reader.ReadString('\n')
	require.NoError(e.t, err)
	require.Equal(e.t, "\n", blank, "an empty line ends an event")
	return strings.TrimSuffix(data, "\n"), true
}

func (e *endpoint) stream(ctx context.Context, path, body string) *events {
	e.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+path, strings.NewReader(body))
	require.NoError(e.t, err)
	r, err := e.client.Do(req)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { r.Body.Close() })
	require.Equal(e.t, http.StatusOK, r.StatusCode)
	require.Equal(e.t, "text/event-stream", r.Header.Get("Content-Type"))
	return &events{t: e.t, reader: bufio.NewReader(r.Body)}
}

// metric reads one sample as Prometheus would: a gauge's or counter's value, a
// histogram's count.
func (e *endpoint) metric(name string, labels ...string) float64 {
	e.t.Helper()
	r := e.do(http.MethodGet, "/metrics", "")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(r.body))
	require.NoError(e.t, err)
	family := families[name]
	require.NotNil(e.t, family, "metric %s", name)
samples:
	for _, m := range family.Metric {
		have := map[string]string{}
		for _, l := range m.Label {
			have[l.GetName()] = l.GetValue()
		}
		require.Equal(e.t, e.server.cfg.Model, have["model_name"])
		for i := 0; i < len(labels); i += 2 {
			if have[labels[i]] != labels[i+1] {
				continue samples
			}
		}
		switch {
		case m.Gauge != nil:
			return m.Gauge.GetValue()
		case m.Counter != nil:
			return m.Counter.GetValue()
		}
		return float64(m.Histogram.GetSampleCount())
	}
	return 0
}

// awaitLoad waits until the given numbers of requests run and wait, and checks that the metrics have the same numbers.
// The load must not change during the call.
func (e *endpoint) awaitLoad(running, waiting int) {
	e.t.Helper()
	e.eventually(func() bool {
		r, w := e.server.queue.countRequests()
		return r == running && w == waiting
	}, "requests running and waiting")
	require.EqualValues(e.t, running, e.metric("vllm:num_requests_running"))
	require.EqualValues(e.t, waiting, e.metric("vllm:num_requests_waiting"))
}

// occupy takes n slots, so that requests wait until the test calls leave. So the speed of the machine has no effect.
func (e *endpoint) occupy(n int) (leave func()) {
	e.t.Helper()
	var held []func()
	for range n {
		release, err := e.server.queue.acquire(e.t.Context())
		require.NoError(e.t, err)
		held = append(held, release)
	}
	leave = sync.OnceFunc(func() {
		for _, release := range held {
			release()
		}
	})
	e.t.Cleanup(leave)
	return leave
}
