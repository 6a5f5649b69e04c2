package signin

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	// patience bounds a sign-in of a person.
	patience = 10 * time.Minute
	// exchangeTimeout bounds a call in which the control plane may call an issuer.
	exchangeTimeout = 30 * time.Second
	// minInterval and maxInterval bound the time between two polls of the device flow.
	minInterval, maxInterval = time.Second, time.Minute
)

// TokenPrefix begins every token of a member.
const TokenPrefix = "wlt_"

// plainToken matches tokens that are safe to store and to send, whatever server sent them.
var plainToken = regexp.MustCompile(`^wlt_[A-Za-z0-9_-]{1,64}$`)

// Client signs members in at a control plane.
type Client struct {
	HTTP *http.Client
	// Server is the URL of the control plane.
	Server string
}

// Token is a member's token.
type Token struct {
	// Value is empty in the answer to a renewal if another command renewed the token.
	Value string
	// ExpiresIn is how long the token works. RenewAfter is when it should be renewed.
	ExpiresIn, RenewAfter time.Duration
}

type tokenAnswer struct {
	Token        string `json:"token"`
	ExpiresInMs  int64  `json:"expiresInMs"`
	RenewAfterMs int64  `json:"renewAfterMs"`
	Pending      bool   `json:"pending"`
	SlowDown     bool   `json:"slowDown"`
}

func (a tokenAnswer) toToken() (Token, error) {
	if a.Token != "" && !plainToken.MatchString(a.Token) {
		return Token{}, errors.New("the control plane answered without a token")
	}
	return Token{
		Value: a.Token, ExpiresIn: time.Duration(a.ExpiresInMs) * time.Millisecond, RenewAfter: time.Duration(a.RenewAfterMs) * time.Millisecond,
	}, nil
}

// refusal is an error of the control plane.
type refusal struct {
	status  int
	Message string `json:"message"`
	Details []struct {
		Debug struct {
			Fix string `json:"fix"`
		} `json:"debug"`
	} `json:"details"`
}

func (r *refusal) Error() string {
	if len(r.Details) > 0 && r.Details[0].Debug.Fix != "" {
		return r.Message + "\n" + r.Details[0].Debug.Fix
	}
	return r.Message
}

// IsOver reports whether the error means that the token does not work any more.
func IsOver(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.status == http.StatusUnauthorized
}

// postJSON sends a request with a JSON body, and with the token unless it is empty.
func (c Client) postJSON(ctx context.Context, path, token string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodPost, path, token, body, out)
}

func (c Client) call(ctx context.Context, method, path, token string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	server := strings.TrimSuffix(c.Server, "/")
	req, err := http.NewRequestWithContext(ctx, method, server+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	if res.StatusCode == http.StatusOK {
		if err := json.Unmarshal(data, out); err != nil {
			return fmt.Errorf("%s answers with something other than JSON; upgrade the control plane", server)
		}
		return nil
	}
	refused := &refusal{status: res.StatusCode}
	if json.Unmarshal(data, refused) != nil || refused.Message == "" {
		if res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusMethodNotAllowed {
			return fmt.Errorf("%s answers %s: the control plane has no single sign-on; upgrade it", server, res.Status)
		}
		return fmt.Errorf("%s answers %s", server, res.Status)
	}
	return refused
}

// Browser signs a person in with a browser. show gets the URL that the person opens, and the code that the page must
// show before the person confirms. workspace may be empty.
func (c Client) Browser(ctx context.Context, workspace string, show func(url, confirmation string)) (Token, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the sign-in in the browser took longer than 10 minutes"))
	defer cancel()
	// Without this call, a person would wait for a browser that shows an error.
	var provider struct {
		Enabled bool `json:"enabled"`
	}
	if err := c.call(ctx, http.MethodGet, "/ui/sso/provider", "", nil, &provider); err != nil {
		return Token{}, fmt.Errorf("sign in: %w", err)
	}
	if !provider.Enabled {
		return Token{}, fmt.Errorf("people cannot sign in at %s, because it has no issuer: use an API key (`windlass login`), or ask an operator to set --oidc-issuer", c.Server)
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return Token{}, fmt.Errorf("wait for the browser: %w; use --device", err)
	}
	verifier, state := rand.Text()+rand.Text(), rand.Text()
	sum := sha256.Sum256([]byte(verifier))
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return Token{}, errors.Join(err, listener.Close())
	}
	answers := make(chan url.Values, 1)
	server := &http.Server{Handler: loopbackHandler(state, listener.Addr().String(), answers), ReadHeaderTimeout: exchangeTimeout}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	defer func() {
		// The browser may still read the page.
		bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		if server.Shutdown(bounded) != nil {
			_ = server.Close() // it is only needed for this sign-in
		}
	}()
	confirmation := rand.Text()
	confirmation = confirmation[:4] + "-" + confirmation[4:8]
	q := url.Values{"port": {port}, "state": {state}, "confirmation": {confirmation}, "challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}}
	if workspace != "" {
		q.Set("workspace", workspace)
	}
	show(strings.TrimSuffix(c.Server, "/")+"/ui/sso/login?"+q.Encode(), confirmation)
	select {
	case <-ctx.Done():
		return Token{}, context.Cause(ctx)
	case err := <-ended:
		return Token{}, fmt.Errorf("wait for the browser: %w", err)
	case got := <-answers:
		if text := got.Get("error"); text != "" {
			return Token{}, errors.New(text)
		}
		var answer tokenAnswer
		if err := c.postJSON(ctx, "/ui/sso/token", "", map[string]string{"code": got.Get("code"), "verifier": verifier}, &answer); err != nil {
			return Token{}, fmt.Errorf("sign in: %w", err)
		}
		return answer.toToken()
	}
}

// loopbackHandler serves the one request with which the control plane sends the browser back.
func loopbackHandler(state, address string, answers chan<- url.Values) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		q := r.URL.Query()
		if r.Host != address || r.URL.Path != "/" || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(state)) != 1 {
			http.Error(w, "This is not the sign-in that windlass waits for.", http.StatusNotFound)
			return
		}
		select {
		case answers <- q:
		default: // the browser loaded the page again
		}
		text := "You are signed in. Go back to the terminal, and close this page."
		if q.Get("error") != "" {
			text = "The sign-in was refused. The terminal says why. Close this page."
		}
		_, _ = io.WriteString(w, text+"\n") // a browser that is gone needs no answer
	})
}

