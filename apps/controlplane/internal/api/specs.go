package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// checkRegions fails if the spec names a region that the workspace may not use.
func (c specMutation) checkRegions(spec *windlassv1.DeploymentSpec, field string) error {
	known, err := c.ListRegions(c.workspaceID, model.Page{Limit: maxKnownRegions})
	if err != nil {
		return fmt.Errorf("list regions: %w", err)
	}
	for i, name := range spec.GetRegions() {
		if slices.ContainsFunc(known, func(r model.Region) bool { return r.Name == name }) {
			continue
		}
		if len(known) == maxKnownRegions {
			if _, err := c.GetRegionByName(c.workspaceID, name); err == nil {
				continue
			} else if !errors.Is(err, model.ErrNotFound) {
				return fmt.Errorf("read region %s: %w", name, err)
			}
		}
		if err := c.collectRefusal(unknownRegion(fmt.Sprintf("%s.regions[%d]", field, i), name, known)); err != nil {
			return err
		}
	}
	return nil
}

func unknownRegion(field, name string, known []model.Region) error {
	fix := "The workspace has no region yet: create one with `windlass region create`."
	if len(known) > 0 {
		var names []string
		for _, r := range known[:min(len(known), 20)] {
			names = append(names, r.Name)
		}
		fix = "Regions of the workspace: " + strings.Join(names, ", ") + "."
	}
	return rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_REGION, Field: field, Fix: fix,
	}, fmt.Sprintf("region %q is unknown to the workspace", name))
}

// resolveSecrets sets the spec's versions of secrets to the newest versions. It fails on a secret that does not
// exist.
func (c specMutation) resolveSecrets(environmentID string, spec *windlassv1.DeploymentSpec, field string) error {
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

// secretVersions returns the newest versions of the secrets that the spec names. It fails on a secret that the
// environment does not have.
func (c specMutation) secretVersions(environmentID string, spec *windlassv1.DeploymentSpec, field string) (map[string]int32, error) {
	names, fields := appspec.SecretsOf(spec, field)
	if len(names) == 0 {
		return nil, nil
	}
	versions, err := c.SecretVersions(environmentID, names)
	if err != nil {
		return nil, fmt.Errorf("read secrets of environment %s: %w", environmentID, err)
	}
	for i, name := range names {
		if versions[name] != 0 {
			continue
		}
		if err := c.collectRefusal(unknownSecret(fields[i], name)); err != nil {
			return nil, err
		}
	}
	return versions, nil
}

// checkSecretsExist fails on a secret that the environment does not have.
func (c specMutation) checkSecretsExist(environmentID string, spec *windlassv1.DeploymentSpec, field string) error {
	_, err := c.secretVersions(environmentID, spec, field)
	return err
}

func unknownSecret(field, name string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_SECRET, Field: field,
		Fix: "Set it with `windlass secret set`, then deploy again.",
	}, fmt.Sprintf("the environment has no secret %q", name))
}

// checkSigningSecrets fails on signing secrets that the environment does not have.
func (c specMutation) checkSigningSecrets(environmentID string, p *windlassv1.RolloutPolicy, field string) error {
	var names []string
	for _, check := range p.GetAnalysis() {
		if name := check.GetWebhook().GetSigningSecret(); name != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	versions, err := c.SecretVersions(environmentID, names)
	if err != nil {
		return fmt.Errorf("read secrets of environment %s: %w", environmentID, err)
	}
	for i, check := range p.GetAnalysis() {
		name := check.GetWebhook().GetSigningSecret()
		if name == "" || versions[name] != 0 {
			continue
		}
		if err := c.collectRefusal(unknownSecret(fmt.Sprintf("%s[%d].webhook.signingSecret", field, i), name)); err != nil {
			return err
		}
	}
	return nil
}

// resolveOverrides sets the result of the spec's overrides in each of its regions. It must be called before the
// environment's variables are added to the spec, because an override may set the same variables.
func (c specMutation) resolveOverrides(spec *windlassv1.DeploymentSpec, field string) error {
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

// regionsNamed returns the regions with the names, without names that do not exist.
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

// repinOverrides computes the pinned overrides of a spec again, for a version that is made from an earlier one, because
// regions may have changed.
func (c specMutation) repinOverrides(spec *windlassv1.DeploymentSpec) error {
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

// checkWaves fails on a region that is in no wave, and on a wave without regions.
func (c specMutation) checkWaves(p *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec) error {
	if len(p.GetWaves()) == 0 {
		return nil
	}
	left := map[string]model.Region{}
	for _, n := range spec.GetRegions() {
		r, err := c.GetRegionByName(c.workspaceID, n)
		if errors.Is(err, model.ErrNotFound) {
			r, err = model.Region{Name: n}, nil // checkRegions has reported it
		}
		if err != nil {
			return fmt.Errorf("read region %s: %w", n, err)
		}
		left[n] = r
	}
	for i, w := range p.GetWaves() {
		before := len(left)
		for n, r := range left {
			if plan.TakesRegion(w, r) {
				delete(left, n)
			}
		}
		if len(w.GetLabels()) > 0 && len(left) == before {
			return apierr.InvalidFix(fmt.Sprintf("rollout.waves[%d].labels", i), "none of the app's remaining regions has these labels",
				"`windlass list regions -o yaml` shows the labels of regions.")
		}
	}
	for _, n := range spec.GetRegions() {
		if _, ok := left[n]; ok {
			return rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
				Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Field: "rollout.waves",
				Fix: "Add it to a wave, or end with a wave that has neither regions nor labels, which takes all remaining regions.",
			}, fmt.Sprintf("region %s is in no wave, so it would never move", n))
		}
	}
	return nil
}

// maxKnownRegions is the number of regions that are read in one query. In a workspace with more regions, names are
// looked up one by one.
const maxKnownRegions = 500

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
	deployments, err := c.GetDeployments(keysOf(ids))
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
