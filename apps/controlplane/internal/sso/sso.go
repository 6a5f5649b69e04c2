// Package sso verifies the holder of a token of an OpenID Connect issuer.
//
// People sign in at one issuer, which an operator configures, with the authorization code flow or the device flow.
// Services, such as jobs of a CI, bring a token of one of the federation issuers.
//
// Discovery documents and keys are cached. An issuer is called only for sign-ins. Existing sessions work without it.
// Operators choose the issuers, so the package calls private addresses, too. Redirects, sizes and times of its calls
// are bounded.
package sso

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"github.com/windlass-run/windlass/apps/controlplane/internal/signin"
)

const (
	// callTimeout bounds one call to an issuer, including redirects.
	callTimeout = 10 * time.Second
	// maxRedirects is the maximum number of redirects of one call.
	maxRedirects = 3
	// maxAnswer bounds the body of an issuer's answer, in bytes. Key sets and discovery documents have a few KiB.
	maxAnswer = 1 << 20
	// discoveryFor is how long a discovery document is cached. An older one is used while the issuer is away.
	discoveryFor = time.Hour
	// failureFor is how long a failed discovery is cached, so that a flood of sign-ins does not wait for an issuer
	// that is away.
	failureFor = 5 * time.Second
	// maxToken bounds a token, in bytes.
	maxToken = 64 << 10
	// maxClaims and maxValue bound what is kept of a token: the number of values, and the bytes of one value.
	maxClaims = 1_000
	maxValue  = 1024
	// maxErrorText bounds the text of an error, in bytes.
	maxErrorText = 512
	// maxSubject is the maximum length of a subject by the standard, in bytes.
	maxSubject = 255
)

// Errors of tokens and sign-ins. They are refusals: the issuer or the caller is at fault.
var (
	ErrIssuer   = errors.New("the token is from another issuer")
	ErrAudience = errors.New("the token is for another audience")
	ErrExpired  = errors.New("the token has expired")
	ErrNonce    = errors.New("the token belongs to another sign-in")
	ErrToken    = errors.New("the token is not valid")
	// ErrCode means that the issuer refuses the code: it was used, has expired, or belongs to another client.
	ErrCode = errors.New("the issuer refuses the code of this sign-in")
	// ErrDenied means that the person or the issuer refused the sign-in.
	ErrDenied = errors.New("the sign-in was denied")
	// ErrPending means that the person has not finished the sign-in on the device.
	ErrPending = errors.New("the sign-in is pending")
	// ErrSlowDown is ErrPending for a caller that polls too often.
	ErrSlowDown = errors.New("the sign-in is pending, and was polled too often")
	// ErrUnsupported means that the issuer does not have the flow.
	ErrUnsupported = errors.New("the issuer does not support this")
	// ErrAway means that the issuer does not answer as it should.
	ErrAway = errors.New("the issuer does not answer")
)

// Config configures a Service.
type Config struct {
	// Issuer is the URL of the issuer at which people sign in. Empty: people cannot sign in.
	Issuer   string
	ClientID string
	// SecretFile has the client's secret. It is read at each use. Empty: the client is public.
	SecretFile string
	// SecretInBody sends the secret in the body (client_secret_post) instead of in a header (client_secret_basic).
	SecretInBody bool
	// Scopes are the requested scopes of a sign-in, in addition to openid.
	Scopes []string
	// GroupsClaim is the claim that rules name "groups". Default: groups.
	GroupsClaim string
	// FederationIssuers are the issuers of tokens of services, and FederationAudience is the audience of these tokens.
	FederationIssuers  []string
	FederationAudience string
	// Transport changes the transport of calls to Issuer. nil: the CAs of this machine.
	Transport func(*http.Transport)
	// Now returns the time. nil: time.Now.
	Now func() time.Time
}

// Service verifies tokens. It is safe for concurrent use.
type Service struct {
	cfg     Config
	people  *issuer
	servers map[string]*issuer
}

