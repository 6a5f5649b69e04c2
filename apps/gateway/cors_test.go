package gateway_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// set adds header lines to a request. Each line is "Name: value".
func set(req *http.Request, lines ...string) *http.Request {
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Add(name, value)
	}
	return req
}

// corsOf returns the CORS headers of an answer.
func corsOf(res *http.Response) http.Header {
	out := http.Header{}
	for name, values := range res.Header {
		if strings.HasPrefix(name, "Access-Control-") {
			out[name] = values
		}
	}
	return out
}

func withCors(app *gatewayv1.AppRoutes, c *gatewayv1.Cors) *gatewayv1.AppRoutes {
	app = proto.CloneOf(app)
	app.Generation++
	app.Policy.Cors = c
	return app
}

func TestCORS_IsAnsweredByTheGateway(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		var asked atomic.Int64
		app := echo(instance(t, func(w http.ResponseWriter, req *http.Request) {
			asked.Add(1)
			w.Header().Set("Access-Control-Allow-Origin", "https://of-the-instance.test")
			w.Header().Set("Access-Control-Allow-Methods", "TRACE")
			w.Header().Set("Vary", "Accept-Encoding")
			if req.URL.Path == "/hints" {
				w.Header().Set("Link", "</style.css>")
				w.WriteHeader(http.StatusEarlyHints)
			}
			w.WriteHeader(http.StatusTeapot)
		}))
		r.put(t, app)
		res, _ := r.do(t, set(r.request(t, http.MethodOptions, "/", ""), "Origin: https://chat.test", "Access-Control-Request-Method: PUT"))
		require.Equal(t, http.StatusTeapot, res.StatusCode, "without a policy the instance answers")
		require.Equal(t, "https://of-the-instance.test", res.Header.Get("Access-Control-Allow-Origin"))

		r.put(t, withCors(app, &gatewayv1.Cors{
			AllowedOrigins: []string{"https://chat.test", "https://*.example.com"}, AllowedMethods: []string{"GET", "PUT"},
			AllowedHeaders: []string{"Content-Type", "X-Key"}, ExposedHeaders: []string{"X-Tokens"}, Credentials: true, MaxAge: durationpb.New(10 * time.Minute),
		}))
		before := asked.Load()
		for _, origin := range []string{"https://chat.test", "https://a.example.com", "https://a.b.example.com"} {
			res, body := r.do(t, set(r.request(t, http.MethodOptions, "/v1/chat", ""), "Origin: "+origin,
				"Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: content-type,x-key"))
			require.Equal(t, http.StatusNoContent, res.StatusCode)
			require.Empty(t, body)
			require.Equal(t, http.Header{
				"Access-Control-Allow-Origin": {origin}, "Access-Control-Allow-Methods": {"PUT"}, "Access-Control-Allow-Headers": {"content-type,x-key"},
				"Access-Control-Allow-Credentials": {"true"}, "Access-Control-Max-Age": {"600"},
			}, corsOf(res))
			require.Contains(t, res.Header.Get("Vary"), "Origin")
		}
		for what, lines := range map[string][]string{
			"another origin":          {"Origin: https://evil.test", "Access-Control-Request-Method: PUT"},
			"the domain itself":       {"Origin: https://example.com", "Access-Control-Request-Method: PUT"},
			"another scheme":          {"Origin: http://chat.test", "Access-Control-Request-Method: PUT"},
			"another port":            {"Origin: https://chat.test:8443", "Access-Control-Request-Method: PUT"},
			"an end that looks right": {"Origin: https://evil.test#.example.com", "Access-Control-Request-Method: PUT"},
			"a user":                  {"Origin: https://evil.test:x@.example.com", "Access-Control-Request-Method: PUT"},
			"a path":                  {"Origin: https://evil.test/.example.com", "Access-Control-Request-Method: PUT"},
			"an empty label":          {"Origin: https://.example.com", "Access-Control-Request-Method: PUT"},
			"null":                    {"Origin: null", "Access-Control-Request-Method: PUT"},
			"two origins":             {"Origin: https://chat.test", "Origin: https://evil.test", "Access-Control-Request-Method: PUT"},
			"a list of origins":       {"Origin: https://chat.test, https://evil.test", "Access-Control-Request-Method: PUT"},
			"another method":          {"Origin: https://chat.test", "Access-Control-Request-Method: DELETE"},
			"no method at all":        {"Origin: https://chat.test", "Access-Control-Request-Method: \"PUT\" \\ \xff"},
			"another header":          {"Origin: https://chat.test", "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: x-key,x-other"},
			"no list of headers":      {"Origin: https://chat.test", "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: x-key;<script>"},
			"an endless list":         {"Origin: https://chat.test", "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: " + strings.Repeat("x-key,", 2000)},
			"noise":                   {"Origin: \x80\xfe", "Access-Control-Request-Method: PUT"},
		} {
			res, body := r.do(t, set(r.request(t, http.MethodOptions, "/v1/chat", ""), lines...))
			require.Equal(t, http.StatusNoContent, res.StatusCode, what)
			require.Empty(t, body, what)
			require.Empty(t, corsOf(res), what)
			require.Contains(t, res.Header.Get("Vary"), "Origin", what)
		}
		require.Equal(t, before, asked.Load(), "preflights do not reach the instance")

		for _, path := range []string{"/", "/hints"} {
			res, _ = r.do(t, set(r.request(t, http.MethodPut, path, "{}"), "Origin: https://chat.test"))
			require.Equal(t, http.StatusTeapot, res.StatusCode)
			require.Equal(t, http.Header{
				"Access-Control-Allow-Origin": {"https://chat.test"}, "Access-Control-Allow-Credentials": {"true"}, "Access-Control-Expose-Headers": {"X-Tokens"},
			}, corsOf(res), path)
			require.ElementsMatch(t, []string{"Origin", "Accept-Encoding"}, res.Header.Values("Vary"), path)
		}
		for _, lines := range [][]string{nil, {"Origin: https://evil.test"}, {"Origin: null"}} {
			res, _ = r.do(t, set(r.request(t, http.MethodPut, "/", "{}"), lines...))
			require.Equal(t, http.StatusTeapot, res.StatusCode, "the gateway does not refuse the request; browsers do")
			require.Empty(t, corsOf(res))
			require.Contains(t, res.Header.Values("Vary"), "Origin")
		}
		// The instance answers requests that are not preflights, also with the method OPTIONS.
		for _, lines := range [][]string{{"Origin: https://chat.test"}, {"Access-Control-Request-Method: PUT"}, nil} {
			res, _ = r.do(t, set(r.request(t, http.MethodOptions, "/", ""), lines...))
			require.Equal(t, http.StatusTeapot, res.StatusCode, lines)
		}
		res, _ = r.do(t, set(r.request(t, http.MethodGet, "/", ""), "Origin: https://chat.test", "Access-Control-Request-Method: PUT"))
		require.Equal(t, http.StatusTeapot, res.StatusCode)

		r.put(t, app)
		res, _ = r.do(t, set(r.request(t, http.MethodGet, "/", ""), "Origin: https://chat.test"))
		require.Equal(t, "https://of-the-instance.test", res.Header.Get("Access-Control-Allow-Origin"), "the policy was removed")
	})
}

