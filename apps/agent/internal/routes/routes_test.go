package routes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
		if len(again.rows) == 0 {
			return ""
		}
		return again.rows["app_1"].Targets[0].DeploymentID
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

func TestATargetTellsWhoseInstancesServeWhereItIsNotTheDeployment(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "routes.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"app_0": {"app_id": "app_0", "epoch": 1, "generation": 1, "hosts": ["b.local"], "targets": [{"deployment_id": "dep_0", "weight": 1}]}}`), 0o600))
	table, err := Open(disk.Dir(dir), "routes.json")
	require.NoError(t, err)
	adopted := to("dep_2")
	adopted.Targets[0].WorkloadKey = "dep_1"
	require.NoError(t, table.Serve(adopted, 1, 1))
	again, err := Open(disk.Dir(dir), "routes.json")
	require.NoError(t, err)
	require.Equal(t, []Target{{DeploymentID: "dep_2", Weight: 1, Workload: "dep_1"}}, again.rows["app_1"].Targets)
	require.Equal(t, []Target{{DeploymentID: "dep_0", Weight: 1}}, again.rows["app_0"].Targets)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(data), "workload"), "what is as ever is written as ever")
}

// slow files take a second for a write, and fail while broken.
type slow struct {
	disk.Files
	writes atomic.Int32
	broken atomic.Bool
}

func (s *slow) Replace(name string, data []byte) error {
	s.writes.Add(1)
	time.Sleep(time.Second)
	if s.broken.Load() {
		return errors.New("no space left")
	}
	return s.Files.Replace(name, data)
}

func TestWhatChangesDuringAWriteIsWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := &slow{Files: disk.NewMemory()}
		table, err := Open(files, "routes.json")
		require.NoError(t, err)
		var calls sync.WaitGroup
		for n := range 100 {
			calls.Go(func() {
				app := fmt.Sprintf("app_%d", n)
				r := to("dep_1")
				r.AppId = app
				require.NoError(t, table.Serve(r, 1, 1))
				again, err := Open(files, "routes.json")
				require.NoError(t, err)
				require.Contains(t, again.rows, app, "it is in the file when the call returns")
			})
		}
		calls.Wait()
		require.EqualValues(t, 2, files.writes.Load(), "the first, and all others")
		again, err := Open(files, "routes.json")
		require.NoError(t, err)
		require.Equal(t, table.apps, again.apps)
		require.Equal(t, table.rows, again.rows)
	})
}

func TestWhatCouldNotBeWrittenIsWrittenByTheNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := &slow{Files: disk.NewMemory()}
		table, err := Open(files, "routes.json")
		require.NoError(t, err)
		files.broken.Store(true)
		require.ErrorContains(t, table.Serve(to("dep_1"), 1, 1), "no space left")
		require.ErrorContains(t, table.Serve(to("dep_1"), 1, 1), "no space left")
		files.broken.Store(false)
		require.NoError(t, table.Serve(to("dep_1"), 1, 1))
		again, err := Open(files, "routes.json")
		require.NoError(t, err)
		require.Contains(t, again.rows, "app_1")
		require.NoError(t, table.Serve(to("dep_1"), 1, 1))
		require.EqualValues(t, 3, files.writes.Load())
	})
}