// New returns a service, or an error that names the flag of a wrong setting.
func New(cfg Config) (*Service, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.GroupsClaim == "" {
		cfg.GroupsClaim = "groups"
	}
	s := &Service{cfg: cfg, servers: map[string]*issuer{}}
	if cfg.Issuer != "" {
		if err := checkIssuer(cfg.Issuer); err != nil {
			return nil, fmt.Errorf("--oidc-issuer: %w", err)
		}
		if cfg.ClientID == "" {
			return nil, errors.New("--oidc-issuer needs --oidc-client-id")
		}
		s.people = newIssuer(cfg.Issuer, cfg.Transport, cfg.Now)
	}
	for _, url := range cfg.FederationIssuers {
		if err := checkIssuer(url); err != nil {
			return nil, fmt.Errorf("--federation-issuers: %w", err)
		}
		if url == cfg.Issuer {
			return nil, fmt.Errorf("--federation-issuers: people sign in at %s, so it cannot issue tokens of services", url)
		}
		s.servers[url] = newIssuer(url, nil, cfg.Now)
	}
	if len(cfg.FederationIssuers) > 0 && cfg.FederationAudience == "" {
		return nil, errors.New("--federation-issuers needs --federation-audience")
	}
	return s, nil
}

// checkIssuer requires https, except for an issuer on this machine.
func checkIssuer(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return fmt.Errorf("%q is not the URL of an issuer: use https://HOST/PATH without a query", raw)
	}
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	if u.Scheme != "https" && (u.Scheme != "http" || !local) {
		return fmt.Errorf("issuer %q does not use https", raw)
	}
	return nil
}

// Issuer returns the URL of the issuer at which people sign in, or "".
func (s *Service) Issuer() string { return s.cfg.Issuer }

// FederationIssuers returns the issuers of tokens of services.
func (s *Service) FederationIssuers() []string { return slices.Clone(s.cfg.FederationIssuers) }

// issuer is an issuer with its discovery document.
type issuer struct {
	url    string
	client *http.Client
	now    func() time.Time
	calls  singleflight.Group

	mu       sync.Mutex
	provider *oidc.Provider // nil: never read
	readAt   time.Time
	failed   error
	failedAt time.Time
}

func newIssuer(url string, configure func(*http.Transport), now func() time.Time) *issuer {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: callTimeout / 2, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}
	if configure != nil {
		configure(transport)
	}
	return &issuer{url: url, now: now, client: &http.Client{
		Timeout: callTimeout, Transport: bounded{transport},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			switch {
			case len(via) > maxRedirects:
				return fmt.Errorf("more than %d redirects", maxRedirects)
			case via[0].URL.Scheme == "https" && r.URL.Scheme != "https":
				return errors.New("a redirect from https to " + r.URL.Scheme)
			case r.Method != http.MethodGet:
				return errors.New("a redirect of a request with credentials")
			}
			return nil
		},
	}}
}

// bounded limits the bodies of answers.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(res.Body, maxAnswer), res.Body}
	return res, nil
}

// get returns the issuer's provider. It reads the discovery document, unless the cached one is new enough.
func (i *issuer) get(ctx context.Context) (*oidc.Provider, error) {
	i.mu.Lock()
	provider, fresh := i.provider, i.now().Sub(i.readAt) < discoveryFor
	failed := i.failed
	if i.now().Sub(i.failedAt) >= failureFor {
		failed = nil
	}
	i.mu.Unlock()
	switch {
	case provider != nil && (fresh || failed != nil):
		return provider, nil //nolint:nilerr // the issuer is away, and the cached document is still true
	case failed != nil:
		return nil, failed
	}
	found := i.calls.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout) // other callers wait for the result
		defer cancel()
		read, err := oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.url)
		i.mu.Lock()
		defer i.mu.Unlock()
		if err != nil {
			i.failed, i.failedAt = fmt.Errorf("%w: %s", ErrAway, shortText(err)), i.now()
			if i.provider != nil {
				return i.provider, nil
			}
			return (*oidc.Provider)(nil), i.failed
		}
		i.provider, i.readAt, i.failed = read, i.now(), nil
		return read, nil
	})
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrAway, ctx.Err())
	case r := <-found:
		provider, _ := r.Val.(*oidc.Provider)
		return provider, r.Err
	}
}

