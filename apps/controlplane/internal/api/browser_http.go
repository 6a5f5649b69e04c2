package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/sso"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Procedures of sign-ins, sign-outs and links in the audit.
const (
	signInProcedure     = "/ui/session/sign-in"
	renewProcedure      = "/ui/session/renew"
	signOutProcedure    = "/ui/session/sign-out"
	signOutAllProcedure = "/ui/session/sign-out-everywhere"
	linkProcedure       = "/ui/link"
)

const (
	// maxSignIn bounds the body of a request: a key or a link.
	maxSignIn = 4 << 10
	// signInTimeout is the timeout of a request.
	signInTimeout = 10 * time.Second
)

// Sessions serves the sign-in and sign-out of browsers. Errors have Connect's JSON form.
//
//	POST /ui/session/sign-in              {"key": ...} or {"link": ...}; sets the cookie
//	POST /ui/session/renew                sets another value
//	POST /ui/session/sign-out             ends the session
//	POST /ui/session/sign-out-everywhere  ends all sessions and links of the API key
//	POST /ui/link                         with an API key: makes a link that signs in once
func (a *API) Sessions() http.Handler { return browsers{a.server}.sessionHandler() }

func (a browsers) sessionHandler() http.Handler {
	mux := http.NewServeMux()
	origins := http.NewCrossOriginProtection()
	handle := func(path, event string, do func(w http.ResponseWriter, r *http.Request) (any, error)) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), signInTimeout)
			defer cancel()
			r = r.WithContext(ctx)
			r.Body = http.MaxBytesReader(w, r.Body, maxSignIn)
			var answer any
			var err error
			if path != linkProcedure { // links are made with an API key, not with a cookie
				err = sameOrigin(origins, r)
			}
			if err == nil {
				answer, err = do(w, r)
			}
			if err != nil {
				a.failBrowser(w, r, path, err)
				return
			}
			a.sessions.WithLabelValues(event).Inc()
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer) // a client that closed the connection needs no answer
		})
	}
	handle(signInProcedure, "signed_in", a.serveSignIn)
	handle(renewProcedure, "renewed", a.serveRenew)
	handle(signOutProcedure, "signed_out", a.serveSignOut(false))
	handle(signOutAllProcedure, "signed_out_everywhere", a.serveSignOut(true))
	handle(linkProcedure, "link_made", a.serveLink)
	a.handleSSO(mux)
	return mux
}

// sessionAnswer says how long the session is valid. It has durations instead of times, because clocks differ.
type sessionAnswer struct {
	ExpiresInMs  int64 `json:"expiresInMs"`
	RenewAfterMs int64 `json:"renewAfterMs"`
}

func (a browsers) answerSession(expires int64) sessionAnswer {
	left := expires - nowMillis()
	return sessionAnswer{ExpiresInMs: left, RenewAfterMs: min(left/2, time.Hour.Milliseconds())}
}

func (a browsers) serveSignIn(w http.ResponseWriter, r *http.Request) (any, error) {
	var in struct {
		Key  string `json:"key"`
		Link string `json:"link"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || (in.Key == "") == (in.Link == "") {
		return nil, refusedSession("the body must be a JSON object with a key or a link", `Send {"key": "wl_..."}.`)
	}
	value, row, err := a.signIn(r.Context(), in.Key, in.Link, a.sourceOfRequest(r), rpc.ClientOf(r.Context()))
	if err != nil {
		return nil, err
	}
	// A session of an earlier cookie does not end, because it may belong to another key.
	http.SetCookie(w, a.newCookie(r, value, time.UnixMilli(row.ExpiresAt)))
	return a.answerSession(row.ExpiresAt), nil
}

func (a browsers) serveRenew(w http.ResponseWriter, r *http.Request) (any, error) {
	value, row, err := a.renewSession(r.Context(), a.cookieOf(r), rpc.ClientOf(r.Context()))
	if err != nil {
		return nil, err
	}
	if value != "" {
		http.SetCookie(w, a.newCookie(r, value, time.UnixMilli(row.ExpiresAt)))
	}
	return a.answerSession(row.ExpiresAt), nil
}

func (a browsers) serveSignOut(everywhere bool) func(http.ResponseWriter, *http.Request) (any, error) {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		err := a.signOut(r.Context(), a.cookieOf(r), everywhere, a.sourceOfRequest(r), rpc.ClientOf(r.Context()))
		// A browser without a session is signed out already.
		if err != nil && connect.CodeOf(err) != connect.CodeUnauthenticated {
			return nil, err
		}
		http.SetCookie(w, a.newCookie(r, "", time.Time{}))
		return struct{}{}, nil
	}
}

func (a browsers) serveLink(_ http.ResponseWriter, r *http.Request) (any, error) {
	value, ok := bearerToken(r.Header)
	if !ok {
		return nil, unauthenticatedError("a link needs an API key or a member's token", "Send it as `Authorization: Bearer wl_...`.")
	}
	key, of, err := a.byBearer(r.Context(), value, rpc.ClientOf(r.Context()), time.Now())
	if err != nil {
		return nil, err
	}
	link, row, err := a.newLink(r.Context(), key, of, a.sourceOfRequest(r))
	if err != nil {
		return nil, err
	}
	return struct {
		Link        string `json:"link"`
		ExpiresInMs int64  `json:"expiresInMs"`
	}{link, row.ExpiresAt - nowMillis()}, nil
}

func (a browsers) sourceOfRequest(r *http.Request) string {
	return apierr.Clip(sourceOf(rpc.Call{Header: r.Header, Client: rpc.ClientOf(r.Context())}), maxSource)
}

// failBrowser answers with an error, and writes refusals to the audit.
func (a browsers) failBrowser(w http.ResponseWriter, r *http.Request, procedure string, err error) {
	var coded *connect.Error
	switch {
	case errors.Is(err, sso.ErrAway):
		a.cfg.Log.WarnContext(r.Context(), "the issuer of sign-ins does not answer as it should", "request", procedure, "error", err)
		coded = ssoUnavailable()
	case errors.As(err, &coded):
		a.noteRefusal(caller{Procedure: procedure}, rpc.ClientOf(r.Context()), err)
		a.sessions.WithLabelValues("refused").Inc()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), a.cfg.IsUnavailable(err):
		coded = rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "", "a component that this request needs is unreachable: try again in a moment")
	default:
		a.cfg.Log.ErrorContext(r.Context(), "a browser's session failed", "request", procedure, "error", err)
		coded = rpc.Error(connect.CodeInternal, windlassv1.ErrorReason_ERROR_REASON_INTERNAL, "", "internal error: the log of the control plane has the cause")
	}
	_, _ = io.Copy(io.Discard, r.Body)
	// The error writer chooses its format by the request's Content-Type, which may be missing.
	r.Header.Set("Content-Type", "application/json")
	_ = connect.NewErrorWriter().Write(w, r, coded)
}