// Device is what a person needs for a sign-in on another device.
type Device struct {
	UserCode, URL string
	// Complete is URL with the code. It may be empty.
	Complete  string
	ExpiresIn time.Duration
}

// Device signs a person in who enters a code at the issuer, on any device. show gets the code.
func (c Client) Device(ctx context.Context, workspace string, show func(Device)) (Token, error) {
	var begun struct {
		Handle      string `json:"handle"`
		UserCode    string `json:"userCode"`
		URL         string `json:"url"`
		URLComplete string `json:"urlComplete"`
		ExpiresInMs int64  `json:"expiresInMs"`
		IntervalMs  int64  `json:"intervalMs"`
	}
	if err := c.postJSON(ctx, "/ui/sso/device", "", struct{}{}, &begun); err != nil {
		return Token{}, fmt.Errorf("sign in: %w", err)
	}
	expires := min(time.Duration(begun.ExpiresInMs)*time.Millisecond, 2*patience)
	ctx, cancel := context.WithTimeoutCause(ctx, expires, errors.New("the code was not entered in time"))
	defer cancel()
	show(Device{UserCode: begun.UserCode, URL: begun.URL, Complete: begun.URLComplete, ExpiresIn: expires})
	interval := min(max(time.Duration(begun.IntervalMs)*time.Millisecond, minInterval), maxInterval)
	for {
		select {
		case <-ctx.Done():
			return Token{}, context.Cause(ctx)
		case <-time.After(interval):
		}
		var answer tokenAnswer
		if err := c.postJSON(ctx, "/ui/sso/device/token", "", map[string]string{"handle": begun.Handle, "workspace": workspace}, &answer); err != nil {
			return Token{}, fmt.Errorf("sign in: %w", err)
		}
		switch {
		case answer.SlowDown:
			interval = min(interval+5*time.Second, maxInterval) // the standard's step
		case !answer.Pending:
			return answer.toToken()
		}
	}
}

// Federated trades the token of a service, such as a job of a CI, for a token of the control plane.
func (c Client) Federated(ctx context.Context, token, workspace string) (Token, error) {
	var answer tokenAnswer
	if err := c.postJSON(ctx, "/ui/sso/federated", "", map[string]string{"token": token, "workspace": workspace}, &answer); err != nil {
		return Token{}, fmt.Errorf("trade the token: %w", err)
	}
	return answer.toToken()
}

// Renew gives a token another value. The earlier value works for a minute more.
func (c Client) Renew(ctx context.Context, token string) (Token, error) {
	var answer tokenAnswer
	if err := c.postJSON(ctx, "/ui/sso/renew", token, struct{}{}, &answer); err != nil {
		return Token{}, fmt.Errorf("renew the sign-in: %w", err)
	}
	return answer.toToken()
}

// SignOut ends the session of the token, or all sessions of its member.
func (c Client) SignOut(ctx context.Context, token string, everywhere bool) error {
	if err := c.postJSON(ctx, "/ui/sso/sign-out?everywhere="+strconv.FormatBool(everywhere), token, struct{}{}, &struct{}{}); err != nil {
		return fmt.Errorf("sign out: %w", err)
	}
	return nil
}
