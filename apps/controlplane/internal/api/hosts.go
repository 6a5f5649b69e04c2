package api

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Only agents that announce FEATURE_UNIT_HOSTS run instances of several hosts. Regions that no agent has joined yet are
// not checked: their agent then refuses the version.

// hostsFit fails if a region of a new version runs no instances of several hosts, and the version has some.
func (c versionMutation) hostsFit(spec *windlassv1.DeploymentSpec) error {
	if !model.HasSeveralHosts(spec) {
		return nil
	}
	regions, err := c.specs().regionsNamed(spec.GetRegions())
	if err != nil {
		return err
	}
	for _, r := range regions {
		if appspec.ReplicasIn(spec, r.Name) == 0 {
			continue
		}
		if err := hostsFitIn(spec, r); err != nil {
			return err
		}
	}
	return nil
}

// hostsFitPinned is hostsFit for the regions of a pin of the version d.
func (c versionMutation) hostsFitPinned(d model.Deployment, p model.Pin) error {
	if !model.HasSeveralHosts(d.Spec) {
		return nil
	}
	ids := map[string]bool{}
	for _, in := range p.Regions {
		ids[in.RegionID] = p.Stays(in) && in.Replicas > 0
	}
	regions, err := c.GetRegions(keys(ids))
	if err != nil {
		return fmt.Errorf("read regions: %w", err)
	}
	for _, r := range regions {
		if !ids[r.ID] {
			continue
		}
		if err := hostsFitIn(d.Spec, r); err != nil {
			return err
		}
	}
	return nil
}

// hostsFitScaled fails if a region that gets more replicas of the live version, or of the one in flight, runs no
// instances of several hosts, and the version has some.
func (c versionMutation) hostsFitScaled(r running, asked plan.Asked) error {
	have := r.sizes()
	for _, d := range []*model.Deployment{r.live, r.active.deployment} {
		if d == nil || !model.HasSeveralHosts(d.Spec) {
			continue
		}
		regions, err := c.specs().regionsNamed(d.Spec.GetRegions())
		if err != nil {
			return err
		}
		for _, region := range regions {
			if n, ok := asked.In(region.ID); ok && n > have[region.ID] {
				if err := hostsFitIn(d.Spec, region); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func hostsFitIn(spec *windlassv1.DeploymentSpec, r model.Region) error {
	if r.RunsSeveralHosts() {
		return nil
	}
	i := model.RoleOfSeveralHosts(spec)
	role := spec.GetRoles()[i]
	return apierr.InvalidFix(fmt.Sprintf("spec.roles[%d].hosts", i),
		fmt.Sprintf("instances of role %q have %d hosts, and the agent of region %s, whose runtime is %s, runs none of several hosts", role.GetName(), role.GetHosts(), r.Name, r.AgentRuntime),
		"Use Kubernetes regions whose agents are of this release, or leave hosts out.")
}
