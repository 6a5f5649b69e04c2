package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// AddDomain adds a domain to an app, which serves it after VerifyDomain.
func (a routeService) AddDomain(ctx context.Context, req *windlassv1.AddDomainRequest) (*windlassv1.AddDomainResponse, error) {
	name, err := a.domainName(req.GetDomain())
	if err != nil {
		return nil, err
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.AddDomainResponse, error) {
		app, have, err := c.domains().appWithDomains(req.GetApp())
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(have, func(d model.Domain) bool { return d.Name == name }); i >= 0 {
			view, err := a.domainView(c, have[i])
			return &windlassv1.AddDomainResponse{Domain: view, Unchanged: true}, err
		}
		if len(have) >= model.MaxDomains {
			return nil, apierr.OverLimit("domain", fmt.Sprintf("app %s has %d domains, which is the maximum", app.Name, len(have)), "Remove a domain that is not needed.")
		}
		if err := c.domains().notServed(app, name, nil); err != nil {
			return nil, err
		}
		d := model.Domain{
			Name: name, WorkspaceID: c.workspaceID, AppID: app.ID, Token: ident.New("windlass-verify"),
			CreatedBy: c.by.Name, CreatedAt: c.at,
		}
		if err := c.InsertDomain(d); err != nil {
			return nil, fmt.Errorf("store domain %s of app %s: %w", name, app.ID, err)
		}
		c.log(app, model.History{What: "DomainAdded", Why: name + " serves after it is verified"})
		view, err := a.domainView(c, d)
		if err != nil {
			return nil, err
		}
		return &windlassv1.AddDomainResponse{Domain: view}, c.auditChange("domain", name, nil, view)
	})
	return res, err
}

// domainName parses a domain of an app. It refuses hosts below the domain of Windlass.
func (a routeService) domainName(text string) (string, error) {
	name, err := model.ParseDomain(text)
	if err != nil {
		return "", apierr.Invalid("domain", err.Error())
	}
	if name == a.cfg.Domain || strings.HasSuffix(name, "."+a.cfg.Domain) {
		return "", apierr.InvalidFix("domain", fmt.Sprintf("hosts below %s are made by Windlass", a.cfg.Domain),
			"Use the app's own host, which `windlass route list` shows, or your own domain.")
	}
	return name, nil
}

// appWithDomains locks the app, and returns it with its domains.
func (c domainMutation) appWithDomains(ref string) (model.App, []model.Domain, error) {
	app, err := c.lockedApp(ref)
	if err != nil {
		return app, nil, err
	}
	if err := requireNotDeleted(app); err != nil {
		return app, nil, err
	}
	have, err := c.DomainsOfApps([]string{app.ID})
	if err != nil {
		return app, nil, fmt.Errorf("list domains of app %s: %w", app.ID, err)
	}
	return app, have, nil
}

// notServed fails if another app has the domain, unless the domain has lapsed there. texts are the domain's TXT
// records, if known. If the other app's record is among them, the domain has not lapsed.
func (c domainMutation) notServed(app model.App, name string, texts []string) error {
	holder, err := c.HolderOfDomain(name)
	switch {
	case errors.Is(err, model.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("read the holder of domain %s: %w", name, err)
	case holder.AppID == app.ID, holder.LapsedAt != 0 && !holder.ShownBy(texts):
		return nil
	case holder.WorkspaceID != app.WorkspaceID:
		return domainTaken(name, "an app of another workspace", "If the domain is yours, ask the owner of that app, or the operator of this control plane, to remove it there.")
	}
	view, err := routeService{c.api}.domainView(c.mutation, holder)
	if err != nil {
		return err
	}
	return domainTaken(name, "app "+view.App, fmt.Sprintf("Remove it there first: windlass domain remove %s --app %s", name, view.App))
}
