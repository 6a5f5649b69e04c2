package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/gateway"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// pairServer is a server of a pair. It answers as vLLM with the NixlConnector or as SGLang does, as far as a gateway
// sees it.
type pairServer struct {
	name    string
	address string
	// fault is how it fails: "", "500", "400", "cut" (no answer), "cut after the header", "hang" or "stall" (after the
	// first event).
	fault string
	mu    sync.Mutex
	// legs are the requests that came. canceled counts the requests whose caller went away.
	legs     []map[string]any
	ids      []string
	canceled int
	rooms    *rooms
}

// rooms are where SGLang's legs meet.
type rooms struct {
	mu  sync.Mutex
	all map[string]chan string
}

func (r *rooms) find(key string) chan string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[key] == nil {
		r.all[key] = make(chan string, 1)
	}
	return r.all[key]
}

func newPairServer(t *testing.T, name string, meet *rooms) *pairServer {
	s := &pairServer{name: name, rooms: meet}
	s.address = instance(t, s.serve)
	return s
}

func (s *pairServer) setFault(fault string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// came returns the requests that came since the last call.
func (s *pairServer) came() []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.legs
	s.legs = nil
	return out
}

func (s *pairServer) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var leg map[string]any
	if err != nil || json.Unmarshal(body, &leg) != nil {
		leg = map[string]any{"bytes": len(body)}
	}
	s.mu.Lock()
	fault := s.fault
	s.legs = append(s.legs, leg)
	s.ids = append(s.ids, r.Header.Get("X-Request-Id"))
	s.mu.Unlock()
	switch fault {
	case "500":
		http.Error(w, s.name+" fails", http.StatusInternalServerError)
		return
	case "400":
		http.Error(w, s.name+" refuses", http.StatusBadRequest)
		return
	case "cut":
		panic(http.ErrAbortHandler)
	case "hang":
		<-r.Context().Done()
		s.mu.Lock()
		s.canceled++
		s.mu.Unlock()
		return
	}
	from := "none"
	params, _ := leg["kv_transfer_params"].(map[string]any)
	switch {
	case params["do_remote_decode"] == any(true):
		_ = json.NewEncoder(w).Encode(map[string]any{"kv_transfer_params": map[string]any{"do_remote_prefill": true, "remote_engine_id": s.name}})
		return
	case params["do_remote_prefill"] == any(true):
		from = fmt.Sprint(params["remote_engine_id"])
	case leg["bootstrap_room"] != nil:
		room := s.rooms.find(fmt.Sprint(leg["bootstrap_room"]))
		if strings.HasPrefix(s.name, "p") {
			room <- s.name
			_, _ = io.WriteString(w, "{}")
			return
		}
		select {
		case from = <-room:
		case <-r.Context().Done():
			s.mu.Lock()
			s.canceled++
			s.mu.Unlock()
			return
		}
	}
	if streams, _ := leg["stream"].(bool); !streams {
		_, _ = fmt.Fprintf(w, "%s after %s", s.name, from)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	if fault == "cut after the header" {
		panic(http.ErrAbortHandler)
	}
	if fault == "stall" {
		_, _ = io.WriteString(w, "data: first\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	for _, word := range []string{s.name, "after", from} {
		_, _ = fmt.Fprintf(w, "data: %s\n\n", word)
		_ = http.NewResponseController(w).Flush()
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// pairsRegion is a gateway with an app of two prefill and two decode servers.
type pairsRegion struct {
	*harness

	app  *gatewayv1.AppRoutes
	p, d []*pairServer
}

var pairEngines = map[string]gatewayv1.Pairing_Engine{"nixl": gatewayv1.Pairing_ENGINE_NIXL, "sglang": gatewayv1.Pairing_ENGINE_SGLANG}

// startPairs starts a gateway and servers of the engine that the test's name has.
func startPairs(t *testing.T, kind string, change ...func(*gateway.Config)) *pairsRegion {
	t.Helper()
	r := &pairsRegion{harness: start(t, func(c *gateway.Config) {
		for _, f := range change {
			f(c)
		}
	})}
	meet := &rooms{all: map[string]chan string{}}
	r.app = echo()
	r.app.Policy = nil
	target := r.app.Targets[0]
	target.Pairing = &gatewayv1.Pairing{Engine: pairEngines[kind]}
	for n := range 2 {
		p, d := newPairServer(t, fmt.Sprint("p", n), meet), newPairServer(t, fmt.Sprint("d", n), meet)
		r.p, r.d = append(r.p, p), append(r.d, d)
		target.Prefill = append(target.Prefill, &gatewayv1.Instance{InstanceId: p.name, Address: p.address, State: gatewayv1.Instance_STATE_READY, PairingKeys: []string{"v1"}, BootstrapPort: 8998})
		target.Instances = append(target.Instances, &gatewayv1.Instance{InstanceId: d.name, Address: d.address, State: gatewayv1.Instance_STATE_READY, PairingKeys: []string{"v1"}})
	}
	r.put(t, r.app)
	return r
}

func (r *pairsRegion) complete(t *testing.T, body string) (*http.Response, string) {
	t.Helper()
	return r.do(t, r.request(t, http.MethodPost, "/v1/completions", body))
}

// bothPairEngines runs a test with each engine of pairs, on each engine of the gateway.
func bothPairEngines(t *testing.T, test func(t *testing.T, kind string)) {
	t.Helper()
	bothEngines(t, func(t *testing.T) {
		for kind := range pairEngines {
			t.Run(kind, func(t *testing.T) { test(t, kind) })
		}
	})
}

func TestPairs_DecodeServerAnswersAfterPrefill(t *testing.T) {
	bothPairEngines(t, func(t *testing.T, kind string) {
		r := startPairs(t, kind)
		for n := range 60 {
			if n%2 == 0 {
				res, body := r.complete(t, `{"prompt":"one two","stream":true}`)
				require.Equal(t, http.StatusOK, res.StatusCode, body)
				require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
				require.Regexp(t, `^data: d[01]\n\ndata: after\n\ndata: p[01]\n\ndata: \[DONE\]\n\n$`, body)
				continue
			}
			res, body := r.complete(t, `{"prompt":"one two"}`)
			require.Equal(t, http.StatusOK, res.StatusCode, body)
			require.Regexp(t, `^d[01] after p[01]$`, body)
		}
		legs, ids := map[string]int{}, map[string]int{}
		for _, s := range append(r.p, r.d...) {
			for n, leg := range s.came() {
				require.Equal(t, "one two", leg["prompt"])
				if kind == "sglang" {
					require.Equal(t, "127.0.0.1", leg["bootstrap_host"])
					require.InDelta(t, 8998, leg["bootstrap_port"], 0)
				}
				legs[s.name]++
				ids[s.ids[n]]++
				if s.name[0] == 'p' {
					require.Equal(t, false, leg["stream"])
				}
			}
		}
		require.Len(t, legs, 4, "every server gets requests")
		require.Equal(t, 60, legs["p0"]+legs["p1"])
		require.Equal(t, 60, legs["d0"]+legs["d1"])
		require.Len(t, ids, 60, "both legs have the request's id")
		const app, version = "app=echo,app_id=app_1,", "version=1,windlass_deployment=dep_1"
		for _, leg := range []string{"prefill", "decode"} {
			r.untilSeries(t, "windlass_gateway_leg_requests_total "+app+"leg="+leg+",result=200,"+version, 60)
			r.untilSeries(t, "windlass_gateway_leg_seconds "+app+"leg="+leg+","+version, 60)
		}
		r.untilSeries(t, "windlass_gateway_requests_total "+app+"code=200,"+version, 60)
	})
}

func TestPairs_FailedLegGoesToAnotherPair(t *testing.T) {
	bothPairEngines(t, func(t *testing.T, kind string) {
		for _, fault := range []string{"500", "cut", "cut after the header"} {
			for _, leg := range []string{"prefill", "decode"} {
				if leg == "prefill" && fault == "cut after the header" {
					continue // its answer is not a stream
				}
				t.Run(leg+" "+fault, func(t *testing.T) {
					r := startPairs(t, kind)
					broken := r.p[0]
					if leg == "decode" {
						broken = r.d[0]
					}
					broken.setFault(fault)
					for range 12 {
						res, body := r.complete(t, `{"prompt":"one two","stream":true}`)
						require.Equal(t, http.StatusOK, res.StatusCode, body)
						require.NotContains(t, body, broken.name)
						require.Contains(t, body, "[DONE]")
					}
					require.NotEmpty(t, broken.came())
					require.Positive(t, r.gauge(t, "windlass_gateway_leg_retries_total"))
				})
			}
		}
	})
}

func TestPairs_WithoutAnotherPairTheClientSeesTheFailure(t *testing.T) {
	bothPairEngines(t, func(t *testing.T, kind string) {
		for leg, code := range map[string]int{"prefill": http.StatusInternalServerError, "decode": http.StatusInternalServerError} {
			t.Run(leg, func(t *testing.T) {
				r := startPairs(t, kind)
				of := r.p
				if leg == "decode" {
					of = r.d
				}
				for _, s := range of {
					s.setFault("500")
				}
				res, body := r.complete(t, `{"prompt":"one two"}`)
				require.Equal(t, code, res.StatusCode)
				require.Contains(t, body, "fails")
			})
		}
	})
}

func TestPairs_DecodeServersThatAreGoneCostNoFurtherPrefills(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := startPairs(t, "nixl")
		for _, in := range r.app.Targets[0].Instances {
			in.Address = closed(t)
		}
		r.app.Policy = &gatewayv1.RoutePolicy{Retries: new(int32(1))}
		r.app.Generation++
		r.put(t, r.app)
		res, body := r.complete(t, `{"prompt":"one two"}`)
		require.Equal(t, http.StatusBadGateway, res.StatusCode, body)
		require.Equal(t, "instance_unreachable", res.Header.Get("Windlass-Error"))
		require.LessOrEqual(t, len(r.p[0].came())+len(r.p[1].came()), 2, "one attempt, and one retry")
	})
}

func TestPairs_EngineOfALaterReleaseIsRefused(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := startPairs(t, "nixl")
		r.app.Targets[0].Pairing.Engine = 99
		r.app.Generation++
		r.put(t, r.app)
		res, body := r.complete(t, `{"prompt":"one two"}`)
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode, body)
		require.Equal(t, "pair_engine_unknown", res.Header.Get("Windlass-Error"))
		res, body = r.do(t, r.request(t, http.MethodGet, "/v1/models", ""))
		require.Equal(t, http.StatusOK, res.StatusCode, body)
		for _, s := range r.p {
			require.Empty(t, s.came())
		}
	})
}

