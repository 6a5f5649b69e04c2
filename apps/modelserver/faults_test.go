package modelserver

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const sayA = `{"model":"echo","prompt":"a"}`

func TestNeverReady_HoldsUntilLifted(t *testing.T) {
	e := start(t, Config{AllowFaultAPI: true, Faults: Faults{NeverReady: true}})
	require.Equal(t, 503, e.do("GET", "/health", "").status)
	require.Equal(t, 503, e.do("POST", "/v1/completions", sayA).status)
	require.Equal(t, 200, e.do("DELETE", "/faults", "").status)
	e.awaitHealth(http.StatusOK)
	require.Equal(t, 200, e.do("POST", "/faults", `{"neverReady":true}`).status)
	require.Equal(t, 503, e.do("GET", "/health", "").status)
	require.Equal(t, 503, e.do("POST", "/v1/completions", sayA).status)
}

func TestCrash_AtStartIsBeforeListening(t *testing.T) {
	s, err := New(Config{Faults: Faults{CrashAtStart: true, ExitCode: 3}})
	require.NoError(t, err)
	var exit *ExitError
	require.ErrorAs(t, s.Run(t.Context()), &exit)
	require.Equal(t, 3, exit.Code)
}

func TestCrash_CutsRequestsAndHasItsExitCode(t *testing.T) {
	e := startReady(t, Config{TokenRate: never, AllowFaultAPI: true})
	in := e.stream(t.Context(), "/v1/completions", `{"model":"echo","prompt":"a b","stream":true}`)
	_, ok := in.next()
	require.True(t, ok)
	require.Equal(t, 200, e.do("POST", "/faults", `{"crashAfter":"20ms","exitCode":42}`).status)
	var exit *ExitError
	require.ErrorAs(t, e.exit(), &exit)
	require.Equal(t, 42, exit.Code)
	_, ok = in.next()
	require.False(t, ok, "the connection is cut without an error event")
}

func TestCrash_ComesAtItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Faults: Faults{CrashAfter: Duration(time.Hour)}})
		require.NoError(t, err)
		began := time.Now()
		var exit *ExitError
		require.ErrorAs(t, s.runFaults(t.Context()), &exit)
		require.Equal(t, 1, exit.Code)
		require.Equal(t, time.Hour, time.Since(began))
	})
}

func TestHealth_FailsWithinItsWindowOnly(t *testing.T) {
	f := Faults{FailHealth: true, FailHealthAfter: Duration(10 * time.Second), FailHealthUntil: Duration(20 * time.Second)}
	require.False(t, f.healthFails(0))
	require.False(t, f.healthFails(10*time.Second-1))
	require.True(t, f.healthFails(10*time.Second))
	require.True(t, f.healthFails(20*time.Second-1))
	require.False(t, f.healthFails(20*time.Second))
	require.True(t, Faults{FailHealth: true}.healthFails(0))
	require.True(t, Faults{FailHealth: true}.healthFails(1000*time.Hour))
	require.False(t, Faults{}.healthFails(time.Hour))

	e := startReady(t, Config{AllowFaultAPI: true})
	e.do("POST", "/faults", `{"failHealth":true}`)
	require.Equal(t, 503, e.do("GET", "/health", "").status)
	require.Equal(t, 200, e.do("POST", "/v1/completions", sayA).status, "only health fails")
	e.do("POST", "/faults", `{"failHealthUntil":"30ms"}`)
	e.awaitHealth(http.StatusOK)
}

func TestFaults_ErrorsComeAtTheirRate(t *testing.T) {
	e := startReady(t, Config{Seed: 11, Faults: Faults{ErrorRate: 0.5}})
	failed := 0
	for range 60 {
		switch r := e.do("POST", "/v1/completions", sayA); r.status {
		case 500:
			failed++
			require.Equal(t, "injected_error", *parse[clientError](t, r.body).Error.Code)
		default:
			require.Equal(t, 200, r.status)
		}
	}
	require.InDelta(t, 30, failed, 15)
	e.awaitLoad(0, 0)
}

func TestSlowness_StretchesEveryWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		err := newPace(100*time.Millisecond, 10, 3).emitTokens(t.Context(), []string{"a", "b", "c"}, func(int, string) error {
			at = append(at, time.Since(began))
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, []time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 900 * time.Millisecond}, at)
	})
	require.Positive(t, newPace(time.Hour, 0.001, 1e6).each, "the largest factors do not wrap around")
	require.Positive(t, newPace(1<<62, 1, 1e6).first)
}

