package modelserver

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHealth_Is503UntilTheModelIsLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{LoadTime: time.Minute})
		require.NoError(t, err)
		go s.loadModel(t.Context())
		ask := func(method, path, body string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
			return w
		}
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		require.Equal(t, 503, ask("GET", "/health", "").Code)
		early := ask("POST", "/v1/completions", `{"model":"echo","prompt":"a"}`)
		require.Equal(t, 503, early.Code)
		require.Equal(t, "1", early.Header().Get("Retry-After"))
		require.Equal(t, "model_loading", *parse[clientError](t, early.Body.Bytes()).Error.Code)

		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, 200, ask("GET", "/health", "").Code)
		require.Equal(t, 200, ask("POST", "/v1/completions", `{"model":"echo","prompt":"a"}`).Code)
	})
}

func TestQueue_FullQueueRefusesWith429AndLosesNoRequest(t *testing.T) {
	e := startReady(t, Config{Concurrency: 2, Queue: 3, KVCacheTokens: 100})
	leave := e.occupy(2)
	const body = `{"model":"echo","prompt":"0 1 2 3 4 5 6 7 8 9"}`
	var accepted sync.WaitGroup
	replies := make([]reply, 3)
	errs := make([]error, 3)
	for i := range replies {
		accepted.Go(func() { replies[i], errs[i] = e.try("POST", "/v1/completions", body) })
	}
	e.awaitLoad(2, 3)
	refused := e.do("POST", "/v1/completions", body)
	require.Equal(t, http.StatusTooManyRequests, refused.status)
	require.Equal(t, "1", refused.header.Get("Retry-After"))
	require.Equal(t, "queue_full", *parse[clientError](t, refused.body).Error.Code)

	leave()
	accepted.Wait()
	for i := range replies {
		require.NoError(t, errs[i])
		require.Equal(t, 200, replies[i].status)
	}
	e.awaitLoad(0, 0)
	require.EqualValues(t, 3, e.metric("vllm:request_success_total", "finished_reason", "stop"))
	require.EqualValues(t, 3, e.metric("vllm:time_to_first_token_seconds"))
	require.EqualValues(t, 3, e.metric("vllm:e2e_request_latency_seconds"))
	require.EqualValues(t, 3, e.metric("vllm:request_queue_time_seconds"))
	require.EqualValues(t, 30, e.metric("vllm:prompt_tokens_total"))
	require.EqualValues(t, 30, e.metric("vllm:generation_tokens_total"))
	require.EqualValues(t, 1, e.metric("modelserver_http_responses_total", "code", "429"))
}

func TestStop_AnswersEveryAcceptedRequest(t *testing.T) {
	e := startReady(t, Config{TokenRate: 100, Concurrency: 2, Queue: 8})
	leave := e.occupy(2)
	var running sync.WaitGroup
	texts := make([]string, 6)
	for i := range texts {
		running.Go(func() {
			r, err := e.try("POST", "/v1/completions", fmt.Sprintf(`{"model":"echo","prompt":"%d 1 2 3 4 5 6 7 8 9","stream":%t}`, i, i%2 == 0))
			if err == nil {
				texts[i] = string(r.body)
			}
		})
	}
	e.awaitLoad(2, 6)
	e.stop()
	e.eventually(func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		if err == nil {
			c.Close()
		}
		return err != nil
	}, "the listener closes")
	leave()
	running.Wait()
	for i, text := range texts {
		require.Contains(t, text, `"finish_reason":"stop"`, "request %d", i)
		if i%2 == 0 {
			require.True(t, strings.HasSuffix(text, "data: [DONE]\n\n"), "request %d: %q", i, text)
		} else {
			require.Contains(t, text, fmt.Sprintf("%d 1 2 3 4 5 6 7 8 9", i))
		}
	}
	require.NoError(t, e.exit())
}

