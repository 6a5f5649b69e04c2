package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/singleflight"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/trail"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Prefixes show people and secret scanners the kind of a credential.
const (
	keyPrefix       = "wl_"
	joinTokenPrefix = "wlj_"
	// shownPrefix is the number of characters of a key's value that are stored, so that people can tell keys apart.
	// They contain 30 of the key's 256 bits.
	shownPrefix = 8
	// keyLength is the length of the prefix and of 32 bytes in base64url.
	keyLength = len(keyPrefix) + 43
)

// maxCachedKeys bounds the keyring's memory. Further keys are looked up at each call.
const maxCachedKeys = 10_000

// caller is the API key that makes a call, with its session and source. A member has a key with its id, name and role.
type caller struct {
	model.APIKey
	// Session is the id of the session of a browser or a member. Empty: the caller sent an API key.
	Session string
	// Source is the caller's address and, quoted, its user agent.
	Source string
	// Procedure is the procedure of the call.
	Procedure string
}

// IsOperator reports whether the caller is bound to no workspace.
func (c caller) IsOperator() bool { return c.Role == windlassv1.Role_ROLE_OPERATOR }

type callerKey struct{}

// callerOf returns the caller of a call. It fails if the call was not authenticated.
func callerOf(ctx context.Context) (caller, error) {
	c, ok := ctx.Value(callerKey{}).(caller)
	if !ok {
		return c, unauthenticatedError("this call needs an API key", "Send it as `Authorization: Bearer wl_...`.")
	}
	return c, nil
}

func unauthenticatedError(message, fix string) error {
	return rpc.ErrorWith(connect.CodeUnauthenticated, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, Fix: fix,
	}, message)
}

// keyring finds keys. It caches only valid keys, so that invalid keys cannot displace them. An invalid key is looked
// up at each call.
type keyring struct {
	api *server
	// lookups are the running look-ups, by era and hash. Many streams and calls of a key share one look-up.
	lookups singleflight.Group

	mu sync.Mutex
	// era counts removals, so that a call after a removal does not join a look-up that began before it.
	era  uint64
	good map[string]cachedKey // by hash
	// proven are the times at which keys and session values were last found valid, by hash. Such a key or value is
	// looked up even while its address has failed too often.
	proven map[string]time.Time
}

// provenFor is how long a key counts as proven. A client that calls once an hour stays proven.
const provenFor = 2 * time.Hour

// lookUpTimeout bounds one look-up of a key.
const lookUpTimeout = 10 * time.Second

type cachedKey struct {
	key   model.APIKey
	until time.Time
}

func newKeyring(a *server) *keyring {
	return &keyring{api: a, good: map[string]cachedKey{}, proven: map[string]time.Time{}}
}

// find returns the key with the value, or an error that says why it is not valid.
//
// Only failures take tokens of their address, because valid and invalid callers may share an address behind NAT.
func (k *keyring) find(ctx context.Context, value string, client netip.Addr, at time.Time) (model.APIKey, error) {
	if len(value) != keyLength || !strings.HasPrefix(value, keyPrefix) {
		return model.APIKey{}, unauthenticatedError("the credential is not an API key", "API keys begin with wl_ and are 46 characters long.")
	}
	return k.findByHash(ctx, model.HashToken(value), client, at)
}

// findByHash is find for callers that know only the hash of the key's value, such as the session of a browser.
func (k *keyring) findByHash(ctx context.Context, hash []byte, client netip.Addr, at time.Time) (model.APIKey, error) {
	const fix = "Make a new key with `windlass login`, or ask an owner of the workspace for one."
	key, ok := k.cachedKey(hash, at)
	from, now := admission.ClientKey(client), at.UnixMicro()
	tried := !ok && !k.isProven(hash, at)
	if tried {
		if wait := k.api.cfg.FailedLogins.Take(from, now); wait > 0 {
			return key, k.api.countRefusal(tooManyFailures(k.api.cfg.FailedLogins.Rate(), wait))
		}
	}
	if !ok {
		var err error
		key, err = k.lookUp(ctx, hash)
		switch {
		case errors.Is(err, model.ErrNotFound):
			return key, unauthenticatedError("the API key is unknown", fix)
		case err != nil:
			if tried {
				k.api.cfg.FailedLogins.Return(from, now)
			}
			return key, fmt.Errorf("look up API key: %w", err)
		}
	}
	if key.RevokedAt != 0 || key.ExpiresAt != 0 && at.UnixMilli() >= key.ExpiresAt || hasNoRole(key) {
		k.forgetKey(hash)
	} else if tried {
		k.api.cfg.FailedLogins.Return(from, now)
	}
	switch {
	case key.IsMember() && key.RevokedAt != 0:
		return key, memberRemoved(key.Name)
	case hasNoRole(key):
		return key, noRoleLeft(key.Name)
	case key.RevokedAt != 0:
		return key, unauthenticatedError("the API key was revoked", fix)
	case key.ExpiresAt != 0 && at.UnixMilli() >= key.ExpiresAt:
		return key, unauthenticatedError("the API key has expired", fix)
	}
	if !ok {
		k.rememberKey(key, at)
	}
	return key, nil
}

