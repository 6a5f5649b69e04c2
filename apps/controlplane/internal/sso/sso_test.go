package sso

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// issuerServer is an issuer whose discovery document a test chooses.
type issuerServer struct {
	*httptest.Server
	calls  atomic.Int32
	answer func(w http.ResponseWriter, r *http.Request)
}

func newIssuerServer(t *testing.T) *issuerServer {
	t.Helper()
	s := &issuerServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.calls.Add(1)
		s.answer(w, r)
	}))
	t.Cleanup(s.Close)
	s.answer = s.discovery
	return s
}

func (s *issuerServer) discovery(w http.ResponseWriter, _ *http.Request) {
	_ = json.NewEncoder(w).Encode(map[string]any{
		"issuer": s.URL, "authorization_endpoint": s.URL + "/auth", "token_endpoint": s.URL + "/token", "jwks_uri": s.URL + "/keys",
		"device_authorization_endpoint": s.URL + "/device", "id_token_signing_alg_values_supported": []string{"RS256"},
	})
}

func (s *issuerServer) service(t *testing.T, now func() time.Time) *Service {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("s3cret\n"), 0o600))
	service, err := New(Config{Issuer: s.URL, ClientID: "windlass", SecretFile: secret, Scopes: []string{"email", "openid"}, Now: now})
	require.NoError(t, err)
	return service
}

func TestDiscovery_IsCachedAndUsedWhileTheIssuerIsAway(t *testing.T) {
	s := newIssuerServer(t)
	now := time.Now()
	service := s.service(t, func() time.Time { return now })
	auth := func() error {
		_, err := service.AuthURL(t.Context(), "https://w.example/cb", "s", "n", "v")
		return err
	}
	s.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, strings.Repeat("x", 100_000))
	}
	err := auth()
	require.ErrorIs(t, err, ErrAway)
	require.Less(t, len(err.Error()), 1000, "the error is logged for each sign-in")
	require.ErrorIs(t, auth(), ErrAway)
	require.EqualValues(t, 1, s.calls.Load(), "a failure is cached, too")
	now = now.Add(failureFor)
	s.answer = s.discovery
	require.NoError(t, auth())
	require.NoError(t, auth())
	require.EqualValues(t, 2, s.calls.Load())
	now = now.Add(discoveryFor)
	s.answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }
	require.NoError(t, auth())
	require.EqualValues(t, 3, s.calls.Load())
}

func TestDiscovery_RefusesAnotherIssuerLoopsAndLargeAnswers(t *testing.T) {
	for name, answer := range map[string]func(s *issuerServer, w http.ResponseWriter, r *http.Request){
		"another issuer": func(_ *issuerServer, w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"issuer":"https://evil.example"}`)
		},
		"a loop": func(s *issuerServer, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, s.URL+"/again", http.StatusFound)
		},
		"a large answer": func(s *issuerServer, w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"issuer":%q,"x":%q}`, s.URL, strings.Repeat("x", maxAnswer))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newIssuerServer(t)
			s.answer = func(w http.ResponseWriter, r *http.Request) { answer(s, w, r) }
			_, err := s.service(t, nil).AuthURL(t.Context(), "https://w.example/cb", "s", "n", "v")
			require.ErrorIs(t, err, ErrAway)
			require.LessOrEqual(t, s.calls.Load(), int32(maxRedirects+1))
		})
	}
}

func TestExchange_SendsTheSecretOnceAndNeverToARedirect(t *testing.T) {
	s := newIssuerServer(t)
	var tokens, elsewhere atomic.Int32
	redirect := false
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/token":
			tokens.Add(1)
			user, password, _ := r.BasicAuth()
			if user != "windlass" || password != "s3cret" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if redirect {
				http.Redirect(w, r, s.URL+"/elsewhere", http.StatusTemporaryRedirect)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":"invalid_grant"}`)
		case "/elsewhere":
			elsewhere.Add(1)
		default:
			s.discovery(w, r)
		}
	}
	service := s.service(t, nil)
	_, err := service.Exchange(t.Context(), "https://w.example/cb", "code", "n", "v")
	require.ErrorIs(t, err, ErrCode)
	require.EqualValues(t, 1, tokens.Load(), "a code is sent once")
	redirect = true
	_, err = service.Exchange(t.Context(), "https://w.example/cb", "code", "n", "v")
	require.ErrorIs(t, err, ErrAway)
	require.Zero(t, elsewhere.Load())
}

