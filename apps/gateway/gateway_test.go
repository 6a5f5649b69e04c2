package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/gateway"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

func TestWeights_HoldFromTheAcknowledgementOn(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		before, after := instance(t, named("old")), instance(t, named("new"))
		count := func(requests int) (newer int) {
			var wg sync.WaitGroup
			var got atomic.Int64
			for range 8 {
				wg.Go(func() {
					for range requests / 8 {
						res, err := r.client.Do(r.request(t, http.MethodPost, "/", "{}"))
						if err != nil {
							t.Error(err)
							return
						}
						body, err := io.ReadAll(res.Body)
						res.Body.Close()
						if err != nil || res.StatusCode != http.StatusOK {
							t.Errorf("%d %s %v", res.StatusCode, body, err)
							return
						}
						if string(body) == "new" {
							got.Add(1)
						}
					}
				})
			}
			wg.Wait()
			return int(got.Load())
		}
		app := echo(before)
		app.Targets[0].Weight = 90
		app.Targets = append(app.Targets, target("dep_2", 2, 10, after))
		r.put(t, app)
		require.InDelta(t, 200, count(2000), 60) // 4.5 standard deviations
		// Requests after the acknowledgement are spread by the new weights.
		app = proto.CloneOf(app)
		app.Generation, app.Targets[0].Weight, app.Targets[1].Weight = 2, 0, 100
		r.put(t, app)
		require.Equal(t, 800, count(800))
	})
}

func TestTokens_ArriveOneByOne(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		next := make(chan string)
		r.put(t, echo(instance(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			for token := range next {
				_, _ = fmt.Fprintf(w, "data: %s\n\n", token)
				w.(http.Flusher).Flush()
			}
		})))
		res, err := r.client.Do(r.request(t, http.MethodPost, "/v1/chat/completions", "{}"))
		require.NoError(t, err)
		defer res.Body.Close()
		lines := bufio.NewReader(res.Body)
		for i := range 20 { // each token is sent after the client got the one before
			next <- fmt.Sprint("token-", i)
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("data: token-%d\n", i), line)
			_, err = lines.ReadString('\n')
			require.NoError(t, err)
		}
		close(next)
		_, err = lines.ReadByte()
		require.ErrorIs(t, err, io.EOF)
	})
}

// closed returns an address on which no process listens.
func closed(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func TestRetry_NoRequestFailsBecauseOfAnAbsentInstance(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		dead := closed(t)
		r.put(t, echo(dead, instance(t, named("a")), instance(t, named("b"))))
		for range 50 {
			res, body := r.do(t, r.request(t, http.MethodPost, "/", "{}"))
			require.Equal(t, http.StatusOK, res.StatusCode, body)
		}
		// The agent learns that the instance refuses connections, and later that it accepts them again.
		r.until(t, func() bool {
			h := r.health["dep_1-0"]
			return h != nil && h.Ejected && h.Unproven && h.Reason == "ConnectError"
		})
		l, err := net.Listen("tcp", dead)
		require.NoError(t, err)
		server := &http.Server{Handler: named("dead")}
		go func() { _ = server.Serve(l) }()
		defer server.Close()
		seen := false
		for end := time.Now().Add(patience); !seen && time.Now().Before(end); {
			_, body := r.do(t, r.request(t, http.MethodPost, "/", "{}"))
			seen = body == "dead"
		}
		require.True(t, seen, "the instance is tried again")
		r.until(t, func() bool { return r.health["dep_1-0"] == nil })
	})
}

func TestRetry_RepeatsOnlyWhatMayBeSentTwice(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		var got atomic.Int64
		broken := raw(t, func(net.Conn) { got.Add(1) }) // reads the request and closes the connection
		app := echo(broken, instance(t, named("whole")))
		for i := range 4 { // every second request goes to the broken instance, too few to eject it
			app = proto.CloneOf(app)
			app.Generation++
			method, key := http.MethodPost, ""
			if i%2 == 1 {
				key = "once"
			}
			app.Targets[0].Instances[0].InstanceId = fmt.Sprint("broken-", i)
			app.Targets[0].Weight = 100
			r.put(t, app)
			failed := 0
			for range 2 {
				req := r.request(t, method, "/", `{"n": 1}`)
				if key != "" {
					req.Header.Set("Idempotency-Key", key)
				}
				res, _ := r.do(t, req)
				if res.StatusCode == http.StatusBadGateway {
					require.Equal(t, "bad_answer", res.Header.Get("Windlass-Error"))
					failed++
				}
			}
			require.Equal(t, int64(i+1), got.Load(), "one of two requests reached the broken instance in each round")
			require.Equal(t, 1-i%2, failed, "round %d", i)
		}
	})
}

