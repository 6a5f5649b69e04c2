package api_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/golang-jwt/jwt/v5"
	"github.com/oauth2-proxy/mockoidc"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/sso"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// dashboardHost is the host of the only origin at which people can sign in.
const dashboardHost = "windlass.test"

// signOn is an API with an issuer for people, and another issuer for services.
type signOn struct {
	*harness
	people, ci *mockoidc.MockOIDC
	// forge replaces the ID token of the next answers of the issuer, unless it returns "".
	forge atomic.Pointer[func(claims jwt.MapClaims) jwt.MapClaims]
}

func runIssuer(t *testing.T) *mockoidc.MockOIDC {
	t.Helper()
	m, err := mockoidc.Run()
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Shutdown() }) // some tests stop it
	return m
}

func setupSignOn(t *testing.T, tweak ...func(*api.Config)) *signOn {
	t.Helper()
	return setupSignOnWith(t, newStore(t), tweak...)
}

func setupSignOnWith(t *testing.T, on store.Store, tweak ...func(*api.Config)) *signOn {
	t.Helper()
	s := &signOn{ci: runIssuer(t)}
	var err error
	s.people, err = mockoidc.NewServer(nil)
	require.NoError(t, err)
	require.NoError(t, s.people.AddMiddleware(s.forging))
	listener := listenLocal(t)
	require.NoError(t, s.people.Start(listener, nil))
	t.Cleanup(func() { _ = s.people.Shutdown() })

	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(s.people.ClientSecret+"\n"), 0o600))
	service, err := sso.New(sso.Config{
		Issuer: s.people.Issuer(), ClientID: s.people.ClientID, SecretFile: secret, SecretInBody: true, Scopes: []string{"profile", "email", "groups"},
		FederationIssuers: []string{s.ci.Issuer()}, FederationAudience: "windlass",
	})
	require.NoError(t, err)
	s.harness = setupOn(t, on, append([]func(*api.Config){func(c *api.Config) {
		c.SSO, c.SSOOrigins = service, []string{"http://" + dashboardHost}
	}}, tweak...)...)
	return s
}

func listenLocal(t *testing.T) net.Listener {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return listener
}

func windlassClient(b *browser) windlassv1connect.AccessServiceClient {
	return windlassv1connect.NewAccessServiceClient(&http.Client{Transport: b}, b.w.url)
}

func fleetClient(b *browser) windlassv1connect.FleetServiceClient {
	return windlassv1connect.NewFleetServiceClient(&http.Client{Transport: b}, b.w.url)
}

// forging lets a test change the claims of ID tokens.
func (s *signOn) forging(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		forge := s.forge.Load()
		if forge == nil || r.URL.Path != mockoidc.TokenEndpoint {
			next.ServeHTTP(w, r)
			return
		}
		rec := &recorded{ResponseWriter: w}
		next.ServeHTTP(rec, r)
		var answer map[string]any
		if json.Unmarshal(rec.body, &answer) == nil && answer["id_token"] != nil {
			claims := jwt.MapClaims{}
			_, _, err := jwt.NewParser().ParseUnverified(fmt.Sprint(answer["id_token"]), claims)
			if err == nil {
				answer["id_token"], _ = s.people.Keypair.SignJWT((*forge)(claims))
			}
			rec.body, _ = json.Marshal(answer)
		}
		w.Header().Del("Content-Length")
		_, _ = w.Write(rec.body)
	})
}

// recorded keeps the body of an answer.
type recorded struct {
	http.ResponseWriter
	body []byte
}

func (r *recorded) Write(b []byte) (int, error) { r.body = append(r.body, b...); return len(b), nil }

func (s *signOn) person(subject, email string, groups ...string) {
	s.people.QueueUser(&mockoidc.MockUser{Subject: subject, Email: email, EmailVerified: email != "", Groups: groups})
}

// rule gives the role to people with the claim.
func (s *signOn) rule(key, name string, role windlassv1.Role, claim, value string, edit ...func(*windlassv1.SetSignInRuleRequest)) {
	s.t.Helper()
	req := &windlassv1.SetSignInRuleRequest{Rule: &windlassv1.SignInRule{
		Name: name, Role: role, Conditions: []*windlassv1.ClaimCondition{{Claim: claim, Value: value}},
	}}
	for _, f := range edit {
		f(req)
	}
	_, err := s.members(key).SetSignInRule(s.t.Context(), req)
	require.NoError(s.t, err)
}

