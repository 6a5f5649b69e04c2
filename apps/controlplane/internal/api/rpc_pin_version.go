package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/freeze"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/pins"
	"github.com/windlass-run/windlass/apps/controlplane/internal/preview"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// PinVersion pins a version next to the live version, or changes its pin. It answers after the commit.
func (a appService) PinVersion(ctx context.Context, req *windlassv1.PinVersionRequest) (res *windlassv1.PinVersionResponse, err error) {
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.PinVersionResponse, error) {
		return c.pins().pinVersion(req)
	})
	return res, err
}

func (c pinMutation) pinVersion(req *windlassv1.PinVersionRequest) (*windlassv1.PinVersionResponse, error) {
	if err := c.versions().mayOverride(req.GetOverrideFreeze()); err != nil {
		return nil, err
	}
	app, environment, err := c.appToChange(req.GetApp())
	if err != nil {
		return nil, err
	}
	d, err := c.versionOf(app, req.GetVersion())
	if err != nil {
		return nil, err
	}
	r, err := c.versions().readRunning(app)
	if err != nil {
		return nil, err
	}
	others, err := c.ListPins([]string{app.ID})
	if err != nil {
		return nil, fmt.Errorf("list pins of app %s: %w", app.ID, err)
	}
	var had *model.Pin
	if i := slices.IndexFunc(others, func(p model.Pin) bool { return p.DeploymentID == d.ID }); i >= 0 {
		was := others[i].Clone()
		had, others = &was, slices.Delete(others, i, i+1)
	}
	if err := comparePin(app, d.Version, had, req.ResourceVersion); err != nil {
		return nil, err
	}
	if err := mayBePinned(app, r, d, had); err != nil {
		return nil, err
	}
	if model.IsPooled(d.Spec) {
		return nil, apierr.InvalidFix("version", fmt.Sprintf("v%d is a pool, and a pool cannot be pinned yet", d.Version),
			"Deploy it as an app with another name, or use strategy canary to send it a part of the requests.")
	}
	if err := c.versions().mayServeAgain(app, d); err != nil {
		return nil, err
	}
	sizes, err := c.pinSizes(app, r, d, had, req)
	if err != nil {
		return nil, err
	}
	p := model.Pin{
		WorkspaceID: app.WorkspaceID, AppID: app.ID, DeploymentID: d.ID, Version: d.Version, CreatedAt: c.at,
	}
	if had != nil {
		p = had.Clone()
	}
	changed := pins.Set(&p, req.GetWeight(), sizes, c.at)
	if !changed {
		view, err := c.pinView(app, p)
		return &windlassv1.PinVersionResponse{Pin: view, Unchanged: true}, err
	}
	if err := c.versions().mayGrow(grownPin(had, p), plan.Asked{}); err != nil {
		return nil, err
	}
	if err := c.mayUseFeatures(r, d, had, p); err != nil {
		return nil, err
	}
	p = p.Changed(c.by.Name, req.GetWhy(), c.at)
	if err := c.leaveSome(p, others); err != nil {
		return nil, err
	}
	if err := c.versions().hostsFitPinned(d, p); err != nil {
		return nil, err
	}
	if err := c.versions().portsFitPinned(app, r, d, p); err != nil {
		return nil, err
	}
	if err := c.checkPinAgain(app, environment, d, req.GetOverrideFreeze()); err != nil {
		return nil, err
	}
	view, err := c.storePin(app, r, d, had, p)
	if err != nil {
		return nil, err
	}
	return &windlassv1.PinVersionResponse{Pin: view}, c.capacityForPin(app, d, p)
}

