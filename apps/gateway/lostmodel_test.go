package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLostModel_IsFoundElsewhere checks both engines. A server may have lost a model that its route still names.
func TestLostModel_IsFoundElsewhere(t *testing.T) {
	type server struct {
		has   atomic.Bool
		calls atomic.Int32
	}
	bothEngines(t, func(t *testing.T) {
		setup := func(t *testing.T, closed ...string) (*harness, [3]*server) {
			r := start(t, nil)
			var servers [3]*server
			var at []string
			for i := range servers {
				s := &server{}
				s.has.Store(true)
				servers[i] = s
				at = append(at, instance(t, func(w http.ResponseWriter, q *http.Request) {
					s.calls.Add(1)
					body, _ := io.ReadAll(q.Body)
					if !s.has.Load() || q.URL.Path == "/v1/wrong" || strings.Contains(string(body), "none") {
						w.WriteHeader(http.StatusNotFound)
						_, _ = io.WriteString(w, `{"error": "the model is not loaded"}`)
						return
					}
					_, _ = w.Write(body)
				}))
			}
			app := echo(at...)
			app.ClosedPaths = closed
			r.put(t, app)
			return r, servers
		}
		all := func(servers [3]*server) (n int32) {
			for _, s := range servers {
				n += s.calls.Load()
			}
			return n
		}
		t.Run("a server without the model", func(t *testing.T) {
			r, servers := setup(t, "/v2/repository")
			servers[0].has.Store(false)
			for _, path := range []string{"/v2/models/fraud/infer", "/v1/completions"} {
				for range 30 {
					res, text := r.do(t, r.request(t, http.MethodPost, path, `{"model": "fraud"}`))
					require.Equal(t, http.StatusOK, res.StatusCode)
					require.JSONEq(t, `{"model": "fraud"}`, text)
				}
			}
			require.Positive(t, servers[0].calls.Load())
			require.Positive(t, r.series(t)["windlass_gateway_not_loaded_total app=echo,app_id=app_1,result=elsewhere"])
		})
		t.Run("only the last server has the model", func(t *testing.T) {
			r, servers := setup(t, "/v2/repository")
			servers[0].has.Store(false)
			servers[1].has.Store(false)
			for range 30 {
				res, _ := r.do(t, r.request(t, http.MethodPost, "/v2/models/fraud/infer", "{}"))
				require.Equal(t, http.StatusOK, res.StatusCode)
			}
		})
		t.Run("no server has the model, and few requests look elsewhere", func(t *testing.T) {
			r, servers := setup(t, "/v2/repository")
			for _, s := range servers {
				s.has.Store(false)
			}
			for range 50 {
				res, text := r.do(t, r.request(t, http.MethodPost, "/v2/models/fraud/infer", "{}"))
				require.Equal(t, http.StatusNotFound, res.StatusCode)
				require.Contains(t, text, "the model is not loaded", "the client gets the answer of a server")
			}
			require.Less(t, all(servers), int32(50+30), "one request a second looks elsewhere")
		})
		t.Run("requests that no server can answer do not stop others", func(t *testing.T) {
			r, servers := setup(t, "/v2/repository")
			servers[0].has.Store(false)
			for range 30 {
				for path, body := range map[string]string{"/v1/wrong": `{"model": "fraud"}`, "/v1/completions": `{"model": "none"}`, "/v2/models/none/infer": `{"id": "none"}`} {
					res, _ := r.do(t, r.request(t, http.MethodPost, path, body))
					require.Equal(t, http.StatusNotFound, res.StatusCode, path)
				}
				for _, path := range []string{"/v1/completions", "/v2/models/fraud/infer"} {
					res, _ := r.do(t, r.request(t, http.MethodPost, path, `{"model": "fraud"}`))
					require.Equal(t, http.StatusOK, res.StatusCode, path)
				}
			}
		})
		t.Run("other requests, and a body that is not kept", func(t *testing.T) {
			r, servers := setup(t, "/v2/repository")
			for _, s := range servers {
				s.has.Store(false)
			}
			r.do(t, r.request(t, http.MethodGet, "/v1/files/1", ""))
			require.EqualValues(t, 1, all(servers))
			r.do(t, r.request(t, http.MethodPost, "/v2/models/fraud/infer", strings.Repeat("x", 2<<20)))
			require.EqualValues(t, 2, all(servers))
		})
		t.Run("apps without models", func(t *testing.T) {
			r, servers := setup(t)
			servers[0].has.Store(false)
			servers[1].has.Store(false)
			servers[2].has.Store(false)
			r.do(t, r.request(t, http.MethodPost, "/v1/completions", "{}"))
			require.EqualValues(t, 1, all(servers))
		})
	})
}