func TestInstance_FaultsAreReported(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		for name, test := range map[string]struct {
			answer string
			hang   bool
			status int
			code   string
		}{
			"hangs":                {"", true, http.StatusGatewayTimeout, "instance_timeout"},
			"hangs in the header":  {"HTTP/1.1 200 OK\r\nContent-", true, http.StatusGatewayTimeout, "instance_timeout"},
			"garbage":              {"SSH-2.0-OpenSSH_9.2\r\n\r\n", false, http.StatusBadGateway, "bad_answer"},
			"hangs up":             {"", false, http.StatusBadGateway, "bad_answer"},
			"two lengths":          {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", false, http.StatusBadGateway, "bad_answer"},
			"a header without end": {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10), false, http.StatusBadGateway, "answer_header_too_large"},
		} {
			t.Run(name, func(t *testing.T) {
				r := start(t, nil)
				app := echo(raw(t, func(c net.Conn) {
					_, _ = io.WriteString(c, test.answer)
					if test.hang {
						<-release
					}
				}))
				if test.hang {
					app.Policy.ResponseTimeout = durationpb.New(200 * time.Millisecond)
				}
				r.put(t, app)
				res, body := r.do(t, r.request(t, http.MethodPost, "/", "{}"))
				require.Equal(t, test.status, res.StatusCode, body)
				require.Equal(t, test.code, res.Header.Get("Windlass-Error"))
			})
		}
		for name, test := range map[string]struct {
			answer string
			hang   bool
		}{
			"less than announced": {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", false},
			"a chunk cut short":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nshort", false},
			"bad chunks":          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nshort\r\n", false},
			"falls silent":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", true},
		} {
			t.Run(name, func(t *testing.T) {
				r := start(t, nil)
				app := echo(raw(t, func(c net.Conn) {
					_, _ = io.WriteString(c, test.answer)
					if test.hang {
						<-release
					}
				}))
				app.Policy.IdleTimeout = durationpb.New(200 * time.Millisecond)
				r.put(t, app)
				res, err := r.client.Do(r.request(t, http.MethodPost, "/", "{}"))
				if err == nil { // the gateway may send the header before the fault is known
					_, err = io.ReadAll(res.Body)
					res.Body.Close()
				}
				require.Error(t, err, "the client must see that the answer is incomplete")
			})
		}
	})
}

// TestRetry_KeepsTheStatusIfNoOtherInstanceIsFree checks that the gateway does not hide an instance's error behind its
// own one.
func TestRetry_KeepsTheStatusIfNoOtherInstanceIsFree(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		app := echo(instance(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
		app.Policy.Retries, app.Policy.QueueSize = proto.Int32(1), proto.Int32(0)
		r.put(t, app)
		res, body := r.do(t, r.request(t, http.MethodGet, "/", ""))
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
		require.Equal(t, "instance_error", res.Header.Get("Windlass-Error"), body)

		r = start(t, nil)
		app = echo(instance(t, named("decode")))
		app.Policy = &gatewayv1.RoutePolicy{Retries: proto.Int32(1), QueueSize: proto.Int32(0)}
		app.Targets[0].Pairing = &gatewayv1.Pairing{Engine: gatewayv1.Pairing_ENGINE_NIXL}
		app.Targets[0].Instances[0].PairingKeys = []string{"v1"}
		app.Targets[0].Prefill = []*gatewayv1.Instance{{
			InstanceId: "p0", State: gatewayv1.Instance_STATE_READY, PairingKeys: []string{"v1"},
			Address: instance(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInsufficientStorage) }),
		}}
		r.put(t, app)
		res, body = r.do(t, r.request(t, http.MethodPost, "/v1/completions", `{"prompt": "one"}`))
		require.Equal(t, http.StatusInsufficientStorage, res.StatusCode, body)
		require.Equal(t, "instance_error", res.Header.Get("Windlass-Error"), body)
	})
}

