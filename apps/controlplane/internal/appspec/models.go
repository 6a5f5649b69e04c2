package appspec

import (
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
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"image", s.GetImage() != ""},
		{"command", len(s.GetCommand()) > 0},
		{"args", len(s.GetArgs()) > 0},
		{"roles", len(s.GetRoles()) > 0},
		{"secrets", len(s.GetSecrets()) > 0},
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