// visit gets a page of the control plane, like a browser that types the address or follows a redirect.
func (b *browser) visit(path string) (int, http.Header, string) {
	b.w.t.Helper()
	req, err := http.NewRequestWithContext(b.w.t.Context(), http.MethodGet, b.w.url+path, http.NoBody)
	require.NoError(b.w.t, err)
	req.Host = dashboardHost
	own := b.headers
	b.headers = nil
	defer func() { b.headers = own }()
	client := &http.Client{Transport: b, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	require.NoError(b.w.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(b.w.t, err)
	return res.StatusCode, res.Header, html.UnescapeString(string(text))
}

// toIssuer begins a sign-in, lets the issuer approve it, and returns the path of the callback.
func (b *browser) toIssuer(path string) string {
	b.w.t.Helper()
	status, header, body := b.visit(path)
	require.Equal(b.w.t, http.StatusSeeOther, status, body)
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(b.w.t.Context(), http.MethodGet, header.Get("Location"), http.NoBody)
	require.NoError(b.w.t, err)
	res, err := client.Do(req)
	require.NoError(b.w.t, err)
	require.NoError(b.w.t, res.Body.Close())
	back, err := res.Location()
	require.NoError(b.w.t, err)
	require.Equal(b.w.t, "http://"+dashboardHost+"/ui/sso/callback", back.Scheme+"://"+back.Host+back.Path)
	return back.RequestURI()
}

func (b *browser) sso(path string) *browser {
	b.w.t.Helper()
	status, header, body := b.visit(b.toIssuer(path))
	require.Equal(b.w.t, http.StatusSeeOther, status, body)
	require.Equal(b.w.t, "/ui/", header.Get("Location"))
	return b
}

const isViewer, isDeployer, isOwner, isOperator = windlassv1.Role_ROLE_VIEWER, windlassv1.Role_ROLE_DEPLOYER, windlassv1.Role_ROLE_OWNER, windlassv1.Role_ROLE_OPERATOR

func TestMembers_SignInByARuleAndHaveItsRole(t *testing.T) {
	test := func(t *testing.T, s *signOn) {
		s.rule(s.owner, "ml", isDeployer, "groups", "ml")
		s.person("u-1", "ada@example.com", "staff", "ml")
		b := s.browser()
		back := b.toIssuer("/ui/sso/login?return=" + url.QueryEscape("/ui/apps?q=chat"))
		status, header, body := b.visit(back)
		require.Equal(t, http.StatusSeeOther, status, body)
		require.Equal(t, "/ui/apps?q=chat", header.Get("Location"))
		require.Contains(t, header.Get("Set-Cookie")+strings.Join(header.Values("Set-Cookie"), "\n"), "windlass_session=wls_")
		require.NotContains(t, b.cookies, "windlass_sso", "the state is used")

		me, err := b.whoAmI()
		require.NoError(t, err)
		require.Equal(t, "ada@example.com", me.GetMember().GetName())
		require.Equal(t, "u-1", me.GetMember().GetSubject())
		require.Equal(t, isDeployer, me.GetKey().GetRole())
		require.Equal(t, "acme", me.GetWorkspaceName())
		require.Equal(t, []string{"ml"}, me.GetMember().GetRules())
		require.Equal(t, me.GetMember().GetId(), me.GetKey().GetId())

		// The second sign-in finds the same member, with the claims of its newest token.
		s.person("u-1", "ada@new.example.com", "ml")
		second := s.browser().sso("/ui/sso/login")
		again, err := second.whoAmI()
		require.NoError(t, err)
		require.Equal(t, me.GetMember().GetId(), again.GetMember().GetId())
		require.Equal(t, "ada@new.example.com", again.GetMember().GetName())

		audit, err := s.history(s.owner).ListAudit(t.Context(), &windlassv1.ListAuditRequest{})
		require.NoError(t, err)
		var signIns int
		for _, e := range audit.GetEntries() {
			if e.GetActorId() == me.GetMember().GetId() && e.GetResourceKind() == "browser_session" {
				signIns++
			}
		}
		require.Equal(t, 2, signIns)

		status, _, _ = b.post("/ui/session/sign-out-everywhere", "")
		require.Equal(t, http.StatusOK, status)
		b.requireOut()
		second.requireOut()
	}
	for name, open := range map[string]func(*testing.T) store.Store{"memory": newStore, "mariadb": newDatabase} {
		t.Run(name, func(t *testing.T) { test(t, setupSignOnWith(t, open(t))) })
	}
}

func TestMembers_CanOnlyCallWhatTheirRoleAllows(t *testing.T) {
	s := setupSignOn(t)
	s.rule(s.owner, "all", isViewer, "groups", "staff")
	s.person("u-1", "ada@example.com", "staff")
	b := s.browser().sso("/ui/sso/login")
	b.headers["Content-Type"] = "application/json"
	for path, want := range map[string]connect.Code{
		"/windlass.v1.AppService/CreateApp":           connect.CodePermissionDenied,
		"/windlass.v1.AppService/Deploy":              connect.CodePermissionDenied,
		"/windlass.v1.AccessService/CreateApiKey":     connect.CodePermissionDenied,
		"/windlass.v1.MemberService/SetSignInRule":    connect.CodePermissionDenied,
		"/windlass.v1.MemberService/RemoveMember":     connect.CodePermissionDenied,
		"/windlass.v1.MemberService/RestoreMember":    connect.CodePermissionDenied,
		"/windlass.v1.MemberService/RemoveSignInRule": connect.CodePermissionDenied,
	} {
		status, body, _ := b.post(path, "{}")
		require.Equal(t, http.StatusForbidden, status, "%s: %s, want %s", path, body, want)
	}
	// The other workspace is not visible.
	res, err := s.members(s.rival).ListMembers(t.Context(), &windlassv1.ListMembersRequest{})
	require.NoError(t, err)
	require.Empty(t, res.GetMembers())
	_, err = s.members(s.rival).ListMembers(t.Context(), &windlassv1.ListMembersRequest{Workspace: "acme"})
	refused(t, err, connect.CodeNotFound, notFound, "workspace")
	_, err = s.members(s.rival).RemoveMember(t.Context(), &windlassv1.RemoveMemberRequest{Member: "ada@example.com"})
	refused(t, err, connect.CodeNotFound, notFound, "member")
}

func TestMembers_RemovalAndChangedRulesTakeEffectOnTheNextCall(t *testing.T) {
	s := setupSignOn(t, func(c *api.Config) { c.KeyCacheTTL = time.Hour })
	ctx := t.Context()
	s.rule(s.owner, "all", isViewer, "groups", "staff")
	s.rule(s.owner, "ml", isOwner, "groups", "ml")
	s.person("u-1", "ada@example.com", "staff", "ml")
	b := s.browser().sso("/ui/sso/login")
	role := func() windlassv1.Role {
		me, err := b.whoAmI()
		require.NoError(t, err)
		return me.GetKey().GetRole()
	}
	require.Equal(t, isOwner, role())
	// A key that the member creates belongs to the member's family.
	key, err := windlassClient(b).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{Name: "adas-key", Role: isDeployer})
	require.NoError(t, err)
	me, err := b.whoAmI()
	require.NoError(t, err)
	require.Equal(t, me.GetMember().GetId(), key.GetKey().GetMadeBy())
	keys, err := s.access(s.owner).WhoAmI(ctx, &windlassv1.WhoAmIRequest{})
	require.NoError(t, err)
	require.Equal(t, keys.GetKey().GetFamily(), key.GetKey().GetFamily(), "the owner's key set the rule, so both are one approver")
	s.rule(s.operator, "ml-2", isOwner, "groups", "ml", func(r *windlassv1.SetSignInRuleRequest) { r.Workspace = "acme" })
	key, err = windlassClient(b).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{Name: "adas-second-key", Role: isDeployer})
	require.NoError(t, err)
	require.Equal(t, me.GetMember().GetId(), key.GetKey().GetFamily(), "an operator's rule makes the member an approver of its own")
	_, err = s.members(s.operator).RemoveSignInRule(ctx, &windlassv1.RemoveSignInRuleRequest{Name: "ml-2", Workspace: "acme"})
	require.NoError(t, err)

	_, err = s.members(s.owner).RemoveSignInRule(ctx, &windlassv1.RemoveSignInRuleRequest{Name: "ml"})
	require.NoError(t, err)
	require.Equal(t, isViewer, role())
	_, err = s.members(s.owner).RemoveSignInRule(ctx, &windlassv1.RemoveSignInRuleRequest{Name: "all"})
	require.NoError(t, err)
	_, err = b.whoAmI()
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err))
	require.ErrorContains(t, err, "no sign-in rule gives ada@example.com a role any more")
	s.rule(s.owner, "all", isViewer, "groups", "staff")
	require.Equal(t, isViewer, role(), "the session still exists")

	gone, err := s.members(s.owner).RemoveMember(ctx, &windlassv1.RemoveMemberRequest{Member: "ada@example.com"})
	require.NoError(t, err)
	require.Equal(t, []string{"adas-key", "adas-second-key"}, gone.GetKeys(), "its keys still work, and the answer says so")
	b.requireOut()
	s.person("u-1", "ada@example.com", "staff")
	status, _, page := s.browser().visit(b.toIssuer("/ui/sso/login"))
	_ = status
	require.Contains(t, page, "has no running sign-in", "another browser cannot use the callback")
	s.person("u-1", "ada@example.com", "staff")
	status, _, page = b.visit(b.toIssuer("/ui/sso/login"))
	require.Equal(t, http.StatusForbidden, status)
	require.Contains(t, page, "was removed")

	_, err = s.members(s.owner).RestoreMember(ctx, &windlassv1.RestoreMemberRequest{Member: me.GetMember().GetId()})
	require.NoError(t, err)
	b.requireOut()
	s.person("u-1", "ada@example.com", "staff")
	b.sso("/ui/sso/login")
	require.Equal(t, isViewer, role())
}

