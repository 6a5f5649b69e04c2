package rpc

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

type agentAPI struct {
	agentv1connect.UnimplementedAgentServiceHandler
}

var errStranger = Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", "who is it?")

// requireToken is a gate that refuses calls without a token.
func requireToken(_ context.Context, call Call) (Admission, error) {
	if call.Header.Get("Authorization") == "" {
		return Admission{}, errStranger
	}
	return Admission{Caller: "one"}, nil
}

// agentServer serves the agent API, whose handlers are all unimplemented.
func agentServer(limits Limits, registerer prometheus.Registerer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(agentv1connect.NewAgentServiceHandler(agentAPI{}, HandlerOptions(Config{
		Admit: requireToken, ReadMaxBytes: 32 << 20, Registerer: registerer,
	})...))
	return NewServer(ServerConfig{Handler: mux, Limits: func(string) Limits { return limits }}).Handler
}

func gzipped(t testing.TB, data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

func enveloped(flags byte, data []byte) []byte {
	out := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(data)))
	return append(out, data...)
}

// counter counts the bytes that are read from it.
type counter struct {
	io.Reader
	n int
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

// attempt is a request in one of the protocols.
type attempt struct {
	name, kind, encoding string
	body                 []byte
}

// attempts returns requests with the message, in each protocol and compression.
func attempts(t testing.TB, message []byte) []attempt {
	packed := gzipped(t, message)
	return []attempt{
		{"connect", "application/proto", "", message},
		{"connect gzip", "application/proto", "Content-Encoding", packed},
		{"gRPC", "application/grpc", "", enveloped(0, message)},
		{"gRPC gzip", "application/grpc+proto", "Grpc-Encoding", enveloped(1, packed)},
		{"gRPC-Web gzip", "application/grpc-web+proto", "Grpc-Encoding", enveloped(1, packed)},
	}
}

func (a attempt) request(t testing.TB, procedure string, signed bool) (*http.Request, *counter) {
	body := &counter{Reader: bytes.NewReader(a.body)}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, procedure, body)
	req.Header.Set("Content-Type", a.kind)
	if a.encoding != "" {
		req.Header.Set(a.encoding, "gzip")
	}
	if signed {
		req.Header.Set("Authorization", "Bearer x")
	}
	return req, body
}

// codeOf returns the code of an answer, for each protocol.
func codeOf(w *httptest.ResponseRecorder) string {
	res := w.Result()
	names := map[string]string{"8": "resource_exhausted", "12": "unimplemented", "16": "unauthenticated", "3": "invalid_argument", "14": "unavailable"}
	for _, h := range []http.Header{res.Header, res.Trailer} {
		for _, key := range []string{"Grpc-Status", http.TrailerPrefix + "Grpc-Status"} {
			if v := h.Get(key); v != "" {
				return names[v]
			}
		}
	}
	body := w.Body.String()
	_, rest, _ := strings.Cut(body, `"code":"`)
	code, _, _ := strings.Cut(rest, `"`)
	return code
}

// emptyInstances returns a report with n empty instances, of two bytes each.
func emptyInstances(n int) []byte { return bytes.Repeat([]byte{0x3a, 0x00}, n) }