func TestDrain_FailsHealthAndServesDuringTheDelay(t *testing.T) {
	e := startReady(t, Config{DrainDelay: 300 * time.Millisecond})
	e.stop()
	e.awaitHealth(http.StatusServiceUnavailable)
	require.Equal(t, 200, e.do("POST", "/v1/completions", `{"model":"echo","prompt":"late"}`).status)
	require.NoError(t, e.exit())
}

func TestDrain_TimeoutCutsRequestsWithAnError(t *testing.T) {
	e := startReady(t, Config{TokenRate: never, DrainTimeout: 50 * time.Millisecond})
	in := e.stream(t.Context(), "/v1/completions", `{"model":"echo","prompt":"a b","stream":true}`)
	_, ok := in.next()
	require.True(t, ok)
	e.stop()
	data, ok := in.next()
	require.True(t, ok)
	require.Equal(t, errDrainTimeout.Error(), parse[clientError](t, []byte(data)).Error.Message)
	_, ok = in.next()
	require.False(t, ok, "an incomplete answer has no [DONE]")
	require.NoError(t, e.exit())
}

func TestTimeout_EndsWith504(t *testing.T) {
	e := startReady(t, Config{TokenRate: never, RequestTimeout: 50 * time.Millisecond})
	r := e.do("POST", "/v1/completions", `{"model":"echo","prompt":"a b"}`)
	require.Equal(t, http.StatusGatewayTimeout, r.status)
	require.Equal(t, "request_timeout", *parse[clientError](t, r.body).Error.Code)
	e.awaitLoad(0, 0)
}

func TestPort_TakenIsNamed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	s, err := New(Config{Port: taken.Addr().(*net.TCPAddr).Port})
	require.NoError(t, err)
	require.ErrorContains(t, s.Run(t.Context()), "cannot listen on "+taken.Addr().String())
}

func TestSeed_GivesTheSameIDsAndFailures(t *testing.T) {
	run := func(seed uint64) (trace []string) {
		s, err := New(Config{Seed: seed, Faults: Faults{ErrorRate: 0.5}})
		require.NoError(t, err)
		for range 20 {
			trace = append(trace, fmt.Sprint(s.newID(), s.faults.drawError()))
		}
		return trace
	}
	require.Equal(t, run(1), run(1))
	require.NotEqual(t, run(1), run(2))
	require.NotEqual(t, run(0), run(0), "seed 0 is random")
}

func TestConfig_ErrorNamesTheFlag(t *testing.T) {
	for flag, cfg := range map[string]Config{
		"--port":                {Port: 70000},
		"--version-label":       {VersionLabel: "v1\r\nX-Evil: 1"},
		"--max-model-len":       {MaxModelLen: -1},
		"--load-time":           {LoadTime: -1},
		"--time-to-first-token": {TimeToFirstToken: -1},
		"--token-rate":          {TokenRate: -1},
		"--concurrency":         {Concurrency: -1},
		"--queue":               {Queue: -1},
		"--kv-cache-tokens":     {KVCacheTokens: -1},
		"--max-body-bytes":      {MaxBodyBytes: -1},
		"--request-timeout":     {RequestTimeout: -1},
		"--drain-delay":         {DrainDelay: -1},
		"--drain-timeout":       {DrainTimeout: -1},
		"--log-format":          {LogFormat: "xml"},
		"crashAfter":            {Faults: Faults{CrashAfter: -1}},
		"exitCode":              {Faults: Faults{ExitCode: 256}},
		"failHealthUntil":       {Faults: Faults{FailHealth: true, FailHealthAfter: 2, FailHealthUntil: 1}},
		"failHealthAfter":       {Faults: Faults{FailHealthAfter: 2}},
		"errorRate":             {Faults: Faults{ErrorRate: 1.5}},
		"slowFactor":            {Faults: Faults{SlowFactor: 0.5}},
		"memoryMib":             {Faults: Faults{MemoryMiB: -1}},
		"logLines":              {Faults: Faults{LogLines: -1}},
	} {
		t.Run(flag, func(t *testing.T) {
			_, err := New(cfg)
			require.ErrorContains(t, err, flag)
		})
	}
}