func TestPairs_RefusedRequestIsTheClientsFault(t *testing.T) {
	bothPairEngines(t, func(t *testing.T, kind string) {
		r := startPairs(t, kind)
		for _, s := range append(r.p, r.d...) {
			s.setFault("400")
		}
		res, body := r.complete(t, `{"prompt":"one two"}`)
		require.Equal(t, http.StatusBadRequest, res.StatusCode)
		require.Contains(t, body, "refuses")
		for _, s := range r.d {
			for _, leg := range s.came() {
				if kind == "nixl" {
					require.NotContains(t, leg, "kv_transfer_params", "the decode server judges the client's own request")
				}
			}
		}
	})
}

func TestPairs_HaveOneKey(t *testing.T) {
	bothPairEngines(t, func(t *testing.T, kind string) {
		r := startPairs(t, kind)
		target := r.app.Targets[0]
		target.Prefill[1].PairingKeys, target.Instances[1].PairingKeys = []string{"v2"}, []string{"v2"}
		r.app.Generation++
		r.put(t, r.app)
		r.p[1].setFault("500") // although d1 then has no prefill server left
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 20 {
					res, err := r.client.Do(r.request(t, http.MethodPost, "/v1/completions", `{"prompt":"one two"}`))
					if err != nil {
						t.Error(err)
						return
					}
					body, _ := io.ReadAll(res.Body)
					_ = res.Body.Close()
					if text := string(body); res.StatusCode == http.StatusOK && text != "d0 after p0" {
						t.Errorf("mixed pair: %s", text)
					}
				}
			})
		}
		all.Wait()
	})
}

