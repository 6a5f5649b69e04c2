package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/oauth2"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/signin"
	"github.com/windlass-run/windlass/apps/controlplane/internal/sso"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Paths of sign-ins of members. The audit has them as procedures.
const (
	ssoPath           = "/ui/sso/"
	ssoProviderPath   = "/ui/sso/provider"
	ssoLoginPath      = "/ui/sso/login"
	ssoCallbackPath   = "/ui/sso/callback"
	ssoTokenPath      = "/ui/sso/token"
	ssoDevicePath     = "/ui/sso/device"
	ssoDevicePollPath = "/ui/sso/device/token"
	ssoFederatedPath  = "/ui/sso/federated"
	ssoRenewPath      = "/ui/sso/renew"
	ssoSignOutPath    = "/ui/sso/sign-out"
)

const (
	// ssoCookie holds the sealed attempt. With TLS, it has the prefix __Host-.
	ssoCookie = "windlass_sso"
	// maxFederated bounds the body of a request with a token of a CI, in bytes.
	maxFederated = 96 << 10
	// ssoTimeout bounds a request that may call the issuer.
	ssoTimeout = 20 * time.Second
	// maxReturn bounds the path at which a sign-in began, in bytes.
	maxReturn = 512
)

// SSO serves the GET requests of sign-ins of members, below SSOPath.
//
//	GET /ui/sso/provider   whether people can sign in at an issuer
//	GET /ui/sso/login      sends the browser to the issuer: ?workspace= and ?return=; for the CLI, ?port=, ?challenge=, ?state=, ?confirmation=
//	GET /ui/sso/callback   the issuer sends the browser here
func (a *API) SSO() http.Handler {
	b := browsers{a.server}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+ssoProviderPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(struct { // a client that closed the connection needs no answer
			Enabled bool `json:"enabled"`
		}{a.signInIssuer() != ""})
	})
	page := func(path string, do func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), ssoTimeout)
			defer cancel()
			r = r.WithContext(ctx)
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("Referrer-Policy", "no-referrer")
			if err := do(w, r); err != nil {
				b.failPage(w, r, path, err)
			}
		})
	}
	page(ssoLoginPath, b.serveLogin)
	page(ssoCallbackPath, b.serveCallback)
	return mux
}

// SSOPath is the URL path of SSO.
const SSOPath = ssoPath

// handleSSO adds the POST requests of sign-ins of members. Their callers send no cookie. Pages of other sites are
// refused, because the failures that they cause would count for the address of the browser.
func (a browsers) handleSSO(mux *http.ServeMux) {
	origins := http.NewCrossOriginProtection()
	handle := func(path, flow string, do func(r *http.Request) (any, error)) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), ssoTimeout)
			defer cancel()
			r = r.WithContext(ctx)
			r.Body = http.MaxBytesReader(w, r.Body, maxFederated)
			w.Header().Set("Cache-Control", "no-store")
			var answer any
			err := origins.Check(r)
			if err != nil {
				err = apierr.Denied("pages of other sites may not sign in", "Use the CLI.")
			} else {
				answer, err = do(r)
			}
			if err != nil {
				a.countSignIn(flow, err)
				a.failBrowser(w, r, path, err)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer) // a client that closed the connection needs no answer
		})
	}
	handle(ssoTokenPath, "cli", a.serveToken)
	handle(ssoDevicePath, "device", a.serveDevice)
	handle(ssoDevicePollPath, "device", a.serveDevicePoll)
	handle(ssoFederatedPath, "federated", a.serveFederated)
	handle(ssoRenewPath, "", a.serveTokenRenew)
	handle(ssoSignOutPath, "", a.serveTokenSignOut)
}

// countSignIn counts a sign-in by its outcome. It counts nothing if flow is empty.
func (a browsers) countSignIn(flow string, err error) {
	var refused *signInError
	outcome := "ok"
	switch {
	case flow == "":
		return
	case errors.As(err, &refused):
		outcome = refused.outcome
	case errors.Is(err, sso.ErrAway):
		outcome = "issuer_away"
	case err != nil:
		outcome = "failed"
	}
	a.signIns.WithLabelValues(flow, outcome).Inc()
}