func TestMembers_StreamEndsWhenTheRoleChanges(t *testing.T) {
	s := setupSignOn(t, func(c *api.Config) { c.KeyCacheTTL = time.Millisecond })
	s.rule(s.owner, "all", isViewer, "groups", "staff")
	s.person("u-1", "ada@example.com", "staff")
	b := s.browser().sso("/ui/sso/login")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := fleetClient(b).WatchFleet(ctx, &windlassv1.WatchFleetRequest{})
	require.NoError(t, err)
	require.True(t, stream.Receive(), "%v", stream.Err())
	_, err = s.members(s.owner).RemoveMember(ctx, &windlassv1.RemoveMemberRequest{Member: "ada@example.com"})
	require.NoError(t, err)
	for stream.Receive() {
	}
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(stream.Err()), "%v", stream.Err())
}

func TestMembers_WorkspaceIsChosen(t *testing.T) {
	s := setupSignOn(t)
	s.rule(s.owner, "all", isViewer, "groups", "staff")
	s.rule(s.rival, "all", isViewer, "groups", "staff")
	s.rule(s.operator, "ops", isOperator, "groups", "ops")
	s.person("u-1", "", "staff", "ops")
	b := s.browser()
	status, _, page := b.visit(b.toIssuer("/ui/sso/login"))
	require.Equal(t, http.StatusOK, status)
	for _, link := range []string{`/ui/sso/login?workspace=acme"`, `/ui/sso/login?workspace=rival"`, `/ui/sso/login?workspace=%40platform"`} {
		require.Contains(t, page, link)
	}
	b.requireOut()
	s.person("u-1", "", "staff", "ops")
	b.sso("/ui/sso/login?workspace=rival")
	me, err := b.whoAmI()
	require.NoError(t, err)
	require.Equal(t, "rival", me.GetWorkspaceName())
	host := strings.TrimSuffix(strings.TrimPrefix(s.people.Issuer(), "http://"), "/oidc")
	require.Equal(t, "u-1@"+host, me.GetMember().GetName(), "without a verified address, the name has the subject")
	s.person("u-1", "", "staff", "ops")
	b.sso("/ui/sso/login?workspace=@platform")
	me, err = b.whoAmI()
	require.NoError(t, err)
	require.Equal(t, isOperator, me.GetKey().GetRole())
	s.person("u-1", "", "staff")
	_, _, page = b.visit(b.toIssuer("/ui/sso/login?workspace=@platform"))
	require.Contains(t, page, "a role in the platform")
}

