package api

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/plural"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Scale sets the replicas of the live deployment, and of the deployment in flight where it has begun, so that the
// rollout keeps the new number.
func (a appService) Scale(ctx context.Context, req *windlassv1.ScaleRequest) (res *windlassv1.ScaleResponse, err error) {
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.ScaleResponse, error) {
		app, err := c.lockedApp(req.GetApp())
		if err != nil {
			return nil, err
		}
		if err := requireNotDeleted(app); err != nil {
			return nil, err
		}
		r, err := c.versions().readRunning(app)
		if err != nil {
			return nil, err
		}
		f, err := a.factsOf(c, app, r)
		if err != nil {
			return nil, err
		}
		before, err := appWithURLs(c, f, app)
		if err != nil {
			return nil, err
		}
		scaled, err := c.scaleTo(&app, &r, req)
		if err != nil {
			return nil, err
		}
		if !scaled && app.ResourceVersion == before.GetResourceVersion() {
			return &windlassv1.ScaleResponse{App: before, Unchanged: true}, nil
		}
		if err := f.readScaledRows(c, app.ID); err != nil {
			return nil, err
		}
		after := appProto(f, app)
		after.Urls = before.Urls
		return &windlassv1.ScaleResponse{App: after}, c.auditChange("app", app.ID, before, after)
	})
	return res, err
}

// scaleTo scales the app to the requested replicas. scaled reports whether that changes anything.
func (c *mutation) scaleTo(app *model.App, was *running, req *windlassv1.ScaleRequest) (scaled bool, err error) {
	r := *was
	live := r.live
	if live == nil {
		return false, apierr.NothingToDo(fmt.Sprintf("app %s has no live deployment to scale", app.Name), "Deploy it first, or wait until it is ready.")
	}
	ids := r.scaledIDs()
	regionID, where := "", "each region"
	if req.GetRegion() != "" {
		region, err := c.regionOf(*app, live.ID, r.rolloutState.Progress, req.GetRegion())
		if err != nil {
			return false, err
		}
		regionID, where = region.ID, region.Name
	}
	if req.GetRole() != "" {
		return c.scaleRole(app, was, regionID, where, req)
	}
	if req.CurrentReplicas != nil {
		if err := c.compareReplicas(*app, r, regionID, req.GetCurrentReplicas()); err != nil {
			return false, err
		}
	}
	if err := checkPoolSize(live.Spec, req.GetReplicas()); err != nil && !req.GetEndHold() {
		return false, err
	}
	held, done, err := c.holdScaling(*app, r, regionID, where, req)
	if err != nil || done {
		if held && err == nil {
			err = renewLive(c, r, regionID)
		}
		return held, err
	}
	asked := plan.AskedIn(regionID, req.GetReplicas())
	if err := c.versions().portsFitScaled(r, asked, "replicas"); err != nil {
		return false, err
	}
	if err := c.versions().hostsFitScaled(r, asked); err != nil {
		return false, err
	}
	n, err := c.versions().scaleDeployments(app, r, ids, asked)
	if n == 0 && held && err == nil {
		err = renewLive(c, r, regionID)
	}
	if err != nil || n == 0 {
		return held, err
	}
	c.log(*app, model.History{
		What: "Scaled", Why: fmt.Sprintf("v%d gets %s in %s", live.Version, model.SizeText(live.Spec, req.GetReplicas()), where),
		RolloutID: app.RolloutID, DeploymentID: live.ID, Version: live.Version, RegionID: regionID,
	})
	return true, nil
}

// renewLive gives the live version a new generation in the region, or in all regions if regionID is empty. So regions
// learn of a hold even if it keeps the present number. They then raise nothing by themselves while they are cut off.
func renewLive(c *mutation, r running, regionID string) error {
	rows := slices.DeleteFunc(slices.Clone(r.rows), func(t model.Topology) bool {
		return t.DeploymentID != r.live.ID || regionID != "" && t.RegionID != regionID
	})
	changed := topology.Renew(rows, c.traceparent, c.at)
	if len(changed) == 0 {
		return nil
	}
	if err := topology.Write(c, topology.State{Rows: r.rows}, topology.State{Rows: changed}); err != nil {
		return fmt.Errorf("tell regions of the hold: %w", err)
	}
	return c.expect(r.live.AppID)
}

// compareReplicas fails unless the region has want replicas. For regionID "", all regions must have them.
func (c *mutation) compareReplicas(app model.App, r running, regionID string, want int32) error {
	sizes := r.currentSizes(app)
	maps.DeleteFunc(sizes, func(id string, n int32) bool { return n == want || regionID != "" && id != regionID })
	return c.sizeConflict(app, plural.Count(want, "replica"), sizes)
}

// sizeConflict fails unless sizes is empty. sizes has the current numbers, by region id, that differ from the number that
// the caller expects.
func (c *mutation) sizeConflict(app model.App, want string, sizes map[string]int32) error {
	if len(sizes) == 0 {
		return nil
	}
	regions, err := c.GetRegions(slices.Sorted(maps.Keys(sizes)))
	if err != nil {
		return fmt.Errorf("read regions of app %s: %w", app.ID, err)
	}
	var have []string
	for _, region := range regions {
		have = append(have, fmt.Sprintf("%d in %s", sizes[region.ID], region.ShownName()))
	}
	slices.Sort(have)
	return rpc.ErrorWith(connect.CodeAborted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_CONFLICT, Field: "current_replicas",
		Fix: "Read the current number, decide again, and repeat the call with that number.",
	}, fmt.Sprintf("app %s does not have %s, but %s", app.Name, want, strings.Join(have, ", ")))
}

// regionOf finds a region in which the deployment runs, or will run after the region has caught up.
func (c *mutation) regionOf(app model.App, deploymentID string, progress *model.Progress, ref string) (model.Region, error) {
	rows, err := c.ListTopology([]string{app.ID})
	if err != nil {
		return model.Region{}, fmt.Errorf("list topology of app %s: %w", app.ID, err)
	}
	ids := map[string]bool{}
	for _, t := range rows {
		if t.DeploymentID == deploymentID && topology.Active(t) {
			ids[t.RegionID] = true
		}
	}
	if progress != nil {
		for _, b := range progress.Lagging {
			ids[b.RegionID] = true
		}
	}
	return regionAmong(c, app, ids, ref)
}

// regionAmong returns the region that ref names. ids are the regions in which the app runs.
func regionAmong(tx Tx, app model.App, ids map[string]bool, ref string) (model.Region, error) {
	regions, err := tx.GetRegions(keysOf(ids))
	if err != nil {
		return model.Region{}, fmt.Errorf("read regions of app %s: %w", app.ID, err)
	}
	var names []string
	for _, r := range regions {
		if r.Name == ref || r.ID == ref {
			return r, nil
		}
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return model.Region{}, rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_REGION, Field: "region",
		Fix: "The app runs in: " + strings.Join(names, ", ") + ".",
	}, fmt.Sprintf("the live deployment of app %s does not run in region %q", app.Name, ref))
}
