package api

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// runningWith returns rows of the environment that run with the secret.
func (c specMutation) runningWith(environmentID, secret string) ([]model.Topology, error) {
	rows, err := c.ListTopologyByEnvironment(environmentID)
	if err != nil {
		return nil, fmt.Errorf("list topology of environment %s: %w", environmentID, err)
	}
	ids := map[string]bool{}
	for _, t := range rows {
		ids[t.DeploymentID] = true
	}
	deployments, err := c.GetDeployments(keys(ids))
	if err != nil {
		return nil, fmt.Errorf("read deployments of environment %s: %w", environmentID, err)
	}
	specs := map[string]*windlassv1.DeploymentSpec{}
	for _, d := range deployments {
		if appspec.RefersTo(d.Spec, secret) {
			specs[d.ID] = d.Spec
		}
	}
	rows = slices.DeleteFunc(rows, func(t model.Topology) bool {
		return !topology.Active(t) || !appspec.Mentions(override.In(specs[t.DeploymentID], t.RegionID), secret)
	})
	return rows, nil
}

// pinSecrets has the spec name the secrets' newest versions, which it fails for without.
func (c specMutation) pinSecrets(environmentID string, spec *windlassv1.DeploymentSpec, field string) error {
	versions, err := c.secretVersions(environmentID, spec, field)
	if err != nil {
		return err
	}
	appspec.EachSecret(spec, func(ref *windlassv1.SecretReference) {
		if ref.Version = versions[ref.GetSecret()]; ref.GetImagePull() {
			ref.Version = 0
		}
	})
	return nil
}