// comparePin fails if the pin of the version is not the one that the caller read. A nil version is not compared. 0 means
// that the caller read that there is no pin.
func comparePin(app model.App, version int32, have *model.Pin, read *int64) error {
	var now int64
	if have != nil {
		now = have.ResourceVersion
	}
	if read == nil || *read == now {
		return nil
	}
	text := fmt.Sprintf("v%d of app %s is no longer pinned", version, app.Name)
	switch {
	case have != nil && have.Removing:
		text = fmt.Sprintf("%s has unpinned v%d of app %s since you read it", have.By, version, app.Name)
	case have != nil:
		text = fmt.Sprintf("%s has pinned v%d of app %s at %d %% of the traffic since you read it, and its resource_version is now %d",
			have.By, version, app.Name, have.Weight, now)
	}
	return rpc.ErrorWith(connect.CodeAborted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_CONFLICT, Field: "resource_version",
		Fix: "Read the pins again (`windlass pins APP`), then decide again.",
	}, text)
}

// grownPin returns the regions in which the pin starts, starts again, or gets more replicas.
func grownPin(had *model.Pin, p model.Pin) map[string]bool {
	grown := map[string]bool{}
	for _, r := range p.Regions {
		if !p.Stays(r) {
			continue
		}
		var was *model.PinRegion
		if had != nil {
			was = had.In(r.RegionID)
		}
		serves := was != nil && had.Stays(*was) && was.State == windlassv1.PinRegion_STATE_SERVING
		grown[r.RegionID] = !serves || r.Replicas > was.Replicas
	}
	maps.DeleteFunc(grown, func(_ string, grows bool) bool { return !grows })
	return grown
}

// versionOf finds a version of the app.
func (c pinMutation) versionOf(app model.App, number int32) (model.Deployment, error) {
	d, err := c.GetDeploymentByVersion(app.WorkspaceID, app.ID, number)
	if errors.Is(err, model.ErrNotFound) {
		return d, apierr.Missing("version", "version", fmt.Sprintf("v%d", number),
			fmt.Sprintf("The newest version of app %s is v%d. `windlass list deployments APP` shows the versions that are kept.", app.Name, app.LatestVersion))
	}
	if err != nil {
		return d, fmt.Errorf("read version %d of app %s: %w", number, app.ID, err)
	}
	return d, nil
}

// mayBePinned fails if no version is live, or if the version is live, in a rollout or without an image.
func mayBePinned(app model.App, r running, d model.Deployment, had *model.Pin) error {
	isLive := func(text, fix string) error {
		return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_PIN_IS_LIVE, Field: "version", Fix: fix,
		}, text)
	}
	switch {
	case r.live == nil:
		return isLive(fmt.Sprintf("app %s has no live version next to which v%d could be pinned", app.Name, d.Version), "Deploy it first, or wait until it is ready.")
	case d.ID == r.live.ID:
		return isLive(fmt.Sprintf("v%d is live, so it already gets the traffic that pins leave", d.Version),
			"Pin other versions next to it. Or deploy a newer version, and pin this version when the newer one is live.")
	case r.active.rollout != nil && r.active.rollout.DeploymentID == d.ID:
		return isLive(fmt.Sprintf("a rollout of v%d is in flight", d.Version), "Wait until the rollout has ended, or abort it.")
	case plan.Image(d.Spec) != "" && d.ResolvedImage == "":
		return apierr.Invalid("version", fmt.Sprintf("v%d never had an image: %s could not be resolved to a digest; deploy its configuration again", d.Version, plan.Image(d.Spec)))
	}
	rows := r.rows
	if had != nil {
		rows = slices.DeleteFunc(slices.Clone(rows), func(t model.Topology) bool {
			return t.DeploymentID == d.ID && had.In(t.RegionID) != nil
		})
	}
	if refusal := plan.MayPin(r.rolloutState.Progress, app, d, rows); refusal != nil {
		return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_PIN_IN_ROLLOUT, Field: "version", Fix: refusal.Fix,
		}, refusal.Message)
	}
	return nil
}

