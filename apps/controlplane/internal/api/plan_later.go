package api

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// later are the regions that the rollout comes to after those, by id. What is not staged
// comes to none.
func (r *foresight) later(begun map[string]bool) map[string]bool {
	ids, c := map[string]bool{}, r.progress()
	if c == nil || r.in.Rollout == nil || r.in.Rollout.DeploymentID != r.target.ID {
		return ids
	}
	for _, name := range r.target.Spec.GetRegions() {
		if id := r.in.RegionIDs[name]; id != "" && !begun[id] && plan.Size(c, id) > 0 {
			ids[id] = true
		}
	}
	return ids
}

// lacks tells of a region that has no pool for what the target asks for there, nil for none.
func (r *foresight) lacks(id string) (*windlassv1.PlanFinding, error) {
	gpu := gpuOf(override.In(r.target.Spec, id))
	view, err := regionProto(r.regions[id])
	if err != nil || gpu == nil || len(r.regions[id].Capacity) == 0 {
		return nil, err
	}
	v := &windlassv1.PlanRegion{
		Region: r.regions[id].Name, Status: r.regions[id].Status, Gpu: gpu, Pools: fitting(gpu, view.GetGpus()),
	}
	return r.room(v, capacity{true, view.GetGpus()}), nil
}
