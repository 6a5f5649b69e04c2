package webhook_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/webhook"
	"github.com/windlass-run/windlass/pkg/guard"
)

const patience = 10 * time.Second

// setup is a client that may call this machine.
func setup(t *testing.T, tweak ...func(*webhook.Config)) *webhook.Client {
	t.Helper()
	allow, err := guard.Parse([]string{"127.0.0.0/8"})
	require.NoError(t, err)
	cfg := webhook.Config{
		Lookup: func(_ context.Context, _ analysis.Call, secrets []string) (webhook.Facts, error) {
			f := webhook.Facts{Workspace: "acme", Project: "search", Environment: "production", Secrets: map[string][]byte{}}
			for _, s := range secrets {
				if s == "key" {
					f.Secrets[s] = []byte("hunter2")
				}
			}
			return f, nil
		},
		Allow: allow, UserAgent: "windlass/test", Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	}
	for _, f := range tweak {
		f(&cfg)
	}
	c, err := webhook.New(cfg)
	require.NoError(t, err)
	return c
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A server notices a closed connection only after it has read the request.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// raw answers any request with the text, and closes the connection.
func raw(t *testing.T, text string) string {
	t.Helper()
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}()
	return "http://" + l.Addr().String()
}

func hook(url string) analysis.Hook {
	return analysis.Hook{URL: url + "/token-of-mine", Timeout: patience, Call: analysis.Call{
		ID: "3f", Attempt: 1, Check: "smoke", App: analysis.Named{ID: "app_1", Name: "chat"}, Region: "eu",
	}}
}

func measure(t *testing.T, c *webhook.Client, h analysis.Hook) analysis.Figures {
	t.Helper()
	before := time.Now().UnixMilli()
	out := c.Measure(t.Context(), []plan.Measure{{RegionID: "reg_1", Check: "smoke", Since: 7, Hook: &h}})
	require.Len(t, out, 1)
	require.Equal(t, []any{"reg_1", "smoke", int64(7)}, []any{out[0].RegionID, out[0].Check, out[0].Since})
	require.GreaterOrEqual(t, out[0].At, before)
	return out[0].Figures
}