// lookUp reads the key from the database, once for all concurrent callers.
func (k *keyring) lookUp(ctx context.Context, hash []byte) (model.APIKey, error) {
	k.mu.Lock()
	shared := fmt.Sprintf("%d %x", k.era, hash)
	k.mu.Unlock()
	found := k.lookups.DoChan(shared, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookUpTimeout) // other callers wait for the result, so the first caller's ctx must not end it
		defer cancel()
		var key model.APIKey
		err := k.api.cfg.Store.View(ctx, func(tx Tx) (err error) {
			key, err = tx.GetAPIKeyByHash(hash)
			if errors.Is(err, model.ErrNotFound) {
				key, err = k.api.memberByHash(tx, hash)
			}
			return err
		})
		return key, err
	})
	select {
	case <-ctx.Done():
		return model.APIKey{}, ctx.Err()
	case r := <-found:
		key, _ := r.Val.(model.APIKey)
		return key, r.Err
	}
}

func (k *keyring) cachedKey(hash []byte, at time.Time) (model.APIKey, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.good[string(hash)]
	return c.key, ok && at.Before(c.until)
}

func (k *keyring) rememberKey(key model.APIKey, at time.Time) {
	k.markProven(key.Hash, at)
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.good) >= maxCachedKeys {
		for hash, c := range k.good {
			if !at.Before(c.until) {
				delete(k.good, hash)
			}
		}
	}
	if len(k.good) < maxCachedKeys {
		k.good[string(key.Hash)] = cachedKey{key: key, until: at.Add(k.api.cfg.KeyCacheTTL)}
	}
}

// markProven records that the credential with the hash is valid.
func (k *keyring) markProven(hash []byte, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.proven) >= maxCachedKeys {
		for other, seen := range k.proven {
			if at.Sub(seen) >= provenFor {
				delete(k.proven, other)
			}
		}
	}
	if len(k.proven) < maxCachedKeys {
		k.proven[string(hash)] = at
	}
}

func (k *keyring) isProven(hash []byte, at time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen, ok := k.proven[string(hash)]
	return ok && at.Sub(seen) < provenFor
}

// tooManyFailures returns the error of a log-in from an address with too many failures.
func tooManyFailures(rate admission.Rate, wait time.Duration) error {
	return rateLimited("failed_logins_per_minute", rate, wait,
		"Correct the credential that programs at this address use, and call again after that.",
		fmt.Sprintf("more than %d log-ins from your address failed in a minute", rate.PerMinute()))
}

// mayRead takes a token of the key's bucket for reads, if the procedure reads.
func (a *server) mayRead(key model.APIKey, procedure string, at time.Time) error {
	if !reads[procedure] {
		return nil
	}
	return a.takeRead(key, at)
}

// takeRead takes a token of the key's bucket for reads.
func (a *server) takeRead(key model.APIKey, at time.Time) error {
	wait, rate := a.cfg.Reads.Take(key.ID, at.UnixMicro()), a.cfg.Reads.Rate()
	if wait == 0 {
		return nil
	}
	return a.countRefusal(rateLimited("reads_per_minute", rate, wait,
		"Call again after that. To follow an app, use a watch instead of repeated reads.",
		fmt.Sprintf("the key has used up its limit of %d reads a minute on each server", rate.PerMinute())))
}

// forgetKey removes a key, so that a revocation through this process takes effect at once.
func (k *keyring) forgetKey(hash []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.era++
	delete(k.good, string(hash))
	delete(k.proven, string(hash))
}

// forgetMembers removes the members of a workspace, for changes of its sign-in rules. Other callers stay proven.
func (k *keyring) forgetMembers(workspaceID string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.era++
	for hash, c := range k.good {
		if c.key.IsMember() && c.key.WorkspaceID == workspaceID {
			delete(k.good, hash)
		}
	}
}

// forgetAll removes all keys, for calls that revoke many keys.
func (k *keyring) forgetAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.era++
	clear(k.good)
	clear(k.proven)
}