// callbackURL returns the URL of the callback at the origin that the request used. It accepts only configured origins,
// because the client chooses the header Host.
func (a browsers) callbackURL(r *http.Request) (string, error) {
	for _, origin := range a.cfg.SSOOrigins {
		if u, err := url.Parse(origin); err == nil && strings.EqualFold(u.Host, r.Host) {
			return strings.TrimSuffix(origin, "/") + ssoCallbackPath, nil
		}
	}
	return "", &signInError{outcome: "origin", title: "Wrong address", err: apierr.InvalidFix("", "people cannot sign in at the address "+apierr.Clip(r.Host, 255),
		"Open the dashboard at an address of --oidc-origins. For the CLI, set --server to one of them.")}
}

func (a browsers) ssoCookieName(r *http.Request) string {
	if a.isSecure(r) {
		return "__Host-" + ssoCookie
	}
	return ssoCookie
}

// attemptCookie returns the cookie of an attempt. It is Lax, because the issuer's redirect must send it.
func (a browsers) attemptCookie(r *http.Request, value string) *http.Cookie {
	c := &http.Cookie{
		Name: a.ssoCookieName(r), Value: value, Path: "/", MaxAge: int(signInFor.Seconds()),
		Secure: a.isSecure(r), HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// serveLogin sends the browser to the issuer.
func (a browsers) serveLogin(w http.ResponseWriter, r *http.Request) error {
	if a.signInIssuer() == "" {
		return errNoSSO()
	}
	if err := a.takeSignIn(rpc.ClientOf(r.Context())); err != nil {
		return err
	}
	redirect, err := a.callbackURL(r)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	try := attempt{
		State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Redirect: redirect,
		Workspace: apierr.Clip(q.Get("workspace"), 256), Return: safeReturn(q.Get("return")), ExpiresAt: time.Now().Add(signInFor).UnixMilli(),
	}
	if q.Has("port") {
		if err := try.forCLI(q); err != nil {
			return err
		}
	}
	to, err := a.cfg.SSO.AuthURL(r.Context(), redirect, try.State, try.Nonce, try.Verifier)
	if err != nil {
		return explainSSO(err)
	}
	value, err := a.sealValue(try, browserContext)
	if err != nil {
		return err
	}
	http.SetCookie(w, a.attemptCookie(r, value))
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}

// forCLI reads the parameters of the CLI's flow.
func (t *attempt) forCLI(q url.Values) error {
	port, err := strconv.Atoi(q.Get("port"))
	hash, failed := base64.RawURLEncoding.DecodeString(q.Get("challenge"))
	if err != nil || port < 1 || port > 65535 || failed != nil || len(hash) != sha256.Size || len(q.Get("state")) > 128 || !confirmation.MatchString(q.Get("confirmation")) {
		return &signInError{outcome: "request", title: "Wrong request", err: apierr.InvalidFix("", "the port, the challenge, the state or the confirmation of the CLI is not valid",
			"Run `windlass login --sso` again, with a CLI of the control plane's version.")}
	}
	t.Port, t.Challenge, t.CLIState, t.Confirmation = port, q.Get("challenge"), q.Get("state"), q.Get("confirmation")
	return nil
}

// confirmation matches the text that a CLI shows for a sign-in in a browser, such as "K7QD-3XMA".
var confirmation = regexp.MustCompile(`^[A-Z2-7]{4}-[A-Z2-7]{4}$`)

// loopbackURL returns the URL of the CLI that waits for the sign-in.
func (t *attempt) loopbackURL(q url.Values) string {
	q.Set("state", t.CLIState)
	return "http://127.0.0.1:" + strconv.Itoa(t.Port) + "/?" + q.Encode()
}

// safeReturn returns the path of a page of the dashboard, or the dashboard's first page for anything else.
func safeReturn(path string) string {
	u, err := url.Parse(path)
	if err != nil || len(path) > maxReturn || u.Host != "" || u.Scheme != "" || !strings.HasPrefix(u.Path, "/ui/") ||
		strings.HasPrefix(u.Path, ssoPath) || strings.ContainsAny(path, "\\\r\n") || strings.Contains(path, "//") || strings.Contains(u.Path, "..") {
		return "/ui/"
	}
	return path
}

// serveCallback ends a sign-in in a browser.
func (a browsers) serveCallback(w http.ResponseWriter, r *http.Request) error {
	if a.signInIssuer() == "" {
		return errNoSSO()
	}
	var try attempt
	c, err := r.Cookie(a.ssoCookieName(r))
	http.SetCookie(w, a.attemptCookie(r, ""))
	client, by := rpc.ClientOf(r.Context()), caller{Source: a.sourceOfRequest(r), Procedure: ssoCallbackPath}
	err = a.countingFailures(r.Context(), func(ctx context.Context) error {
		if err != nil || !a.openSealed(c.Value, browserContext, &try) || time.Now().UnixMilli() >= try.ExpiresAt {
			return signInRefused("state", "The sign-in has expired", "this browser has no running sign-in, or it took longer than 10 minutes", "Start the sign-in again.")
		}
		id, err := a.identityOf(ctx, r.URL.Query(), try)
		if err != nil {
			return err
		}
		used := model.HashToken("state " + try.State)
		if try.Port != 0 {
			code, key, err := a.cliCodeOf(ctx, id, try, used, by)
			if err != nil {
				return err
			}
			writePage(w, http.StatusOK, confirmPage, struct{ Title, Name, Role, Confirmation, URL, Decline string }{
				"Sign in the command line?", key.Name, model.RoleName(key.Role), try.Confirmation, try.loopbackURL(url.Values{"code": {code}}),
				try.loopbackURL(url.Values{"error": {"The sign-in was declined in the browser."}}),
			})
			return nil
		}
		value, row, _, err := a.begin(ctx, id, try.Workspace, sessionPrefix, used, by)
		if err != nil {
			return err
		}
		a.countSignIn("browser", nil)
		a.sessions.WithLabelValues("signed_in").Inc()
		http.SetCookie(w, a.newCookie(r, value, time.UnixMilli(row.ExpiresAt)))
		http.Redirect(w, r, try.Return, http.StatusSeeOther)
		return nil
	})
	if coded := (*connect.Error)(nil); try.Port != 0 && errors.As(err, &coded) {
		a.countSignIn("cli", err)
		a.noteRefusal(caller{Procedure: ssoCallbackPath}, client, err)
		http.Redirect(w, r, try.loopbackURL(url.Values{"error": {withFix(coded)}}), http.StatusSeeOther)
		return nil
	}
	return err
}

// identityOf checks the parameters of a callback, and trades its code for an identity.
func (a browsers) identityOf(ctx context.Context, q url.Values, try attempt) (id signin.Identity, err error) {
	if subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(try.State)) != 1 {
		return id, signInRefused("state", "The sign-in was refused", "the answer belongs to another sign-in", "Start the sign-in again, and use one tab for it.")
	}
	if iss := q.Get("iss"); iss != "" && iss != a.signInIssuer() {
		return id, explainSSO(sso.ErrIssuer)
	}
	if code := q.Get("error"); code != "" {
		text := apierr.Clip(code, 100)
		if about := q.Get("error_description"); about != "" {
			text += ": " + apierr.Clip(about, 300)
		}
		return id, signInRefused("denied", "The sign-in was refused", "the issuer answers "+text, "Start the sign-in again, or ask the operators of the issuer.")
	}
	if q.Get("code") == "" {
		return id, signInRefused("code", "The sign-in was refused", "the issuer answered without a code", "Start the sign-in again.")
	}
	id, err = a.cfg.SSO.Exchange(ctx, try.Redirect, q.Get("code"), try.Nonce, try.Verifier)
	return id, explainSSO(err)
}

// tokenAnswer is a member's token with the times of its session.
type tokenAnswer struct {
	Token string `json:"token"`
	sessionAnswer
	Name      string `json:"name"`
	Workspace string `json:"workspaceId"`
	Role      string `json:"role"`
}

func (a browsers) answerToken(value string, row model.BrowserSession, key model.APIKey) tokenAnswer {
	times := a.answerSession(row.ExpiresAt)
	return tokenAnswer{Token: value, sessionAnswer: times, Name: key.Name, Workspace: key.WorkspaceID, Role: model.RoleName(key.Role)}
}

// decode reads the JSON body of a request.
func decode(r *http.Request, v any) error {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		return refusedSession("the body must be a JSON object of at most 96 KiB", "Use the CLI of the control plane's version.")
	}
	return nil
}