func TestPairs_OtherRequestsGoToDecodeAloneOrAreRefused(t *testing.T) {
	bothPairEngines(t, func(t *testing.T, kind string) {
		r := startPairs(t, kind)
		if kind == "nixl" {
			r.app.Targets[0].Pairing.MinPromptBytes = 8
			r.app.Generation++
			r.put(t, r.app)
		}
		alone := func(body string) {
			t.Helper()
			res, got := r.complete(t, body)
			require.Equal(t, http.StatusOK, res.StatusCode, got)
			require.Regexp(t, `^d[01] after none$`, got)
		}
		refused := func(status int, code string, req *http.Request) {
			t.Helper()
			res, got := r.do(t, req)
			require.Equal(t, status, res.StatusCode, got)
			require.Equal(t, code, res.Header.Get("Windlass-Error"))
		}
		// Engines read some of these bodies, with the fields in them.
		for _, body := range []string{`not JSON`, "\ufeff" + `{"prompt":"a"}`, `{"prompt":"a","temperature":NaN,"kv_transfer_params":{"remote_host":"evil.test"}}`} {
			refused(http.StatusBadRequest, "pair_body_not_json", r.request(t, http.MethodPost, "/v1/completions", body))
		}
		res, got := r.do(t, r.request(t, http.MethodGet, "/v1/models", ""))
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.Regexp(t, `^d[01] after none$`, got)
		large := `{"prompt":"` + strings.Repeat("x", 9<<20) + `"}`
		refused(http.StatusRequestEntityTooLarge, "pair_body_too_large", r.request(t, http.MethodPost, "/v1/completions", large))
		chunked := r.request(t, http.MethodPost, "/v1/completions", "")
		chunked.Body, chunked.ContentLength = io.NopCloser(strings.NewReader(large)), -1
		refused(http.StatusRequestEntityTooLarge, "pair_body_too_large", chunked)
		if kind == "nixl" {
			alone(`{"prompt":"short"}`)
			alone(`{"prompt":"long enough","n":2}`)
			for _, s := range r.d {
				s.came()
			}
			alone(`{"prompt":"a","kv_transfer_params":{"do_remote_prefill":true,"remote_host":"evil.test"}}`)
			r.untilSeries(t, "windlass_gateway_unpaired_total app=echo,app_id=app_1,why=short", 2)
		}
		for _, s := range r.p {
			require.Empty(t, s.came())
		}
		// A prompt that one read does not hold is paired.
		res, got = r.complete(t, `{"prompt":"`+strings.Repeat("x", 1<<20)+`"}`)
		require.Equal(t, http.StatusOK, res.StatusCode, got)
		require.Regexp(t, `^d[01] after p[01]$`, got)
		req := r.request(t, http.MethodPost, "/v1/completions", `{"prompt":"one two","bootstrap_room":7,"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"evil"}}`)
		req.Header.Set("Content-Encoding", "identity")
		res, got = r.do(t, req)
		require.Equal(t, http.StatusOK, res.StatusCode, got)
		require.Regexp(t, `^d[01] after p[01]$`, got, "engines ignore the field")
		req = r.request(t, http.MethodPost, "/v1/chat/completions", "")
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(`{"messages":[{"role":"user","content":"hello"}]}`)), -1
		res, got = r.do(t, req)
		require.Equal(t, http.StatusOK, res.StatusCode, got)
		require.Regexp(t, `^d[01] after p[01]$`, got)
	})
}