// Admit authenticates a call, and returns an error if the caller may not make it. Refusals are written to the audit.
func (a *API) Admit(ctx context.Context, call rpc.Call) (rpc.Admission, error) {
	by, err := a.admittedCaller(ctx, call)
	if err != nil {
		by.Procedure = call.Procedure
		a.noteRefusal(by, call.Client, err)
		return rpc.Admission{Caller: by.ID}, err
	}
	return rpc.Admission{Caller: by.ID, With: func(ctx context.Context) context.Context {
		return context.WithValue(ctx, callerKey{}, by)
	}}, nil
}

// admittedCaller returns the caller. With an error, by has the fields that are known.
func (a *server) admittedCaller(ctx context.Context, call rpc.Call) (by caller, err error) {
	key, session, err := browsers{a}.whoCalls(ctx, call.Header, call.Client)
	if err != nil {
		return by, err
	}
	by = caller{APIKey: key, Session: session, Source: apierr.Clip(sourceOf(call), maxSource), Procedure: call.Procedure}
	n, known := access[call.Procedure]
	if !known || !n.allowsRole(key.Role) {
		return by, apierr.Denied(fmt.Sprintf("a key of role %s may not call %s", model.RoleName(key.Role), strings.TrimPrefix(call.Procedure, "/")),
			fmt.Sprintf("Use a key of role %s.", n))
	}
	if err := a.mayRead(key, call.Procedure, time.Now()); err != nil {
		return by, err
	}
	if call.InLoop && streams[call.Procedure] {
		// The body is not read yet, so this also refuses requests for a single picture. Such requests are rare.
		if err := a.hub.checkLimit(by); err != nil {
			return by, a.countRefusal(err)
		}
	}
	return by, nil
}

// bearerToken returns the credential of the header Authorization.
func bearerToken(header http.Header) (string, bool) {
	value, ok := strings.CutPrefix(header.Get("Authorization"), "Bearer ")
	return strings.TrimSpace(value), ok
}

// noteRefusal counts a refused call in the audit. The source is only the address, without the user agent, because a
// flood may change the user agent with each call.
func (a *server) noteRefusal(by caller, client netip.Addr, err error) {
	reason := rpc.DetailOf(err).GetReason()
	if reason == windlassv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return // the error is the server's, not a refusal
	}
	a.cfg.Trail.Note(trail.Entry{
		WorkspaceID: by.WorkspaceID, Actor: by.Name, ActorID: by.ID, Source: admission.ClientKey(client), Procedure: by.Procedure,
		Outcome: strings.ToLower(strings.TrimPrefix(reason.String(), "ERROR_REASON_")),
	}, nowMillis())
}

// Interceptor counts calls that change workloads. Calls that a handler refuses with PermissionDenied go to the audit.
func (a *API) Interceptor() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			res, err := next(ctx, req)
			if operation := access[req.Spec().Procedure].Operation; operation != "" {
				a.countOperation(operation, err)
			}
			if connect.CodeOf(err) == connect.CodePermissionDenied {
				if by, failed := callerOf(ctx); failed == nil {
					a.noteRefusal(by, rpc.ClientOf(ctx), err)
				}
			}
			return res, err
		}
	})
}

// sourceOf returns the address and the user agent of a call. The user agent is quoted, so that it cannot imitate an
// address.
func sourceOf(call rpc.Call) string {
	source := "unknown address"
	if call.Client.IsValid() {
		source = call.Client.String()
	}
	if agent := call.Header.Get("User-Agent"); agent != "" {
		source += " agent=" + strconv.QuoteToASCII(apierr.Clip(agent, maxAgent))
	}
	return source
}

// maxAgent is the maximum number of bytes of a User-Agent that are kept. Quoted, they are at most four times as long.
const maxAgent = 48

// maxSource is the maximum length of a source in an audit row, in bytes.
const maxSource = 255

// stillGood returns an error if the key of an open stream is no longer valid.
func (k *keyring) stillGood(ctx context.Context, key model.APIKey) error {
	at := time.Now()
	if c, ok := k.cachedKey(key.Hash, at); ok && c.Role == key.Role && (c.ExpiresAt == 0 || at.UnixMilli() < c.ExpiresAt) {
		return nil
	}
	current, err := k.lookUp(ctx, key.Hash)
	switch {
	case errors.Is(err, model.ErrNotFound):
	case err != nil:
		// An unreachable database does not end a stream that was admitted.
		return nil //nolint:nilerr // the next check decides
	case current.RevokedAt == 0 && (current.ExpiresAt == 0 || at.UnixMilli() < current.ExpiresAt) && current.Role == key.Role:
		k.rememberKey(current, at)
		return nil
	case key.IsMember():
		return unauthenticatedError("the member was removed, or has another role now", "Open the stream again.")
	}
	return unauthenticatedError("the API key was revoked or has expired", "Use another key.")
}
