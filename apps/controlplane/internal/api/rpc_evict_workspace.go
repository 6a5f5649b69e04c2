package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/pins"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// evictAtOnce is the maximum number of apps that one transaction locks.
const evictAtOnce = 50

// EvictWorkspace removes a workspace's instances from a platform region. It revokes the grant first, so that no app
// can grow there while apps are scaled to 0.
func (a regionService) EvictWorkspace(ctx context.Context, req *windlassv1.EvictWorkspaceRequest) (*windlassv1.EvictWorkspaceResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.EvictWorkspaceResponse, error) {
		r, w, err := c.regions().grantOf(req.GetRegion(), req.GetWorkspace())
		if err != nil {
			return nil, err
		}
		c.workspaceID = w.ID
		revoked := true
		if err := c.Tx.RevokeGrant(r.ID, w.ID); errors.Is(err, model.ErrNotFound) {
			revoked = false
		} else if err != nil {
			return nil, fmt.Errorf("revoke grant of region %s to workspace %s: %w", r.ID, w.ID, err)
		}
		ids, err := c.regions().appsIn(r, w)
		if err != nil {
			return nil, err
		}
		res := &windlassv1.EvictWorkspaceResponse{}
		for _, id := range ids {
			if res.GetApps() == evictAtOnce {
				res.More = true
				break
			}
			n, evicted, err := c.regions().evictApp(id, r, req.GetWhy())
			if err != nil {
				return nil, err
			}
			if evicted {
				res.Apps++
				res.Replicas += n
			}
		}
		if revoked {
			// Apps at zero must also be woken, so that no request can start them.
			if err := c.regions().wakeIn(r, w); err != nil {
				return nil, err
			}
		}
		if !revoked && res.GetApps() == 0 {
			return nil, apierr.NothingToDo(fmt.Sprintf("workspace %s has no instances in region %s, and no grant of it", w.Name, r.Name), "")
		}
		return res, c.auditFor(w.ID, "region_eviction", r.ID, workspaceProto(w), res)
	})
	return res, err
}

// evictApp scales all versions of the app to 0 replicas in the region, and removes its pins there. It returns the number
// of removed replicas.
func (c regionMutation) evictApp(appID string, region model.Region, why string) (replicas int32, evicted bool, err error) {
	app, err := c.lockedApp(appID)
	if errors.Is(err, model.ErrNotFound) || err == nil && app.DeletingSince != 0 {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	r, err := c.versions().readRunning(app)
	if err != nil {
		return 0, false, err
	}
	unpinned, err := c.evictPins(app, region)
	if err != nil {
		return 0, false, err
	}
	var ids []string
	for _, t := range r.rows {
		if t.RegionID == region.ID && topology.Active(t) {
			ids = append(ids, t.DeploymentID)
			replicas += t.Replicas
		}
	}
	scaled, err := c.versions().scaleDeployments(&app, r, ids, plan.AskedIn(region.ID, 0))
	if err != nil {
		return 0, false, err
	}
	if scaled == 0 && !unpinned {
		c.asked = nil
		return 0, false, nil
	}
	text := fmt.Sprintf("the platform's operators removed the app from region %s (%s): the workspace may no longer use the region", region.Name, plural.Count(replicas, "replica"))
	if why != "" {
		text += ": " + why
	}
	h := model.History{What: "Evicted", Why: text, RolloutID: app.RolloutID, RegionID: region.ID}
	if r.live != nil {
		h.DeploymentID, h.Version = r.live.ID, r.live.Version
	}
	c.log(app, h)
	c.exemptClaim()
	return replicas, true, c.wake(app.ID)
}

// evictPins unpins all versions in the region.
func (c regionMutation) evictPins(app model.App, region model.Region) (changed bool, err error) {
	pinned, err := c.ListPins([]string{app.ID})
	if err != nil {
		return false, fmt.Errorf("list pins of app %s: %w", app.ID, err)
	}
	for _, p := range pinned {
		if !pins.RemoveIn(&p, region.ID, c.at) {
			continue
		}
		p = p.Changed(c.by.Name, p.Why, c.at)
		if err := c.PutPin(p); err != nil {
			return false, fmt.Errorf("store pin of %s: %w", p.DeploymentID, err)
		}
		changed = true
	}
	if !changed {
		return false, nil
	}
	return true, c.versions().countPins(app)
}