func TestHang_AnswersOnlyMetricsAndFaults(t *testing.T) {
	e := startReady(t, Config{AllowFaultAPI: true})
	e.do("POST", "/faults", `{"hang":true}`)
	for _, ask := range [][3]string{{"GET", "/health", ""}, {"POST", "/v1/completions", sayA}} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		req, err := http.NewRequestWithContext(ctx, ask[0], e.url+ask[1], strings.NewReader(ask[2]))
		require.NoError(t, err)
		_, err = e.client.Do(req)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded, ask[1])
	}
	e.eventually(func() bool { return e.metric("modelserver_http_responses_total", "code", "499") == 1 }, "the server notices the disconnect")

	late := make(chan reply, 1)
	go func() {
		r, _ := e.try("POST", "/v1/completions", sayA)
		late <- r
	}()
	e.do("POST", "/faults", `{"hang":false}`)
	require.Equal(t, 200, (<-late).status, "a request that hung is answered when the fault is lifted")
}

func TestIgnoredSIGTERM_ServesUntilTheFaultIsRemoved(t *testing.T) {
	e := startReady(t, Config{AllowFaultAPI: true, Faults: Faults{IgnoreSIGTERM: true}})
	e.stop()
	require.Equal(t, 200, e.do("POST", "/v1/completions", sayA).status)
	require.Equal(t, 200, e.do("GET", "/health", "").status)
	require.Empty(t, e.result)
	e.do("DELETE", "/faults", "")
	require.NoError(t, e.exit())
}

func TestHog_HoldsItsMemory(t *testing.T) {
	hog := resizeHog(nil, 8)
	require.Len(t, hog, 8)
	for _, chunk := range hog {
		require.Len(t, chunk, 1<<20)
		require.EqualValues(t, 1, chunk[4096*3])
	}
	require.Len(t, resizeHog(hog, 2), 2)
	require.Empty(t, resizeHog(hog, 0))
}

func TestLogNoise_ComesAtItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuffer
		s, err := New(Config{Logger: slog.New(slog.NewTextHandler(&out, nil)), Faults: Faults{LogLines: 100}})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		require.NoError(t, s.runFaults(ctx))
		require.Equal(t, 1000, strings.Count(out.String(), "noise"))
	})
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestFaults_AreMergedAndUnknownFaultsRefused(t *testing.T) {
	e := startReady(t, Config{AllowFaultAPI: true})
	e.do("POST", "/faults", `{"errorRate":0.25,"memoryMib":1}`)
	got := parse[Faults](t, e.do("POST", "/faults", `{"failHealth":true,"failHealthAfter":"1m"}`).body)
	want := Faults{ErrorRate: 0.25, MemoryMiB: 1, FailHealth: true, FailHealthAfter: Duration(time.Minute), ExitCode: 1, SlowFactor: 1}
	require.Equal(t, want, got)
	for _, bad := range []string{`{"hangs":true}`, `{"errorRate":7}`, `{"crashAfter":"soon"}`, `{"exitCode":"x"}`, `nonsense`, `[]`} {
		r := e.do("POST", "/faults", bad)
		require.Equal(t, 400, r.status, bad)
		require.NotEmpty(t, parse[clientError](t, r.body).Error.Message)
	}
	require.Equal(t, want, parse[Faults](t, e.do("GET", "/faults", "").body), "a refused change changes nothing")
	require.Equal(t, Faults{}.withDefaults(), parse[Faults](t, e.do("DELETE", "/faults", "").body))
}

func TestSlots_PassInOrderAndNoSlotIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &admission{slots: 1, queue: 3}
		first, err := a.acquire(t.Context())
		require.NoError(t, err)
		var order []int
		impatient, cancel := context.WithCancelCause(t.Context())
		gaveUp := errors.New("gave up")
		for i := range 3 {
			ctx := t.Context()
			if i == 1 {
				ctx = impatient
			}
			go func() {
				release, err := a.acquire(ctx)
				if i == 1 {
					require.ErrorIs(t, err, gaveUp)
					return
				}
				require.NoError(t, err)
				order = append(order, i)
				time.Sleep(time.Second)
				release()
			}()
			synctest.Wait()
		}
		_, err = a.acquire(t.Context())
		require.ErrorIs(t, err, errQueueFull)
		cancel(gaveUp)
		synctest.Wait()
		running, waiting := a.countRequests()
		require.Equal(t, [2]int{1, 2}, [2]int{running, waiting})
		first()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []int{0, 2}, order)
		running, waiting = a.countRequests()
		require.Zero(t, running)
		require.Zero(t, waiting)
	})
}
