package rollout_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/pkg/guard"
)

// local is a Registry for registries on this machine.
var local = rollout.Registry{Allow: guard.Networks{netip.MustParsePrefix("127.0.0.0/8")}}

// startRegistry starts a container registry that may answer with a status instead.
func startRegistry(t *testing.T) (host string, answer *atomic.Int64, noHead *atomic.Bool) {
	answer, noHead = &atomic.Int64{}, &atomic.Bool{}
	store := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case answer.Load() != 0 && strings.Contains(r.URL.Path, "/manifests/"):
			w.WriteHeader(int(answer.Load()))
		case noHead.Load() && r.Method == http.MethodHead:
			w.WriteHeader(http.StatusMethodNotAllowed)
		default:
			store.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), answer, noHead
}

func push(t *testing.T, image string) (digest string) {
	ref, err := name.ParseReference(image)
	require.NoError(t, err)
	img, err := random.Image(64, 1)
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, img))
	d, err := img.Digest()
	require.NoError(t, err)
	return d.String()
}

func TestImage_TagBecomesItsDigest(t *testing.T) {
	host, _, noHead := startRegistry(t)
	digest := push(t, host+"/team/echo:v1")
	for _, head := range []bool{true, false} {
		noHead.Store(!head)
		got, err := local.Resolve(context.Background(), host+"/team/echo:v1", nil)
		require.NoError(t, err)
		require.Equal(t, host+"/team/echo@"+digest, got)
	}
}

func TestRegistry_RefusalIsFinalAndOutageIsNot(t *testing.T) {
	host, answer, _ := startRegistry(t)
	push(t, host+"/echo:v1")
	final := func(image string) bool {
		_, err := local.Resolve(context.Background(), image, nil)
		require.Error(t, err)
		var f *rollout.FinalError
		return errors.As(err, &f)
	}
	require.True(t, final(host+"/echo:nosuch"), "manifest unknown")
	require.True(t, final("NOT A REFERENCE"))
	for status, want := range map[int]bool{401: true, 403: true, 404: true, 429: false, 500: false, 503: false} {
		answer.Store(int64(status))
		require.Equal(t, want, final(host+"/echo:v1"), "%d", status)
	}
	require.False(t, final("127.0.0.1:1/echo:v1"), "nothing listens")
}

func TestImage_PrivateUsesTheLoginOfItsRegistry(t *testing.T) {
	const user, password = "puller", "correct-horse"
	store := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)))
	var locked atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); locked.Load() && (u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	image := host + "/team/echo:v1"
	digest := push(t, image)
	locked.Store(true)
	login := func(place, password string) string {
		auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
		return fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, place, auth)
	}
	for name, c := range map[string]struct {
		logins []string
		fails  string
	}{
		"its host":                     {logins: []string{login(host, password)}},
		"its host as a URL":            {logins: []string{login("https://"+host+"/v1/", password)}},
		"its path":                     {logins: []string{login(host+"/team", password)}},
		"its path before its host":     {logins: []string{login(host, "wrong"), login(host+"/team", password)}},
		"another host, too":            {logins: []string{login("registry.example", "other"), login(host, password)}},
		"none":                         {fails: "a private image needs a secret with image_pull"},
		"another host":                 {logins: []string{login("registry.example", password)}, fails: "401"},
		"another path":                 {logins: []string{login(host+"/other", password)}, fails: "401"},
		"a path that begins like it":   {logins: []string{login(host+"/te", password)}, fails: "401"},
		"a path that ends like an API": {logins: []string{login(host+"/team/v1", password)}, fails: "401"},
		"its path of an API":           {logins: []string{login(host+"/v2/team", password)}},
		"a wrong password":             {logins: []string{login(host, "wrong")}, fails: "401"},
		"no configuration":             {logins: []string{password}, fails: "holds no Docker configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := local.Resolve(t.Context(), image, c.logins)
			if c.fails == "" {
				require.NoError(t, err)
				require.Equal(t, host+"/team/echo@"+digest, got)
				return
			}
			require.ErrorContains(t, err, c.fails)
			require.NotContains(t, err.Error(), password)
			_, final := errors.AsType[*rollout.FinalError](err)
			require.True(t, final)
		})
	}
}

func TestRegistry_ErrorHasItsCodeOnly(t *testing.T) {
	// inner is a service that only the control plane reaches.
	var calls atomic.Int64
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		http.Error(w, "internal-admin: token=TOPSECRET-42", http.StatusForbidden)
	}))
	t.Cleanup(inner.Close)
	address := strings.TrimPrefix(inner.URL, "http://")
	redirecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, inner.URL+"/latest/meta-data/iam", http.StatusFound)
	}))
	t.Cleanup(redirecting.Close)
	answering := func(body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v2/" {
				return
			}
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	public := rollout.Registry{}
	for name, c := range map[string]struct {
		by    rollout.Registry
		host  string
		says  string
		calls int64
		final bool
	}{
		"not allowed":           {by: public, host: address, says: "has an address that is not public", final: true},
		"not allowed by name":   {by: public, host: strings.Replace(address, "127.0.0.1", "localhost", 1), says: "has an address that is not public", final: true},
		"not allowed, closed":   {by: public, host: closed.Addr().String(), says: "has an address that is not public", final: true},
		"a body":                {by: local, host: address, says: "answered 403 Forbidden; a private image needs", calls: 2, final: true},
		"a redirect":            {by: local, host: strings.TrimPrefix(redirecting.URL, "http://"), says: "could not be reached"},
		"nothing listens":       {by: local, host: closed.Addr().String(), says: "could not be reached"},
		"a registry's code":     {by: local, host: answering(`{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "TOPSECRET-42"}]}`), says: "answered 404 Not Found (MANIFEST_UNKNOWN): check", final: true},
		"an invalid code":       {by: local, host: answering(`{"errors": [{"code": "TOPSECRET-42"}]}`), says: "answered 404 Not Found: check", final: true},
		"a code that is longer": {by: local, host: answering(`{"errors": [{"code": "` + strings.Repeat("TOPSECRET_", 9) + `"}]}`), says: "answered 404 Not Found: check", final: true},
	} {
		t.Run(name, func(t *testing.T) {
			calls.Store(0)
			_, err := c.by.Resolve(t.Context(), c.host+"/team/x:v1", nil)
			require.ErrorContains(t, err, "resolve "+c.host+"/team/x:v1: its registry "+c.says)
			require.NotContains(t, err.Error(), "TOPSECRET")
			require.NotContains(t, err.Error(), "refused")
			_, final := errors.AsType[*rollout.FinalError](err)
			require.Equal(t, c.final, final)
			require.Equal(t, c.calls, calls.Load(), "requests that reached the other service")
		})
	}
}

func TestRegistry_MayRedirectOnItsHost(t *testing.T) {
	store := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v2/alias/") {
			http.Redirect(w, r, strings.Replace(r.URL.Path, "/alias/", "/team/", 1), http.StatusTemporaryRedirect)
			return
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	digest := push(t, host+"/team/echo:v1")
	got, err := local.Resolve(t.Context(), host+"/alias/echo:v1", nil)
	require.NoError(t, err)
	require.Equal(t, host+"/alias/echo@"+digest, got)
}