func TestCORS_RefusalsAreReadableFromEveryOrigin(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		app := withCors(echo(instance(t, named("one"))), &gatewayv1.Cors{AllowedOrigins: []string{"*"}, AllowedHeaders: []string{"*"}})
		app.Policy.MaxBodyBytes = proto.Int64(10)
		r.put(t, app)
		res, _ := r.do(t, set(r.request(t, http.MethodPost, "/", strings.Repeat("x", 11)), "Origin: https://any.test"))
		require.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode)
		require.Equal(t, http.Header{"Access-Control-Allow-Origin": {"*"}}, corsOf(res))
		res, body := r.do(t, set(r.request(t, http.MethodPost, "/", "x"), "Origin: null"))
		require.Equal(t, "one", body)
		require.Equal(t, http.Header{"Access-Control-Allow-Origin": {"*"}}, corsOf(res))
		res, _ = r.do(t, set(r.request(t, http.MethodOptions, "/", ""), "Origin: https://any.test", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: anything"))
		require.Equal(t, http.StatusNoContent, res.StatusCode)
		require.Equal(t, http.Header{
			"Access-Control-Allow-Origin": {"*"}, "Access-Control-Allow-Methods": {"POST"}, "Access-Control-Allow-Headers": {"anything"},
		}, corsOf(res))
		other := set(r.request(t, http.MethodOptions, "/", ""), "Origin: https://any.test", "Access-Control-Request-Method: POST")
		other.Host = "unknown.local"
		res, _ = r.do(t, other)
		require.Equal(t, http.StatusNotFound, res.StatusCode, "a host without a route has no policy")
		require.Empty(t, corsOf(res))
	})
}
