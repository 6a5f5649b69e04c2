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

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// lookupTimeout is the timeout for the look-up of a domain's record.
const lookupTimeout = 10 * time.Second

// VerifyDomain makes the app serve a domain if the domain's TXT record has the app's token.
func (a routeService) VerifyDomain(ctx context.Context, req *windlassv1.VerifyDomainRequest) (*windlassv1.VerifyDomainResponse, error) {
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
		app, err := a.findApp(tx, by.WorkspaceID, req.GetApp(), false)
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
		return earlierOr[*windlassv1.VerifyDomainResponse](ctx, a.server, req, err)
	}
	var texts []string
	if d.VerifiedAt == 0 || d.MissingSince != 0 {
		// The look-up is before the transaction, because a transaction must not wait for the network.
		if texts, err = a.lookForRecord(ctx, d); err != nil {
			return earlierOr[*windlassv1.VerifyDomainResponse](ctx, a.server, req, err)
		}
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.VerifyDomainResponse, error) {
		return c.domains().serveVerified(req.GetApp(), d, texts)
	})
	return res, err
}

// serveVerified makes the app serve the domain. texts are the domain's TXT records, which include the app's record.
func (c domainMutation) serveVerified(ref string, found model.Domain, texts []string) (*windlassv1.VerifyDomainResponse, error) {
	app, have, err := c.appWithDomains(ref)
	if err != nil {
		return nil, err
	}
	d, err := domainAmong(have, app, found.Name)
	if err != nil {
		return nil, err
	}
	before, err := routeService{c.api}.domainView(c.mutation, d)
	if err != nil {
		return nil, err
	}
	if d.VerifiedAt != 0 {
		if d.MissingSince == 0 || !d.ShownBy(texts) {
			return &windlassv1.VerifyDomainResponse{Domain: before}, nil
		}
		return c.foundAgain(app, d, before)
	}
	if d.Token != found.Token {
		return nil, notVerified(d, "it was removed and added again meanwhile, and now needs another record")
	}
	if err := c.notServed(app, d.Name, texts); err != nil {
		return nil, err
	}
	if err := c.takeLapsed(app, d.Name); err != nil {
		return nil, err
	}
	d.VerifiedAt = c.at
	if err := c.VerifyDomain(app.ID, d.Name, c.at); errors.Is(err, model.ErrExists) {
		return nil, domainTaken(d.Name, "another app, which verified it at the same time", "`windlass domain list` may show the app.")
	} else if err != nil {
		return nil, fmt.Errorf("store domain %s of app %s: %w", d.Name, app.ID, err)
	}
	app.Domains++
	if err := c.routesChange(app, "DomainVerified", d.Name+" serves in all regions of the app"); err != nil {
		return nil, err
	}
	after, err := routeService{c.api}.domainView(c.mutation, d)
	if err != nil {
		return nil, err
	}
	return &windlassv1.VerifyDomainResponse{Domain: after}, c.auditChange("domain", d.Name, before, after)
}

// foundAgain stores that the record of a verified domain, which was missing, exists again.
func (c domainMutation) foundAgain(app model.App, d model.Domain, before *windlassv1.Domain) (*windlassv1.VerifyDomainResponse, error) {
	next, what, why := d.Checked(model.DomainFound, c.at)
	if err := c.NoteDomainChecks(model.DomainChecks{Found: []string{d.Name}}, c.at); err != nil {
		return nil, fmt.Errorf("note the record of domain %s: %w", d.Name, err)
	}
	c.log(app, model.History{What: what, Why: why})
	after, err := routeService{c.api}.domainView(c.mutation, next)
	if err != nil {
		return nil, err
	}
	return &windlassv1.VerifyDomainResponse{Domain: after}, c.auditChange("domain", d.Name, before, after)
}

// takeLapsed takes the domain from another app in which it has lapsed, if there is one.
func (c domainMutation) takeLapsed(app model.App, name string) error {
	holder, err := c.HolderOfDomain(name)
	switch {
	case errors.Is(err, model.ErrNotFound), err == nil && holder.AppID == app.ID:
		return nil
	case err != nil:
		return fmt.Errorf("read the holder of domain %s: %w", name, err)
	}
	had, err := c.LockApp(holder.WorkspaceID, holder.AppID)
	if err != nil {
		return fmt.Errorf("lock app %s, which has domain %s: %w", holder.AppID, name, err)
	}
	if err := c.ReleaseDomain(had.ID, name); err != nil {
		return fmt.Errorf("take domain %s from app %s: %w", name, had.ID, err)
	}
	had.Domains--
	who := "somebody of another workspace" // a workspace must not see names of another workspace
	if had.WorkspaceID == app.WorkspaceID {
		who = c.by.Name
	}
	if err := c.store(&had); err != nil {
		return err
	}
	c.history = append(c.history, model.History{
		ID: ident.New("hst"), WorkspaceID: had.WorkspaceID, AppID: had.ID, At: c.at, Who: who,
		What: "DomainTaken", Why: name + " had lapsed, and another app has verified it, so it is removed from every region",
	})
	return c.wake(had.ID)
}

// routesChange stores the app after a change of its hosts or keys, and wakes the workflow, which sends the change to
// regions.
func (c domainMutation) routesChange(app model.App, what, why string) error {
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
	return model.Domain{}, apierr.Missing("domain", "domain", name, fmt.Sprintf("`windlass domain list` shows the domains of app %s, and `windlass domain add` adds one.", app.Name))
}

// lookForRecord looks up the domain's TXT records, and returns them. It fails if no record has the domain's token.
func (a routeService) lookForRecord(ctx context.Context, d model.Domain) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	texts, err := a.cfg.LookupTXT(ctx, model.DomainRecord(d.Name)+".")
	switch d.Finding(texts, err) {
	case model.DomainFound:
		return texts, nil
	case model.DomainUnanswered:
		a.cfg.Log.InfoContext(ctx, "cannot look up a domain's record", "domain", d.Name, "error", err)
		return nil, notVerified(d, "the DNS look-up failed: "+dnsProblem(err))
	case model.DomainMissing:
		if len(texts) == 0 {
			return nil, notVerified(d, "no TXT record exists yet")
		}
	}
	return nil, notVerified(d, fmt.Sprintf("the TXT record is %.200q", strings.Join(texts, " ")))
}

func notVerified(d model.Domain, why string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_DOMAIN_NOT_VERIFIED, Field: "domain",
		Fix: fmt.Sprintf("Set the TXT record of %s to %q in the DNS, and verify the domain again. DNS servers may cache the old answer for some time.", model.DomainRecord(d.Name), d.Token),
	}, fmt.Sprintf("domain %s is not verified: %s", d.Name, why))
}

func domainTaken(name, by, fix string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_DOMAIN_TAKEN, Field: "domain", Fix: fix,
	}, fmt.Sprintf("domain %s is served by %s", name, by))
}

// dnsProblem describes the error of a look-up, without the addresses of resolvers, which tenants must not see.
func dnsProblem(err error) string {
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &dns) && dns.IsTimeout:
		return "no answer in time"
	case errors.As(err, &dns) && dns.IsTemporary:
		return "a DNS server failed"
	}
	return "no usable answer"
}
