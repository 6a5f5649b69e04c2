package gateway_test

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// payloadLines collects the lines of a payload log.
type payloadLines struct {
	mu  sync.Mutex
	all []string
}

func (l *payloadLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(p))
	return len(p), nil
}

func (l *payloadLines) until(t *testing.T, n int) []string {
	t.Helper()
	var all []string
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		all = slices.Clone(l.all)
		return len(all) >= n
	}, patience, time.Millisecond)
	return all
}

func TestPayload_IsLoggedForAppsThatEnableIt(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		to := &payloadLines{}
		r := start(t, func(c *gateway.Config) { c.Payloads = to })
		app := echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.Copy(io.Discard, q.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			for _, part := range []string{`data: {"choices": [{"content": "se`, "cret\"}]}\n\n", "data: [DONE]\n\n"} {
				_, _ = io.WriteString(w, part)
				w.(http.Flusher).Flush()
			}
		}))
		ask := func() {
			req := r.request(t, http.MethodPost, "/v1/chat?key=hidden", `{"messages": [{"content": "secret"}], "model": "m"}`)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer hidden")
			res, body := r.do(t, req)
			require.Equal(t, http.StatusOK, res.StatusCode)
			require.Contains(t, body, "secret", "the client gets the whole payload")
		}
		r.put(t, app)
		ask()
		app.Generation, app.Policy = 2, &gatewayv1.RoutePolicy{PayloadLog: &gatewayv1.PayloadLog{Sample: 1, Redact: []string{"content"}}}
		r.put(t, app)
		ask()
		line := to.until(t, 1)[0]
		require.NotContains(t, line, "secret")
		require.NotContains(t, line, "hidden")
		var got struct {
			App, Path, Method string
			DeploymentID      string `json:"deployment_id"`
			Status            int
			Request, Answer   struct{ Body string }
		}
		require.NoError(t, json.Unmarshal([]byte(line), &got))
		require.Equal(t, []any{"echo", "/v1/chat", "POST", app.Targets[0].DeploymentId, 200}, []any{got.App, got.Path, got.Method, got.DeploymentID, got.Status})
		require.JSONEq(t, `{"messages": [{"content": "[redacted]"}], "model": "m"}`, got.Request.Body)
		require.Equal(t, "data: {\"choices\":[{\"content\":\"[redacted]\"}]}\ndata: [DONE]\n", got.Answer.Body)

		app.Generation, app.Policy = 3, &gatewayv1.RoutePolicy{PayloadLog: &gatewayv1.PayloadLog{Sample: 0.5, MaxBytes: 10}}
		r.put(t, app)
		for range 200 {
			ask()
		}
		all := to.until(t, 2)
		require.Less(t, len(to.until(t, 50)), 160, "about half of the requests are logged")
		require.Contains(t, all[1], `"cut":true`)
		require.NotContains(t, all[1], "model", "only the beginning of the body is logged")
	})
}