// pinSizes returns the replicas that the pinned version gets, by region.
func (c pinMutation) pinSizes(app model.App, r running, d model.Deployment, had *model.Pin, req *windlassv1.PinVersionRequest) (map[string]int32, error) {
	sizes := map[string]int32{}
	names, field := req.GetRegions(), "regions"
	if len(names) == 0 && had != nil {
		for _, in := range had.Regions {
			if had.Stays(in) {
				sizes[in.RegionID] = 0
			}
		}
	}
	if len(names) == 0 && len(sizes) == 0 {
		names, field = d.Spec.GetRegions(), "version"
	}
	for i, name := range names {
		region, err := c.GetRegionByName(c.workspaceID, name)
		if errors.Is(err, model.ErrNotFound) {
			known, err := c.ListRegions(c.workspaceID, model.Page{Limit: maxKnownRegions})
			if err != nil {
				return nil, fmt.Errorf("list regions: %w", err)
			}
			if field == "regions" {
				field = fmt.Sprintf("regions[%d]", i)
			}
			return nil, unknownRegion(field, name, known)
		}
		if err != nil {
			return nil, fmt.Errorf("read region %s: %w", name, err)
		}
		if override.Stale(d.Spec, map[string]string{name: region.ID}) != "" {
			return nil, apierr.Invalid("version", fmt.Sprintf(
				"region %s was created again after the overrides of v%d were computed: deploy its configuration again, or pin it in other regions", name, d.Version))
		}
		sizes[region.ID] = 0
	}
	for id := range sizes {
		sizes[id] = pinSize(app, r, d, had, id, req.Replicas)
	}
	return sizes, nil
}

// pinSize returns asked if it is set. Otherwise, it returns the replicas of the first of these that exists: the pin
// in the region, the version's row there, its spec, the app. A stopped row does not count, because a rollout scales a
// version down before it stops the version.
func pinSize(app model.App, r running, d model.Deployment, had *model.Pin, region string, asked *int32) int32 {
	if asked != nil {
		return *asked
	}
	if had != nil && had.In(region) != nil {
		return had.In(region).Replicas
	}
	for _, t := range r.rows {
		if t.DeploymentID == d.ID && t.RegionID == region && t.Replicas > 0 && topology.Active(t) {
			return t.Replicas
		}
	}
	if n, _ := override.Replicas(d.Spec, region); n > 0 {
		return n
	}
	return max(1, app.Replicas)
}

// leaveSome fails if pins would leave no traffic to the live version in a region.
func (c pinMutation) leaveSome(p model.Pin, others []model.Pin) error {
	for _, r := range p.Regions {
		if !p.Stays(r) {
			continue
		}
		sum := p.Weight
		var parts []string
		for _, o := range others {
			if in := o.In(r.RegionID); in != nil && o.Stays(*in) {
				sum += o.Weight
				parts = append(parts, fmt.Sprintf("v%d %d %%", o.Version, o.Weight))
			}
		}
		if sum < 100 {
			continue
		}
		name := model.DeletedRegion
		if region, err := c.GetRegion(r.RegionID); err == nil {
			name = region.Name
		}
		fix := fmt.Sprintf("Pin it at %d %% or less, or unpin other versions first.", 99-(sum-p.Weight))
		if sum-p.Weight >= 99 {
			fix = "Unpin other versions first."
		}
		return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_PIN_WEIGHTS, Field: "weight", Fix: fix,
		}, fmt.Sprintf("in region %s, v%d with %d %% and the pinned versions %s add up to %d %%, but the live version needs at least 1 %%",
			name, p.Version, p.Weight, strings.Join(parts, ", "), sum))
	}
	return nil
}

// checkPinAgain checks an earlier version against the current freezes and secrets, because a pin starts instances.
// override is the reason to override a freeze.
func (c pinMutation) checkPinAgain(app model.App, e model.Environment, d model.Deployment, override string) error {
	have, err := c.freezing().freezesFor(app.ID, "")
	if err != nil {
		return err
	}
	found, frozen := freeze.Of(have, app, c.at)
	switch {
	case frozen && override != "":
		pinned := model.Rollout{DeploymentID: d.ID, Version: d.Version}
		if err := c.versions().recordOverride(app, pinned, found, override); err != nil {
			return err
		}
	case frozen:
		wait := "Wait until it is lifted"
		if found.End != 0 {
			wait = "Wait until then"
		}
		return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_FROZEN, Fix: wait + `, or ask an owner to override it: --override-freeze "why". Unpinning is still possible.`,
		}, fmt.Sprintf("app %s may not pin versions now: %s", app.Name, plan.FreezeText(found.Name, freeze.Scope(found.Freeze), found.End, found.Reason)))
	}
	return c.specs().checkSecretsExist(e.ID, d.Spec, "version")
}

