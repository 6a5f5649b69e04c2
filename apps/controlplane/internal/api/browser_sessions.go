package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A browser signs in with an API key, or with a link that a holder of the key made, and gets a
// cookie. The browser keeps no key, and scripts cannot read the cookie.
//
//	POST /ui/session/sign-in {key} ──> row of the cookie's hash ──> Set-Cookie
//	any RPC with the cookie ──> Browser: same origin, own header? ──> Admit: row ──> API key ──> role
//
// Sessions have these properties:
//
//   - A session has the rights of its API key, which is looked up at each call. If the key is revoked or
//     expires, its sessions and their open streams end.
//   - The database stores hashes. Each sign-in gets a new random value, so that an attacker cannot plant a value
//     that they know (session fixation).
//   - Values are renewed while the page is open. The previous value works for renewGrace, for calls that are
//     running. A session ends after SessionIdle without renewal, and always after SessionMax.
//   - Other sites cannot use the cookie. It is SameSite=Strict, and Browser accepts it only in requests of
//     its own origin with a header that no form and no simple request can set. The API serves no CORS
//     headers.
const (
	// sessionCookie is the cookie's name without TLS, secureCookie with TLS. A browser accepts secureCookie only from
	// this host and over TLS.
	sessionCookie = "windlass_session"
	secureCookie  = "__Host-windlass_session"
	// DashboardHeader must be in each request that uses a session's cookie.
	DashboardHeader = "Windlass-Dashboard"

	sessionPrefix = "wls_"
	linkPrefix    = "wll_"
	// tokenPrefix begins the value of a member's session that a program sends as a bearer token. Cookies do not
	// accept it, and the header Authorization does not accept values of cookies.
	tokenPrefix = "wlt_"
	// valueLength is the length of a session's and of a link's value.
	valueLength = len(sessionPrefix) + 43
	// renewGrace is how long a value still works after a renewal, for running calls and other tabs.
	renewGrace = time.Minute
	// linkTTL is how long a link works. A user may come back to the terminal that shows the link later.
	linkTTL = time.Hour
	// maxSessionsOfKey limits the sessions and links of one API key, so that a program that signs in repeatedly does
	// not fill the database.
	maxSessionsOfKey = 1_000
)

// browsers serves sessions of browsers.
type browsers struct{ *server }

// browserCall is the value of a request's cookie, or the error because of which it must not be used.
type browserCall struct {
	value string
	err   error
}

type browserKey struct{}

// Browser wraps next so that requests can authenticate with a session's cookie. Without it, Admit accepts only API
// keys.
func (a *API) Browser(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		value := browsers{a.server}.cookieOf(r)
		if value == "" || r.Header.Get("Authorization") != "" {
			next.ServeHTTP(w, r)
			return
		}
		call := browserCall{value: value, err: sameOrigin(origins, r)}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), browserKey{}, call)))
	})
}

// sameOrigin returns an error for requests that another site may have made.
func sameOrigin(origins *http.CrossOriginProtection, r *http.Request) error {
	const fix = "Open the dashboard at the address of its control plane. Programs send an API key instead of a cookie."
	site := r.Header.Get("Sec-Fetch-Site")
	if err := origins.Check(r); err != nil || site != "" && site != "same-origin" {
		return apierr.Denied("a session's cookie is only valid for requests from the dashboard's own origin", fix)
	}
	if r.Header.Get(DashboardHeader) == "" {
		return apierr.Denied("a request with a session's cookie needs the header "+DashboardHeader, fix)
	}
	return nil
}

// cookieOf returns the session's value. Over TLS, it reads only secureCookie, which no other host can set.
func (a browsers) cookieOf(r *http.Request) string {
	c, err := r.Cookie(a.cookieName(r))
	if err != nil || strings.HasPrefix(c.Value, tokenPrefix) {
		return ""
	}
	return c.Value
}

func (a browsers) cookieName(r *http.Request) string {
	if a.isSecure(r) {
		return secureCookie
	}
	return sessionCookie
}

// isSecure reports whether the browser uses TLS, to this process or to a trusted proxy.
func (a browsers) isSecure(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && a.cfg.Proxies.Lists(at.Addr().Unmap().WithZone("")) && r.Header.Get("X-Forwarded-Proto") == "https"
}

