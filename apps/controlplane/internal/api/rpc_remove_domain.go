package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RemoveDomain removes a domain from an app.
func (a routeService) RemoveDomain(ctx context.Context, req *windlassv1.RemoveDomainRequest) (*windlassv1.RemoveDomainResponse, error) {
	name, err := model.ParseDomain(req.GetDomain())
	if err != nil {
		return nil, apierr.Invalid("domain", err.Error())
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RemoveDomainResponse, error) {
		app, have, err := c.domains().appWithDomains(req.GetApp())
		if err != nil {
			return nil, err
		}
		d, err := domainAmong(have, app, name)
		if err != nil {
			return nil, err
		}
		if err := c.versions().mayLeave(app); err != nil {
			return nil, err
		}
		before, err := a.domainView(c, d)
		if err != nil {
			return nil, err
		}
		if err := c.DeleteDomain(app.ID, name); err != nil {
			return nil, fmt.Errorf("remove domain %s of app %s: %w", name, app.ID, err)
		}
		if d.VerifiedAt == 0 {
			c.log(app, model.History{What: "DomainRemoved", Why: name + ", which was not verified"})
		} else {
			app.Domains--
			if err := c.domains().routesChange(app, "DomainRemoved", name+" is removed from every region"); err != nil {
				return nil, err
			}
		}
		return &windlassv1.RemoveDomainResponse{}, c.auditChange("domain", name, before, nil)
	})
	return res, err
}