// storePin writes the pin, and updates the app's claim.
func (c pinMutation) storePin(app model.App, r running, d model.Deployment, had *model.Pin, p model.Pin) (*windlassv1.Pin, error) {
	var before *windlassv1.Pin
	var err error
	if had != nil {
		if before, err = c.pinView(app, *had); err != nil {
			return nil, err
		}
	}
	what, why := "VersionPinned", fmt.Sprintf("at %d %% of the traffic, next to v%d", p.Weight, r.live.Version)
	if had != nil && !had.Removing {
		what, why = "PinChanged", fmt.Sprintf("to %d %% of the traffic, from %d %%", p.Weight, had.Weight)
	}
	if r.rolloutState.Progress.Retained() == d.ID {
		rolloutState := r.rolloutState.Clone()
		plan.TakeRetained(rolloutState.Progress, &d, c.at)
		if err := c.putRolloutState(rolloutState); err != nil {
			return nil, err
		}
		if err := c.UpdateDeployment(d); err != nil {
			return nil, fmt.Errorf("supersede deployment %s: %w", d.ID, err)
		}
		r.rolloutState = rolloutState
		why += "; it was retained, and keeps its replicas"
	}
	if err := c.PutPin(p); err != nil {
		return nil, fmt.Errorf("store pin of %s: %w", d.ID, err)
	}
	return c.tellPin(app, r, p, before, what, why)
}

// tellPin adds a changed pin to the history, and wakes the workflow.
func (c pinMutation) tellPin(app model.App, r running, p model.Pin, before *windlassv1.Pin, what, why string) (*windlassv1.Pin, error) {
	if p.Why != "" {
		why += ": " + p.Why
	}
	c.log(app, model.History{What: what, Why: why, DeploymentID: p.DeploymentID, Version: p.Version})
	if err := c.versions().countPins(app); err != nil {
		return nil, err
	}
	c.claimUsage(app, r.live, r.active.deployment, quotaRows(r.rolloutState, app, r.live, r.active.deployment, r.rows))
	if err := c.wake(app.ID); err != nil {
		return nil, err
	}
	view, err := c.pinView(app, p)
	if err != nil {
		return nil, err
	}
	if before == nil {
		return view, c.auditChange("pin", p.DeploymentID, nil, view)
	}
	return view, c.auditChange("pin", p.DeploymentID, before, view)
}

// pinView returns the pin in the form of the API.
func (c pinMutation) pinView(app model.App, p model.Pin) (*windlassv1.Pin, error) {
	f, err := c.api.loadFacts(c.Tx, []model.App{app}, nil)
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, r := range p.Regions {
		ids[r.RegionID] = true
	}
	regions, err := c.GetRegions(keysOf(ids))
	if err != nil {
		return nil, fmt.Errorf("read regions: %w", err)
	}
	for _, r := range regions {
		f.regions[r.ID] = r
	}
	return pinProto(f, app, p), nil
}

// capacityForPin fails if the pin needs more GPUs than are free in its regions, unless the app's policy waits for
// capacity.
func (c pinMutation) capacityForPin(app model.App, d model.Deployment, p model.Pin) error {
	if !slices.ContainsFunc(p.Regions, func(r model.PinRegion) bool { return preview.HasGPU(override.In(d.Spec, r.RegionID)) }) {
		return nil
	}
	return c.versions().checkCapacity(app.ID, d.ID, nil)
}