func TestErrors_AreForPrograms(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		app := echo(instance(t, named("a")))
		app.Policy.MaxBodyBytes = proto.Int64(10)
		r.put(t, app)
		idle := echo()
		idle.AppId, idle.Hosts = "app_2", []string{"idle.local"}
		idle.Policy.QueueWait = durationpb.New(50 * time.Millisecond)
		r.put(t, idle)

		for name, test := range map[string]struct {
			change func(*http.Request)
			status int
			code   string
			reason string
		}{
			"unknown host": {func(q *http.Request) { q.Host = "unknown.local" }, http.StatusNotFound, "no_route", "ERROR_REASON_NOT_FOUND"},
			"large body": {func(q *http.Request) {
				q.Body, q.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 11))), 11
			}, http.StatusRequestEntityTooLarge, "body_too_large", "ERROR_REASON_LIMIT_EXCEEDED"},
			"large body in chunks": {func(q *http.Request) {
				q.Body, q.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 1<<20))), -1
			}, http.StatusRequestEntityTooLarge, "body_too_large", "ERROR_REASON_LIMIT_EXCEEDED"},
			"no instance": {func(q *http.Request) { q.Host = "idle.local" }, http.StatusServiceUnavailable, "no_instance", "ERROR_REASON_UNAVAILABLE"},
		} {
			req := r.request(t, http.MethodPost, "/", "{}")
			test.change(req)
			res, body := r.do(t, req)
			require.Equal(t, test.status, res.StatusCode, name)
			require.Equal(t, test.code, res.Header.Get("Windlass-Error"), name)
			require.NotEmpty(t, res.Header.Get("X-Request-Id"))
			var told struct {
				Code, Message string
				Details       []struct {
					Type  string
					Debug struct{ Reason, Fix string }
				}
			}
			require.NoError(t, json.Unmarshal([]byte(body), &told), body)
			require.NotEmpty(t, told.Message)
			require.Equal(t, "windlass.v1.ErrorDetail", told.Details[0].Type)
			require.Equal(t, test.reason, told.Details[0].Debug.Reason)
			require.NotEmpty(t, told.Details[0].Debug.Fix)
			require.Equal(t, test.status == http.StatusServiceUnavailable, res.Header.Get("Retry-After") != "", name)
		}
	})
}

func TestHeaders_AreBoundedAndNameTheClient(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		seen := make(chan http.Header, 1)
		r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			h := q.Header.Clone()
			h.Set("Host", q.Host)
			seen <- h
		})))
		req := r.request(t, http.MethodGet, "/", "")
		req.Header.Set("X-Request-Id", "my-id.1")
		req.Header.Set("X-Forwarded-For", "6.6.6.6")
		req.Header.Set("X-Forwarded-Host", "bank.example.com")
		req.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		req.Header.Set("Connection", "X-Secret")
		req.Header.Set("X-Secret", "hop by hop")
		res, _ := r.do(t, req)
		require.Equal(t, "my-id.1", res.Header.Get("X-Request-Id"))
		h := <-seen
		require.Equal(t, "my-id.1", h.Get("X-Request-Id"))
		require.Equal(t, "127.0.0.1", h.Get("X-Forwarded-For"), "X-Forwarded-For of a client that is not trusted is dropped")
		require.Equal(t, "echo.local", h.Get("X-Forwarded-Host"))
		require.Equal(t, "http", h.Get("X-Forwarded-Proto"))
		require.Equal(t, "echo.local", h.Get("Host"))
		require.Equal(t, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", h.Get("Traceparent"))
		require.Empty(t, h.Get("X-Secret"))

		req = r.request(t, http.MethodGet, "/", "")
		req.Header.Set("X-Request-Id", "evil id\x7f")
		req.Header["X-Request-Id"] = []string{strings.Repeat("x", 200)}
		res, _ = r.do(t, req)
		require.True(t, strings.HasPrefix(res.Header.Get("X-Request-Id"), "req_"))
		<-seen

		req = r.request(t, http.MethodGet, "/", "")
		req.Header.Set("X-Large", strings.Repeat("x", 80<<10))
		res, _ = r.do(t, req)
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, res.StatusCode)
		require.Empty(t, seen)
	})
}

