package appspec

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// EachSecret calls visit for all references to secrets in the spec and its overrides.
func EachSecret(spec *windlassv1.DeploymentSpec, visit func(*windlassv1.SecretReference)) {
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

// withoutVersions returns copies of both specs. If one of the specs names a secret without a version, both copies do,
// because that spec runs with the newest version.
func withoutVersions(a, b *windlassv1.DeploymentSpec) (left, right *windlassv1.DeploymentSpec) {
	left, right = proto.CloneOf(a), proto.CloneOf(b)
	loose := map[string]bool{}
	for _, s := range []*windlassv1.DeploymentSpec{left, right} {
		EachSecret(s, func(ref *windlassv1.SecretReference) {
			loose[ref.GetSecret()] = loose[ref.GetSecret()] || ref.GetVersion() == 0 && !ref.GetImagePull()
		})
	}
	for _, s := range []*windlassv1.DeploymentSpec{left, right} {
		EachSecret(s, func(ref *windlassv1.SecretReference) {
			if loose[ref.GetSecret()] {
				ref.Version = 0
			}
		})
	}
	return left, right
}

// RefersTo reports whether the spec uses the secret in any region.
func RefersTo(spec *windlassv1.DeploymentSpec, secret string) bool {
	return slices.ContainsFunc(override.Any(spec), func(s *windlassv1.DeploymentSpec) bool { return Mentions(s, secret) })
}

func Mentions(spec *windlassv1.DeploymentSpec, secret string) bool {
	return slices.ContainsFunc(spec.GetSecrets(), func(r *windlassv1.SecretReference) bool { return r.GetSecret() == secret })
}