func TestMembers_RefusedSignInsShowAPageWithTheCause(t *testing.T) {
	s := setupSignOn(t)
	s.rule(s.owner, "ml", isDeployer, "groups", "ml")
	forge := func(change func(jwt.MapClaims)) {
		f := func(c jwt.MapClaims) jwt.MapClaims { change(c); return c }
		s.forge.Store(&f)
	}
	for name, c := range map[string]struct {
		prepare func()
		alter   func(path string) string
		want    string
	}{
		"wrong issuer":   {prepare: func() { forge(func(c jwt.MapClaims) { c["iss"] = s.ci.Issuer() }) }, want: "the token is from another issuer"},
		"wrong audience": {prepare: func() { forge(func(c jwt.MapClaims) { c["aud"] = "another-client" }) }, want: "the token is for another audience"},
		"wrong nonce":    {prepare: func() { forge(func(c jwt.MapClaims) { c["nonce"] = "another" }) }, want: "a token of another sign-in"},
		"no nonce":       {prepare: func() { forge(func(c jwt.MapClaims) { delete(c, "nonce") }) }, want: "a token of another sign-in"},
		"expired":        {prepare: func() { forge(func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Minute).Unix() }) }, want: "the token has expired"},
		"long subject":   {prepare: func() { forge(func(c jwt.MapClaims) { c["sub"] = strings.Repeat("x", 300) }) }, want: "the token is not valid"},
		"unverified email": {
			prepare: func() {
				s.rule(s.owner, "mail", isOwner, "email", "*@example.com", func(r *windlassv1.SetSignInRuleRequest) {
					r.Rule.Conditions[0].Value = "ada@example.com"
				})
				forge(func(c jwt.MapClaims) { c["email_verified"], c["groups"] = false, []string{} })
			},
			want: "no sign-in rule gives",
		},
		"no rule": {prepare: func() {
			forge(func(c jwt.MapClaims) { c["groups"], c["email_verified"] = []string{"<script>"}, false })
		}, want: "groups <script>"},
		"wrong state":   {alter: func(path string) string { return strings.Replace(path, "state=", "state=x", 1) }, want: "the answer belongs to another sign-in"},
		"wrong code":    {alter: func(path string) string { return strings.Replace(path, "code=", "code=x", 1) }, want: "the issuer refuses the code"},
		"no code":       {alter: func(path string) string { return strings.Replace(path, "code=", "other=", 1) }, want: "answered without a code"},
		"another iss":   {alter: func(path string) string { return path + "&iss=https://evil.example" }, want: "the token is from another issuer"},
		"issuer denies": {alter: func(path string) string { return path + "&error=access_denied&error_description=%3Cb%3Eno" }, want: "access_denied: <b>no"},
	} {
		t.Run(name, func(t *testing.T) {
			s.forge.Store(nil)
			if c.prepare != nil {
				c.prepare()
			}
			s.person("u-9", "ada@example.com", "ml")
			b := s.browser()
			path := b.toIssuer("/ui/sso/login")
			if c.alter != nil {
				path = c.alter(path)
			}
			status, header, page := b.visit(path)
			require.Equal(t, http.StatusForbidden, status)
			require.Contains(t, strings.ToLower(page), strings.ToLower(c.want))
			require.Contains(t, header.Get("Content-Security-Policy"), "default-src 'none'")
			require.NotContains(t, b.cookies, "windlass_session")
			b.requireOut()
		})
	}
	t.Run("a page of markup is inert", func(t *testing.T) {
		s.forge.Store(nil)
		b := s.browser()
		path := b.toIssuer("/ui/sso/login")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path+"&error=%3Cscript%3Ealert(1)%3C/script%3E", http.NoBody)
		require.NoError(t, err)
		req.Host = dashboardHost
		b.headers = nil
		res, err := (&http.Client{Transport: b}).Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NotContains(t, string(raw), "<script>")
	})
}

