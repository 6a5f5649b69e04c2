package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/guard"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// browser is a page of the dashboard. It has a cookie, and no API key.
type browser struct {
	w       *harness
	cookies map[string]string
	// headers are sent with each request, as by the dashboard.
	headers map[string]string
}

func (h *harness) browser() *browser {
	return &browser{w: h, cookies: map[string]string{}, headers: map[string]string{"Windlass-Dashboard": "1", "Sec-Fetch-Site": "same-origin"}}
}

// RoundTrip adds headers and cookies to the request, and stores the cookies of the response.
func (b *browser) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range b.headers {
		r.Header.Set(name, value)
	}
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	for _, c := range res.Cookies() {
		if c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		} else {
			b.cookies[c.Name] = c.Value
		}
	}
	return res, nil
}

// post returns the status, the body and the cookies that were set.
func (b *browser) post(path, body string) (int, string, []*http.Cookie) {
	b.w.t.Helper()
	req, err := http.NewRequestWithContext(b.w.t.Context(), http.MethodPost, b.w.url+path, strings.NewReader(body))
	require.NoError(b.w.t, err)
	res, err := (&http.Client{Transport: b}).Do(req)
	require.NoError(b.w.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(b.w.t, err)
	return res.StatusCode, string(text), res.Cookies()
}

func (b *browser) signIn(key string) *browser {
	b.w.t.Helper()
	status, body, _ := b.post("/ui/session/sign-in", `{"key": "`+key+`"}`)
	require.Equal(b.w.t, http.StatusOK, status, body)
	return b
}

func (b *browser) whoAmI() (*windlassv1.WhoAmIResponse, error) {
	return windlassv1connect.NewAccessServiceClient(&http.Client{Transport: b}, b.w.url).WhoAmI(b.w.t.Context(), &windlassv1.WhoAmIRequest{})
}

func (b *browser) requireOut() {
	b.w.t.Helper()
	_, err := b.whoAmI()
	require.Equal(b.w.t, connect.CodeUnauthenticated, connect.CodeOf(err), "%v", err)
}

// copied returns another browser with a copy of the cookie, like an attacker.
func (b *browser) copied() *browser {
	c := b.w.browser()
	maps.Copy(c.cookies, b.cookies)
	return c
}

func TestSession_HasTheRightsOfItsKeyButNotTheKey(t *testing.T) {
	w := setup(t)
	b := w.browser()
	status, body, cookies := b.post("/ui/session/sign-in", `{"key": "`+w.viewer+`"}`)
	require.Equal(t, http.StatusOK, status)
	require.NotContains(t, body, w.viewer)
	require.Len(t, cookies, 1)
	c := cookies[0]
	require.Equal(t, "windlass_session", c.Name)
	require.True(t, c.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, c.SameSite)
	require.Equal(t, "/", c.Path)
	require.False(t, c.Secure, "there is no TLS")
	require.WithinDuration(t, time.Now().Add(12*time.Hour), c.Expires, time.Minute)
	require.NotContains(t, c.Value, w.viewer)

	who, err := b.whoAmI()
	require.NoError(t, err)
	require.Equal(t, windlassv1.Role_ROLE_VIEWER, who.GetKey().GetRole())
	require.Equal(t, "acme", who.GetWorkspaceName())

	// The audit names the key for calls of its session.
	owner := w.browser().signIn(w.owner)
	_, err = windlassv1connect.NewProjectServiceClient(&http.Client{Transport: owner}, w.url).CreateProject(t.Context(), &windlassv1.CreateProjectRequest{Name: "made-by-page"})
	require.NoError(t, err)
	audit, err := w.history(w.owner).ListAudit(t.Context(), &windlassv1.ListAuditRequest{})
	require.NoError(t, err)
	found := map[string]string{}
	for _, e := range audit.GetEntries() {
		if found[e.GetProcedure()] == "" { // the newest comes first
			found[e.GetProcedure()] = e.GetActor()
		}
	}
	me, err := owner.whoAmI()
	require.NoError(t, err)
	require.Equal(t, me.GetKey().GetName(), found["/ui/session/sign-in"])
	require.Equal(t, me.GetKey().GetName(), found[windlassv1connect.ProjectServiceCreateProjectProcedure])
}

func TestSession_OfAViewerCannotMutate(t *testing.T) {
	w := setup(t)
	w.deploy("chat")
	b := w.browser().signIn(w.viewer)
	for procedure, role := range api.Mutations() {
		require.Greater(t, role, windlassv1.Role_ROLE_VIEWER, procedure)
		for _, kind := range []string{"application/json", "application/proto"} {
			b.headers["Content-Type"] = kind
			status, body, _ := b.post(procedure, "{}")
			require.Equal(t, http.StatusForbidden, status, "%s as %s: %s", procedure, kind, body)
		}
		// A GET request, whose message is in the URL.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+procedure+"?encoding=json&message=%7B%7D&connect=v1", http.NoBody)
		require.NoError(t, err)
		res, err := (&http.Client{Transport: b}).Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.GreaterOrEqual(t, res.StatusCode, 400, procedure)
	}
	delete(b.headers, "Content-Type")
	status, _, _ := b.post("/ui/link", "")
	require.Equal(t, http.StatusUnauthorized, status, "a session makes no links")
}

func TestCookie_IsOnlyValidForRequestsOfTheDashboard(t *testing.T) {
	w := setup(t)
	for name, change := range map[string]func(*browser){
		"another site":                   func(b *browser) { b.headers["Sec-Fetch-Site"] = "cross-site" },
		"another port of the same host":  func(b *browser) { b.headers["Sec-Fetch-Site"] = "same-site" },
		"the address bar":                func(b *browser) { b.headers["Sec-Fetch-Site"] = "none" },
		"an old browser, another origin": func(b *browser) { delete(b.headers, "Sec-Fetch-Site"); b.headers["Origin"] = "https://evil.example" },
		"a form":                         func(b *browser) { delete(b.headers, "Windlass-Dashboard") },
	} {
		b := w.browser().signIn(w.owner)
		change(b)
		_, err := b.whoAmI()
		require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(err), name)
		for _, path := range []string{"/ui/session/renew", "/ui/session/sign-out", "/ui/session/sign-in"} {
			status, _, cookies := b.post(path, `{"key": "`+w.owner+`"}`)
			require.Equal(t, http.StatusForbidden, status, "%s: %s", name, path)
			require.Empty(t, cookies)
		}
	}
	b := w.browser().signIn(w.owner)
	delete(b.headers, "Sec-Fetch-Site")
	b.headers["Origin"] = w.url
	_, err := b.whoAmI()
	require.NoError(t, err, "an old browser, its own origin")
}

