// Package preview forecasts what a deploy would do. It runs the planner on the input that the next step of
// the app would read. Then it compares each region's needs with its capacity. It writes nothing.
package preview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/forecast"
	"github.com/windlass-run/windlass/apps/controlplane/internal/planinput"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Preview is the input of a forecast.
type Preview struct {
	in plan.Input
	// was is the app's topology before the call.
	was []model.Topology
	// neededWhen follows the number of needed GPUs in messages: " at its peak", or empty.
	neededWhen string
	// target is the deployment that is forecast.
	target *model.Deployment
	// regions are by id. regionIDs has the ids of the regions that the target's spec names, by name.
	// unknownRegion means that the spec names a region that does not exist.
	regions       map[string]model.Region
	regionIDs     map[string]string
	unknownRegion bool
}

// Read reads the input that the planner will have after the call that asks for the deployment. was is the
// app's topology before the call, or nil if the call did not change it.
func Read(tx planinput.Tx, app model.App, deploymentID string, was []model.Topology) (*Preview, error) {
	inputs, err := planinput.Rows(tx, []model.App{app})
	if err != nil {
		return nil, fmt.Errorf("read the plan input of app %s: %w", app.ID, err)
	}
	p := &Preview{in: *inputs[0], was: was}
	if was == nil {
		p.was = p.in.Topology
	}
	if p.target, err = p.readTarget(tx, deploymentID); err != nil {
		return nil, err
	}
	return p, p.readRegions(tx)
}

// readTarget returns the deployment with the id, and adds it to the input if it is missing there.
func (p *Preview) readTarget(tx planinput.Tx, id string) (*model.Deployment, error) {
	if d := p.Deployment(id); d != nil {
		return d, nil
	}
	found, err := tx.GetDeployments([]string{id})
	if err != nil {
		return nil, fmt.Errorf("read deployment %s: %w", id, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("read deployment %s: it does not exist", id)
	}
	p.in.Deployments = append(p.in.Deployments, found[0])
	return &found[0], nil
}

// Deployment returns the input's deployment with the id, or nil.
func (p *Preview) Deployment(id string) *model.Deployment {
	i := slices.IndexFunc(p.in.Deployments, func(d model.Deployment) bool { return d.ID == id })
	if i < 0 {
		return nil
	}
	return &p.in.Deployments[i]
}

// readRegions adds the regions that the target's spec names to the input's regions.
func (p *Preview) readRegions(tx planinput.Tx) error {
	p.regions, p.regionIDs = map[string]model.Region{}, map[string]string{}
	for _, r := range p.in.Regions {
		p.regions[r.ID] = r
	}
	names := p.target.Spec.GetRegions()
	named, err := tx.GetRegionsByName(p.in.App.WorkspaceID, names)
	if err != nil {
		return fmt.Errorf("read regions of deployment %s: %w", p.target.ID, err)
	}
	for _, r := range named {
		p.regions[r.ID], p.regionIDs[r.Name] = r, r.ID
	}
	p.unknownRegion = slices.ContainsFunc(names, func(name string) bool { return p.regionIDs[name] == "" })
	return nil
}

// progressOf returns the rollout's progress, or nil for a rollout that is not staged.
func (p *Preview) progressOf() *model.Progress {
	if p.in.RolloutState == nil || !p.in.RolloutState.Progress.Active(p.in.App.RolloutID) {
		return nil
	}
	return p.in.RolloutState.Progress
}

// sortByName returns the ids of regions, sorted by the regions' names.
func (p *Preview) sortByName(ids map[string]bool) []string {
	all := slices.Sorted(maps.Keys(ids))
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(p.regions[a].Name, p.regions[b].Name) })
	return all
}

// waveOf returns the name of the region's wave in the forecast. waits and skips report whether the wave waits
// for a region that is out of reach, or skips it.
func (p *Preview) waveOf(f forecast.Forecast, region string) (name string, waits, skips bool) {
	if f.Progress == nil || p.in.Rollout == nil || f.Progress.RolloutID != p.in.Rollout.ID {
		return "", false, false
	}
	for _, w := range f.Progress.Waves {
		if !slices.ContainsFunc(w.Regions, func(st model.RegionProgress) bool { return st.RegionID == region }) {
			continue
		}
		policy := &windlassv1.Wave{}
		if waves := f.Progress.Policy.GetWaves(); w.Policy < len(waves) {
			policy = waves[w.Policy]
		}
		on := policy.GetOnUnreachable()
		skips = on == windlassv1.Wave_ON_UNREACHABLE_SKIP || f.Progress.SkipsNew && p.isNew(region)
		return w.Name, on != windlassv1.Wave_ON_UNREACHABLE_FAIL, skips
	}
	return "", true, false
}

// isNew reports whether no agent has joined the region, and it runs nothing of the live version.
func (p *Preview) isNew(region string) bool {
	live := p.in.App.LiveDeploymentID
	return p.regions[region].Status == windlassv1.RegionStatus_REGION_STATUS_PENDING &&
		!slices.ContainsFunc(p.was, func(t model.Topology) bool {
			return t.RegionID == region && t.DeploymentID == live && topology.Active(t)
		})
}