func TestMembers_CallbackWorksOnce(t *testing.T) {
	s := setupSignOn(t)
	s.rule(s.owner, "ml", isDeployer, "groups", "ml")
	s.person("u-1", "ada@example.com", "ml")
	b := s.browser()
	path := b.toIssuer("/ui/sso/login")
	thief := b.copied()
	status, _, page := b.visit(path)
	require.Equal(t, http.StatusSeeOther, status, page)
	// The cookie of the state and the code are known to someone else.
	status, _, page = thief.visit(path)
	require.Equal(t, http.StatusForbidden, status)
	require.Contains(t, page, "used before")
	// An issuer that accepts a code twice does not change that.
	s.people.SessionStore.Store[mustQuery(t, path).Get("code")].Granted = false
	status, _, page = thief.copied().visit(path)
	require.Equal(t, http.StatusForbidden, status)
	thief = b.copied()
	_ = page
	s.person("u-1", "ada@example.com", "ml")
	path = thief.toIssuer("/ui/sso/login")
	again := thief.copied()
	status, _, page = thief.visit(path)
	require.Equal(t, http.StatusSeeOther, status, page)
	s.people.SessionStore.Store[mustQuery(t, path).Get("code")].Granted = false
	status, _, page = again.visit(path)
	require.Equal(t, http.StatusForbidden, status)
	require.Contains(t, page, "already used")
}

func mustQuery(t *testing.T, path string) url.Values {
	t.Helper()
	u, err := url.Parse(path)
	require.NoError(t, err)
	return u.Query()
}

func TestMembers_LoginReturnsOnlyToPagesOfTheDashboard(t *testing.T) {
	s := setupSignOn(t)
	s.rule(s.owner, "ml", isDeployer, "groups", "ml")
	for _, bad := range []string{"https://evil.example/ui/", "//evil.example/ui/", "/ui//evil.example", "/\\evil.example", "/ui/\\evil", "/other", "/ui/../x", "/ui/sso/login", "javascript:alert(1)", "/ui/\r\nx: y"} {
		s.person("u-1", "ada@example.com", "ml")
		s.browser().sso("/ui/sso/login?return=" + url.QueryEscape(bad))
	}
	t.Run("other hosts are refused", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/ui/sso/login", http.NoBody)
		require.NoError(t, err)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusForbidden, res.StatusCode)
		require.Contains(t, string(text), "--oidc-origins")
	})
}

func TestMembers_IssuerThatIsAwayOnlyStopsSignIns(t *testing.T) {
	s := setupSignOn(t)
	s.rule(s.owner, "ml", isDeployer, "groups", "ml")
	s.person("u-1", "ada@example.com", "ml")
	b := s.browser().sso("/ui/sso/login")
	path := b.toIssuer("/ui/sso/login")
	require.NoError(t, s.people.Shutdown())
	_, err := b.whoAmI()
	require.NoError(t, err)
	_, err = s.access(s.owner).WhoAmI(t.Context(), &windlassv1.WhoAmIRequest{})
	require.NoError(t, err)
	status, _, page := b.visit(path)
	require.Equal(t, http.StatusBadGateway, status)
	require.Contains(t, page, "The issuer does not answer")
	status, _, _ = b.post("/ui/session/renew", "")
	require.Equal(t, http.StatusOK, status)
}

func TestMembers_SessionEndsAfterItsMaximum(t *testing.T) {
	s := setupSignOn(t, func(c *api.Config) { c.MemberSessionMax = 3 * time.Second })
	s.rule(s.owner, "ml", isDeployer, "groups", "ml")
	s.person("u-1", "ada@example.com", "ml")
	b := s.browser().sso("/ui/sso/login")
	require.Eventually(t, func() bool {
		b.post("/ui/session/renew", "")
		_, err := b.whoAmI()
		return connect.CodeOf(err) == connect.CodeUnauthenticated
	}, 30*time.Second, 100*time.Millisecond, "renewals do not make it longer")
}

