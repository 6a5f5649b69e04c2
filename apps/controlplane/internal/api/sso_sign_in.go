package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/signin"
	"github.com/windlass-run/windlass/apps/controlplane/internal/sso"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Members sign in with one of these flows. Each ends in begin, which stores the member and a session.
//
//	browser    GET /ui/sso/login ─> issuer ─> GET /ui/sso/callback ─> cookie
//	cli        as browser, and then: a page asks the person ─> loopback address of the CLI ─> POST /ui/sso/token ─> token
//	device     POST /ui/sso/device ─> the person enters a code at the issuer; POST /ui/sso/device/token ─> token
//	federated  POST /ui/sso/federated with the token of a CI ─> token
//
// Between two requests of a flow, its state is in a sealed value that the browser or the CLI holds. So requests without
// a credential write only counts of the audit to the database, and any process can serve the next request. A sealed
// value works once, because the process that uses it stores its hash.
const (
	// signInFor is how long a person may take to sign in at the issuer.
	signInFor = 10 * time.Minute
	// cliCodeFor is how long the person may read the page that asks for a confirmation, and the CLI may take to use
	// the code that its loopback address gets then.
	cliCodeFor = 5 * time.Minute
	// platform is the name of the platform in requests that name a workspace. No workspace has this name.
	platform = "@platform"
	// maxMemberName is the width of the column of actors in the audit, in bytes.
	maxMemberName = 255
)

// Contexts bind sealed values to their purposes.
const (
	browserContext = "windlass sign-in of a browser"
	deviceContext  = "windlass sign-in of a device"
	codeContext    = "windlass sign-in of a CLI"
)

// attempt is the sealed state of a sign-in in a browser.
type attempt struct {
	State, Nonce, Verifier string
	// Redirect is the URL of the callback.
	Redirect string
	// Workspace is the name of the workspace, or platform. Empty: the only one in which the person has a role.
	Workspace string
	// Return is the path at which the person began.
	Return    string
	ExpiresAt int64
	// Port is the port of the CLI's loopback address. 0: the flow is not the CLI's.
	Port int
	// Challenge is the hash of a value that only the CLI knows, and CLIState is returned to the CLI.
	Challenge, CLIState string
	// Confirmation is the text that the CLI shows to the person, who compares it with the page.
	Confirmation string
}

// cliCode is the sealed code with which the CLI gets its token.
type cliCode struct {
	WorkspaceID, MemberID, Challenge, Salt string
	ExpiresAt                              int64
}

// deviceHandle is the sealed state of the device flow.
type deviceHandle struct {
	Code      string
	ExpiresAt int64
}

// sealValue returns the value as a text that only processes with the keyset can read.
func (a browsers) sealValue(v any, context string) (string, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("seal a sign-in: %w", err)
	}
	box, err := a.cfg.Box.Seal(plain, context)
	if err != nil {
		return "", fmt.Errorf("seal a sign-in: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(box), nil
}

// openSealed reads a sealed text into v, and reports whether that was possible.
func (a browsers) openSealed(text, context string, v any) bool {
	box, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return false
	}
	plain, err := a.cfg.Box.Open(box, context)
	return err == nil && json.Unmarshal(plain, v) == nil
}

// signInError is a refused sign-in. It wraps an error of Connect.
type signInError struct {
	// outcome is the cause in metrics.
	outcome string
	// title is the heading of the page.
	title string
	// workspaces are names from which the person must choose one. Usually empty.
	workspaces []string
	err        error
}

func (e *signInError) Error() string { return e.err.Error() }
func (e *signInError) Unwrap() error { return e.err }

func signInRefused(outcome, title, message, fix string) *signInError {
	return &signInError{outcome: outcome, title: title, err: unauthenticatedError(message, fix)}
}

// errNoSSO is the error of a control plane without an issuer.
func errNoSSO() error {
	return &signInError{outcome: "off", title: "Single sign-on is not set up", err: apierr.NothingToDo(
		"this control plane has no issuer for this sign-in", "Use an API key, or ask an operator of the platform to set --oidc-issuer or --federation-issuers.")}
}

