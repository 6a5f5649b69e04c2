package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// lookupTimeout bounds the question for a domain's record.
const lookupTimeout = 10 * time.Second

// VerifyDomain gives an app its domain, if the domain's record says so.
func (a *API) VerifyDomain(ctx context.Context, req *windlassv1.VerifyDomainRequest) (*windlassv1.VerifyDomainResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	name, err := a.domainName(req.GetDomain())
	if err != nil {
		return nil, err
	}
	var d model.Domain
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		app, err := a.app(tx, by.WorkspaceID, req.GetApp(), false)
		if err != nil {
			return err
		}
		have, err := tx.DomainsOfApps([]string{app.ID})
		if err != nil {
			return fmt.Errorf("list domains of app %s: %w", app.ID, err)
		}
		d, err = domainAmong(have, app, name)
		return err
	})
	if err != nil {
		return nil, err
	}
	if d.VerifiedAt == 0 {
		// The network is asked before the transaction, which must not wait for it.
		if err := a.lookForRecord(ctx, d); err != nil {
			return nil, err
		}
	}
	res, _, err := mutate(ctx, a, req, func(c *change) (*windlassv1.VerifyDomainResponse, error) {
		return c.verified(req.GetApp(), d)
	})
	return res, err
}

// verified gives the app the domain, whose record was found.
func (c *change) verified(ref string, found model.Domain) (*windlassv1.VerifyDomainResponse, error) {
	app, have, err := c.appWithDomains(ref)
	if err != nil {
		return nil, err
	}
	d, err := domainAmong(have, app, found.Name)
	if err != nil {
		return nil, err
	}
	before, err := c.api.domainView(c, d)
	if err != nil || d.VerifiedAt != 0 {
		return &windlassv1.VerifyDomainResponse{Domain: before}, err
	}
	if d.Token != found.Token {
		return nil, notVerified(d, "it was removed and added again meanwhile, which made another record of it")
	}
	if err := c.notServed(app, d.Name); err != nil {
		return nil, err
	}
	d.VerifiedAt = c.at
	if err := c.VerifyDomain(app.ID, d.Name, c.at); c.api.cfg.IsExists(err) {
		return nil, domainTaken(d.Name, "another app, since a moment ago", "List the routes to see which.")
	} else if err != nil {
		return nil, fmt.Errorf("store domain %s of app %s: %w", d.Name, app.ID, err)
	}
	app.Domains++
	if err := c.routesChange(app, "DomainVerified", d.Name+" serves, wherever the app does"); err != nil {
		return nil, err
	}
	after, err := c.api.domainView(c, d)
	if err != nil {
		return nil, err
	}
	return &windlassv1.VerifyDomainResponse{Domain: after}, c.audit("domain", d.Name, before, after)
}

// routesChange stores the app, of whose hosts or keys there are more or fewer, and has the
// workflow tell regions.
func (c *change) routesChange(app model.App, what, why string) error {
	if err := c.store(&app); err != nil {
		return err
	}
	c.log(app, model.History{What: what, Why: why})
	return c.wake(app.ID)
}

func domainAmong(have []model.Domain, app model.App, name string) (model.Domain, error) {
	if i := slices.IndexFunc(have, func(d model.Domain) bool { return d.Name == name }); i >= 0 {
		return have[i], nil
	}
	return model.Domain{}, missing("domain", "domain", name, fmt.Sprintf("App %s does not have it: `windlass domain list` tells which there are, `windlass domain add` adds one.", app.Name))
}

// lookForRecord asks the DNS for what verifies the domain.
func (a *API) lookForRecord(ctx context.Context, d model.Domain) error {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	texts, err := a.cfg.LookupTXT(ctx, model.DomainRecord(d.Name)+".")
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return notVerified(d, "there is no such record yet")
	}
	if err != nil {
		return notVerified(d, "the DNS could not be asked: "+err.Error())
	}
	if !slices.ContainsFunc(texts, func(s string) bool { return strings.TrimSpace(s) == d.Token }) {
		return notVerified(d, fmt.Sprintf("the record says %.200q", strings.Join(texts, " ")))
	}
	return nil
}

func notVerified(d model.Domain, why string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_DOMAIN_NOT_VERIFIED, Field: "domain",
		Fix: fmt.Sprintf("Have the DNS answer for %s with a TXT record %q, and verify it again; a new record takes as long to be seen as the old answer may be kept.", model.DomainRecord(d.Name), d.Token),
	}, fmt.Sprintf("domain %s is not verified: %s", d.Name, why))
}

func domainTaken(name, by, fix string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_DOMAIN_TAKEN, Field: "domain", Fix: fix,
	}, fmt.Sprintf("domain %s is served by %s", name, by))
}