// shortText returns the text of an error of package oidc. The error may contain a whole answer of the issuer, so the
// text is cut, because it is logged for each sign-in.
func shortText(err error) string {
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "")
}

// oauthClient returns the OAuth client of the issuer at which people sign in.
func (s *Service) oauthClient(ctx context.Context, redirect string) (*oauth2.Config, *oidc.Provider, error) {
	if s.people == nil {
		return nil, nil, ErrUnsupported
	}
	p, err := s.people.get(ctx)
	if err != nil {
		return nil, nil, err
	}
	scopes := []string{oidc.ScopeOpenID}
	for _, scope := range s.cfg.Scopes {
		if !slices.Contains(scopes, scope) {
			scopes = append(scopes, scope)
		}
	}
	c := &oauth2.Config{ClientID: s.cfg.ClientID, Endpoint: p.Endpoint(), RedirectURL: redirect, Scopes: scopes}
	// Without a style, package oauth2 would try both, and send each code twice.
	c.Endpoint.AuthStyle = oauth2.AuthStyleInParams
	if s.cfg.SecretFile != "" {
		secret, err := os.ReadFile(s.cfg.SecretFile)
		if err != nil {
			return nil, nil, fmt.Errorf("--oidc-client-secret-file: %w", err)
		}
		c.ClientSecret = strings.TrimSpace(string(secret))
		if !s.cfg.SecretInBody {
			c.Endpoint.AuthStyle = oauth2.AuthStyleInHeader
		}
	}
	return c, p, nil
}

// AuthURL returns the URL of the issuer at which a person signs in. redirect is the URL to which the issuer sends the
// browser back.
func (s *Service) AuthURL(ctx context.Context, redirect, state, nonce, verifier string) (string, error) {
	c, _, err := s.oauthClient(ctx, redirect)
	if err != nil {
		return "", err
	}
	return c.AuthCodeURL(state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)), nil
}

// Exchange trades the code of a sign-in for the person's identity.
func (s *Service) Exchange(ctx context.Context, redirect, code, nonce, verifier string) (signin.Identity, error) {
	c, p, err := s.oauthClient(ctx, redirect)
	if err != nil {
		return signin.Identity{}, err
	}
	token, err := c.Exchange(oidc.ClientContext(ctx, s.people.client), code, oauth2.VerifierOption(verifier))
	if err != nil {
		return signin.Identity{}, tokenError(err)
	}
	return s.verifyIdentity(ctx, p, token, nonce)
}

// tokenError translates an error of the token endpoint.
func tokenError(err error) error {
	var answer *oauth2.RetrieveError
	if !errors.As(err, &answer) {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	switch answer.ErrorCode {
	case "authorization_pending":
		return ErrPending
	case "slow_down":
		return ErrSlowDown
	case "expired_token", "invalid_grant":
		return ErrCode
	case "access_denied":
		return ErrDenied
	case "":
		return fmt.Errorf("%w: status %s", ErrAway, answer.Response.Status)
	}
	// Other errors, such as invalid_client, are mistakes of the configuration.
	return fmt.Errorf("%w: the issuer answers %s (%s)", ErrAway, answer.ErrorCode, answer.ErrorDescription)
}

// verifyIdentity verifies the ID token of an answer. nonce is empty in the device flow, which has none.
func (s *Service) verifyIdentity(ctx context.Context, p *oidc.Provider, token *oauth2.Token, nonce string) (signin.Identity, error) {
	raw, _ := token.Extra("id_token").(string)
	if raw == "" {
		return signin.Identity{}, fmt.Errorf("%w: the issuer sent no ID token", ErrToken)
	}
	id, claims, err := s.verify(ctx, s.people, p, raw, s.cfg.ClientID)
	if err != nil {
		return signin.Identity{}, err
	}
	if id.Nonce != nonce {
		return signin.Identity{}, ErrNonce
	}
	nameGroups(claims, s.cfg.GroupsClaim)
	return identityOf(s.cfg.Issuer, id.Subject, claims, false)
}

// VerifyFederated returns the identity of the service that holds the token.
func (s *Service) VerifyFederated(ctx context.Context, raw string) (signin.Identity, error) {
	url, err := s.FederatedIssuer(raw)
	if err != nil {
		return signin.Identity{}, err
	}
	from := s.servers[url]
	p, err := from.get(ctx)
	if err != nil {
		return signin.Identity{}, err
	}
	id, claims, err := s.verify(ctx, from, p, raw, s.cfg.FederationAudience)
	if err != nil {
		return signin.Identity{}, err
	}
	return identityOf(url, id.Subject, claims, true)
}

// FederatedIssuer returns the federation issuer that a token names. The token is not verified.
func (s *Service) FederatedIssuer(raw string) (string, error) {
	url, err := issuerOf(raw)
	if err != nil {
		return "", err
	}
	if s.servers[url] == nil {
		return "", ErrIssuer
	}
	return url, nil
}

// issuerOf reads the issuer of a token that is not verified yet.
func issuerOf(raw string) (string, error) {
	parts := strings.Split(raw, ".")
	if len(raw) > maxToken || len(parts) != 3 {
		return "", ErrToken
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Issuer string `json:"iss"`
	}
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return "", ErrToken
	}
	return claims.Issuer, nil
}

