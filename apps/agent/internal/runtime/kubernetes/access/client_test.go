package access

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/backoff"
)

func middle() float64 { return 0.5 }

func TestBreaker_LetsOneCallTryTheServer(t *testing.T) {
	g := &breaker{policy: backoff.Policy{Min: time.Second, Max: 16 * time.Second}, random: middle}
	now := time.Unix(1000, 0)
	pass := func() bool {
		wait, _ := g.mayPass(now)
		return wait == 0
	}
	require.True(t, pass())
	g.noteFailure(now, errors.New("down"))
	wait, cause := g.mayPass(now)
	require.EqualError(t, cause, "down")
	require.Equal(t, 1500*time.Millisecond, wait)
	now = now.Add(wait)
	require.True(t, pass(), "one call finds out whether the server is back")
	require.False(t, pass(), "other calls wait for its result")
	g.noteSuccess()
	require.True(t, pass())
	require.True(t, pass())

	// A minute without the server allows few calls, however many callers wait.
	calls := 0
	for end := now.Add(time.Minute); now.Before(end); now = now.Add(10 * time.Millisecond) {
		for range 100 {
			if pass() {
				calls++
				g.noteFailure(now, errors.New("down"))
			}
		}
	}
	require.LessOrEqual(t, calls, 10)
	g.noteSuccess()
	g.askedToWait(now.Add(5 * time.Second))
	wait, cause = g.mayPass(now)
	require.ErrorIs(t, cause, errAskedToWait)
	require.Equal(t, 5*time.Second, wait)
}

func TestPacer_DelaysAWatchThatKeepsEnding(t *testing.T) {
	p := &pacer{policy: backoff.Policy{Min: time.Second, Max: 10 * time.Second}, random: middle}
	now := time.Unix(1000, 0)
	opened := 0
	for end := now.Add(time.Minute); now.Before(end); opened++ {
		now = now.Add(p.delayOf("pods", now))
	}
	require.LessOrEqual(t, opened, 20)
	require.Zero(t, p.delayOf("nodes", now), "each watch has its own count")
	now = now.Add(wellAfter)
	require.Zero(t, p.delayOf("pods", now), "the watch lasted long enough")
}

func TestClassify_NamesCallsAsRBACDoes(t *testing.T) {
	for path, want := range map[string]string{
		"GET /api/v1/pods?watch=true":                             "watch pods",
		"GET /api/v1/pods?labelSelector=a":                        "list pods",
		"GET /api/v1/namespaces/ns":                               "get namespaces",
		"PATCH /apis/apps/v1/namespaces/ns/deployments/chat":      "patch deployments",
		"DELETE /api/v1/namespaces/ns/secrets/x":                  "delete secrets",
		"DELETE /apis/apps/v1/namespaces/ns/replicasets":          "deletecollection replicasets",
		"POST /api/v1/namespaces/ns/events":                       "create events",
		"PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/l": "update leases",
		"GET /version": "get other",
		"GET /api/v1/namespaces/ns/pods/chat-1/log?tailLines=1": "get pods",
	} {
		method, url, _ := strings.Cut(path, " ")
		verb, res := classifyRequest(httptest.NewRequestWithContext(t.Context(), method, "http://x"+url, http.NoBody))
		require.Equal(t, want, verb+" "+res, path)
	}
}