func TestUnauthenticated(t *testing.T) {
	t.Run("calls do not read the body, in any protocol", func(t *testing.T) {
		registry := prometheus.NewRegistry()
		server := agentServer(Limits{}, registry)
		for _, a := range attempts(t, emptyInstances(1<<20)) {
			req, body := a.request(t, agentv1connect.AgentServiceReportProcedure, false)
			w := httptest.NewRecorder()
			server.ServeHTTP(w, req)
			require.Equal(t, "unauthenticated", codeOf(w), a.name)
			require.Zero(t, body.n, a.name)
			require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		}
		require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP rpc_server_requests_total Calls that ended, unary and streams, by procedure and code.
# TYPE rpc_server_requests_total counter
rpc_server_requests_total{code="unauthenticated",procedure="/windlass.agent.v1.AgentService/Report"} 5
`), "rpc_server_requests_total"))
	})
}

func TestElements(t *testing.T) {
	t.Run("are counted before they are decoded, in any protocol", func(t *testing.T) {
		server := agentServer(Limits{MessageBytes: 32 << 20}, nil)
		for n, want := range map[int]string{DefaultElements + 1: "resource_exhausted", DefaultElements: "invalid_argument"} {
			for _, a := range attempts(t, emptyInstances(n)) {
				req, _ := a.request(t, agentv1connect.AgentServiceReportProcedure, true)
				w := httptest.NewRecorder()
				server.ServeHTTP(w, req)
				require.Equal(t, want, codeOf(w), "%s of %d: %s", a.name, n, w.Body)
			}
			req, _ := attempt{kind: "application/json", body: []byte(`{"instances":[` + strings.Repeat(`{},`, n) + `{}]}`)}.
				request(t, agentv1connect.AgentServiceReportProcedure, true)
			if n > DefaultElements {
				w := httptest.NewRecorder()
				server.ServeHTTP(w, req)
				require.Equal(t, want, codeOf(w))
				require.Contains(t, w.Body.String(), "more than 20000 elements")
			}
		}
	})
	t.Run("of a message in the URL count, too", func(t *testing.T) {
		in := func(message []byte) error {
			q := url.Values{"compression": {"gzip"}, "message": {base64.RawURLEncoding.EncodeToString(gzipped(t, message))}}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, agentv1connect.AgentServiceReportProcedure+"?"+q.Encode(), nil)
			in, _ := newMessageReader(r, Limits{MessageBytes: 1 << 20}.orDefaults(), addressOf("192.0.2.1:1"))
			defer in.releaseCharge()
			return in.admitCaller("one")
		}
		require.NoError(t, in(emptyInstances(100)))
		require.ErrorContains(t, in(emptyInstances(DefaultElements+1)), "elements")
		require.ErrorContains(t, in(make([]byte, 2<<20)), "1048576 bytes")
	})
	t.Run("are not counted in texts of JSON", func(t *testing.T) {
		require.Equal(t, 2, countJSON([]byte(`{"a":["{,[\",{"]}`), 10))
	})
}

func TestDecompression(t *testing.T) {
	t.Run("stops at the limit of the message", func(t *testing.T) {
		server := agentServer(Limits{MessageBytes: 1 << 20}, nil)
		for _, a := range attempts(t, make([]byte, 64<<20)) {
			req, _ := a.request(t, agentv1connect.AgentServiceReportProcedure, true)
			w := httptest.NewRecorder()
			server.ServeHTTP(w, req)
			require.Equal(t, "resource_exhausted", codeOf(w), a.name)
		}
	})
	t.Run("refuses a body that is not gzip", func(t *testing.T) {
		server := agentServer(Limits{}, nil)
		for _, a := range attempts(t, emptyInstances(100)) {
			if a.encoding == "" {
				continue
			}
			a.body = enveloped(1, []byte("this is no gzip"))
			req, _ := a.request(t, agentv1connect.AgentServiceReportProcedure, true)
			w := httptest.NewRecorder()
			server.ServeHTTP(w, req)
			require.Equal(t, "invalid_argument", codeOf(w), a.name)
		}
	})
}

func TestBudget(t *testing.T) {
	t.Run("refuses a call that exceeds it, and says when to call again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			budget := NewBudget("test", 1000, nil)
			require.NoError(t, budget.chargeCaller(t.Context(), "other", 900))
			server := agentServer(Limits{Budget: budget}, nil)
			for _, a := range attempts(t, bytes.Repeat([]byte{0x0a, 0x00}, 200)) {
				req, _ := a.request(t, agentv1connect.AgentServiceReportProcedure, true)
				w := httptest.NewRecorder()
				server.ServeHTTP(w, req)
				require.Equal(t, "resource_exhausted", codeOf(w), a.name)
				if strings.HasPrefix(a.name, "connect") {
					require.Equal(t, "1", w.Header().Get("Retry-After"))
				}
			}
			budget.returnBytes("other", 900)
			require.Zero(t, budget.used, "refused calls hold no bytes")
			require.Empty(t, budget.held)
			for _, a := range attempts(t, bytes.Repeat([]byte{0x0a, 0x00}, 200)) {
				req, _ := a.request(t, agentv1connect.AgentServiceReportProcedure, true)
				w := httptest.NewRecorder()
				server.ServeHTTP(w, req)
				require.Equal(t, "invalid_argument", codeOf(w), "it reaches the schema's rules: "+a.name)
			}
			require.Zero(t, budget.used, "ended calls hold no bytes")
		})
	})
	t.Run("leaves room for other callers if one caller holds much", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			budget := NewBudget("test", 1000, nil)
			require.NoError(t, budget.chargeCaller(t.Context(), "greedy", 240))
			require.ErrorContains(t, budget.chargeCaller(t.Context(), "greedy", 100), "the caller has too many")
			require.NoError(t, budget.chargeCaller(t.Context(), "other", 100))
		})
	})
	t.Run("gets its bytes back when a stream has decoded the message", func(t *testing.T) {
		budget := NewBudget("test", 1000, nil)
		f := setup(t, settings{ServerConfig: ServerConfig{Limits: func(string) Limits { return Limits{Budget: budget} }}})
		used := make(chan int64, 1)
		f.watch = func(_ context.Context, send func() error) error {
			budget.mu.Lock()
			used <- budget.used
			budget.mu.Unlock()
			return send()
		}
		stream, err := f.apps().WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
		require.NoError(t, err)
		require.True(t, stream.Receive(), "%v", stream.Err())
		require.Zero(t, <-used)
	})
}

func TestGate(t *testing.T) {
	t.Run("puts the identity into the handler's context", func(t *testing.T) {
		type key struct{}
		f := setup(t, settings{Config: Config{Admit: func(_ context.Context, call Call) (Admission, error) {
			require.Equal(t, "127.0.0.1", call.Client.String())
			return Admission{With: func(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, "me") }}, nil
		}}})
		f.get = func(ctx context.Context, _ string) (*windlassv1.GetProjectResponse, error) {
			caller, _ := ctx.Value(key{}).(string)
			return &windlassv1.GetProjectResponse{Project: &windlassv1.Project{Name: caller}}, ctx.Err()
		}
		res, err := f.projects().GetProject(t.Context(), echo)
		require.NoError(t, err)
		require.Equal(t, "me", res.GetProject().GetName())
	})
	t.Run("hides errors that are not for the caller", func(t *testing.T) {
		f := setup(t, settings{Config: Config{Admit: func(context.Context, Call) (Admission, error) {
			return Admission{}, errors.New("dial tcp 10.1.2.3")
		}}})
		for _, options := range [][]connect.ClientOption{nil, {connect.WithGRPC()}} {
			_, err := f.projects(options...).GetProject(t.Context(), echo)
			requireError(t, err, connect.CodeInternal, internal, "")
			require.NotContains(t, err.Error(), "10.1.2.3")
		}
		require.Contains(t, f.log.String(), "10.1.2.3")
	})
	t.Run("survives a panic", func(t *testing.T) {
		f := setup(t, settings{Config: Config{Admit: func(context.Context, Call) (Admission, error) { panic("oh") }}})
		_, err := f.projects().GetProject(t.Context(), echo)
		requireError(t, err, connect.CodeInternal, internal, "")
	})
}

func TestClientAddress(t *testing.T) {
	proxies, err := guard.Parse([]string{"10.0.0.0/8"})
	require.NoError(t, err)
	for _, tt := range []struct{ remote, forwarded, want string }{
		{"192.0.2.1:99", "6.6.6.6", "192.0.2.1"},
		{"10.0.0.1:99", "6.6.6.6, 192.0.2.7, 10.0.0.9", "192.0.2.7"},
		{"10.0.0.1:99", "", "10.0.0.1"},
		{"10.0.0.1:99", "not an address", "10.0.0.1"},
		{"[::ffff:10.0.0.1]:99", "2001:db8::1", "2001:db8::1"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.RemoteAddr = tt.remote
		r.Header.Set("X-Forwarded-For", tt.forwarded)
		require.Equal(t, tt.want, clientOf(r, proxies).String(), tt.remote+" "+tt.forwarded)
	}
}

// BenchmarkUnauthenticated measures the cost of 64 KiB from a caller without a credential.
func BenchmarkUnauthenticated(b *testing.B) {
	server := agentServer(Limits{MessageBytes: 32 << 20}, nil)
	a := attempt{kind: "application/proto", encoding: "Content-Encoding", body: gzipped(b, emptyInstances(32<<20))}
	require.Greater(b, len(a.body), 64<<10-1024)
	b.ReportAllocs()
	for b.Loop() {
		req, _ := a.request(b, agentv1connect.AgentServiceReportProcedure, false)
		server.ServeHTTP(httptest.NewRecorder(), req)
	}
}