func TestNew_RefusesWrongSettings(t *testing.T) {
	for want, cfg := range map[string]Config{
		"does not use https":          {Issuer: "http://id.example", ClientID: "x"},
		"not the URL of an issuer":    {Issuer: "https://id.example?x=y", ClientID: "x"},
		"needs --oidc-client-id":      {Issuer: "https://id.example"},
		"--federation-issuers: iss":   {FederationIssuers: []string{"http://ci.example"}, FederationAudience: "x"},
		"people sign in at":           {Issuer: "https://id.example", ClientID: "x", FederationIssuers: []string{"https://id.example"}, FederationAudience: "x"},
		"needs --federation-audience": {FederationIssuers: []string{"https://ci.example"}},
	} {
		_, err := New(cfg)
		require.ErrorContains(t, err, want)
	}
	service, err := New(Config{})
	require.NoError(t, err)
	_, err = service.StartDevice(t.Context())
	require.ErrorIs(t, err, ErrUnsupported)
}

func TestFlatten(t *testing.T) {
	got := flattenClaims(map[string]any{
		"iss": "x", "exp": 1.0, "groups": []any{"a", "b", map[string]any{"c": "d"}}, "admin": true, "n": 1234567.0, "none": nil,
		"realm_access": map[string]any{"roles": []any{"r"}}, "long": strings.Repeat("x", maxValue+1),
	})
	require.Equal(t, map[string][]string{"groups": {"a", "b"}, "admin": {"true"}, "n": {"1234567"}, "realm_access.roles": {"r"}}, got)
	many := make([]any, 2*maxClaims)
	for i := range many {
		many[i] = "g"
	}
	require.Len(t, flattenClaims(map[string]any{"groups": many})["groups"], maxClaims)
}

func TestIdentity_OmitsAnUnverifiedAddress(t *testing.T) {
	id, err := identityOf("i", "s", map[string][]string{"email": {"a@example.com"}, "email_verified": {"false"}}, false)
	require.NoError(t, err)
	require.Empty(t, id.Email)
	require.NotContains(t, id.Claims, "email")
	id, err = identityOf("i", "s", map[string][]string{"email": {"a@example.com"}, "email_verified": {"true"}}, false)
	require.NoError(t, err)
	require.Equal(t, "a@example.com", id.Email)
	_, err = identityOf("i", "", nil, false)
	require.ErrorIs(t, err, ErrToken)
}

func TestGroups_AreOnlyTheConfiguredClaim(t *testing.T) {
	claims := map[string][]string{"groups": {"of another meaning"}, "roles": {"ml"}}
	nameGroups(claims, "groups")
	require.Equal(t, []string{"of another meaning"}, claims["groups"])
	nameGroups(claims, "realm_access.roles")
	require.NotContains(t, claims, "groups")
	nameGroups(claims, "roles")
	require.Equal(t, []string{"ml"}, claims["groups"])
}

func TestVerify_ATokenCannotImitateAnIssuerThatIsAway(t *testing.T) {
	s := newIssuerServer(t)
	service, err := New(Config{FederationIssuers: []string{s.URL}, FederationAudience: "windlass"})
	require.NoError(t, err)
	part := func(v any) string {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	token := func(alg string) string {
		return part(map[string]string{"alg": alg, "kid": "x"}) + "." + part(map[string]string{"iss": s.URL, "aud": "windlass"}) + ".eA"
	}
	for _, alg := range []string{"none", "HS256", "failed to verify signature: fetching keys "} {
		_, err = service.VerifyFederated(t.Context(), token(alg))
		require.ErrorIs(t, err, ErrToken, alg)
	}
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		s.discovery(w, r)
	}
	_, err = service.VerifyFederated(t.Context(), token("RS256"))
	require.ErrorIs(t, err, ErrAway)
}