// An instance decodes the escapes in a path, so that such a request is a request for a completion, too.
func TestPairs_RequestsWithEscapesInThePathGoToPairs(t *testing.T) {
	bothPairEngines(t, func(t *testing.T, kind string) {
		r := startPairs(t, kind)
		const body = `{"prompt":"one two","bootstrap_room":7,"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"evil"}}`
		for _, path := range []string{"/v1/completion%73", "/v1/chat%2Fcompletions", "/%76%31/completions?a=b"} {
			res, got := r.do(t, r.request(t, http.MethodPost, path, body))
			require.Equal(t, http.StatusOK, res.StatusCode, got)
			require.Regexp(t, `^d[01] after p[01]$`, got, path)
		}
	})
}

func TestPairs_ClientThatGoesAwayCancelsBothLegs(t *testing.T) {
	bothPairEngines(t, func(t *testing.T, kind string) {
		for _, leg := range []string{"prefill", "decode"} {
			t.Run(leg, func(t *testing.T) {
				r := startPairs(t, kind)
				hanging := r.p
				if leg == "decode" {
					hanging = r.d
				}
				for _, s := range hanging {
					s.setFault("hang")
				}
				ctx, cancel := context.WithCancel(t.Context())
				req := r.request(t, http.MethodPost, "/v1/completions", `{"prompt":"one two","stream":true}`).WithContext(ctx)
				done := make(chan error, 1)
				go func() {
					_, err := r.client.Do(req)
					done <- err
				}()
				came := func(all []*pairServer) (n, canceled int) {
					for _, s := range all {
						s.mu.Lock()
						n, canceled = n+len(s.legs), canceled+s.canceled
						s.mu.Unlock()
					}
					return n, canceled
				}
				require.Eventually(t, func() bool { n, _ := came(hanging); return n == 1 }, patience, time.Millisecond)
				cancel()
				require.Error(t, <-done)
				require.Eventually(t, func() bool { _, canceled := came(hanging); return canceled == 1 }, patience, time.Millisecond)
				if kind == "sglang" && leg == "prefill" {
					require.Eventually(t, func() bool { n, canceled := came(r.d); return n == canceled }, patience, time.Millisecond)
				}
				for _, s := range append(r.p, r.d...) {
					s.setFault("")
				}
				res, body := r.complete(t, `{"prompt":"one two"}`)
				require.Equal(t, http.StatusOK, res.StatusCode, body)
				r.until(t, func() bool { return len(r.health) == 0 }) // no instance was ejected
			})
		}
	})
}

