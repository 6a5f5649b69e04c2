package restate

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

// With identity keys, only calls that Restate signed run a step or get the list of handlers.
func TestDriver_RefusesCallsThatRestateDidNotSign(t *testing.T) {
	t.Parallel()
	private, err := restate.NewIdentity()
	require.NoError(t, err)
	public, err := restate.PublicIdentity(private)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		keys   []string
		status func(t *testing.T, path string, status int)
	}{
		"with keys": {[]string{public}, func(t *testing.T, path string, status int) {
			require.Equal(t, http.StatusUnauthorized, status, path)
		}},
		"without keys": {nil, func(t *testing.T, path string, status int) {
			require.NotEqual(t, http.StatusUnauthorized, status, path)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := New(Config{
				Ingress: []string{"http://127.0.0.1:8080"}, Admin: []string{"http://127.0.0.1:9070"}, Listen: "127.0.0.1:0", Log: testLog(t), IdentityKeys: c.keys,
				Step: func(context.Context, string) error { t.Error("a stranger ran a step"); return nil }, Lost: func(context.Context) error { return nil },
			})
			require.NoError(t, err)
			go func() { _ = d.server.Serve(d.listener) }()
			defer d.server.Close()
			base := "http://" + d.listener.Addr().String() + d.endpoint.Path
			for _, path := range []string{"/discover", "/invoke/" + d.cfg.Service + "/" + stepHandler, "/invoke/" + d.cfg.Service + "/" + timerHandler} {
				for _, signature := range []string{"", "unsigned", "v1"} {
					method := http.MethodPost
					if path == "/discover" {
						method = http.MethodGet
					}
					req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(""))
					require.NoError(t, err)
					req.Header.Set("Content-Type", "application/vnd.restate.invocation.v5")
					req.Header.Set("Accept", "application/vnd.restate.endpointmanifest.v3+json")
					if signature != "" {
						req.Header.Set("X-Restate-Signature-Scheme", signature)
						req.Header.Set("X-Restate-Jwt-V1", "eyJhbGciOiJub25lIn0.e30.")
					}
					res, err := http.DefaultClient.Do(req)
					require.NoError(t, err)
					require.NoError(t, res.Body.Close())
					c.status(t, path+" "+signature, res.StatusCode)
				}
			}
		})
	}
}