func TestCall_IsSignedAndItsVerdictTaken(t *testing.T) {
	type received struct {
		method string
		header http.Header
		body   []byte
	}
	got := make(chan received, 2)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- received{r.Method, r.Header, body}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"verdict": "fail", "message": "2 of 100", "figure": 0.98}`)
	})
	c := setup(t)
	h := hook(url)
	h.SigningSecret = "key"
	f := measure(t, c, h)
	require.Empty(t, f.Problem)
	require.Equal(t, &analysis.Answer{Verdict: analysis.Failed, Message: "2 of 100"}, f.Answer)
	require.InDelta(t, 0.98, *f.New, 0)

	first := <-got
	require.Equal(t, http.MethodPost, first.method)
	mac := hmac.New(sha256.New, []byte("hunter2"))
	mac.Write(first.body)
	for name, want := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "windlass/test", "Idempotency-Key": "3f",
		"Windlass-Signature": "sha256=" + hex.EncodeToString(mac.Sum(nil)),
	} {
		require.Equal(t, want, first.header.Get(name), name)
	}
	var call analysis.Call
	require.NoError(t, json.Unmarshal(first.body, &call))
	require.Equal(t, []string{"acme", "search", "production", "chat", "eu"},
		[]string{call.Workspace.Name, call.Project.Name, call.Environment.Name, call.App.Name, call.Region})

	// A repeated call is the same, whatever its outcome was.
	measure(t, c, h)
	require.Equal(t, first.body, (<-got).body)

	h.SigningSecret = ""
	measure(t, c, h)
	require.Empty(t, (<-got).header.Get("Windlass-Signature"))
}

func TestVerdict_InvalidSaysWhy(t *testing.T) {
	elsewhere := make(chan struct{}, 1)
	target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		elsewhere <- struct{}{}
		_, _ = io.WriteString(w, `{"verdict": "pass"}`)
	})
	status := func(code int) string {
		return serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			if code != http.StatusNoContent {
				_, _ = io.WriteString(w, `{"verdict": "pass", "message": "secret"}`)
			}
		})
	}
	untrusted := httptest.NewUnstartedServer(http.NotFoundHandler())
	untrusted.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	untrusted.StartTLS()
	t.Cleanup(untrusted.Close)
	plain := status(http.StatusOK)
	for name, c := range map[string]struct{ url, says string }{
		"broken":      {status(http.StatusInternalServerError), "500 Internal Server Error"},
		"forbidden":   {status(http.StatusForbidden), "403 Forbidden"},
		"empty":       {status(http.StatusNoContent), "not JSON"},
		"an odd code": {raw(t, "HTTP/1.1 999 secret\r\nContent-Length: 0\r\n\r\n"), "999"},
		"a redirect": {serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target+"/secret", http.StatusTemporaryRedirect)
		}), "307, but redirects are not followed"},
		"a page": {serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>secret") }), "not JSON"},
		"huge": {serve(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"verdict": "pass", "message": "`+strings.Repeat("secret", 20_000)+`"}`)
		}), "larger than 65536 bytes"},
		"endless": {serve(t, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, strings.Repeat(" ", 4096))
			}
		}), "larger than 65536 bytes"},
		"compressed": {serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, `{"verdict": "pass"}`)
			_ = z.Close()
		}), "not JSON"},
		"a cut answer":   {raw(t, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{\"verdict\": \"pass\"}"), "ended before the answer was complete"},
		"large headers":  {raw(t, "HTTP/1.1 200 OK\r\nSecret: "+strings.Repeat("x", 100_000)+"\r\n\r\n"), "its answer is not valid HTTP"},
		"not HTTP":       {raw(t, "220 secret ESMTP\r\n"), "its answer is not valid HTTP"},
		"no answer":      {raw(t, ""), "ended before the answer was complete"},
		"no such server": {"http://127.0.0.1:1", "connection is refused"},
		"untrusted":      {untrusted.URL, "certificate"},
		"not TLS":        {strings.Replace(plain, "http:", "https:", 1), "its TLS handshake is not valid"},
		"another scheme": {"ftp://127.0.0.1", "url cannot be used"},
	} {
		t.Run(name, func(t *testing.T) {
			f := measure(t, setup(t), hook(c.url))
			require.Nil(t, f.Answer)
			require.Contains(t, f.Problem, c.says)
			for _, secret := range []string{"127.0.0.1", "token-of-mine", "secret", "localhost"} {
				require.NotContains(t, f.Problem, secret)
			}
		})
	}
	require.Empty(t, elsewhere, "only the policy's URL is called")
}

func TestClient_SlowWebHookMeetsItsTimeout(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"silent": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"drip by drip": func(w http.ResponseWriter, r *http.Request) {
			for {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := hook(serve(t, handler))
			h.Timeout = 100 * time.Millisecond
			begin := time.Now()
			require.Contains(t, measure(t, setup(t), h).Problem, "not answered within 100ms")
			require.Less(t, time.Since(begin), patience)
		})
	}
}

func TestClient_ConnectsToPublicAddressesOnly(t *testing.T) {
	var called atomic.Int32
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		called.Add(1)
		_, _ = io.WriteString(w, `{"verdict": "pass"}`)
	})
	_, port, err := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	closed := setup(t, func(cfg *webhook.Config) { cfg.Allow = nil })
	// localhost is a name, whose address is known only when the connection is made.
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "127.1.2.3"} {
		require.Contains(t, measure(t, closed, hook("http://"+host+":"+port)).Problem, "--webhook-allow", host)
	}
	require.Contains(t, measure(t, closed, hook("http://169.254.169.254/latest")).Problem, "--webhook-allow")
	require.Zero(t, called.Load())
	require.Empty(t, measure(t, setup(t), hook("http://[::ffff:127.0.0.1]:"+port)).Problem)
	require.Equal(t, int32(1), called.Load())
}

func TestClient_IgnoresTheProxyOfTheEnvironment(t *testing.T) {
	var called atomic.Int32
	url := serve(t, func(http.ResponseWriter, *http.Request) { called.Add(1) })
	t.Setenv("HTTP_PROXY", url)
	t.Setenv("http_proxy", url)
	h := hook("http://hook.invalid")
	h.Timeout = time.Second
	require.NotEmpty(t, measure(t, setup(t), h).Problem)
	require.Zero(t, called.Load())
}