func TestSignOut_EndsTheSessionForCopiesOfTheCookie(t *testing.T) {
	w := setup(t)
	b, other := w.browser().signIn(w.viewer), w.browser().signIn(w.viewer)
	stranger := w.browser().signIn(w.owner)
	thief := b.copied()
	status, _, _ := b.post("/ui/session/sign-out", "")
	require.Equal(t, http.StatusOK, status)
	require.Empty(t, b.cookies)
	thief.requireOut()
	_, err := other.whoAmI()
	require.NoError(t, err)

	b.signIn(w.viewer)
	status, _, _ = b.post("/ui/session/sign-out-everywhere", "")
	require.Equal(t, http.StatusOK, status)
	other.requireOut()
	_, err = stranger.whoAmI()
	require.NoError(t, err, "another key's session stays")
	status, _, _ = b.post("/ui/session/sign-out", "")
	require.Equal(t, http.StatusOK, status, "signing out again")
}

func TestSession_EndsWithItsRevokedKeyAndSoDoStreams(t *testing.T) {
	w := setup(t, func(c *api.Config) { c.KeyCacheTTL = 50 * time.Millisecond })
	made, err := w.access(w.owner).CreateApiKey(t.Context(), &windlassv1.CreateApiKeyRequest{Name: "short", Role: windlassv1.Role_ROLE_VIEWER})
	require.NoError(t, err)
	b := w.browser().signIn(made.GetValue())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := windlassv1connect.NewFleetServiceClient(&http.Client{Transport: b}, w.url).WatchFleet(ctx, &windlassv1.WatchFleetRequest{})
	require.NoError(t, err)
	require.True(t, stream.Receive(), "%v", stream.Err())

	_, err = w.access(w.owner).RevokeApiKey(t.Context(), &windlassv1.RevokeApiKeyRequest{Key: "short"})
	require.NoError(t, err)
	b.requireOut()
	for stream.Receive() {
	}
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(stream.Err()))
	status, _, _ := b.post("/ui/session/renew", "")
	require.Equal(t, http.StatusUnauthorized, status)
}

func TestSignOut_EndsOpenStreams(t *testing.T) {
	w := setup(t, func(c *api.Config) { c.KeyCacheTTL = 50 * time.Millisecond })
	b := w.browser().signIn(w.viewer)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := windlassv1connect.NewFleetServiceClient(&http.Client{Transport: b}, w.url).WatchFleet(ctx, &windlassv1.WatchFleetRequest{})
	require.NoError(t, err)
	require.True(t, stream.Receive(), "%v", stream.Err())
	// A renewal does not end streams.
	status, _, _ := b.post("/ui/session/renew", "")
	require.Equal(t, http.StatusOK, status)
	status, _, _ = b.post("/ui/session/sign-out", "")
	require.Equal(t, http.StatusOK, status)
	for stream.Receive() {
	}
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(stream.Err()))
}

