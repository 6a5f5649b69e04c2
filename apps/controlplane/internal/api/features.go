package api

import (
	"cmp"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/choices"
	"github.com/windlass-run/windlass/pkg/plural"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A workspace may use the features of its tier. An operator can also allow or deny single features for a workspace.
// As with quotas, only growth is checked: an app that uses a feature may use it in further versions. A rollback to
// the previous stable version is not checked, because it may end an outage.

// featureUses returns the features that the locked app uses, and how much it uses each.
func (r running) featureUses() appspec.Uses {
	out := appspec.UsesOf(nil, r.rolloutState.Policy, r.scaling.Policy)
	for _, d := range []*model.Deployment{r.live, r.active.deployment} {
		if d != nil {
			out = out.Or(appspec.UsesOf(d.Spec, nil, nil))
		}
	}
	return out
}

// mayUseFeatures fails if the version uses a feature that the workspace may not use, unless the app already used it
// as much.
func (d *deployment) mayUseFeatures() error {
	if d.want.KeepsFeatures {
		return nil
	}
	policy, scaling := d.was.rolloutState.Policy, d.was.scaling.Policy
	if d.want.SetsPolicy {
		policy, scaling = d.want.Policy, d.want.Scaling
	}
	uses, before := appspec.UsesOf(d.want.Spec, policy, scaling), d.was.featureUses()
	if d.dry != nil {
		if err := d.noteFeatures(uses, before); err != nil {
			return err
		}
	}
	field := ""
	if d.want.Source == model.SourceRollback {
		field = "version"
	}
	refusals, err := d.featureRefusals(uses, before, field)
	if err != nil {
		return err
	}
	for _, refusal := range refusals {
		if err := d.collectRefusal(refusal); err != nil {
			return err
		}
	}
	return nil
}

// featureRefusals returns an error for each feature that the app would use more than before and that the workspace
// may not use. field is the field of the error. Empty: the feature's field in the app's file.
func (c *mutation) featureRefusals(uses, before appspec.Uses, field string) (out []error, err error) {
	grown := slices.DeleteFunc(uses.List(), func(f windlassv1.Feature) bool { return uses[f] <= before[f] })
	if len(grown) == 0 {
		return nil, nil // most calls need no query
	}
	have, err := c.GetFeatures(c.workspaceID)
	if err != nil {
		return nil, fmt.Errorf("read features of workspace %s: %w", c.workspaceID, err)
	}
	for _, f := range grown {
		if !have.InForce().Has(f) {
			out = append(out, c.notAllowed(have, f, before[f], cmp.Or(field, appspec.FieldOfFeature(f))))
		}
	}
	return out, nil
}

// notAllowed returns the error for a refused feature, and counts it. before is how much the app used the feature
// before.
func (c *mutation) notAllowed(have model.WorkspaceFeatures, f windlassv1.Feature, before int, field string) error {
	name := choices.Of(f)
	if c.dry == nil {
		c.api.featureRefusals.WithLabelValues(name).Inc()
	}
	why := fmt.Sprintf("its tier %s does not have it", have.Tier)
	if have.Denied.Has(f) {
		why = "an operator denied it"
	}
	fix := "Leave it out"
	switch {
	case before > 0:
		fix = "Keep to " + plural.Count(before, "region") // for all other features, before is 0
	case field == "version":
		fix = "Use another version"
	case f == windlassv1.Feature_FEATURE_MULTI_REGION:
		fix = "Name one region"
	}
	return rpc.ErrorWith(connect.CodePermissionDenied, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_FEATURE_NOT_ALLOWED, Field: field,
		Fix: fmt.Sprintf("%s (`windlass workspace features` shows what the workspace may use), or ask an operator to allow it: `windlass workspace features %s --allow %s`.",
			fix, have.WorkspaceID, name),
	}, fmt.Sprintf("the workspace may not use the feature %s: %s", name, why))
}

// noteFeatures stores the features that the version uses in the dry run, for a preview.
func (c *mutation) noteFeatures(uses, before appspec.Uses) error {
	have, err := c.GetFeatures(c.workspaceID)
	if err != nil {
		return fmt.Errorf("read features of workspace %s: %w", c.workspaceID, err)
	}
	for _, f := range uses.List() {
		c.dry.features = append(c.dry.features, &windlassv1.PlanFeature{
			Feature: f, Allowed: have.InForce().Has(f), Starts: uses[f] > before[f], Field: appspec.FieldOfFeature(f),
		})
	}
	return nil
}

// mayUseFeatures fails if the pin of a version makes the app use a feature that the workspace may not use. had is the
// version's earlier pin, nil for none. The pinned version's routing does not count, because the live version's
// routing applies.
func (c pinMutation) mayUseFeatures(r running, d model.Deployment, had *model.Pin, p model.Pin) error {
	regions := map[string]bool{}
	for _, t := range r.rows {
		if topology.Active(t) {
			regions[t.RegionID] = true
		}
	}
	const several = windlassv1.Feature_FEATURE_MULTI_REGION
	before, uses := r.featureUses().Or(appspec.Uses{several: appspec.RegionUse(len(regions))}), appspec.Uses{}
	for _, in := range p.Regions {
		if p.Stays(in) {
			regions[in.RegionID] = true
		}
	}
	uses[several] = appspec.RegionUse(len(regions))
	if had == nil {
		of := appspec.UsesOf(d.Spec, nil, nil)
		for _, f := range []windlassv1.Feature{windlassv1.Feature_FEATURE_SERVE, windlassv1.Feature_FEATURE_ROLES} {
			uses[f] = of[f]
		}
	}
	refusals, err := c.featureRefusals(uses, before, "version")
	if err != nil || len(refusals) == 0 {
		return err
	}
	return refusals[0]
}