func TestSignInRules_AreChecked(t *testing.T) {
	s := setupSignOn(t)
	set := func(key string, r *windlassv1.SignInRule, workspace string) error {
		r.Name = "r"
		_, err := s.members(key).SetSignInRule(t.Context(), &windlassv1.SetSignInRuleRequest{Rule: r, Workspace: workspace})
		return err
	}
	on := func(role windlassv1.Role, issuer string, conditions ...string) *windlassv1.SignInRule {
		r := &windlassv1.SignInRule{Role: role, Issuer: issuer}
		for i := 0; i < len(conditions); i += 2 {
			r.Conditions = append(r.Conditions, &windlassv1.ClaimCondition{Claim: conditions[i], Value: conditions[i+1]})
		}
		return r
	}
	refused(t, set(s.owner, on(isOperator, "", "groups", "ops"), ""), connect.CodePermissionDenied, isDenied, "")
	refused(t, set(s.operator, on(isOwner, "", "groups", "ops"), ""), connect.CodeInvalidArgument, validation, "workspace")
	refused(t, set(s.operator, on(isOperator, "", "groups", "ops"), "acme"), connect.CodeInvalidArgument, validation, "workspace")
	refused(t, set(s.owner, on(isViewer, "", "groups", "*"), ""), connect.CodeInvalidArgument, validation, "rule.conditions")
	refused(t, set(s.owner, on(isViewer, "", "iss", "x"), ""), connect.CodeInvalidArgument, validation, "rule.conditions[0].claim")
	refused(t, set(s.owner, on(isViewer, "https://other.example", "sub", "x"), ""), connect.CodeInvalidArgument, validation, "rule.issuer")
	refused(t, set(s.owner, on(isViewer, s.ci.Issuer(), "ref", "refs/heads/main"), ""), connect.CodeInvalidArgument, validation, "rule.conditions")
	refused(t, set(s.owner, on(isViewer, ""), ""), connect.CodeInvalidArgument, validation, "rule.conditions")
	require.NoError(t, set(s.operator, on(isOperator, "", "groups", "ops"), ""))
	require.NoError(t, set(s.operator, on(isOwner, "", "groups", "ops"), "acme"))
	require.NoError(t, set(s.owner, on(isDeployer, s.ci.Issuer(), "repository", "acme/app"), ""))

	res, err := s.members(s.viewer).ListSignInRules(t.Context(), &windlassv1.ListSignInRulesRequest{})
	require.NoError(t, err)
	require.Len(t, res.GetRules(), 1, "the second rule replaced the first")
	require.Equal(t, s.people.Issuer(), res.GetIssuer())
	require.Equal(t, []string{s.ci.Issuer()}, res.GetFederationIssuers())
	_, err = s.members(s.owner).RemoveSignInRule(t.Context(), &windlassv1.RemoveSignInRuleRequest{Name: "none"})
	refused(t, err, connect.CodeNotFound, notFound, "name")
}

// ciToken returns a token of the CI.
func (s *signOn) ciToken(edit func(jwt.MapClaims)) string {
	s.t.Helper()
	claims := jwt.MapClaims{
		"iss": s.ci.Issuer(), "aud": "windlass", "sub": "repo:acme/app:ref:refs/heads/main", "repository": "acme/app",
		"exp": time.Now().Add(5 * time.Minute).Unix(), "iat": time.Now().Unix(),
	}
	if edit != nil {
		edit(claims)
	}
	token, err := s.ci.Keypair.SignJWT(claims)
	require.NoError(s.t, err)
	return token
}

// postJSON sends a request without cookies, like the CLI.
func (h *harness) postJSON(path, bearer string, in map[string]string) (int, map[string]any) {
	h.t.Helper()
	body, err := json.Marshal(in)
	require.NoError(h.t, err)
	req, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost, h.url+path, strings.NewReader(string(body)))
	require.NoError(h.t, err)
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(h.t, err)
	defer res.Body.Close()
	answer := map[string]any{}
	require.NoError(h.t, json.NewDecoder(res.Body).Decode(&answer))
	return res.StatusCode, answer
}

func TestFederation_TokenOfACIIsTradedByItsClaims(t *testing.T) {
	s := setupSignOn(t)
	s.rule(s.owner, "ci", isDeployer, "repository", "acme/app", func(r *windlassv1.SetSignInRuleRequest) { r.Rule.Issuer = s.ci.Issuer() })
	trade := func(token string) (int, map[string]any) {
		return s.postJSON("/ui/sso/federated", "", map[string]string{"token": token})
	}
	status, answer := trade(s.ciToken(nil))
	require.Equal(t, http.StatusOK, status, answer)
	token := fmt.Sprint(answer["token"])
	me, err := s.access(token).WhoAmI(t.Context(), &windlassv1.WhoAmIRequest{})
	require.NoError(t, err)
	require.True(t, me.GetMember().GetService())
	require.Equal(t, isDeployer, me.GetKey().GetRole())
	require.True(t, strings.HasPrefix(me.GetKey().GetName(), "repo:acme/app:ref:refs/heads/main@127.0.0.1"), me.GetKey().GetName())
	status, renewed := s.postJSON("/ui/sso/renew", token, nil)
	require.Equal(t, http.StatusOK, status, renewed)
	require.LessOrEqual(t, renewed["expiresInMs"], answer["expiresInMs"], "a renewal does not make it longer")

	for name, c := range map[string]struct {
		token string
		want  string
	}{
		"another repository": {s.ciToken(func(c jwt.MapClaims) { c["repository"] = "acme/app2" }), "no sign-in rule gives"},
		"wrong audience":     {s.ciToken(func(c jwt.MapClaims) { c["aud"] = "https://github.com/acme" }), "for another audience"},
		"expired":            {s.ciToken(func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Second).Unix() }), "has expired"},
		"wrong issuer":       {s.ciToken(func(c jwt.MapClaims) { c["iss"] = "https://evil.example" }), "from another issuer"},
		"people's issuer":    {s.ciToken(func(c jwt.MapClaims) { c["iss"] = s.people.Issuer() }), "from another issuer"},
		"changed claims":     {tampered(s.ciToken(nil)), "is not valid"},
		"garbage":            {"abc", "is not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			status, answer := trade(c.token)
			require.Equal(t, http.StatusUnauthorized, status, answer)
			require.Contains(t, answer["message"], c.want)
		})
	}

	_, err = s.members(s.owner).RemoveSignInRule(t.Context(), &windlassv1.RemoveSignInRuleRequest{Name: "ci"})
	require.NoError(t, err)
	_, err = s.access(fmt.Sprint(renewed["token"])).WhoAmI(t.Context(), &windlassv1.WhoAmIRequest{})
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err), "the rule is gone")
}

