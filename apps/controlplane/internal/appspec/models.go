package appspec

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// checkModels fails on fields that have no effect on a model, and on servers with several roles.
func checkModels(s *windlassv1.DeploymentSpec, field string) error {
	if s.GetModels() != nil && len(s.GetRoles()) > 1 {
		return apierr.InvalidFix(field+".models", "the app has several roles, but servers of models have one role",
			"Make a separate app of the role that serves models, or remove models.")
	}
	if s.GetModel() == nil {
		return nil
	}
	if err := checkArtifact(s, field); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"image", s.GetImage() != ""},
		{"command", len(s.GetCommand()) > 0},
		{"args", len(s.GetArgs()) > 0},
		{"roles", len(s.GetRoles()) > 0},
		{"secrets", len(s.GetSecrets()) > 0 && s.GetModel().GetArtifact() == nil},
		{"ports", len(s.GetPorts()) > 1 || s.GetPorts()[0].GetPort() != 0},
		{"resources", proto.Size(s.GetResources()) > 0},
		{"modelCache", s.GetModelCache() != nil},
		{"kubernetes", s.GetKubernetes() != nil},
		{"serve", s.GetServe() != nil},
		{"models", s.GetModels() != nil},
	} {
		if f.set {
			return apierr.InvalidFix(field+"."+f.name, "the app is a model, which runs in servers of another app: "+f.name+" has no effect",
				"Leave "+f.name+" out, or set it for the app whose servers load the model.")
		}
	}
	return nil
}

// artifactVariables has the variables that agents read for model.artifact, by the scheme of its URL.
var artifactVariables = map[string][]string{
	"s3":    {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"},
	"https": {"ARTIFACT_TOKEN"},
	"http":  {"ARTIFACT_TOKEN"},
}

// checkArtifact fails on fields that have no effect on the artifact of a model.
func checkArtifact(s *windlassv1.DeploymentSpec, field string) error {
	a := s.GetModel().GetArtifact()
	if a == nil {
		return nil
	}
	field += ".model"
	if s.GetModel().GetPath() != "" {
		return apierr.InvalidFix(field+".path", "the model has an artifact, which the agent puts where the servers find it: path has no effect", "Leave path or artifact out.")
	}
	scheme, _, _ := strings.Cut(a.GetUrl(), "://")
	if scheme != "s3" && a.GetEndpoint() != "" {
		return apierr.InvalidFix(field+".artifact.endpoint", "an endpoint has an effect on s3 URLs only", "Leave endpoint out, or use a URL that begins with s3://.")
	}
	if scheme != "s3" && a.GetRegion() != "" {
		return apierr.InvalidFix(field+".artifact.region", "a region has an effect on s3 URLs only", "Leave region out, or use a URL that begins with s3://.")
	}
	for i, ref := range s.GetSecrets() {
		at := fmt.Sprintf("%s.secrets[%d]", strings.TrimSuffix(field, ".model"), i)
		switch {
		case scheme == "oci" && !ref.GetImagePull():
			return apierr.InvalidFix(at, "an artifact from a registry has no use for a variable", "Set imagePull: true instead of env. The value is a Docker config.json.")
		case scheme != "oci" && ref.GetImagePull():
			return apierr.InvalidFix(at, "imagePull has an effect on oci URLs only", "Set env to "+strings.Join(artifactVariables[scheme], " or ")+".")
		case scheme != "oci" && !slices.Contains(artifactVariables[scheme], ref.GetEnvName()):
			return apierr.InvalidFix(at, fmt.Sprintf("an artifact with the scheme %s has no use for the variable %s", scheme, ref.GetEnvName()),
				"Set env to "+strings.Join(artifactVariables[scheme], " or ")+".")
		}
	}
	return nil
}
