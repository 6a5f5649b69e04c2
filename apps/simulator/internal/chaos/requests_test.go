package chaos

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var zeroHere = appRegion{zeroName, here.region}

// withRequests adds requests to the fixture, through a gateway.
func withRequests(s *fixture, gateway string) *requests {
	s.requests = newRequests(s.checker, s.history, func(string) string { return gateway })
	return s.requests
}

func TestRequests_FailOnlyIfTheirInstanceOrGatewayIsKilled(t *testing.T) {
	for name, c := range map[string]struct {
		kill    func(q *requests)
		excused bool
	}{
		"nothing was killed":                       {func(*requests) {}, false},
		"an instance of the app crashed":           {func(q *requests) { crash(t, q, here.region, zeroName) }, true},
		"an instance of another app crashed":       {func(q *requests) { crash(t, q, here.region, poolName) }, false},
		"an instance in another region crashed":    {func(q *requests) { crash(t, q, there.region, zeroName) }, false},
		"the gateway was killed":                   {func(q *requests) { q.gatewayKilled(here.region) }, true},
		"the gateway of another region was killed": {func(q *requests) { q.gatewayKilled(there.region) }, false},
		"the gateway was killed and serves again":  {func(q *requests) { q.gatewayKilled(here.region)() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			q := withRequests(setup(t), "")
			done := q.begin(zeroHere)
			c.kill(q)
			done(errors.New("502"))
			require.Equal(t, c.excused, q.excused == 1)
			if bad := q.checker.foundViolations(); c.excused {
				require.Empty(t, bad)
			} else {
				require.Len(t, bad, 1)
				require.Equal(t, requestFailed, bad[0].Kind)
			}
		})
	}
	t.Run("later requests do not fail with the instance", func(t *testing.T) {
		q := withRequests(setup(t), "")
		crash(t, q, here.region, zeroName)
		q.kills[0].to = time.Now().Add(-time.Nanosecond)
		q.begin(zeroHere)(errors.New("502"))
		require.Len(t, q.checker.foundViolations(), 1)
	})
}

// crash starts an instance, which crashes.
func crash(t *testing.T, q *requests, region, app string) {
	t.Helper()
	_, end := q.serve(region, app, "ins_1")
	end(true)
}

func TestRequests_InstanceMayNotStopWithARequest(t *testing.T) {
	for _, used := range []bool{false, true} {
		s := setup(t)
		var end func(bool)
		var address string
		q := withRequests(s, "")
		address, end = q.serve(here.region, zeroName, "ins_1")
		q.gatewayOf = func(string) string { return address }
		c := q.newClient(zeroHere, "zero.test", nil)
		require.NoError(t, c.send(t.Context(), http.MethodGet))
		answer := make(chan error, 1)
		if used {
			go func() { answer <- c.send(context.WithoutCancel(t.Context()), http.MethodPost) }()
			require.Eventually(t, func() bool { return q.served.Load() == 1 }, 10*time.Second, time.Millisecond)
		}
		end(false)
		if !used {
			require.Empty(t, s.foundViolations())
			continue
		}
		require.Error(t, <-answer)
		bad := s.foundViolations()
		require.Len(t, bad, 2)
		require.Equal(t, stoppedInUse, bad[0].Kind)
		require.Equal(t, requestFailed, bad[1].Kind)
		require.Equal(t, 1, q.answered)
	}
}

func TestRequests_WaitingRequestIsADisagreement(t *testing.T) {
	s := setup(t)
	q := withRequests(s, "")
	done := q.begin(zeroHere)
	why := s.compareContent(s.books, s.sight)
	require.NotNil(t, why)
	require.Equal(t, heldForEver, why.kind)
	require.Equal(t, zeroName, why.app)
	done(nil)
	require.Nil(t, s.compareContent(s.books, s.sight))
}

func TestRequests_AnswersHaveToBeOfAnInstance(t *testing.T) {
	status := http.StatusServiceUnavailable
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Windlass-Error", "held")
		w.WriteHeader(status)
		_, _ = w.Write([]byte("not an instance"))
	}))
	defer gateway.Close()
	s := setup(t)
	c := withRequests(s, gateway.Listener.Addr().String()).newClient(zeroHere, "zero.test", nil)
	require.ErrorContains(t, c.send(t.Context(), http.MethodGet), "503 Service Unavailable, held: not an instance")
	status = http.StatusOK
	require.ErrorContains(t, c.send(t.Context(), http.MethodGet), "200 OK")
	require.Len(t, s.foundViolations(), 1)
}