// tampered returns the token with other claims and the old signature.
func tampered(token string) string {
	parts := strings.Split(token, ".")
	payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
	parts[1] = base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(payload), `"acme/app"`, `"evil/app"`, 1)))
	return strings.Join(parts, ".")
}

func TestFederation_TokensOfAnIssuerWithoutRulesAreNotVerified(t *testing.T) {
	s := setupSignOn(t)
	status, answer := s.postJSON("/ui/sso/federated", "", map[string]string{"token": tampered(s.ciToken(nil))})
	require.Equal(t, http.StatusUnauthorized, status, answer)
	require.Contains(t, fmt.Sprint(answer), "no sign-in rule is for tokens of "+s.ci.Issuer())
}

func TestFederation_IsLimitedByAddress(t *testing.T) {
	s := setupSignOn(t, func(c *api.Config) {
		c.SignIns, c.FailedLogins = admission.NewBuckets(admission.PerMinute(6)), admission.NewBuckets(admission.PerMinute(3))
	})
	bad := func() int {
		status, _ := s.postJSON("/ui/sso/federated", "", map[string]string{"token": "abc"})
		return status
	}
	for range 3 {
		require.Equal(t, http.StatusUnauthorized, bad())
	}
	require.Equal(t, http.StatusTooManyRequests, bad())
	_, err := s.access("wl_"+strings.Repeat("x", 43)).WhoAmI(t.Context(), &windlassv1.WhoAmIRequest{})
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), "failed sign-ins and failed keys share a limit")
}