func TestClient_BoundsConcurrentCalls(t *testing.T) {
	var now, beyond atomic.Int32
	c := setup(t)
	h := hook(serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if now.Add(1) > 8 {
			beyond.Add(1)
		}
		defer now.Add(-1)
		_, _ = io.WriteString(w, `{"verdict": "pass"}`)
	}))
	var due []plan.Measure
	for i := range plan.MaxMeasure {
		due = append(due, plan.Measure{RegionID: strconv.Itoa(i), Hook: &h})
	}
	out := c.Measure(t.Context(), due)
	require.Len(t, out, len(due))
	for _, m := range out {
		require.Empty(t, m.Figures.Problem)
	}
	require.Zero(t, beyond.Load())
}

func TestClient_LeavesCallsToOtherWorkspaces(t *testing.T) {
	var called atomic.Int32
	silent := hook(serve(t, func(_ http.ResponseWriter, r *http.Request) {
		called.Add(1)
		<-r.Context().Done()
	}))
	quick := hook(serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"verdict": "pass"}`) }))
	c := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	var steps sync.WaitGroup
	for range 10 { // each of another app, with 8 calls
		steps.Go(func() {
			var due []plan.Measure
			for i := range 8 {
				due = append(due, plan.Measure{WorkspaceID: "ws_silent", RegionID: strconv.Itoa(i), Hook: &silent})
			}
			c.Measure(ctx, due)
		})
	}
	require.Eventually(t, func() bool { return called.Load() == 32 }, patience, time.Millisecond, "half of all calls")
	out := c.Measure(t.Context(), []plan.Measure{{WorkspaceID: "ws_quick", RegionID: "reg_1", Hook: &quick}})
	require.Len(t, out, 1)
	require.Empty(t, out[0].Figures.Problem)
	require.EqualValues(t, 32, called.Load())
	cancel()
	steps.Wait()
}

func TestCall_WithoutTimeIsLeftOutAndNotBlamed(t *testing.T) {
	var called atomic.Int32
	h := hook(serve(t, func(_ http.ResponseWriter, r *http.Request) {
		called.Add(1)
		<-r.Context().Done()
	}))
	c := setup(t)
	due := []plan.Measure{{RegionID: "reg_1", Check: "smoke", Hook: &h}}
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	defer cancel()
	require.Empty(t, c.Measure(ctx, due), "the call would be cut off")
	require.Zero(t, called.Load())

	ctx, cancel = context.WithCancel(t.Context())
	done := make(chan []plan.Measurement)
	go func() { done <- c.Measure(ctx, due) }()
	require.Eventually(t, func() bool { return called.Load() == 1 }, patience, time.Millisecond)
	cancel()
	require.Empty(t, <-done, "the control plane stops, which says nothing of the webhook")
	require.Empty(t, c.Measure(t.Context(), nil))
}

func TestCall_ImpossibleSaysSoWithoutASecret(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"verdict": "pass"}`) })
	h := hook(url)
	h.SigningSecret = "gone"
	require.Contains(t, measure(t, setup(t), h).Problem, "secret gone, which does not exist any more")

	broken := setup(t, func(cfg *webhook.Config) {
		cfg.Lookup = func(context.Context, analysis.Call, []string) (webhook.Facts, error) {
			return webhook.Facts{}, errors.New("hunter2 at db.internal")
		}
	})
	require.Equal(t, "the control plane cannot read the facts for the webhook", measure(t, broken, hook(url)).Problem)
}

func TestMetrics_CountCallsByOutcome(t *testing.T) {
	registry := prometheus.NewRegistry()
	c := setup(t, func(cfg *webhook.Config) { cfg.Registerer = registry })
	for _, answer := range []string{`{"verdict": "pass"}`, `{"verdict": "fail"}`, `{"verdict": "inconclusive"}`, ``} {
		measure(t, c, hook(serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, answer) })))
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	got := map[string]uint64{}
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
	}
	require.Equal(t, map[string]uint64{"pass": 1, "fail": 1, "inconclusive": 1, "error": 1}, got)
}
