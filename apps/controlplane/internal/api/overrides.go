package api

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// pinOverrides works out what the spec's overrides come to in its regions. The spec has
// no variables of its environment yet: to be the same as these is no mistake.
func (c specMutation) pinOverrides(spec *windlassv1.DeploymentSpec, field string) error {
	spec.PinnedOverrides = nil
	if len(spec.GetOverrides()) == 0 {
		return nil
	}
	regions, err := c.regionsNamed(spec.GetRegions())
	if err != nil {
		return err
	}
	pinned, err := override.Pin(spec, regions)
	if problem, ok := errors.AsType[*override.Problem](err); ok {
		return rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
			Reason: problem.Reason, Field: field + "." + problem.Field, Fix: problem.Fix,
		}, problem.Message)
	}
	spec.PinnedOverrides = pinned
	return err
}

// regionsNamed are the regions of the names, but for those that there are not.
func (c specMutation) regionsNamed(names []string) (out []model.Region, err error) {
	for _, n := range names {
		r, err := c.GetRegionByName(c.workspaceID, n)
		if errors.Is(err, model.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read region %s: %w", n, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// repin has the overrides of a version that is made of another be about the regions that
// there are now.
func (c specMutation) repin(spec *windlassv1.DeploymentSpec) error {
	if len(spec.GetPinnedOverrides()) == 0 {
		return nil
	}
	regions, err := c.regionsNamed(spec.GetRegions())
	if err != nil {
		return err
	}
	ids := map[string]string{}
	for _, r := range regions {
		ids[r.Name] = r.ID
	}
	override.Repin(spec, ids)
	return nil
}

// carrySizes has the version begin, in regions that have or had a number of their own,
// with what was asked for, else with what runs there now: scaling outlasts versions. Where
// nothing runs it is what the version was given before, which is as good as asked for. It
// returns all that was.
func carrySizes(app model.App, was running, v version) plan.Asked {
	asked := plan.Asked{All: v.Asked.All, Regions: map[string]int32{}}
	maps.Copy(asked.Regions, v.Asked.Regions)
	now, done := was.sizes(), map[string]bool{}
	size := func(p *windlassv1.PinnedOverride) (n int32, ok bool) {
		done[p.GetRegionId()] = true
		if n, ok = v.Asked.In(p.GetRegionId()); !ok {
			n, ok = now[p.GetRegionId()]
		}
		return n, ok
	}
	for _, p := range slices.Clone(v.Spec.GetPinnedOverrides()) {
		if p.GetValues().Replicas == nil {
			continue
		}
		n, ok := size(p)
		if !ok {
			n = p.GetValues().GetReplicas()
			asked.Regions[p.GetRegionId()] = n
		}
		override.SetReplicas(v.Spec, p.GetRegion(), p.GetRegionId(), n)
	}
	if was.live == nil {
		return asked
	}
	for _, p := range was.live.Spec.GetPinnedOverrides() {
		if p.GetValues().Replicas == nil || done[p.GetRegionId()] || !slices.Contains(v.Spec.GetRegions(), p.GetRegion()) {
			continue
		}
		n, ok := size(p)
		if !ok {
			n = app.Replicas
		}
		override.SetReplicas(v.Spec, p.GetRegion(), p.GetRegionId(), n)
	}
	return asked
}

// sizes are the replicas that the regions of what is live have, or have when no rollout
// is under way; by id.
func (r running) sizes() map[string]int32 {
	out := map[string]int32{}
	if r.live == nil {
		return out
	}
	for _, t := range r.rows {
		if t.DeploymentID == r.live.ID && topology.Active(t) {
			out[t.RegionID] = t.Replicas
		}
	}
	if c := r.rolloutState.Progress; c != nil && c.DoneAt == 0 {
		maps.Copy(out, c.OldSizes)
	}
	return out
}