func TestMembers_CLIGetsATokenThroughItsLoopbackAddress(t *testing.T) {
	s := setupSignOn(t)
	s.rule(s.owner, "ml", isDeployer, "groups", "ml")
	const verifier = "a-secret-of-the-cli"
	sum := sha256.Sum256([]byte(verifier))
	login := "/ui/sso/login?port=4711&state=s-1&confirmation=K7QD-3XMA&challenge=" + base64.RawURLEncoding.EncodeToString(sum[:])
	s.person("u-1", "ada@example.com", "ml")
	b := s.browser()
	status, header, page := b.visit(b.toIssuer(login))
	require.Equal(t, http.StatusOK, status, "the page asks the person: %s", page)
	require.Contains(t, page, "ada@example.com")
	require.Contains(t, page, "K7QD-3XMA")
	require.Contains(t, header.Get("Content-Security-Policy"), "default-src 'none'")
	require.Contains(t, header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
	links := regexp.MustCompile(`<a href="([^"]+)">`).FindAllStringSubmatch(page, -1)
	require.Len(t, links, 2, page)
	decline, err := url.Parse(links[1][1])
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:4711", decline.Host)
	require.NotContains(t, decline.RawQuery, "code=")
	require.Equal(t, "The sign-in was declined in the browser.", decline.Query().Get("error"))
	to, err := url.Parse(links[0][1])
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:4711", to.Host)
	require.Equal(t, "s-1", to.Query().Get("state"))
	require.NotContains(t, b.cookies, "windlass_session", "the browser is not signed in")
	code := to.Query().Get("code")

	status, answer := s.postJSON("/ui/sso/token", "", map[string]string{"code": code, "verifier": "another"})
	require.Equal(t, http.StatusUnauthorized, status, answer)
	status, answer = s.postJSON("/ui/sso/token", "", map[string]string{"code": code, "verifier": verifier})
	require.Equal(t, http.StatusOK, status, answer)
	token := fmt.Sprint(answer["token"])
	require.True(t, strings.HasPrefix(token, "wlt_"))
	require.Equal(t, "deployer", answer["role"])
	status, answer = s.postJSON("/ui/sso/token", "", map[string]string{"code": code, "verifier": verifier})
	require.Equal(t, http.StatusUnauthorized, status, answer)
	require.Contains(t, answer["message"], "already used")
	status, answer = s.postJSON("/ui/sso/token", "", map[string]string{"code": code + "\n", "verifier": verifier})
	require.Equal(t, http.StatusUnauthorized, status, answer)
	require.Contains(t, answer["message"], "already used", "another text of the same code")

	who := func(token string) error {
		_, err := s.access(token).WhoAmI(t.Context(), &windlassv1.WhoAmIRequest{})
		return err
	}
	require.NoError(t, who(token))
	// A token is not a cookie, and a cookie is not a token.
	thief := s.browser()
	thief.cookies["windlass_session"] = token
	thief.requireOut()
	s.person("u-1", "ada@example.com", "ml")
	require.Error(t, who(s.browser().sso("/ui/sso/login").cookies["windlass_session"]))

	status, answer = s.postJSON("/ui/sso/renew", token, nil)
	require.Equal(t, http.StatusOK, status, answer)
	renewed := fmt.Sprint(answer["token"])
	require.NoError(t, who(renewed))
	require.NoError(t, who(token), "the previous value works for a moment")
	status, _ = s.postJSON("/ui/sso/sign-out", renewed, nil)
	require.Equal(t, http.StatusOK, status)
	require.Error(t, who(renewed))
	require.Error(t, who(token))

	t.Run("a refused sign-in is told to the CLI", func(t *testing.T) {
		s.person("u-2", "eve@example.com", "others")
		_, header, _ := b.visit(b.toIssuer(login))
		to, err := url.Parse(header.Get("Location"))
		require.NoError(t, err)
		require.Contains(t, to.Query().Get("error"), "No sign-in rule gives eve@example.com a role")
	})
	t.Run("ports and challenges are checked", func(t *testing.T) {
		good := "&challenge=" + base64.RawURLEncoding.EncodeToString(sum[:])
		for _, q := range []string{
			"port=0&challenge=x", "port=evil.example&challenge=x", "port=80@evil.example&confirmation=K7QD-3XMA" + good,
			"port=80" + good, "port=80&confirmation=%3Cb%3Eyes" + good,
		} {
			status, _, _ := b.visit("/ui/sso/login?" + q)
			require.Equal(t, http.StatusForbidden, status, q)
		}
	})
}

func TestLink_OfAMemberDoesNotMakeItsSignInLonger(t *testing.T) {
	s := setupSignOn(t)
	s.rule(s.owner, "ci", isDeployer, "repository", "acme/app", func(r *windlassv1.SetSignInRuleRequest) { r.Rule.Issuer = s.ci.Issuer() })
	_, answer := s.postJSON("/ui/sso/federated", "", map[string]string{"token": s.ciToken(nil)})
	token := fmt.Sprint(answer["token"])
	row := func(value string) (row model.BrowserSession) {
		s.t.Helper()
		require.NoError(t, s.store.View(t.Context(), func(tx store.Tx) (err error) {
			row, err = tx.GetBrowserSession(model.HashToken(value))
			return err
		}))
		return row
	}
	first := row(token)
	require.Eventually(t, func() bool { return time.Now().UnixMilli() > first.SignedInAt }, time.Minute, time.Millisecond)
	_, answer = s.postJSON("/ui/link", token, nil)
	link := fmt.Sprint(answer["link"])
	require.LessOrEqual(t, row(link).ExpiresAt, first.ExpiresAt)
	b := s.browser()
	status, body, _ := b.post("/ui/session/sign-in", `{"link": "`+link+`"}`)
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, first.ExpiresAt, row(b.cookies["windlass_session"]).ExpiresAt)
}

func TestSignInRules_ChangesKeepOtherCallersProven(t *testing.T) {
	s := setupSignOn(t, func(c *api.Config) {
		c.KeyCacheTTL, c.FailedLogins = time.Millisecond, admission.NewBuckets(admission.PerMinute(5))
	})
	b := s.browser().signIn(s.viewer)
	s.rule(s.owner, "all", isViewer, "groups", "staff")
	made := s.browser()
	made.cookies["windlass_session"] = "wls_" + strings.Repeat("x", 43)
	for range 5 {
		made.requireOut()
	}
	s.rule(s.owner, "all", isDeployer, "groups", "staff")
	_, err := b.whoAmI()
	require.NoError(t, err, "failures at the address hold back no caller that was valid")
}

func TestFederation_RefusesPagesOfOtherSites(t *testing.T) {
	s := setupSignOn(t, func(c *api.Config) { c.FailedLogins = admission.NewBuckets(admission.PerMinute(3)) })
	page := s.browser()
	page.headers = map[string]string{"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
	for range 5 {
		status, body, _ := page.post("/ui/sso/federated", `{"token": "abc"}`)
		require.Equal(t, http.StatusForbidden, status, body)
	}
	status, answer := s.postJSON("/ui/sso/federated", "", map[string]string{"token": "abc"})
	require.Equal(t, http.StatusUnauthorized, status, answer)
}