// SGLang's prefill server answers when the caches of all prompts were transferred. The decode server begins before.
func TestPairs_PrefillOfABatchContinuesDuringTheAnswer(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := startPairs(t, "sglang")
		rest, canceled := make(chan struct{}), make(chan struct{}, 1)
		prefill := instance(t, func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.ReadAll(q.Body)
			select {
			case <-rest:
				_, _ = io.WriteString(w, "{}")
			case <-q.Context().Done():
				canceled <- struct{}{}
			}
		})
		decode := instance(t, func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.ReadAll(q.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: first\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-rest:
				_, _ = io.WriteString(w, "data: second\n\n")
			case <-q.Context().Done():
			}
		})
		target := r.app.Targets[0]
		target.Prefill, target.Instances = target.Prefill[:1], target.Instances[:1]
		target.Prefill[0].Address, target.Instances[0].Address = prefill, decode
		r.app.Generation++
		r.put(t, r.app)
		timer := time.AfterFunc(1500*time.Millisecond, func() { close(rest) })
		defer timer.Stop()
		req := r.request(t, http.MethodPost, "/generate", `{"text":["one","two"],"stream":true}`)
		res, body := r.do(t, req)
		require.Equal(t, http.StatusOK, res.StatusCode, body)
		require.Equal(t, "data: first\n\ndata: second\n\n", body)
		require.Empty(t, canceled)
	})
}

func TestPairs_PrefillThatHangsTimesOut(t *testing.T) {
	bothPairEngines(t, func(t *testing.T, kind string) {
		r := startPairs(t, kind)
		r.app.Policy = &gatewayv1.RoutePolicy{ResponseTimeout: durationpb.New(100 * time.Millisecond)}
		r.app.Generation++
		r.put(t, r.app)
		for _, s := range r.p {
			s.setFault("hang")
		}
		res, body := r.complete(t, `{"prompt":"one two"}`)
		require.Equal(t, http.StatusGatewayTimeout, res.StatusCode, body)
		require.Equal(t, "instance_timeout", res.Header.Get("Windlass-Error"))
	})
}

func TestPairs_PrefillServerThatLeavesFinishesItsLegs(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := startPairs(t, "nixl")
		for _, s := range r.d {
			s.setFault("hang")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			res, err := r.client.Do(r.request(t, http.MethodPost, "/v1/completions", `{"prompt":"one two"}`).WithContext(ctx))
			if err == nil {
				_ = res.Body.Close()
			}
		}()
		decoding := func() (n int) {
			for _, s := range r.d {
				s.mu.Lock()
				n += len(s.legs)
				s.mu.Unlock()
			}
			return n
		}
		require.Eventually(t, func() bool { return decoding() == 1 }, patience, time.Millisecond)
		for _, in := range r.app.Targets[0].Prefill {
			in.State = gatewayv1.Instance_STATE_DRAINING
		}
		r.app.Generation++
		r.put(t, r.app)
		r.until(t, func() bool { // its cache has not been fetched yet
			return r.health["p0"].GetInFlight()+r.health["p1"].GetInFlight() == 1
		})
		cancel()
		r.until(t, func() bool { return len(r.health) == 0 })
	})
}

