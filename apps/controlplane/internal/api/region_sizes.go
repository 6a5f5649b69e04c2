package api

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// regionSize is a region with the number of replicas that it gets of a version, at least 1.
type regionSize struct {
	model.Region
	replicas int32
}

// startSizes returns the regions in which a new version will have replicas. progress is the progress of its rollout,
// nil for none.
func (c versionMutation) startSizes(spec *windlassv1.DeploymentSpec, progress *model.Progress) (sizes []regionSize, err error) {
	regions, err := c.specs().regionsNamed(spec.GetRegions())
	if err != nil {
		return nil, err
	}
	for _, r := range regions {
		n := appspec.ReplicasIn(spec, r.Name)
		if progress != nil {
			n = plan.Size(progress, r.ID)
		}
		if n > 0 {
			sizes = append(sizes, regionSize{r, n})
		}
	}
	return sizes, nil
}

// scaledUpSizes returns the regions in which asked raises the replicas of version d.
func (c versionMutation) scaledUpSizes(r running, d model.Deployment, asked plan.Asked) (sizes []regionSize, err error) {
	regions, err := c.specs().regionsNamed(d.Spec.GetRegions())
	if err != nil {
		return nil, err
	}
	have := r.liveSizes()
	for _, region := range regions {
		if n, ok := asked.In(region.ID); ok && n > have[region.ID] {
			sizes = append(sizes, regionSize{region, n})
		}
	}
	return sizes, nil
}

// pinSizes returns the regions in which the pin has replicas.
func (c versionMutation) pinSizes(p model.Pin) (sizes []regionSize, err error) {
	ids := map[string]bool{}
	for _, in := range p.Regions {
		if p.Stays(in) && in.Replicas > 0 {
			ids[in.RegionID] = true
		}
	}
	regions, err := c.GetRegions(keysOf(ids))
	if err != nil {
		return nil, fmt.Errorf("read regions: %w", err)
	}
	for _, r := range regions {
		sizes = append(sizes, regionSize{r, p.In(r.ID).Replicas})
	}
	return sizes, nil
}
