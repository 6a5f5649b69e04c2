package routes

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

func to(deployment string) *agentv1.Routes {
	return &agentv1.Routes{AppId: "app_1", Hosts: []string{"a.local"}, Targets: []*agentv1.RouteTarget{{DeploymentId: deployment, Weight: 1}}}
}

func TestALowerEpochOrGenerationChangesNoRouteAndARestartFindsThemAgain(t *testing.T) {
	dir := t.TempDir()
	files := disk.Dir(dir)
	path := filepath.Join(dir, "routes.json")
	table, err := Open(files, "routes.json")
	require.NoError(t, err)
	target := func() string {
		again, err := Open(files, "routes.json")
		require.NoError(t, err)
		if len(again.routes) == 0 {
			return ""
		}
		return again.routes["app_1"].Targets[0].DeploymentID
	}
	require.NoError(t, table.Serve(to("dep_1"), 1, 5))
	require.NoError(t, table.Serve(to("dep_0"), 1, 4))
	require.Equal(t, "dep_1", target())
	require.NoError(t, table.Serve(to("dep_2"), 2, 1))
	require.NoError(t, table.Serve(to("dep_1"), 1, 9))
	require.Equal(t, "dep_2", target())

	require.NoError(t, os.Remove(path))
	require.NoError(t, table.Serve(to("dep_2"), 2, 1))
	require.NoFileExists(t, path, "what is served already costs no write")
	require.NoError(t, table.Serve(&agentv1.Routes{AppId: "app_1"}, 2, 2))
	require.Empty(t, target())
}