func TestSession_RenewalEndsTheOldValueSoon(t *testing.T) {
	w := setup(t)
	b := w.browser().signIn(w.viewer)
	old := b.copied()
	status, body, _ := b.post("/ui/session/renew", "")
	require.Equal(t, http.StatusOK, status)
	var answer struct{ ExpiresInMs, RenewAfterMs int64 }
	require.NoError(t, json.Unmarshal([]byte(body), &answer))
	require.Greater(t, answer.ExpiresInMs, 11*time.Hour.Milliseconds())
	require.Equal(t, time.Hour.Milliseconds(), answer.RenewAfterMs)
	require.NotEqual(t, old.cookies, b.cookies)
	_, err := old.whoAmI()
	require.NoError(t, err, "for running calls")
	var row model.BrowserSession
	require.NoError(t, w.store.View(t.Context(), func(tx store.Tx) (err error) {
		row, err = tx.GetBrowserSession(model.HashToken(old.cookies["windlass_session"]))
		return err
	}))
	require.LessOrEqual(t, row.ExpiresAt, time.Now().Add(time.Minute).UnixMilli())
	status, _, cookies := old.post("/ui/session/renew", "")
	require.Equal(t, http.StatusOK, status)
	require.Empty(t, cookies, "the old value cannot be renewed again")
	// Both values end with the session.
	status, _, _ = b.post("/ui/session/sign-out", "")
	require.Equal(t, http.StatusOK, status)
	old.requireOut()
}

func TestSession_OutlivesFailedLoginsAtItsAddress(t *testing.T) {
	w := setup(t, func(c *api.Config) { c.FailedLogins = admission.NewBuckets(admission.PerMinute(5)) })
	b, renewed := w.browser().signIn(w.viewer), w.browser().signIn(w.viewer)
	made := w.browser()
	made.cookies["windlass_session"] = "wls_" + strings.Repeat("x", 43)
	for range 5 {
		made.requireOut()
	}
	_, err := made.whoAmI()
	refused(t, err, connect.CodeResourceExhausted, rateLimited, "")
	_, err = b.whoAmI()
	require.NoError(t, err)
	status, body, _ := renewed.post("/ui/session/renew", "")
	require.Equal(t, http.StatusOK, status, body)
	_, err = renewed.whoAmI()
	require.NoError(t, err)

	old := b.copied()
	status, body, _ = b.post("/ui/session/sign-out", "")
	require.Equal(t, http.StatusOK, status, body)
	old.requireOut()
	_, err = old.whoAmI()
	refused(t, err, connect.CodeResourceExhausted, rateLimited, "")
}

func TestKey_NumberOfSessionsAndLinksIsLimited(t *testing.T) {
	w := setup(t)
	b := w.browser().signIn(w.viewer)
	who, err := b.whoAmI()
	require.NoError(t, err)
	w.update(func(tx store.Tx) error {
		for i := range 999 {
			id := fmt.Sprint("of a script ", i)
			if err := tx.InsertBrowserSession(model.BrowserSession{
				Hash: []byte(id), SessionID: id, KeyID: who.GetKey().GetId(), KeyHash: []byte{1}, ExpiresAt: time.Now().Add(time.Hour).UnixMilli(),
			}); err != nil {
				return err
			}
		}
		return nil
	})
	status, body, cookies := w.browser().post("/ui/session/sign-in", `{"key": "`+w.viewer+`"}`)
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Contains(t, body, "has 1000 sessions and links of browsers, which is the maximum")
	require.Empty(t, cookies)
	w.browser().signIn(w.owner) // another key

	status, body, _ = b.post("/ui/session/sign-out-everywhere", "")
	require.Equal(t, http.StatusOK, status, body)
	b.signIn(w.viewer)
}

func TestSession_EndsAfterItsMaximum(t *testing.T) {
	w := setup(t, func(c *api.Config) { c.SessionIdle, c.SessionMax = 300*time.Millisecond, 300*time.Millisecond })
	b := w.browser().signIn(w.viewer)
	require.Eventually(t, func() bool { _, err := b.whoAmI(); return err != nil }, time.Minute, 20*time.Millisecond)
	b.requireOut()
}

