package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestDeleteApp_WarnsOfModelsWithoutServers(t *testing.T) {
	w := setup(t)
	servers := func(s *windlassv1.DeploymentSpec) {
		s.Models = &windlassv1.ModelServer{Protocol: windlassv1.ModelServer_PROTOCOL_V2, MemoryMib: 1024}
	}
	model := func(server string) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) {
			*s = windlassv1.DeploymentSpec{Regions: s.Regions, Model: &windlassv1.LoadedModel{Server: server, MemoryMib: 1}}
		}
	}
	for name, edit := range map[string]func(*windlassv1.DeploymentSpec){
		"base": servers, "other": servers, "plain": args("a"), "sql": model("base"), "law": model("base"), "any": model(""),
	} {
		w.deploy(name, edit)
		w.settle(name)
	}
	deleted := func(app string) []string {
		res, err := w.apps(w.owner).DeleteApp(t.Context(), &windlassv1.DeleteAppRequest{App: app})
		require.NoError(t, err)
		return res.GetWarnings()
	}
	require.Empty(t, deleted("plain"))
	require.Equal(t, []string{"no server loads law, sql any more: deploy another app with models and name it in model.server, or delete these models"}, deleted("base"),
		"a model that names no app can use other servers")
	require.Equal(t, []string{"no server loads any any more: deploy another app with models and name it in model.server, or delete these models"}, deleted("other"))
}
