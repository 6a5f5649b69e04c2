package api

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// runningWith returns rows of the environment that run with the secret.
func (c *change) runningWith(environmentID, secret string) ([]model.Topology, error) {
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
		if refersTo(d.Spec, secret) {
			specs[d.ID] = d.Spec
		}
	}
	rows = slices.DeleteFunc(rows, func(t model.Topology) bool {
		return !topology.Active(t) || !mentions(override.In(specs[t.DeploymentID], t.RegionID), secret)
	})
	return rows, nil
}

// eachSecret visits all references of the spec, its overrides' included.
func eachSecret(spec *windlassv1.DeploymentSpec, visit func(*windlassv1.SecretReference)) {
	all := [][]*windlassv1.SecretReference{spec.GetSecrets()}
	for _, o := range spec.GetOverrides() {
		all = append(all, o.GetSecrets())
	}
	for _, p := range spec.GetPinnedOverrides() {
		all = append(all, p.GetValues().GetSecrets())
	}
	for _, refs := range all {
		for _, ref := range refs {
			visit(ref)
		}
	}
}

// pinSecrets has the spec name the secrets' newest versions, which it fails for without.
func (c *change) pinSecrets(environmentID string, spec *windlassv1.DeploymentSpec, field string) error {
	versions, err := c.secretVersions(environmentID, spec, field)
	if err != nil {
		return err
	}
	eachSecret(spec, func(ref *windlassv1.SecretReference) {
		if ref.Version = versions[ref.GetSecret()]; ref.GetImagePull() {
			ref.Version = 0
		}
	})
	return nil
}

// withoutVersions returns copies of both specs that say no version of a secret of which
// one of them says none: that one runs with whatever is the newest.
func withoutVersions(a, b *windlassv1.DeploymentSpec) (left, right *windlassv1.DeploymentSpec) {
	left, right = proto.CloneOf(a), proto.CloneOf(b)
	loose := map[string]bool{}
	for _, s := range []*windlassv1.DeploymentSpec{left, right} {
		eachSecret(s, func(ref *windlassv1.SecretReference) {
			loose[ref.GetSecret()] = loose[ref.GetSecret()] || ref.GetVersion() == 0 && !ref.GetImagePull()
		})
	}
	for _, s := range []*windlassv1.DeploymentSpec{left, right} {
		eachSecret(s, func(ref *windlassv1.SecretReference) {
			if loose[ref.GetSecret()] {
				ref.Version = 0
			}
		})
	}
	return left, right
}

// refersTo reports whether the spec does in any region.
func refersTo(spec *windlassv1.DeploymentSpec, secret string) bool {
	return slices.ContainsFunc(override.Any(spec), func(s *windlassv1.DeploymentSpec) bool { return mentions(s, secret) })
}

func mentions(spec *windlassv1.DeploymentSpec, secret string) bool {
	return slices.ContainsFunc(spec.GetSecrets(), func(r *windlassv1.SecretReference) bool { return r.GetSecret() == secret })
}