func TestClient_SilentIsDisconnected(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, func(c *gateway.Config) { c.SlowClient = 300 * time.Millisecond })
		block := strings.Repeat("x", 1<<20)
		streamed := make(chan error, 1)
		r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			if _, err := io.Copy(io.Discard, q.Body); err != nil {
				return
			}
			for range 64 {
				if _, err := io.WriteString(w, block); err != nil {
					streamed <- err
					return
				}
			}
			streamed <- nil
		})))
		dial := func(message string) net.Conn {
			conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
			require.NoError(t, err)
			t.Cleanup(func() { conn.Close() })
			require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
			_, err = io.WriteString(conn, message)
			require.NoError(t, err)
			return conn
		}
		half := dial("POST / HTTP/1.1\r\nHost: echo.local\r\nContent-Length: 100\r\n\r\nhalf")
		res, err := http.ReadResponse(bufio.NewReader(half), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusRequestTimeout, res.StatusCode)
		require.Equal(t, "body_too_slow", res.Header.Get("Windlass-Error"))

		dial("GET / HTTP/1.1\r\nHost: echo.local\r\n\r\n") // the client does not read the answer
		select {
		case err := <-streamed:
			require.Error(t, err, "64 MiB are more than all buffers in between")
		case <-time.After(patience):
			t.Fatal("the instance still works on the request")
		}
	})
}

func TestRestart_ServesTheKnownTableWithoutAnAgent(t *testing.T) {
	r := start(t, nil)
	address := instance(t, named("kept"))
	r.put(t, echo(address))
	r.stop()
	r.wait(t)
	r.stopAgent()

	alone := startGateway(t, r.dir, "127.0.0.1:0", nil)
	r.url = "http://" + alone.gateway.Addresses()[0].String()
	res, body := r.do(t, r.request(t, http.MethodPost, "/", "{}"))
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "kept", body)
	require.Equal(t, "ok", alone.gateway.Health().Check(t.Context()).Status, "the gateway serves without the agent")
}

func TestTable_OfAnotherAgentReplacesTheOld(t *testing.T) {
	r := start(t, nil)
	r.put(t, echo(instance(t, named("first"))))
	gone := echo(instance(t, named("gone")))
	gone.AppId, gone.Hosts = "app_2", []string{"gone.local"}
	r.put(t, gone)
	// The next agent on the socket has another table with other numbers, which does not contain the second app.
	r.stopAgent()
	second, _ := startAgent(t, filepath.Join(r.dir, "gateway.sock"), "table-2")
	second.set(echo(instance(t, named("second"))))
	second.until(t, func() bool { return second.served["app_1"] == 1 && second.served["app_2"] > 0 })
	_, body := r.do(t, r.request(t, http.MethodGet, "/", ""))
	require.Equal(t, "second", body)
	req := r.request(t, http.MethodGet, "/", "")
	req.Host = "gone.local"
	res, _ := r.do(t, req)
	require.Equal(t, http.StatusNotFound, res.StatusCode)
}

func TestDrain_StreamIsReportedUntilItsEnd(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		release := make(chan struct{})
		app := echo(instance(t, func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			<-release
			_, _ = io.WriteString(w, "whole")
		}), instance(t, named("other")))
		app.Targets[0].Instances[1].State = gatewayv1.Instance_STATE_NOT_READY
		r.put(t, app)
		res, err := r.client.Do(r.request(t, http.MethodPost, "/", "{}"))
		require.NoError(t, err)
		defer res.Body.Close()
		app = proto.CloneOf(app)
		app.Targets[0].Instances[0].State = gatewayv1.Instance_STATE_DRAINING
		app.Targets[0].Instances[1].State = gatewayv1.Instance_STATE_READY
		r.put(t, app)
		r.until(t, func() bool { return r.health["dep_1-0"].GetInFlight() == 1 })
		for range 10 {
			_, body := r.do(t, r.request(t, http.MethodPost, "/", "{}"))
			require.Equal(t, "other", body)
		}
		close(release)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, "whole", string(body))
		r.until(t, func() bool { return r.health["dep_1-0"] == nil })
	})
}