// keysFailed begins the error of package oidc for an issuer that does not answer with its keys. Other errors may hold
// texts of the token, so the position matters.
const keysFailed = "failed to verify signature: fetching keys "

// verify checks signature, issuer, audience and times of a token, and returns its claims.
func (s *Service) verify(ctx context.Context, from *issuer, p *oidc.Provider, raw, audience string) (*oidc.IDToken, map[string][]string, error) {
	url, err := issuerOf(raw)
	switch {
	case err != nil:
		return nil, nil, err
	case url != from.url:
		return nil, nil, ErrIssuer
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id, err := p.Verifier(&oidc.Config{ClientID: audience, Now: s.cfg.Now, SkipClientIDCheck: true}).Verify(ctx, raw)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return nil, nil, ErrExpired
	case err != nil && strings.HasPrefix(err.Error(), keysFailed):
		return nil, nil, fmt.Errorf("%w: %s", ErrAway, shortText(err))
	case err != nil:
		return nil, nil, fmt.Errorf("%w: %w", ErrToken, err)
	case !slices.Contains(id.Audience, audience):
		return nil, nil, ErrAudience
	}
	var all map[string]any
	if err := id.Claims(&all); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrToken, err)
	}
	return id, flattenClaims(all), nil
}

// ignored are claims of the token itself. Rules must not name them, because they say nothing about the holder.
var ignored = []string{"iss", "aud", "exp", "iat", "nbf", "jti", "nonce", "at_hash", "c_hash", "auth_time"}

