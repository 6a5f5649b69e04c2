package api

import (
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// pinnedUsage returns the usage of apps' pins, by app. A pin counts with all its desired replicas until it is
// removed, even if they do not run yet.
func pinnedUsage(tx Tx, appIDs []string) (map[string]model.Usage, error) {
	pins, err := tx.ListPins(appIDs)
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	want := map[string]bool{}
	for _, p := range pins {
		want[p.DeploymentID] = true
	}
	found, err := tx.GetDeployments(keysOf(want))
	if err != nil {
		return nil, fmt.Errorf("read pinned deployments: %w", err)
	}
	specs := map[string]*windlassv1.DeploymentSpec{}
	for _, d := range found {
		specs[d.ID] = d.Spec
	}
	out := map[string]model.Usage{}
	for _, p := range pins {
		spec, kept := specs[p.DeploymentID]
		for _, r := range p.Regions {
			if kept && p.Stays(r) {
				there := override.In(spec, r.RegionID)
				instances, gpus := admission.Of(there, admission.CountedReplicas(there, r.Replicas))
				out[p.AppID] = out[p.AppID].Plus(model.Usage{Instances: instances, GPUs: gpus})
			}
		}
	}
	return out, nil
}

// pinOf returns the deployment's pin, nil for none.
func (f facts) pinOf(appID, deploymentID string) *model.Pin {
	for i, p := range f.pins[appID] {
		if p.DeploymentID == deploymentID {
			return &f.pins[appID][i]
		}
	}
	return nil
}

// isPinned reports whether the row belongs to a pin.
func (f facts) isPinned(t model.Topology) bool {
	p := f.pinOf(t.AppID, t.DeploymentID)
	return p != nil && p.In(t.RegionID) != nil
}

// pinnedNotIn returns the app's pinned deployments that are not in shown.
func (f facts) pinnedNotIn(app model.App, shown []model.Deployment) (more []model.Deployment) {
	for _, p := range f.pins[app.ID] {
		d, ok := f.deployments[p.DeploymentID]
		if ok && !slices.ContainsFunc(shown, func(s model.Deployment) bool { return s.ID == d.ID }) {
			more = append(more, d)
		}
	}
	return more
}

// pinProto returns a pin as the API shows it.
func pinProto(f facts, app model.App, p model.Pin) *windlassv1.Pin {
	out := &windlassv1.Pin{
		DeploymentId: p.DeploymentID, Version: p.Version, Weight: p.Weight, By: p.By, Why: p.Why,
		Removing: p.Removing, CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, ResourceVersion: p.ResourceVersion,
	}
	for _, r := range p.Regions {
		v := &windlassv1.PinRegion{
			Region: f.regions[r.RegionID].ShownName(), State: r.State, Since: r.Since, Replicas: r.Replicas, Reason: r.Reason, Message: r.Message,
		}
		if region, ok := f.regions[r.RegionID]; ok {
			v.RegionUnreachable = region.Status != windlassv1.RegionStatus_REGION_STATUS_CONNECTED
		}
		for _, t := range f.rows[app.ID] {
			if t.DeploymentID == p.DeploymentID && t.RegionID == r.RegionID {
				fillPin(f.placeOf(t), f.deployments[p.DeploymentID].Spec, f.rolloutStates[app.ID].Policy, r, v)
			}
		}
		out.Regions = append(out.Regions, v)
	}
	slices.SortFunc(out.Regions, func(a, b *windlassv1.PinRegion) int { return strings.Compare(a.GetRegion(), b.GetRegion()) })
	return out
}

// fillPin sets the fields about the state of the pin in a region.
func fillPin(pl rollup.Place, spec *windlassv1.DeploymentSpec, policy *windlassv1.RolloutPolicy, r model.PinRegion, out *windlassv1.PinRegion) {
	out.Weight = pl.Row.Weight
	if plan.Active(pl.Row) {
		out.Ready = min(pl.Observed.ReadyReplicas, pl.Row.Replicas)
		out.Deadline = plan.PinDeadline(policy, spec, r, pl)
	}
	if out.Reason == "" && pl.Row.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED && !pl.Settled() {
		out.Reason, out.Message = pl.Why()
	}
}