// explainSSO translates an error of package sso.
func explainSSO(err error) error {
	const again = "Start the sign-in again. If this happens again, the issuer and the control plane are configured differently: ask an operator."
	const title = "The sign-in was refused"
	switch {
	case errors.Is(err, sso.ErrIssuer):
		return signInRefused("issuer", title, sso.ErrIssuer.Error()+" than this control plane accepts", "Use a token of an accepted issuer. `windlass federation list` shows them.")
	case errors.Is(err, sso.ErrAudience):
		return signInRefused("audience", title, sso.ErrAudience.Error()+" than this control plane", "Request the token with the audience that the operator of the control plane set (default: windlass).")
	case errors.Is(err, sso.ErrExpired):
		return signInRefused("expired", title, sso.ErrExpired.Error(), "Get a new token. Clocks of the issuer and the control plane must match.")
	case errors.Is(err, sso.ErrNonce):
		return signInRefused("nonce", title, "the issuer answered with a token of another sign-in", again)
	case errors.Is(err, sso.ErrToken):
		return signInRefused("token", title, sso.ErrToken.Error(), again)
	case errors.Is(err, sso.ErrCode):
		return signInRefused("code", title, sso.ErrCode.Error()+", because it was used before or has expired", "Start the sign-in again.")
	case errors.Is(err, sso.ErrDenied):
		return signInRefused("denied", title, sso.ErrDenied.Error()+" at the issuer", "Start the sign-in again, or ask the operators of the issuer.")
	case errors.Is(err, sso.ErrUnsupported):
		return errNoSSO()
	}
	return err
}

// begin stores the member with the identity, and a new session of the member. The session's value begins with prefix.
// ref names the workspace. It may be empty if rules give the identity a role in one workspace only. used is the hash
// of a sealed value, which works once: see useOnce.
func (a browsers) begin(ctx context.Context, id signin.Identity, ref, prefix string, used []byte, by caller) (value string, row model.BrowserSession, key model.APIKey, err error) {
	workspaceID, err := a.chooseWorkspace(ctx, id, ref)
	if err != nil {
		return "", row, key, err
	}
	at := time.Now()
	err = a.cfg.Store.Update(ctx, func(tx Tx) error {
		if err := useOnce(tx, used, at); err != nil {
			return err
		}
		if key, err = a.putMember(tx, workspaceID, id, by, at); err != nil {
			return err
		}
		value, row, err = a.beginSession(tx, prefix, key, by, at)
		return err
	})
	if errors.Is(err, model.ErrExists) {
		err = signInRefused("used", "The sign-in was already used", "another sign-in of this person began at the same moment", "Start the sign-in again.")
	}
	if err == nil {
		a.keys.forgetKey(key.Hash)
		a.keys.markProven(row.Hash, at)
	}
	return value, row, key, a.storeError(err)
}

// useOnce fails if the value with the hash was used before. An empty hash is no value.
func useOnce(tx Tx, hash []byte, at time.Time) error {
	if len(hash) == 0 {
		return nil
	}
	err := tx.InsertUsedSignIn(model.UsedSignIn{Hash: hash, ExpiresAt: at.Add(2 * signInFor).UnixMilli()})
	if errors.Is(err, model.ErrExists) {
		return signInRefused("used", "The sign-in was already used", "this sign-in was already used", "Start the sign-in again.")
	}
	if err != nil {
		return fmt.Errorf("use a sign-in: %w", err)
	}
	return nil
}

// beginSession stores a session of the member, and its audit.
func (a browsers) beginSession(tx Tx, prefix string, key model.APIKey, by caller, at time.Time) (string, model.BrowserSession, error) {
	value, row := a.newSessionOf(prefix, key, ident.New("bs"), at.UnixMilli(), at)
	if err := mayBegin(tx, key, at); err != nil {
		return "", row, err
	}
	if err := tx.InsertBrowserSession(row); err != nil {
		return "", row, fmt.Errorf("begin session of member %s: %w", key.ID, err)
	}
	return value, row, auditSession(tx, caller{APIKey: key, Source: by.Source, Procedure: by.Procedure}, row.SessionID)
}