// serveToken trades the code of the CLI's loopback address for a token.
func (a browsers) serveToken(r *http.Request) (answer any, err error) {
	var in struct {
		Code     string `json:"code"`
		Verifier string `json:"verifier"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	err = a.countingFailures(r.Context(), func(ctx context.Context) error {
		value, row, key, err := a.cliTokenOf(ctx, in.Code, in.Verifier, caller{Source: a.sourceOfRequest(r), Procedure: ssoTokenPath})
		answer = a.answerToken(value, row, key)
		return err
	})
	if err == nil {
		a.countSignIn("cli", nil)
	}
	return answer, err
}

// serveDevice begins the device flow.
func (a browsers) serveDevice(r *http.Request) (any, error) {
	if a.signInIssuer() == "" {
		return nil, errNoSSO()
	}
	if err := a.takeSignIn(rpc.ClientOf(r.Context())); err != nil {
		return nil, err
	}
	d, err := a.cfg.SSO.StartDevice(r.Context())
	if err != nil {
		return nil, explainSSO(err)
	}
	expires := d.Expires
	if latest := time.Now().Add(2 * signInFor); expires.IsZero() || expires.After(latest) {
		expires = latest
	}
	handle, err := a.sealValue(deviceHandle{Code: d.Code, ExpiresAt: expires.UnixMilli()}, deviceContext)
	if err != nil {
		return nil, err
	}
	return struct {
		Handle      string `json:"handle"`
		UserCode    string `json:"userCode"`
		URL         string `json:"url"`
		URLComplete string `json:"urlComplete,omitempty"`
		ExpiresInMs int64  `json:"expiresInMs"`
		IntervalMs  int64  `json:"intervalMs"`
	}{handle, d.UserCode, d.URL, d.Complete, time.Until(expires).Milliseconds(), d.Interval.Milliseconds()}, nil
}

// serveDevicePoll returns a token if the person has signed in, or else {"pending": true}.
func (a browsers) serveDevicePoll(r *http.Request) (answer any, err error) {
	var in struct {
		Handle    string `json:"handle"`
		Workspace string `json:"workspace"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	if a.signInIssuer() == "" {
		return nil, errNoSSO()
	}
	pending, slower := false, false
	err = a.countingFailures(r.Context(), func(ctx context.Context) error {
		var handle deviceHandle
		if !a.openSealed(in.Handle, deviceContext, &handle) || time.Now().UnixMilli() >= handle.ExpiresAt {
			return signInRefused("expired", "The sign-in has expired", "the code was not entered in time", "Run `windlass login --sso --device` again.")
		}
		id, err := a.cfg.SSO.PollDevice(ctx, handle.Code)
		if pending, slower = errors.Is(err, sso.ErrPending) || errors.Is(err, sso.ErrSlowDown), errors.Is(err, sso.ErrSlowDown); pending {
			return nil
		}
		if err != nil {
			return explainSSO(err)
		}
		value, row, key, err := a.begin(ctx, id, in.Workspace, tokenPrefix, model.HashToken("device "+handle.Code), caller{Source: a.sourceOfRequest(r), Procedure: ssoDevicePollPath})
		answer = a.answerToken(value, row, key)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case pending:
		return struct {
			Pending  bool `json:"pending"`
			SlowDown bool `json:"slowDown,omitempty"`
		}{true, slower}, nil
	}
	a.countSignIn("device", nil)
	return answer, nil
}

// serveFederated trades the token of a service for a token of this control plane.
func (a browsers) serveFederated(r *http.Request) (answer any, err error) {
	var in struct {
		Token     string `json:"token"`
		Workspace string `json:"workspace"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	if a.cfg.SSO == nil || len(a.cfg.SSO.FederationIssuers()) == 0 {
		return nil, errNoSSO()
	}
	err = a.countingFailures(r.Context(), func(ctx context.Context) error {
		token := strings.TrimSpace(in.Token)
		if err := a.mayFederate(ctx, token); err != nil {
			return err
		}
		id, err := a.cfg.SSO.VerifyFederated(ctx, token)
		if err != nil {
			return explainSSO(err)
		}
		value, row, key, err := a.begin(ctx, id, in.Workspace, tokenPrefix, nil, caller{Source: a.sourceOfRequest(r), Procedure: ssoFederatedPath})
		answer = a.answerToken(value, row, key)
		return err
	})
	if err == nil {
		a.countSignIn("federated", nil)
	}
	return answer, err
}

// mayFederate refuses a token of an issuer that no rule names. Without it, strangers could make the control plane fetch
// the keys of an issuer that is not in use.
func (a browsers) mayFederate(ctx context.Context, token string) error {
	issuer, err := a.cfg.SSO.FederatedIssuer(token)
	if err != nil {
		return explainSSO(err)
	}
	var rules []model.SignInRule
	err = a.cfg.Store.View(ctx, func(tx Tx) (err error) {
		rules, err = tx.ListSignInRulesOfIssuer(issuer)
		return err
	})
	switch {
	case err != nil:
		return a.storeError(err)
	case len(rules) == 0:
		return signInRefused("no_rule", "You have no access yet", "no sign-in rule is for tokens of "+issuer,
			"An owner of the workspace can add one with `windlass federation add`.")
	}
	return nil
}

// tokenOf returns the member's token of a request.
func tokenOf(r *http.Request) (string, error) {
	value, ok := bearerToken(r.Header)
	if !ok || !isToken(value) {
		return "", unauthenticatedError("this request needs a member's token", "Run `windlass login --sso`.")
	}
	return value, nil
}

// serveTokenRenew gives a member's token another value. The answer has no token if another program renewed it.
func (a browsers) serveTokenRenew(r *http.Request) (any, error) {
	old, err := tokenOf(r)
	if err != nil {
		return nil, err
	}
	value, row, err := a.renewSession(r.Context(), old, rpc.ClientOf(r.Context()))
	if err != nil {
		return nil, err
	}
	return tokenAnswer{Token: value, sessionAnswer: a.answerSession(row.ExpiresAt)}, nil
}

// serveTokenSignOut ends the session of a member's token.
func (a browsers) serveTokenSignOut(r *http.Request) (any, error) {
	value, err := tokenOf(r)
	if err != nil {
		return nil, err
	}
	err = a.signOut(r.Context(), value, r.URL.Query().Get("everywhere") == "true", a.sourceOfRequest(r), rpc.ClientOf(r.Context()))
	if err != nil && connect.CodeOf(err) != connect.CodeUnauthenticated {
		return nil, err
	}
	return struct{}{}, nil
}

// withFix returns the message of an error with its fix, as sentences.
func withFix(err *connect.Error) string {
	text := sentenceOf(err.Message())
	if fix := rpc.DetailOf(err).GetFix(); fix != "" {
		text += " " + fix
	}
	return text
}

func sentenceOf(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// pageStyle is the style of the pages of a sign-in. They have no script, and load nothing.
const pageStyle = `:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:0;padding:10vh 1rem}` +
	`main{max-width:36rem;margin:0 auto}h1{font-size:1.5rem}p{overflow-wrap:anywhere}li{margin:.5rem 0}`

var pageStyleHash = func() string {
	sum := sha256.Sum256([]byte(pageStyle))
	return base64.StdEncoding.EncodeToString(sum[:])
}()

const pageHead = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}} · Windlass</title><style>` + pageStyle + `</style></head>
<body><main><h1>{{.Title}}</h1>`

var signInPage = template.Must(template.New("sign-in").Parse(pageHead + `
{{if .Links}}<p>You have a role in several workspaces.</p><ul>{{range .Links}}<li><a href="{{.URL}}">{{.Name}}</a></li>{{end}}</ul>
{{else}}<p>{{.Message}}</p>{{if .Fix}}<p>{{.Fix}}</p>{{end}}<p><a href="/ui/">Back to the sign-in</a></p>{{end}}
</main></body></html>
`))

// confirmPage asks before the CLI gets the sign-in. The issuer may not ask a person who is signed in there, so another
// user of the machine could get a token with a link alone.
var confirmPage = template.Must(template.New("confirm").Parse(pageHead + `
<p>A command on this machine waits for a sign-in as <strong>{{.Name}}</strong>, with role {{.Role}}.</p>
<p>It shows the code <strong>{{.Confirmation}}</strong> in the terminal where you ran <code>windlass login</code>. If you see another code there, or did not run it, decline.</p>
<p><a href="{{.URL}}">Sign in the command line</a></p>
<p><a href="{{.Decline}}">Decline</a></p>
</main></body></html>
`))

type pageLink struct{ URL, Name string }

// failPage shows a refused sign-in, and writes it to the audit.
func (a browsers) failPage(w http.ResponseWriter, r *http.Request, procedure string, err error) {
	a.countSignIn("browser", err)
	page := struct {
		Title, Message, Fix string
		Links               []pageLink
	}{Title: "The sign-in failed"}
	status := http.StatusForbidden
	var refused *signInError
	var coded *connect.Error
	switch {
	case errors.As(err, &refused) && errors.As(err, &coded):
		page.Title, page.Message, page.Fix = refused.title, sentenceOf(coded.Message()), rpc.DetailOf(coded).GetFix()
		for _, name := range refused.workspaces {
			shown := name
			if name == platform {
				shown = "The platform, as operator"
			}
			page.Links = append(page.Links, pageLink{ssoLoginPath + "?" + url.Values{"workspace": {name}}.Encode(), shown})
		}
		if len(refused.workspaces) > 0 {
			status = http.StatusOK
		} else {
			a.noteRefusal(caller{Procedure: procedure}, rpc.ClientOf(r.Context()), err)
		}
	case errors.Is(err, sso.ErrAway):
		a.cfg.Log.WarnContext(r.Context(), "the issuer of sign-ins does not answer as it should", "request", procedure, "error", err)
		status, page.Title = http.StatusBadGateway, "The issuer does not answer"
		page.Message, page.Fix = "The issuer of the sign-in does not answer, or refuses the control plane.", "Try again in a moment. API keys and running sessions still work. The log of the control plane has the cause."
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), a.cfg.IsUnavailable(err):
		status, page.Message, page.Fix = http.StatusServiceUnavailable, "A component that the sign-in needs is unreachable.", "Try again in a moment."
	case errors.As(err, &coded):
		page.Message, page.Fix = sentenceOf(coded.Message()), rpc.DetailOf(coded).GetFix()
		a.noteRefusal(caller{Procedure: procedure}, rpc.ClientOf(r.Context()), err)
	default:
		a.cfg.Log.ErrorContext(r.Context(), "a sign-in failed", "request", procedure, "error", err)
		status, page.Message, page.Fix = http.StatusInternalServerError, "An internal error occurred.", "The log of the control plane has the cause."
	}
	writePage(w, status, signInPage, page)
}

// writePage writes a page of a sign-in.
func writePage(w http.ResponseWriter, status int, page *template.Template, data any) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'sha256-"+pageStyleHash+"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	w.WriteHeader(status)
	_ = page.Execute(w, data) // a client that closed the connection needs no answer
}

// ssoUnavailable returns the error of an issuer that does not answer.
func ssoUnavailable() *connect.Error {
	return rpc.ErrorWith(connect.CodeUnavailable, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		Fix:    "Try again in a moment. API keys and running sessions still work. The log of the control plane has the cause.",
	}, "the issuer of the sign-in does not answer, or refuses the control plane")
}