// flattenClaims returns the values of each claim as texts. It leaves out values that are too long, and values after the
// first maxClaims.
func flattenClaims(all map[string]any) map[string][]string {
	out, left := map[string][]string{}, maxClaims
	var add func(name string, value any, depth int)
	add = func(name string, value any, depth int) {
		var text string
		switch v := value.(type) {
		case string:
			text = v
		case bool:
			text = strconv.FormatBool(v)
		case float64:
			text = strconv.FormatFloat(v, 'f', -1, 64)
		case []any:
			for _, item := range v {
				switch item.(type) {
				case string, bool, float64:
					add(name, item, depth)
				}
			}
			return
		case map[string]any:
			if depth < 3 {
				for _, key := range sortedKeys(v) {
					add(name+"."+key, v[key], depth+1)
				}
			}
			return
		default:
			return
		}
		if left > 0 && len(text) <= maxValue && len(name) <= maxValue {
			left--
			out[name] = append(out[name], text)
		}
	}
	for _, name := range sortedKeys(all) {
		if !slices.Contains(ignored, name) {
			add(name, all[name], 0)
		}
	}
	return out
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// nameGroups renames the claim with the name to groups. It removes a claim groups with another meaning, even from a
// token that does not have the claim with the name.
func nameGroups(claims map[string][]string, name string) {
	if name == "groups" {
		return
	}
	delete(claims, "groups")
	if groups, ok := claims[name]; ok {
		claims["groups"] = groups
	}
}

// identityOf returns the identity with the claims. It removes an email address that the issuer did not verify.
func identityOf(issuer, subject string, claims map[string][]string, service bool) (signin.Identity, error) {
	if subject == "" || len(subject) > maxSubject {
		return signin.Identity{}, fmt.Errorf("%w: its subject is empty or longer than %d bytes", ErrToken, maxSubject)
	}
	id := signin.Identity{Issuer: issuer, Subject: subject, Claims: claims, Service: service}
	if !slices.Contains(claims["email_verified"], "true") {
		delete(claims, "email")
	}
	if emails := claims["email"]; !service && len(emails) == 1 && strings.Contains(emails[0], "@") {
		id.Email = emails[0]
	}
	return id, nil
}

// Device is a sign-in of the device flow.
type Device struct {
	// Code is the device's secret. UserCode is what the person enters at URL. Complete is URL with the user code, or "".
	Code, UserCode, URL, Complete string
	Expires                       time.Time
	Interval                      time.Duration
}

// StartDevice begins a sign-in of the device flow.
func (s *Service) StartDevice(ctx context.Context) (Device, error) {
	c, _, err := s.oauthClient(ctx, "")
	if err != nil {
		return Device{}, err
	}
	if c.Endpoint.DeviceAuthURL == "" {
		return Device{}, ErrUnsupported
	}
	form := url.Values{"client_id": {c.ClientID}, "scope": {strings.Join(c.Scopes, " ")}}
	if c.ClientSecret != "" && c.Endpoint.AuthStyle == oauth2.AuthStyleInParams {
		form.Set("client_secret", c.ClientSecret)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Endpoint.DeviceAuthURL, strings.NewReader(form.Encode()))
	if err != nil {
		return Device{}, fmt.Errorf("%w: %w", ErrAway, err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if c.ClientSecret != "" && c.Endpoint.AuthStyle == oauth2.AuthStyleInHeader {
		req.SetBasicAuth(url.QueryEscape(c.ClientID), url.QueryEscape(c.ClientSecret))
	}
	return s.askDevice(req)
}

// askDevice sends the request for a device code.
func (s *Service) askDevice(req *http.Request) (Device, error) {
	res, err := s.people.client.Do(req)
	if err != nil {
		return Device{}, fmt.Errorf("%w: %w", ErrAway, err)
	}
	defer res.Body.Close()
	var answer oauth2.DeviceAuthResponse
	body, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return Device{}, fmt.Errorf("%w: %w", ErrAway, err)
	case res.StatusCode != http.StatusOK:
		return Device{}, fmt.Errorf("%w: the device endpoint answers %s", ErrAway, res.Status)
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.DeviceCode == "" || answer.UserCode == "" || answer.VerificationURI == "" {
		return Device{}, fmt.Errorf("%w: the answer of the device endpoint lacks a code or a URL", ErrAway)
	}
	return Device{
		Code: answer.DeviceCode, UserCode: answer.UserCode, URL: answer.VerificationURI, Complete: answer.VerificationURIComplete,
		Expires: answer.Expiry, Interval: cmp.Or(time.Duration(answer.Interval)*time.Second, defaultInterval),
	}, nil
}

// defaultInterval is the standard's interval of polls, for an issuer that states no interval.
const defaultInterval = 5 * time.Second

// PollDevice returns the identity of the person who finished the sign-in, or ErrPending or ErrSlowDown.
func (s *Service) PollDevice(ctx context.Context, code string) (signin.Identity, error) {
	c, p, err := s.oauthClient(ctx, "")
	if err != nil {
		return signin.Identity{}, err
	}
	// oauth2's DeviceAccessToken waits between polls. A code exchange with the grant's parameters polls once.
	token, err := c.Exchange(oidc.ClientContext(ctx, s.people.client), "",
		oauth2.SetAuthURLParam("grant_type", "urn:ietf:params:oauth:grant-type:device_code"), oauth2.SetAuthURLParam("device_code", code))
	if err != nil {
		return signin.Identity{}, tokenError(err)
	}
	return s.verifyIdentity(ctx, p, token, "")
}