func TestLink_SignsInOnce(t *testing.T) {
	w := setup(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/ui/link", http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+w.deployer)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	var made struct{ Link string }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&made))
	require.True(t, strings.HasPrefix(made.Link, "wll_"))

	cookie := w.browser()
	cookie.cookies["windlass_session"] = made.Link
	cookie.requireOut() // a link's value is not a session's

	b := w.browser()
	status, body, _ := b.post("/ui/session/sign-in", `{"link": "`+made.Link+`"}`)
	require.Equal(t, http.StatusOK, status, body)
	who, err := b.whoAmI()
	require.NoError(t, err)
	require.Equal(t, windlassv1.Role_ROLE_DEPLOYER, who.GetKey().GetRole())
	for _, bad := range []string{made.Link, "wll_" + strings.Repeat("x", 43), "x", b.cookies["windlass_session"]} {
		status, body, cookies := w.browser().post("/ui/session/sign-in", `{"link": "`+bad+`"}`)
		require.Equal(t, http.StatusUnauthorized, status)
		require.Contains(t, body, "windlass dashboard")
		require.Empty(t, cookies)
	}
}

func TestSignIn_FailureSetsNoCookieAndSaysWhy(t *testing.T) {
	w := setup(t)
	for body, want := range map[string]int{
		"": http.StatusBadRequest, "{}": http.StatusBadRequest, `{"key":"a","link":"b"}`: http.StatusBadRequest, `"x"`: http.StatusBadRequest,
		`{"key":"` + strings.Repeat("x", 5000) + `"}`:         http.StatusBadRequest,
		`{"key":"wl_short"}`:                                  http.StatusUnauthorized,
		`{"key":"wl_` + strings.Repeat("x", 43) + `"}`:        http.StatusUnauthorized,
		`{"link":"wll_` + strings.Repeat("\\u0000", 4) + `"}`: http.StatusUnauthorized,
	} {
		status, text, cookies := w.browser().post("/ui/session/sign-in", body)
		require.Equal(t, want, status, "%.60s: %s", body, text)
		require.Empty(t, cookies)
		require.True(t, json.Valid([]byte(text)), text)
		require.Contains(t, text, "ErrorDetail")
	}
	for _, value := range []string{"", "x", "wls_" + strings.Repeat("x", 43), w.owner} {
		b := w.browser()
		b.cookies["windlass_session"] = value
		b.requireOut()
	}
}

func TestCookie_WithTLSIsSecureAndOfThisHost(t *testing.T) {
	loopback, err := guard.Parse([]string{"127.0.0.0/8"})
	require.NoError(t, err)
	w := setup(t, func(c *api.Config) { c.Proxies = loopback })
	b := w.browser()
	b.headers["X-Forwarded-Proto"] = "https"
	_, _, cookies := b.post("/ui/session/sign-in", `{"key": "`+w.viewer+`"}`)
	require.Len(t, cookies, 1)
	require.Equal(t, "__Host-windlass_session", cookies[0].Name)
	require.True(t, cookies[0].Secure)
	_, err = b.whoAmI()
	require.NoError(t, err)
	// A cookie without the prefix __Host- may come from a sibling domain, and is ignored.
	b.cookies = map[string]string{"windlass_session": b.cookies["__Host-windlass_session"]}
	b.requireOut()
}

func TestWatchFleet_SendsAllAppsFirstAndThenChanges(t *testing.T) {
	w := setup(t)
	for range 120 {
		w.deploy("app-" + strings.ToLower(strings.ReplaceAll(time.Now().Format("150405.000000000"), ".", "")))
	}
	b := w.browser().signIn(w.viewer)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := windlassv1connect.NewFleetServiceClient(&http.Client{Transport: b}, w.url).WatchFleet(ctx, &windlassv1.WatchFleetRequest{})
	require.NoError(t, err)
	apps, regions := map[string]*windlassv1.App{}, map[string]*windlassv1.Region{}
	receive := func() *windlassv1.WatchFleetResponse {
		require.True(t, stream.Receive(), "%v", stream.Err())
		m := stream.Msg()
		for _, a := range m.GetApps() {
			apps[a.GetId()] = a
		}
		for _, id := range m.GetRemovedApps() {
			delete(apps, id)
		}
		for _, r := range m.GetRegions() {
			regions[r.GetName()] = r
		}
		return m
	}
	first := receive()
	require.True(t, first.GetReset_())
	require.True(t, first.GetMore())
	for receive().GetMore() {
	}
	require.Len(t, apps, 120)
	require.Len(t, regions, 2)

	w.deploy("newest")
	for !strings.Contains(names(apps), " newest ") {
		m := receive()
		require.False(t, m.GetReset_())
		require.Less(t, len(m.GetApps()), 100, "only what changed")
	}
	w.lose("eu-west-1")
	for regions["eu-west-1"].GetStatus() != windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE {
		receive()
	}
	// The stream has no apps of another workspace.
	rival := w.browser().signIn(w.rival)
	other, err := windlassv1connect.NewFleetServiceClient(&http.Client{Transport: rival}, w.url).WatchFleet(ctx, &windlassv1.WatchFleetRequest{})
	require.NoError(t, err)
	require.True(t, other.Receive())
	require.Empty(t, other.Msg().GetApps())
	require.Empty(t, other.Msg().GetRegions(), protojson.Format(other.Msg()))
}

func names(apps map[string]*windlassv1.App) string {
	out := " "
	for _, a := range apps {
		out += a.GetName() + " "
	}
	return out
}