// newCookie returns the session's cookie. An empty value removes the cookie in the browser.
func (a browsers) newCookie(r *http.Request, value string, expires time.Time) *http.Cookie {
	c := &http.Cookie{
		Name: a.cookieName(r), Value: value, Path: "/", Expires: expires,
		Secure: a.isSecure(r), HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
	if value == "" {
		c.Expires, c.MaxAge = time.Unix(1, 0), -1
	}
	return c
}

// sessionOver returns the error of a session that ended or never existed.
func sessionOver() error {
	return unauthenticatedError("the session has ended", "Sign in again.")
}

// sessionOf returns the row of a cookie's value.
func (a browsers) sessionOf(ctx context.Context, value string, client netip.Addr, at time.Time) (model.BrowserSession, error) {
	return a.sessionRow(ctx, value, false, client, at)
}

// sessionRow returns the row with the value of a session or of a link. Invalid values take tokens from the same bucket as
// invalid API keys. A proven value takes no token, so that failures of other programs at its address do not sign the
// browser out.
func (a browsers) sessionRow(ctx context.Context, value string, isLink bool, client netip.Addr, at time.Time) (s model.BrowserSession, err error) {
	over := sessionOver()
	if isLink {
		over = usedLink()
	}
	if len(value) != valueLength {
		return s, over
	}
	hash := model.HashToken(value)
	from, micro := admission.ClientKey(client), at.UnixMicro()
	tried := !a.keys.isProven(hash, at)
	if tried {
		if wait := a.cfg.FailedLogins.Take(from, micro); wait > 0 {
			return s, a.countRefusal(tooManyFailures(a.cfg.FailedLogins.Rate(), wait))
		}
	}
	err = a.cfg.Store.View(ctx, func(tx Tx) (err error) {
		s, err = tx.GetBrowserSession(hash)
		return err
	})
	if errors.Is(err, model.ErrNotFound) {
		a.keys.forgetKey(hash)
		return s, over
	}
	if tried {
		a.cfg.FailedLogins.Return(from, micro)
	}
	switch {
	case err != nil:
		return s, fmt.Errorf("look up browser session: %w", err)
	case s.IsLink != isLink || at.UnixMilli() >= s.ExpiresAt:
		a.keys.forgetKey(hash)
		return s, over
	}
	if tried && !isLink {
		a.keys.markProven(hash, at)
	}
	return s, nil
}

// whoCalls returns the API key of a call. sessionID is the session that stands for the key, or empty if the call has
// the key itself.
func (a browsers) whoCalls(ctx context.Context, header http.Header, client netip.Addr) (key model.APIKey, sessionID string, err error) {
	at := time.Now()
	if value, ok := bearerToken(header); ok {
		key, s, err := a.byBearer(ctx, value, client, at)
		return key, s.SessionID, err
	}
	call, ok := ctx.Value(browserKey{}).(browserCall)
	if !ok {
		by, err := callerOf(ctx)
		return by.APIKey, by.Session, err
	}
	if call.err != nil {
		return key, "", call.err
	}
	s, err := a.sessionOf(ctx, call.value, client, at)
	if err != nil {
		return key, "", err
	}
	key, err = a.keys.findByHash(ctx, s.KeyHash, client, at)
	return key, s.SessionID, err
}

// isToken reports whether a bearer token is the value of a member's session.
func isToken(value string) bool { return strings.HasPrefix(value, tokenPrefix) }

// byBearer returns the API key with the value, or the member whose session has the value, with the session. The session
// of an API key is empty.
func (a browsers) byBearer(ctx context.Context, value string, client netip.Addr, at time.Time) (key model.APIKey, s model.BrowserSession, err error) {
	if !isToken(value) {
		key, err = a.keys.find(ctx, value, client, at)
		return key, s, err
	}
	if s, err = a.sessionOf(ctx, value, client, at); err != nil {
		return key, s, err
	}
	key, err = a.keys.findByHash(ctx, s.KeyHash, client, at)
	return key, s, err
}

// stillIn returns an error if the caller of an open stream may no longer read.
func (a *server) stillIn(ctx context.Context, by caller) error {
	if by.Session != "" {
		var good bool
		err := a.cfg.Store.View(ctx, func(tx Tx) (err error) {
			good, err = tx.IsBrowserSession(by.Session, nowMillis())
			return err
		})
		// As with keys, an unreachable database does not end a stream that was admitted.
		if err == nil && !good {
			return sessionOver()
		}
	}
	return a.keys.stillGood(ctx, by.APIKey)
}

// newSession returns a new value for the key's session with the id, which began at signedIn (unix ms), and the
// value's row.
func (a browsers) newSession(key model.APIKey, id string, signedIn int64, at time.Time) (string, model.BrowserSession) {
	return a.newSessionOf(sessionPrefix, key, id, signedIn, at)
}

// newSessionOf is newSession for a value with the prefix. Sessions of members have limits of their own.
func (a browsers) newSessionOf(prefix string, key model.APIKey, id string, signedIn int64, at time.Time) (string, model.BrowserSession) {
	value := newCredential(prefix)
	idle, most := a.sessionLimits(key)
	expires := min(at.Add(idle).UnixMilli(), signedIn+most.Milliseconds())
	if key.ExpiresAt != 0 {
		expires = min(expires, key.ExpiresAt)
	}
	return value, model.BrowserSession{
		Hash: model.HashToken(value), SessionID: id, WorkspaceID: key.WorkspaceID, KeyID: key.ID, KeyHash: key.Hash,
		SignedInAt: signedIn, ExpiresAt: expires,
	}
}

// sessionLimits returns how long a session of the key lasts without renewal, and in all. A member must sign in again
// soon, because only that reads the member's groups again. A service cannot renew its session.
func (a browsers) sessionLimits(key model.APIKey) (idle, most time.Duration) {
	switch {
	case key.IsService():
		return a.cfg.FederationTTL, a.cfg.FederationTTL
	case key.IsMember():
		return min(a.cfg.SessionIdle, a.cfg.MemberSessionMax), a.cfg.MemberSessionMax
	}
	return a.cfg.SessionIdle, a.cfg.SessionMax
}

// signIn begins a session with either keyValue (an API key) or link. The other argument is empty.
func (a browsers) signIn(ctx context.Context, keyValue, link, source string, client netip.Addr) (value string, row model.BrowserSession, err error) {
	at := time.Now()
	signedIn := at.UnixMilli()
	var key model.APIKey
	if link == "" {
		if key, err = a.keys.find(ctx, keyValue, client, at); err != nil {
			return "", row, err
		}
	} else {
		var made model.BrowserSession
		if key, made, err = a.keyOfLink(ctx, link, client, at); err != nil {
			return "", row, err
		}
		if key.IsMember() {
			// A member signs in only at the issuer, so the session ends with the one that made the link.
			signedIn = made.SignedInAt
		}
	}
	value, row = a.newSession(key, ident.New("bs"), signedIn, at)
	err = a.cfg.Store.Update(ctx, func(tx Tx) error {
		if link != "" {
			// If two calls use the link at the same time, one call finds it deleted.
			if err := tx.DeleteBrowserSession(model.HashToken(link)); errors.Is(err, model.ErrNotFound) {
				return usedLink()
			} else if err != nil {
				return fmt.Errorf("use link: %w", err)
			}
		}
		if err := mayBegin(tx, key, at); err != nil {
			return err
		}
		if err := tx.InsertBrowserSession(row); err != nil {
			return fmt.Errorf("begin browser session: %w", err)
		}
		return auditSession(tx, caller{APIKey: key, Source: source, Procedure: signInProcedure}, row.SessionID)
	})
	if err == nil {
		a.keys.markProven(row.Hash, at)
	}
	return value, row, a.storeError(err)
}

func usedLink() error {
	return unauthenticatedError("the link was used or has expired", "Make another link with `windlass dashboard`, or sign in with an API key.")
}

// keyOfLink returns the API key that made the link, and the link's row. The link stays valid.
func (a browsers) keyOfLink(ctx context.Context, link string, client netip.Addr, at time.Time) (key model.APIKey, row model.BrowserSession, err error) {
	if row, err = a.sessionRow(ctx, link, true, client, at); err != nil {
		return key, row, err
	}
	key, err = a.keys.findByHash(ctx, row.KeyHash, client, at)
	return key, row, err
}

// mayBegin fails for an API key that has maxSessionsOfKey sessions and links.
func mayBegin(tx Tx, key model.APIKey, at time.Time) error {
	n, err := tx.CountBrowserSessionsOfKey(key.ID, at.UnixMilli())
	if err != nil {
		return fmt.Errorf("count browser sessions of key %s: %w", key.ID, err)
	}
	if n >= maxSessionsOfKey {
		return apierr.OverLimit("", fmt.Sprintf("%s has %d sessions and links of browsers, which is the maximum", key.Name, n),
			`"Sign out everywhere" in the dashboard ends all of them. Use a separate key for each person and program.`)
	}
	return nil
}

// newLink makes a link that begins one session of the key. of is the session of a member, and empty for an API key.
func (a browsers) newLink(ctx context.Context, key model.APIKey, of model.BrowserSession, source string) (string, model.BrowserSession, error) {
	at, value := time.Now(), newCredential(linkPrefix)
	signedIn, expires := at.UnixMilli(), at.Add(linkTTL).UnixMilli()
	if key.IsMember() {
		_, most := a.sessionLimits(key)
		signedIn = of.SignedInAt
		expires = min(expires, signedIn+most.Milliseconds())
	}
	row := model.BrowserSession{
		Hash: model.HashToken(value), SessionID: ident.New("bs"), WorkspaceID: key.WorkspaceID, KeyID: key.ID, KeyHash: key.Hash,
		IsLink: true, SignedInAt: signedIn, ExpiresAt: expires,
	}
	err := a.cfg.Store.Update(ctx, func(tx Tx) error {
		if err := mayBegin(tx, key, at); err != nil {
			return err
		}
		if err := tx.InsertBrowserSession(row); err != nil {
			return fmt.Errorf("make link: %w", err)
		}
		return auditSession(tx, caller{APIKey: key, Source: source, Procedure: linkProcedure}, row.SessionID)
	})
	return value, row, a.storeError(err)
}

// renewSession gives the session another value. The previous value works for renewGrace.
func (a browsers) renewSession(ctx context.Context, old string, client netip.Addr) (value string, row model.BrowserSession, err error) {
	at := time.Now()
	s, err := a.sessionOf(ctx, old, client, at)
	if err != nil {
		return "", row, err
	}
	key, err := a.keys.findByHash(ctx, s.KeyHash, client, at)
	if err != nil {
		return "", row, err
	}
	if _, most := a.sessionLimits(key); s.ExpiresAt <= at.Add(renewGrace).UnixMilli() && s.ExpiresAt < s.SignedInAt+most.Milliseconds() {
		// Another tab with the same cookie renewed the value a moment ago.
		return "", s, nil
	}
	value, row = a.newSessionOf(old[:len(sessionPrefix)], key, s.SessionID, s.SignedInAt, at)
	err = a.cfg.Store.Update(ctx, func(tx Tx) error {
		// If the row is gone, the session was signed out meanwhile.
		if err := tx.ShortenBrowserSession(s.Hash, at.Add(renewGrace).UnixMilli()); errors.Is(err, model.ErrNotFound) {
			return sessionOver()
		} else if err != nil {
			return fmt.Errorf("renew browser session %s: %w", s.SessionID, err)
		}
		if err := tx.InsertBrowserSession(row); err != nil {
			return fmt.Errorf("renew browser session %s: %w", s.SessionID, err)
		}
		return nil
	})
	if err == nil {
		a.keys.markProven(row.Hash, at)
	}
	return value, row, a.storeError(err)
}

// signOut ends the session, or all sessions and links of its key.
func (a browsers) signOut(ctx context.Context, value string, everywhere bool, source string, client netip.Addr) error {
	s, err := a.sessionOf(ctx, value, client, time.Now())
	if err != nil {
		return err
	}
	key, err := a.keys.findByHash(ctx, s.KeyHash, client, time.Now())
	if err != nil {
		return err
	}
	procedure := signOutProcedure
	if everywhere {
		procedure = signOutAllProcedure
	}
	return a.storeError(a.cfg.Store.Update(ctx, func(tx Tx) error {
		end := func() error { return tx.DeleteBrowserSessionByID(s.SessionID) }
		if everywhere {
			end = func() error { return tx.DeleteBrowserSessionsOfKey(s.KeyID) }
		}
		if err := end(); err != nil {
			return fmt.Errorf("end browser session %s: %w", s.SessionID, err)
		}
		return auditSession(tx, caller{APIKey: key, Source: source, Procedure: procedure}, s.SessionID)
	}))
}

// auditSession writes the audit row of a session that the caller began or ended.
func auditSession(tx Tx, by caller, sessionID string) error {
	err := tx.InsertAudit(model.Audit{
		ID: ident.New("aud"), WorkspaceID: by.WorkspaceID, At: nowMillis(), Actor: by.Name, ActorID: by.ID, Source: by.Source,
		Procedure: by.Procedure, ResourceKind: "browser_session", ResourceID: sessionID,
	})
	if err != nil {
		return fmt.Errorf("write audit of browser session %s: %w", sessionID, err)
	}
	return nil
}

// refusedSession returns a validation error without a field.
func refusedSession(message, fix string) error {
	return rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Fix: fix,
	}, message)
}
