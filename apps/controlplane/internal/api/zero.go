package api

import (
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// startAtZero starts the version in regions in which the app is at zero, if no request could start the version there.
// Regions for which the request sets replicas are left out.
func (d *deployment) startAtZero() error {
	stuck := d.was.stuckAtZero(d.want.Spec)
	maps.DeleteFunc(stuck, func(id string, _ int32) bool {
		_, asked := d.want.Asked.In(id)
		return asked
	})
	if len(stuck) == 0 {
		return nil
	}
	regions, err := d.GetRegions(slices.Sorted(maps.Keys(stuck)))
	if err != nil {
		return fmt.Errorf("read regions: %w", err)
	}
	d.want.Asked.Regions = maps.Clone(d.want.Asked.Regions)
	if d.want.Asked.Regions == nil {
		d.want.Asked.Regions = map[string]int32{}
	}
	for _, region := range regions {
		n := stuck[region.ID]
		if !slices.Contains(d.want.Spec.GetRegions(), region.Name) {
			continue
		}
		d.want.Asked.Regions[region.ID] = n
		override.SetReplicas(d.want.Spec, region.Name, region.ID, n)
		d.out.Started = append(d.out.Started, fmt.Sprintf("the app is at zero in %s, and without routing.coldStart no request would start it: it gets %s there",
			region.ShownName(), model.SizeText(d.want.Spec, n)))
	}
	return nil
}

// startFindings returns the texts of startAtZero in the form of a plan.
func (d *deployment) startFindings() (out []*windlassv1.PlanFinding) {
	for _, text := range d.out.Started {
		out = append(out, &windlassv1.PlanFinding{
			Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Field: "spec.routing.coldStart", Message: text,
			Fix: "Keep coldStart, so that a request starts it. Or set replicas, which may be 0.",
		})
	}
	return out
}

// stuckAtZero returns the regions in which the app is at zero and no request could start next, the version that
// replaces the live version. The values are the replicas that a request starts now.
func (r running) stuckAtZero(next *windlassv1.DeploymentSpec) map[string]int32 {
	out, sizes := map[string]int32{}, r.liveSizes()
	for _, t := range r.rows {
		if r.live == nil || t.DeploymentID != r.live.ID || !topology.Active(t) {
			continue
		}
		t.Replicas = sizes[t.RegionID]
		if n := t.WakeTo(override.In(r.live.Spec, t.RegionID)); n > 0 && override.In(next, t.RegionID).GetRouting().GetColdStart() == nil {
			out[t.RegionID] = n
		}
	}
	return out
}
