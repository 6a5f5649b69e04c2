package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/windlass/internal/clientconfig"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// memberServer is a control plane at which a service signs in. It accepts only the newest token.
type memberServer struct {
	*httptest.Server
	token   string
	renewed int
	ended   bool
}

func newMemberServer(t *testing.T) *memberServer {
	t.Helper()
	s := &memberServer{}
	answer := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bearer := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case r.URL.Path == "/ui/sso/federated":
			in := map[string]string{}
			_ = json.NewDecoder(r.Body).Decode(&in)
			if in["token"] != "a.b.c" {
				w.WriteHeader(http.StatusUnauthorized)
				answer(w, map[string]string{"code": "unauthenticated", "message": "the token is not valid"})
				return
			}
			s.token = "wlt_first"
			answer(w, map[string]any{"token": s.token, "expiresInMs": 3_600_000, "renewAfterMs": 1_800_000})
		case bearer != s.token:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			answer(w, map[string]string{"code": "unauthenticated", "message": "the session has ended"})
		case r.URL.Path == "/ui/sso/renew":
			s.renewed++
			s.token = "wlt_second"
			answer(w, map[string]any{"token": s.token, "expiresInMs": 3_600_000, "renewAfterMs": 1_800_000})
		case r.URL.Path == "/ui/sso/sign-out":
			s.ended = true
			answer(w, struct{}{})
		default:
			data, err := proto.Marshal(&windlassv1.WhoAmIResponse{
				Key: &windlassv1.ApiKey{Name: "ci@example", Role: windlassv1.Role_ROLE_DEPLOYER}, WorkspaceName: "acme",
				Member: &windlassv1.Member{Name: "ci@example", Service: true},
			})
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/proto")
			_, _ = w.Write(data)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestLogin_FederatedTokenIsTradedRenewedAndEnded(t *testing.T) {
	s := newMemberServer(t)
	dir := t.TempDir()
	config, file := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "token")
	env := map[string]string{}
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		root := New(Config{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, IsTerminal: func(io.Writer) bool { return false },
			Getenv: func(name string) string { return env[name] }, HTTPClient: s.Client(),
		})
		root.SetArgs(append(args, "--config", config))
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	stored := func() clientconfig.Context {
		f, err := clientconfig.Load(config)
		require.NoError(t, err)
		c, ok := f.Get("default")
		require.True(t, ok)
		return c
	}
	require.NoError(t, os.WriteFile(file, []byte("x.y.z\n"), 0o600))
	_, err := run("login", "--server", s.URL, "--federated-token-file", file)
	require.ErrorContains(t, err, "the token is not valid")
	require.NoError(t, os.WriteFile(file, []byte("a.b.c\n"), 0o600))
	_, err = run("login", "--server", s.URL, "--federated-token-file", file)
	require.NoError(t, err)
	require.Equal(t, "wlt_first", stored().APIKey)

	out, err := run("whoami")
	require.NoError(t, err)
	require.Contains(t, out, "service")
	require.Zero(t, s.renewed, "it is not time yet")
	require.NoError(t, clientconfig.Update(t.Context(), config, func(f *clientconfig.File) error {
		c, _ := f.Get("default")
		c.RenewAt = 1
		f.Put(c)
		return nil
	}))
	_, err = run("whoami")
	require.NoError(t, err)
	require.Equal(t, "wlt_second", stored().APIKey)
	require.Greater(t, stored().RenewAt, time.Now().UnixMilli())

	env[clientconfig.EnvAPIKey] = "wl_other"
	_, err = run("whoami")
	require.ErrorContains(t, err, "the session has ended", "a key of the environment is not renewed")
	require.Equal(t, 1, s.renewed)
	delete(env, clientconfig.EnvAPIKey)

	_, err = run("logout")
	require.NoError(t, err)
	require.True(t, s.ended)
	_, err = run("whoami")
	require.ErrorIs(t, err, clientconfig.ErrNoContext)

	env[clientconfig.EnvFederatedToken] = "a.b.c"
	_, err = run("login", "--server", s.URL)
	require.NoError(t, err)
	require.NoError(t, clientconfig.Update(t.Context(), config, func(f *clientconfig.File) error {
		c, _ := f.Get("default")
		c.RenewAt, c.ExpiresAt = 1, 2
		f.Put(c)
		return nil
	}))
	_, err = run("whoami")
	require.ErrorContains(t, err, "has expired: run `windlass login` again")
}

func TestLogin_FlagsThatDoNotGoTogether(t *testing.T) {
	for want, f := range map[string]ssoFlags{
		"use one of the two":   {sso: true, tokenFile: "x"},
		"--device needs --sso": {device: true},
	} {
		require.ErrorContains(t, f.checkTogether(), want)
	}
}
