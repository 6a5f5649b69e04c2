package appspec

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// checkOverrides validates overrides without reading regions: each override alone, and that no two overrides name the
// same region.
func checkOverrides(s *windlassv1.DeploymentSpec, field string) error {
	taken := map[string]int{}
	for i, o := range s.GetOverrides() {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case len(o.GetRegions()) == 0 && len(o.GetLabels()) == 0:
			return apierr.InvalidFix(at, "the override selects no region", "Set regions or labels. Put values for all regions into the spec itself.")
		case len(o.GetRegions()) > 0 && len(o.GetLabels()) > 0:
			return apierr.InvalidFix(at+".labels", "the override names regions and labels", "Use one of the two, or write two overrides.")
		case override.Empty(o):
			return apierr.WithReason(apierr.InvalidFix(at, "the override changes nothing: it only selects regions", "Set replicas, resources, args, extraArgs, env, secrets or roles, or remove the override."),
				windlassv1.ErrorReason_ERROR_REASON_OVERRIDE_WITHOUT_EFFECT)
		}
		for j, n := range o.GetRegions() {
			where := fmt.Sprintf("%s.regions[%d]", at, j)
			if !slices.Contains(s.GetRegions(), n) {
				return apierr.InvalidFix(where, fmt.Sprintf("the override names region %s, but the app does not run there", n),
					"Add it to the app's regions, or remove it from the override: the app's regions are "+strings.Join(s.GetRegions(), ", ")+".")
			}
			if first, ok := taken[n]; ok {
				return apierr.WithReason(apierr.InvalidFix(where, fmt.Sprintf("region %s is named by %s[%d] already", n, field, first), "Put all values of the region into one override."),
					windlassv1.ErrorReason_ERROR_REASON_OVERRIDE_CONFLICT)
			}
			taken[n] = i
		}
		if err := checkOverrideValues(o, at); err != nil {
			return err
		}
		if err := checkRoleOverrides(s, o, at); err != nil {
			return err
		}
	}
	return nil
}

func checkOverrideValues(o *windlassv1.Override, at string) error {
	if len(o.GetArgs()) > 0 && len(o.GetExtraArgs()) > 0 {
		return apierr.InvalidFix(at+".extraArgs", "the override has both args, which replace the spec's args, and extraArgs, which are added to them",
			"Use one of the two.")
	}
	if err := checkCommand(nil, o.GetArgs(), at); err != nil {
		return err
	}
	for i, arg := range o.GetExtraArgs() {
		if strings.ContainsRune(arg, 0) {
			return apierr.Invalid(fmt.Sprintf("%s.extraArgs[%d]", at, i), "an argument must not contain a zero byte")
		}
	}
	if err := CheckEnv(o.GetEnv(), at+".env"); err != nil {
		return err
	}
	for i, r := range o.GetSecrets() {
		if r.GetImagePull() {
			return apierr.InvalidFix(fmt.Sprintf("%s.secrets[%d].imagePull", at, i), "an image is pulled with the same secrets in all regions", "Put it among the spec's secrets.")
		}
	}
	if err := checkSecrets(&windlassv1.DeploymentSpec{Env: o.GetEnv(), Secrets: o.GetSecrets()}, at); err != nil {
		return err
	}
	return checkResources(o.GetResources(), at+".resources")
}

// CheckOverridden validates the spec of each region that an override changes.
func CheckOverridden(spec *windlassv1.DeploymentSpec, field string) error {
	for _, p := range spec.GetPinnedOverrides() {
		s := override.In(spec, p.GetRegionId())
		s.Replicas = nil // a region may have fewer replicas than min_ready: then all must be ready
		err := Check(s, field)
		if err == nil {
			continue
		}
		coded, ok := errors.AsType[*connect.Error](err)
		if !ok {
			return err
		}
		detail := rpc.DetailOf(err)
		return apierr.InvalidFix(field+".overrides", fmt.Sprintf("with the overrides, the spec of region %s is not valid: %s: %s", p.GetRegion(), detail.GetField(), coded.Message()),
			detail.GetFix())
	}
	return nil
}

// AskedBy returns the replicas that the spec asks for.
func AskedBy(spec *windlassv1.DeploymentSpec) plan.Asked {
	asked := plan.Asked{Regions: map[string]int32{}}
	if spec.Replicas != nil {
		asked.All = new(spec.GetReplicas())
	}
	for _, p := range spec.GetPinnedOverrides() {
		if v := p.GetValues(); v.Replicas != nil {
			asked.Regions[p.GetRegionId()] = v.GetReplicas()
		}
	}
	return asked
}

// AskedText describes the replicas of asked in words.
func AskedText(asked plan.Asked, spec *windlassv1.DeploymentSpec) string {
	var parts []string
	for _, name := range slices.Sorted(slices.Values(spec.GetRegions())) {
		if n, ok := asked.Regions[override.ID(spec, name)]; ok {
			size := fmt.Sprint(n)
			if model.IsPooled(spec) {
				size = model.SizeText(spec, n)
			}
			parts = append(parts, size+" in "+name)
		}
	}
	text := strings.Join(parts, ", ")
	switch {
	case asked.All == nil && model.IsPooled(spec):
		return text
	case asked.All == nil:
		return "as replicas " + text
	case text == "":
		return model.SizeText(spec, *asked.All) + " in each region"
	}
	return model.SizeText(spec, *asked.All) + " in each region, but " + text
}

// ReplicasIn returns the number of replicas with which the spec begins in the region.
func ReplicasIn(spec *windlassv1.DeploymentSpec, region string) int32 {
	n, _ := override.Replicas(spec, override.ID(spec, region))
	return n
}

// SecretsOf returns the secrets that the spec or its overrides name, and the fields that name them.
func SecretsOf(spec *windlassv1.DeploymentSpec, field string) (names, fields []string) {
	add := func(refs []*windlassv1.SecretReference, at string) {
		for i, r := range refs {
			names = append(names, r.GetSecret())
			fields = append(fields, fmt.Sprintf("%s.secrets[%d].secret", at, i))
		}
	}
	add(spec.GetSecrets(), field)
	for i, o := range spec.GetOverrides() {
		add(o.GetSecrets(), fmt.Sprintf("%s.overrides[%d]", field, i))
	}
	return names, fields
}

func UsesSecrets(spec *windlassv1.DeploymentSpec) bool {
	names, _ := SecretsOf(spec, "")
	return len(names) > 0
}