// chooseWorkspace returns the id of the workspace in which the identity signs in. "" is the platform.
func (a browsers) chooseWorkspace(ctx context.Context, id signin.Identity, ref string) (string, error) {
	issuer := ""
	if id.Service {
		issuer = id.Issuer
	}
	names := map[string]string{}
	err := a.cfg.Store.View(ctx, func(tx Tx) error {
		rules, err := tx.ListSignInRulesOfIssuer(issuer)
		if err != nil {
			return fmt.Errorf("list sign-in rules: %w", err)
		}
		ids := signin.Workspaces(rules, id)
		if slices.Contains(ids, "") {
			names[platform] = ""
		}
		found, err := tx.GetWorkspaces(slices.DeleteFunc(ids, func(id string) bool { return id == "" }))
		for _, w := range found {
			names[w.Name] = w.ID
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if workspaceID, ok := names[ref]; ok {
		return workspaceID, nil
	}
	if len(names) == 0 || ref != "" {
		return "", noRuleMatches(id, ref)
	}
	var all []string
	for name, workspaceID := range names {
		if len(names) == 1 {
			return workspaceID, nil
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return "", &signInError{outcome: "choose", title: "Choose a workspace", workspaces: all, err: apierr.InvalidFix("workspace",
		"you have a role in several workspaces: "+strings.Join(all, ", "), "Name one of them: `windlass login --sso --workspace NAME`.")}
}

// noRuleMatches returns the error of an identity without a role. It tells the person what an owner needs for a rule.
func noRuleMatches(id signin.Identity, ref string) error {
	where := "any workspace"
	switch ref {
	case "":
	case platform:
		where = "the platform"
	default:
		where = "workspace " + apierr.Clip(ref, 63)
	}
	groups := ""
	if g := id.Claims["groups"]; len(g) > 0 {
		groups = ", groups " + apierr.Clip(strings.Join(g, ", "), 500)
	}
	return signInRefused("no_rule", "You have no access yet",
		fmt.Sprintf("no sign-in rule gives %s a role in %s (subject %s%s)", nameOf(id), where, id.Subject, groups),
		"Send this text to an owner of the workspace, who can add a rule with `windlass members rule set`.")
}

// nameOf returns the member's name in audit and history. It always has an @, so that it is never a key's name.
func nameOf(id signin.Identity) string {
	if id.Email != "" {
		return apierr.Clip(id.Email, maxMemberName)
	}
	host := id.Issuer
	if u, err := url.Parse(id.Issuer); err == nil {
		host = u.Host
	}
	host = "@" + apierr.Clip(host, maxMemberName/2)
	return apierr.Clip(id.Subject, maxMemberName-len(host)) + host
}

// putMember stores the member with the claims of this sign-in, and returns the key that stands for it.
func (a browsers) putMember(tx Tx, workspaceID string, id signin.Identity, by caller, at time.Time) (key model.APIKey, err error) {
	rules, err := tx.ListSignInRules(workspaceID)
	if err != nil {
		return key, fmt.Errorf("list sign-in rules of workspace %s: %w", workspaceID, err)
	}
	m := model.Member{WorkspaceID: workspaceID, Issuer: id.Issuer, Subject: id.Subject}
	found, err := tx.LockMemberByIdentity(workspaceID, m.Identity())
	isNew := errors.Is(err, model.ErrNotFound)
	switch {
	case isNew:
		prefix := model.PersonPrefix
		if id.Service {
			prefix = model.ServicePrefix
		}
		m.ID, m.CreatedAt, m.Hash = ident.New(prefix), at.UnixMilli(), make([]byte, sha256.Size)
		rand.Read(m.Hash)
	case err != nil:
		return key, fmt.Errorf("lock member: %w", err)
	case found.RemovedAt != 0:
		return key, &signInError{outcome: "removed", title: "Your access was removed", err: memberRemoved(found.Name)}
	default:
		m = found
	}
	m.Name, m.Email, m.Claims, m.SignedInAt = nameOf(id), id.Email, id.Claims, at.UnixMilli()
	key = a.keyOfMember(m, rules)
	if hasNoRole(key) {
		return key, noRuleMatches(id, "")
	}
	if !isNew {
		if err := tx.UpdateMember(m); err != nil {
			return key, fmt.Errorf("store member %s: %w", m.ID, err)
		}
		return key, nil
	}
	n, err := tx.CountMembers(workspaceID)
	switch {
	case err != nil:
		return key, fmt.Errorf("count members of workspace %s: %w", workspaceID, err)
	case n >= model.MaxMembers:
		return key, &signInError{outcome: "limit", title: "Too many members", err: apierr.OverLimit("",
			fmt.Sprintf("the workspace has %d members, which is the maximum", n), "Members are forgotten 90 days after their last sign-in. Use a narrower rule.")}
	}
	if err := tx.InsertMember(m); err != nil {
		return key, fmt.Errorf("store member %s: %w", m.ID, err)
	}
	after, err := auditJSON(a.memberProto(m, rules))
	if err != nil {
		return key, err
	}
	return key, tx.InsertAudit(model.Audit{
		ID: ident.New("aud"), WorkspaceID: workspaceID, At: at.UnixMilli(), Actor: m.Name, ActorID: m.ID, Source: by.Source,
		Procedure: by.Procedure, ResourceKind: "member", ResourceID: m.ID, After: after,
	})
}

// takeSignIn takes a token of the address's bucket for sign-ins.
func (a browsers) takeSignIn(client netip.Addr) error {
	from, at := admission.ClientKey(client), time.Now().UnixMicro()
	wait, rate := a.cfg.SignIns.Take(from, at), a.cfg.SignIns.Rate()
	if wait == 0 {
		return nil
	}
	return &signInError{outcome: "rate_limited", title: "Too many sign-ins", err: a.countRefusal(rateLimited("sign_ins_per_minute", rate, wait,
		"Try again after that.", fmt.Sprintf("more than %d requests for sign-ins came from your address in a minute", rate.PerMinute())))}
}

// countingFailures runs a step of a sign-in that a caller without a credential makes. A refusal counts as a failed log-in of
// the address.
func (a browsers) countingFailures(ctx context.Context, do func(context.Context) error) error {
	client := rpc.ClientOf(ctx)
	if err := a.takeSignIn(client); err != nil {
		return err
	}
	from, at := admission.ClientKey(client), time.Now().UnixMicro()
	if wait := a.cfg.FailedLogins.Take(from, at); wait > 0 {
		return &signInError{outcome: "rate_limited", title: "Too many sign-ins failed", err: a.countRefusal(tooManyFailures(a.cfg.FailedLogins.Rate(), wait))}
	}
	err := do(ctx)
	var refused *signInError
	if !errors.As(err, &refused) || refused.outcome == "choose" {
		a.cfg.FailedLogins.Return(from, at)
	}
	return err
}

// cliTokenOf trades a code of the CLI's loopback address for a session. verifier is the CLI's secret value. The flow
// began with its hash.
func (a browsers) cliTokenOf(ctx context.Context, text, verifier string, by caller) (value string, row model.BrowserSession, key model.APIKey, err error) {
	var code cliCode
	hash := sha256.Sum256([]byte(verifier))
	challenge := base64.RawURLEncoding.EncodeToString(hash[:])
	at := time.Now()
	if !a.openSealed(text, codeContext, &code) || at.UnixMilli() >= code.ExpiresAt || subtle.ConstantTimeCompare([]byte(challenge), []byte(code.Challenge)) != 1 {
		return "", row, key, signInRefused("code", "The sign-in was refused", "the code is not valid or has expired", "Run `windlass login --sso` again.")
	}
	err = a.cfg.Store.Update(ctx, func(tx Tx) error {
		// Not the hash of text: base64 has several texts for the same code.
		if err := useOnce(tx, model.HashToken("code "+code.Salt), at); err != nil {
			return err
		}
		m, err := tx.GetMember(code.WorkspaceID, code.MemberID)
		if err != nil {
			return fmt.Errorf("read member %s: %w", code.MemberID, err)
		}
		rules, err := tx.ListSignInRules(code.WorkspaceID)
		if err != nil {
			return fmt.Errorf("list sign-in rules of workspace %s: %w", code.WorkspaceID, err)
		}
		key = a.keyOfMember(m, rules)
		switch {
		case key.RevokedAt != 0:
			return &signInError{outcome: "removed", title: "Your access was removed", err: memberRemoved(m.Name)}
		case key.Role == windlassv1.Role_ROLE_UNSPECIFIED:
			return &signInError{outcome: "no_rule", title: "You have no access", err: noRoleLeft(m.Name)}
		}
		value, row, err = a.beginSession(tx, tokenPrefix, key, by, at)
		return err
	})
	if err == nil {
		a.keys.markProven(row.Hash, at)
	}
	return value, row, key, a.storeError(err)
}

// cliCodeOf stores the member with the identity. It returns a code with which the CLI gets its token, and the key
// that stands for the member.
func (a browsers) cliCodeOf(ctx context.Context, id signin.Identity, try attempt, used []byte, by caller) (code string, key model.APIKey, err error) {
	workspaceID, err := a.chooseWorkspace(ctx, id, try.Workspace)
	if err != nil {
		return "", key, err
	}
	at := time.Now()
	err = a.cfg.Store.Update(ctx, func(tx Tx) (err error) {
		if err := useOnce(tx, used, at); err != nil {
			return err
		}
		key, err = a.putMember(tx, workspaceID, id, by, at)
		return err
	})
	if err != nil {
		return "", key, a.storeError(err)
	}
	a.keys.forgetKey(key.Hash)
	code, err = a.sealValue(cliCode{
		WorkspaceID: workspaceID, MemberID: key.ID, Challenge: try.Challenge, Salt: rand.Text(), ExpiresAt: at.Add(cliCodeFor).UnixMilli(),
	}, codeContext)
	return code, key, err
}