// A new process listens on the same address as the old one, which then stops. Meanwhile clients send requests that
// must not be repeated, on new and on old connections, and a long stream continues. No request is lost.
func TestRestart_NextToTheOldProcessLosesNoRequest(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		release := make(chan struct{})
		r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.Copy(io.Discard, q.Body)
			if q.URL.Path == "/stream" {
				_, _ = io.WriteString(w, "be")
				w.(http.Flusher).Flush()
				<-release
				_, _ = io.WriteString(w, "gun")
				return
			}
			_, _ = io.WriteString(w, "ok")
		})))
		stream, err := r.client.Do(r.request(t, http.MethodPost, "/stream", "{}"))
		require.NoError(t, err)
		defer stream.Body.Close()

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var sent, lost atomic.Int64
		var wg sync.WaitGroup
		fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		for _, client := range []*http.Client{r.client, r.client, fresh} {
			wg.Go(func() {
				for ctx.Err() == nil {
					res, err := client.Do(r.request(t, http.MethodPost, "/", "{}").WithContext(context.Background()))
					if err == nil {
						_, err = io.Copy(io.Discard, res.Body)
						res.Body.Close()
					}
					if err != nil || res.StatusCode != http.StatusOK {
						lost.Add(1)
						t.Log(err, res)
					}
					sent.Add(1)
				}
			})
		}
		enough := func(n int64) {
			from := sent.Load()
			require.Eventually(t, func() bool { return sent.Load() >= from+n }, patience, time.Millisecond)
		}
		enough(200)
		startGateway(t, r.dir, strings.TrimPrefix(r.url, "http://"), nil)
		enough(200)
		r.until(t, func() bool { return len(r.leaving) == 2 }) // both processes have a table and send reports
		r.stop()
		r.until(t, func() bool {
			for _, leaving := range r.leaving {
				if leaving {
					return true
				}
			}
			return false
		})
		enough(200)
		select {
		case err := <-r.ended:
			t.Fatal("the old process did not wait for the stream:", err)
		default:
		}
		close(release)
		body, err := io.ReadAll(stream.Body)
		require.NoError(t, err)
		require.Equal(t, "begun", string(body))
		r.wait(t)
		enough(200)
		cancel()
		wg.Wait()
		require.Zero(t, lost.Load(), "of %d", sent.Load())
	})
}

// A gateway without a table does not know the hosts yet. So it must not answer 404, and must not be ready.
func TestTable_MissingAnswers503(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	r.put(t, echo(instance(t, named("a"))))
	r.stopAgent()
	first := startGateway(t, r.dir, "127.0.0.1:0", func(c *gateway.Config) { c.StateFile = "" })
	r.url = "http://" + first.gateway.Addresses()[0].String()
	require.Equal(t, "failing", first.gateway.Health().Check(t.Context()).Status)
	res, _ := r.do(t, r.request(t, http.MethodGet, "/", ""))
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	require.Equal(t, "no_table", res.Header.Get("Windlass-Error"))
	require.NotEmpty(t, res.Header.Get("Retry-After"))
	again, _ := startAgent(t, filepath.Join(r.dir, "gateway.sock"), "table-2")
	again.put(t, echo(instance(t, named("b"))))
	require.Eventually(t, func() bool { return first.gateway.Health().Check(t.Context()).Status == "ok" }, patience, time.Millisecond)
	_, body := r.do(t, r.request(t, http.MethodGet, "/", ""))
	require.Equal(t, "b", body)
}

// A change of one app among 5,000 apps with 20,000 instances is served and acknowledged at once.
func TestTable_ChangeAmongThousandsServesAtOnce(t *testing.T) {
	r := start(t, nil)
	address := instance(t, named("a"))
	var apps []*gatewayv1.AppRoutes
	for i := range 5000 {
		app := echo(address, address, address, address)
		app.AppId, app.AppName, app.Hosts = fmt.Sprint("app_", i), fmt.Sprint("app-", i), []string{fmt.Sprintf("app-%d.local", i)}
		for n, instance := range app.Targets[0].Instances {
			instance.InstanceId = fmt.Sprintf("ins-%d-%d", i, n)
		}
		apps = append(apps, app)
	}
	r.set(apps...)
	r.until(t, func() bool { return len(r.served) == 5000 })
	var took []time.Duration
	for i := range 20 {
		app := echo(address)
		app.AppId, app.Generation, app.Hosts = fmt.Sprint("app_", i), 2, []string{"echo.local"}
		begin := time.Now()
		r.put(t, app)
		took = append(took, time.Since(begin))
		res, _ := r.do(t, r.request(t, http.MethodGet, "/", ""))
		require.Equal(t, http.StatusOK, res.StatusCode)
	}
	slices.Sort(took)
	t.Logf("from the agent's change to its acknowledgement: median %v, longest %v", took[10], took[19])
}