// While no pair is in service, vLLM's decode servers answer alone, and SGLang's get nothing.
func TestPairs_WithoutAPairDecodeServersOfVLLMAnswerAlone(t *testing.T) {
	bothPairEngines(t, func(t *testing.T, kind string) {
		r := startPairs(t, kind)
		target := r.app.Targets[0]
		target.Prefill = nil
		r.app.Policy = &gatewayv1.RoutePolicy{QueueWait: durationpb.New(100 * time.Millisecond)}
		r.app.Generation++
		r.put(t, r.app)
		res, body := r.complete(t, `{"prompt":"one two","kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"evil"}}`)
		if kind == "sglang" {
			require.Equal(t, "no_instance", res.Header.Get("Windlass-Error"), body)
			return
		}
		require.Equal(t, http.StatusOK, res.StatusCode, body)
		require.Regexp(t, `^d[01] after none$`, body)
		r.untilSeries(t, "windlass_gateway_unpaired_total app=echo,app_id=app_1,why=no_pair", 1)
	})
}

// A version may take over instances of another version. Each instance then gets requests in the form of its own
// version.
func TestPairs_InstancesGetRequestsInTheWayOfTheirVersion(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := startPairs(t, "sglang")
		target := r.app.Targets[0]
		target.Prefill[0].PairingKeys, target.Instances[0].PairingKeys = []string{"old"}, []string{"old"}
		target.KeyPairings = map[string]*gatewayv1.Pairing{"old": {Engine: gatewayv1.Pairing_ENGINE_NIXL}}
		r.app.Generation++
		r.put(t, r.app)
		got := map[string]int{}
		for range 60 {
			res, body := r.complete(t, `{"prompt":"one two"}`)
			require.Equal(t, http.StatusOK, res.StatusCode, body)
			got[body]++
		}
		require.Len(t, got, 2, "%v", got)
		require.Positive(t, got["d0 after p0"])
		require.Positive(t, got["d1 after p1"])
		for n, room := range map[int]bool{0: false, 1: true} {
			for _, leg := range append(r.p[n].came(), r.d[n].came()...) {
				require.Equal(t, room, leg["bootstrap_room"] != nil, "%s got %v", r.p[n].name, leg)
			}
		}

		// An instance of a version without pairs gets requests as they come.
		target.Instances[0].PairingKeys, target.Instances[0].Alone, target.KeyPairings = nil, true, nil
		target.Prefill = nil
		r.app.Generation++
		r.put(t, r.app)
		for range 20 {
			res, body := r.complete(t, `{"prompt":"one two","user":"a"}`)
			require.Equal(t, http.StatusOK, res.StatusCode, body)
			require.Equal(t, "d0 after none", body)
		}
	})
}

func TestPairs_MemoryForBodiesIsLimited(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := startPairs(t, "nixl", func(c *gateway.Config) { c.PairMemory = 64 << 20 })
		r.app.Policy = &gatewayv1.RoutePolicy{QueueWait: durationpb.New(200 * time.Millisecond)}
		r.app.Generation++
		r.put(t, r.app)
		large := `{"stream":true,"prompt":"` + strings.Repeat("x", 7<<20) + `"}`
		for _, s := range r.p {
			s.setFault("hang")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first := r.request(t, http.MethodPost, "/v1/completions", large).WithContext(ctx)
		ended := make(chan error, 1)
		go func() {
			_, err := r.client.Do(first)
			ended <- err
		}()
		held := func(n float64) {
			t.Helper()
			require.Eventually(t, func() bool { return r.gauge(t, "windlass_gateway_pair_memory_bytes") == n }, patience, time.Millisecond)
		}
		held(4 * float64(len(large)))
		res, body := r.complete(t, large)
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode, body)
		require.Equal(t, "pair_memory", res.Header.Get("Windlass-Error"))
		require.Equal(t, "1", res.Header.Get("Retry-After"))
		require.Contains(t, body, "--max-pair-mib")
		require.InDelta(t, 1, r.gauge(t, "windlass_gateway_pair_memory_waits_total"), 0)
		cancel()
		require.Error(t, <-ended)
		held(0)

		// The memory is free once the answer begins.
		for _, s := range r.p {
			s.setFault("")
		}
		for _, s := range r.d {
			s.setFault("stall")
		}
		res, err := r.client.Do(r.request(t, http.MethodPost, "/v1/completions", large))
		require.NoError(t, err)
		held(0)
		for _, s := range r.d {
			s.setFault("")
		}
		chunked := r.request(t, http.MethodPost, "/v1/completions", "")
		chunked.Body, chunked.ContentLength = io.NopCloser(strings.NewReader(large)), -1
		other, body := r.do(t, chunked)
		require.Equal(t, http.StatusOK, other.StatusCode, body)
		held(0)
		require.NoError(t, res.Body.Close())
	})
}
