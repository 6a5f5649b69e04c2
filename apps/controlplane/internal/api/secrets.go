package api

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// runningWith returns rows of the environment that run with the secret, and their
// deployments' specs.
func (c *change) runningWith(environmentID, secret string) ([]model.Topology, map[string]*windlassv1.DeploymentSpec, error) {
	rows, err := c.ListTopologyByEnvironment(environmentID)
	if err != nil {
		return nil, nil, fmt.Errorf("list topology of environment %s: %w", environmentID, err)
	}
	ids := map[string]bool{}
	for _, t := range rows {
		ids[t.DeploymentID] = true
	}
	deployments, err := c.GetDeployments(keys(ids))
	if err != nil {
		return nil, nil, fmt.Errorf("read deployments of environment %s: %w", environmentID, err)
	}
	specs := map[string]*windlassv1.DeploymentSpec{}
	for _, d := range deployments {
		if refersTo(d.Spec, secret) {
			specs[d.ID] = d.Spec
		}
	}
	rows = slices.DeleteFunc(rows, func(t model.Topology) bool {
		return !topology.Active(t) || !mentions(override.In(specs[t.DeploymentID], t.RegionID), secret)
	})
	return rows, specs, nil
}

// refersTo tells whether the spec does in any region.
func refersTo(spec *windlassv1.DeploymentSpec, secret string) bool {
	return slices.ContainsFunc(override.Any(spec), func(s *windlassv1.DeploymentSpec) bool { return mentions(s, secret) })
}

func mentions(spec *windlassv1.DeploymentSpec, secret string) bool {
	return slices.ContainsFunc(spec.GetSecrets(), func(r *windlassv1.SecretReference) bool { return r.GetSecret() == secret })
}
