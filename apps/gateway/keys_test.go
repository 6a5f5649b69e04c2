package gateway_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// keyed is echo for an app that requires a key and has these keys.
func keyed(address string, keys ...*gatewayv1.ApiKey) *gatewayv1.AppRoutes {
	app := echo(address)
	app.Policy.RequireApiKey, app.ApiKeys = true, keys
	return app
}

func apiKey(name, value string, expires time.Time) *gatewayv1.ApiKey {
	sum := sha256.Sum256([]byte(value))
	k := &gatewayv1.ApiKey{Name: name, Hash: sum[:]}
	if !expires.IsZero() {
		k.ExpiresAt = expires.UnixMilli()
	}
	return k
}

// If the app requires a key, only requests with one of the app's keys reach an instance. The instance does not get
// the key.
func TestKey_IsRequired(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		var access bytes.Buffer
		r := start(t, func(c *gateway.Config) { c.Access = slog.New(slog.NewJSONHandler(&access, nil)) })
		at := instance(t, func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.WriteString(w, "got "+q.Header.Get("Authorization")+"|"+q.Header.Get("X-Api-Key"))
		})
		soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Second)
		good := apiKey("mobile", "k-good", time.Time{})
		r.put(t, keyed(at, good, apiKey("batch", "k-soon", soon), apiKey("old", "k-past", past)))
		ask := func(header ...string) string {
			t.Helper()
			req := r.request(t, http.MethodPost, "/", "hello")
			for i := 0; i < len(header); i += 2 {
				req.Header.Add(header[i], header[i+1])
			}
			res, body := r.do(t, req)
			if code := res.Header.Get("Windlass-Error"); code != "" {
				require.Equal(t, []string{"Bearer"}, res.Header["Www-Authenticate"])
				require.Contains(t, body, "ERROR_REASON_UNAUTHENTICATED")
				return res.Status[:3] + " " + code
			}
			return body
		}
		const refused = "401 api_key"
		for _, c := range []struct {
			header []string
			want   string
		}{
			{nil, refused},
			{[]string{"Authorization", "Bearer k-good"}, "got |"},
			{[]string{"Authorization", "bearer  k-good "}, "got |"},
			{[]string{"X-Api-Key", "k-good"}, "got |"},
			{[]string{"Authorization", "Basic mine", "X-Api-Key", "k-good"}, "got Basic mine|"},
			{[]string{"Authorization", "Bearer k-good", "X-Api-Key", "mine"}, "got |mine"},
			{[]string{"Authorization", "Bearer k-soon"}, "got |"},
			{[]string{"Authorization", "Bearer k-past"}, refused},
			{[]string{"Authorization", "Bearer k-other"}, refused},
			{[]string{"Authorization", "Bearer"}, refused},
			{[]string{"Authorization", "Bearer "}, refused},
			{[]string{"Authorization", "k-good"}, refused},
			{[]string{"Authorization", "Bearer k-good", "Authorization", "Bearer k-good"}, refused},
			{[]string{"X_Api_Key", "k-good"}, refused},
			{[]string{"X-Api-Key", hex.EncodeToString(good.Hash)}, refused},
		} {
			require.Equal(t, c.want, ask(c.header...), "%v", c.header)
		}
		require.Contains(t, access.String(), `"api_key":"mobile"`)
		require.Contains(t, access.String(), `"api_key":"batch"`)
		require.NotContains(t, access.String(), "k-good")
		require.Equal(t, refused, ask(), "a refused request whose body is not read does not affect the next request")

		// A browser's preflight needs no key.
		app := keyed(at, good)
		app.Policy.Cors = &gatewayv1.Cors{AllowedOrigins: []string{"https://page.test"}}
		r.put(t, app)
		preflight := r.request(t, http.MethodOptions, "/", "")
		preflight.Header.Set("Origin", "https://page.test")
		preflight.Header.Set("Access-Control-Request-Method", "POST")
		res, _ := r.do(t, preflight)
		require.Equal(t, http.StatusNoContent, res.StatusCode)
		require.Equal(t, refused, ask("Origin", "https://page.test"))

		// A key ends with the message that does not contain it. If the app has no keys, all requests are refused.
		r.put(t, keyed(at, apiKey("mobile", "k-new", time.Time{})))
		require.Equal(t, []string{refused, "got |"}, []string{ask("X-Api-Key", "k-good"), ask("X-Api-Key", "k-new")})
		r.put(t, keyed(at))
		require.Equal(t, refused, ask("X-Api-Key", "k-new"))

		// Only the preview host of one version may need a key.
		app = echo(at)
		app.Hosts, app.Previews = []string{"other.local"}, []*gatewayv1.Preview{{Host: "echo.local", DeploymentId: "dep_1", RequireApiKey: true}}
		app.ApiKeys = []*gatewayv1.ApiKey{good}
		r.put(t, app)
		require.Equal(t, []string{refused, "got |"}, []string{ask(), ask("X-Api-Key", "k-good")})
		r.put(t, echo(at))
		require.Equal(t, "got Bearer mine|", ask("Authorization", "Bearer mine"), "without a required key, the field is passed on")

		// Routes with an invalid hash are not served. The earlier routes are.
		bad := keyed(at, &gatewayv1.ApiKey{Name: "short", Hash: []byte("x")})
		r.set(bad)
		require.Equal(t, "got |", ask())
	})
}

// A gateway that hands a request over sends the request's key with it.
func TestKey_GoesToTheOtherRegion(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		here, there := start(t, nil), start(t, nil)
		good := apiKey("mobile", "k-good", time.Time{})
		route := func(address string) *gatewayv1.AppRoutes {
			app := keyed(address, good)
			app.Policy.CrossRegion, app.Policy.QueueSize = failover, new(int32(0))
			return app
		}
		there.put(t, route(instance(t, func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.WriteString(w, "got "+q.Header.Get("Authorization"))
		})))
		app := route("127.0.0.1:1")
		app.Targets[0].Instances = nil
		here.put(t, app)
		here.around(t, "there", there.url)
		req := here.request(t, http.MethodPost, "/", strings.Repeat("x", 10))
		req.Header.Set("Authorization", "Bearer k-good")
		res, body := here.do(t, req)
		require.Equal(t, "200 OK there got ", res.Status+" "+res.Header.Get("Windlass-Region")+" "+body)
		require.Equal(t, "401  api_key", here.get(t, http.MethodPost, "x"))
	})
}
