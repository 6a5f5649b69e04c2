package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// folderServer is a control plane that has apps, and records which apps are deployed and deleted.
type folderServer struct {
	windlassv1connect.UnimplementedAppServiceHandler

	mu                sync.Mutex
	apps              []string
	deployed, deleted []string
	// planned is the plan of an app, by path. Default: a rollout.
	planned map[string]*windlassv1.PlanDeployResponse
	// refused are the apps whose deploy is refused, although the plan was good.
	refused map[string]bool
	// ends is how the rollout of an app ends, by path. Default: it succeeds.
	ends map[string]windlassv1.RolloutStatus
}

func (s *folderServer) GetApp(context.Context, *windlassv1.GetAppRequest) (*windlassv1.GetAppResponse, error) {
	return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no such app"))
}

func (s *folderServer) ListApps(_ context.Context, r *windlassv1.ListAppsRequest) (*windlassv1.ListAppsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &windlassv1.ListAppsResponse{}
	for _, path := range s.apps {
		if name, ok := strings.CutPrefix(path, r.Environment+"/"); ok {
			out.Apps = append(out.Apps, &windlassv1.App{Id: path, Name: name, Status: windlassv1.AppStatus_APP_STATUS_READY})
		}
	}
	if len(out.Apps) == 0 {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no such environment"))
	}
	return out, nil
}

func (s *folderServer) PlanDeploy(_ context.Context, r *windlassv1.PlanDeployRequest) (*windlassv1.PlanDeployResponse, error) {
	if p := s.planned[r.App]; p != nil {
		return p, nil
	}
	return &windlassv1.PlanDeployResponse{WouldRun: true, Outcome: windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT, Version: 1}, nil
}

func (s *folderServer) Deploy(_ context.Context, r *windlassv1.DeployRequest) (*windlassv1.DeployResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused[r.App] {
		return nil, connect.NewError(connect.CodeResourceExhausted, errors.New("the quota is used up"))
	}
	s.deployed = append(s.deployed, r.App)
	return &windlassv1.DeployResponse{AppId: r.App, RolloutId: "rol_" + r.App, Version: 1, Effect: windlassv1.VersionEffect_VERSION_EFFECT_NEW_VERSION}, nil
}

func (s *folderServer) DeleteApp(_ context.Context, r *windlassv1.DeleteAppRequest) (*windlassv1.DeleteAppResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted = append(s.deleted, r.App)
	return &windlassv1.DeleteAppResponse{App: &windlassv1.App{Id: r.App}}, nil
}

func (s *folderServer) WatchApp(_ context.Context, r *windlassv1.WatchAppRequest, out *connect.ServerStream[windlassv1.WatchAppResponse]) error {
	if r.Rollout == "" {
		return out.Send(&windlassv1.WatchAppResponse{Deleted: true})
	}
	status := s.ends[r.App]
	if status == 0 {
		status = windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED
	}
	return out.Send(&windlassv1.WatchAppResponse{
		App:     &windlassv1.App{Id: r.App, Name: r.App, LiveVersion: 1},
		Rollout: &windlassv1.Rollout{Id: r.Rollout, Version: 1, Status: status, Message: "how it ended"},
	})
}

// run runs the command in a folder with the files.
func (s *folderServer) run(t *testing.T, files map[string]string, args ...string) commandResult {
	t.Helper()
	s.deployed, s.deleted = nil, nil
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewAppServiceHandler(s))
	server := httptest.NewServer(mux)
	defer server.Close()
	folder := filepath.Join(t.TempDir(), "apps")
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	require.NoError(t, os.MkdirAll(folder, 0o700))
	var stdout, stderr bytes.Buffer
	env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir()}
	root := New(Config{
		Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, IsTerminal: func(io.Writer) bool { return false },
		Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client(),
	})
	root.SetArgs(append([]string{"deploy", "-f", folder, "--config", filepath.Join(env["HOME"], "config.yaml")}, args...))
	code := 0
	if err := root.ExecuteContext(t.Context()); err != nil {
		code = Report(newScreen(&stderr, func(io.Writer) bool { return false }), err)
	}
	return commandResult{code, strings.ReplaceAll(stdout.String(), folder, "DIR"), strings.ReplaceAll(stderr.String(), folder, "DIR")}
}

func appOf(name string) string { return "app: " + name + "\ncommand: [x]\nregions: [eu]\n" }

func TestDeploy_FolderDeploysAllApps(t *testing.T) {
	s := &folderServer{}
	files := map[string]string{
		"b.yaml": appOf("b"), "team/a.yml": appOf("a"), "c.json": `{"app": "c", "project": "shop", "environment": "staging", "command": ["x"], "regions": ["eu"]}`,
		"README.md": "no app", ".git/x.yaml": "no: app", ".hidden.yaml": "no: app",
	}
	got := s.run(t, files)
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, []string{"default/production/a", "default/production/b", "shop/staging/c"}, s.deployed)
	require.Equal(t, 3, strings.Count(got.stdout, " is ready: "), got.stdout)

	got = s.run(t, files, "-o", "json")
	require.Zero(t, got.code, got.stderr)
	var list []struct{ Outcome, AppID string }
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &list), got.stdout)
	require.Len(t, list, 3)
	require.Equal(t, "default/production/a", list[0].AppID)
	require.Equal(t, "succeeded", list[0].Outcome)

	// One app fails, and another was superseded.
	s.ends = map[string]windlassv1.RolloutStatus{
		"default/production/a": windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED, "shop/staging/c": windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED,
	}
	got = s.run(t, files)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "shop/staging/c: ")
	require.Len(t, s.deployed, 3)
	delete(s.ends, "shop/staging/c")
	require.Equal(t, codeSuperseded, s.run(t, files).code)
}

func TestDeploy_FolderWithAFaultDeploysNothing(t *testing.T) {
	s := &folderServer{planned: map[string]*windlassv1.PlanDeployResponse{
		"default/production/bad":    {Findings: []*windlassv1.PlanFinding{{Blocks: true, Field: "spec.regions[0]", Message: "no such region", Fix: "Name one."}, {Message: "only a warning"}}},
		"default/production/frozen": {Findings: []*windlassv1.PlanFinding{{Blocks: true, Reason: windlassv1.ErrorReason_ERROR_REASON_FROZEN, Message: "frozen"}}},
	}}
	for name, tc := range map[string]struct {
		files map[string]string
		args  []string
		says  []string
	}{
		"all wrong files are named": {
			files: map[string]string{"a.yaml": appOf("a"), "b.yaml": "app: b\nreplica: 2\n", "c.yaml": "kind: Deployment\n"},
			says:  []string{"DIR/b.yaml: ", "replica", "DIR/c.yaml: app: missing"},
		},
		"an app is in two files": {
			files: map[string]string{"a.yaml": appOf("a"), "b.yaml": appOf("a")},
			says:  []string{"DIR/b.yaml: app: default/production/a is also in DIR/a.yaml: keep one of the files"},
		},
		"a plan is refused": {
			files: map[string]string{"a.yaml": appOf("a"), "bad.yaml": appOf("bad")},
			says:  []string{"DIR/bad.yaml: ", "no such region", "Name one.", "Nothing was deployed."},
		},
		"an app is frozen":   {files: map[string]string{"a.yaml": appOf("a"), "f.yaml": appOf("frozen")}, says: []string{"frozen", "Nothing was deployed."}},
		"no file":            {says: []string{"DIR: no .yaml, .yml or .json file in the folder"}},
		"prune is too much":  {files: map[string]string{"a.yaml": appOf("a")}, args: []string{"--prune", "--prune-limit", "1"}, says: []string{"--prune would delete 2 apps, and --prune-limit allows 1: default/production/x, default/production/y."}},
		"prune by a program": {files: map[string]string{"a.yaml": appOf("a")}, args: []string{"--prune"}, says: []string{"--prune would delete default/production/x, default/production/y: repeat with --yes"}},
	} {
		t.Run(name, func(t *testing.T) {
			s.apps = []string{"default/production/a", "default/production/x", "default/production/y", "shop/staging/z"}
			got := s.run(t, tc.files, tc.args...)
			require.Equal(t, 1, got.code)
			for _, text := range tc.says {
				require.Contains(t, got.stderr, text)
			}
			require.NotContains(t, got.stderr, "only a warning")
			require.Empty(t, s.deployed)
			require.Empty(t, s.deleted)
		})
	}
	require.Zero(t, s.run(t, map[string]string{"f.yaml": appOf("frozen")}, "--override-freeze", "an incident").code)
	require.Equal(t, []string{"default/production/frozen"}, s.deployed)
}

func TestDeploy_PruneDeletesAppsWithoutFile(t *testing.T) {
	s := &folderServer{apps: []string{"default/production/a", "default/production/old", "shop/staging/other"}}
	files := map[string]string{"a.yaml": appOf("a"), "new.yaml": "environment: fresh\n" + appOf("b")}

	got := s.run(t, files, "--prune", "--dry-run=server", "-o", "json")
	require.Zero(t, got.code, got.stderr)
	var plan struct {
		Plans   []struct{ App string }
		Deletes []string
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &plan), got.stdout)
	require.Len(t, plan.Plans, 2)
	require.Equal(t, []string{"default/production/old"}, plan.Deletes)
	require.Empty(t, s.deployed)
	require.Contains(t, s.run(t, files, "--prune", "--diff").stderr, "default/production/old: would be deleted, because no file has it")
	require.Empty(t, s.deleted)

	got = s.run(t, files, "--prune", "--yes")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, []string{"default/production/old"}, s.deleted, "apps of other environments stay")
	require.Contains(t, got.stdout, "default/production/old is deleted")

	s.refused = map[string]bool{"default/production/a": true}
	got = s.run(t, files, "--prune", "--yes")
	require.Equal(t, 1, got.code)
	require.Equal(t, []string{"default/fresh/b"}, s.deployed)
	require.Empty(t, s.deleted)
	require.Contains(t, got.stderr, "no app is deleted, because not every file was deployed")
	require.Contains(t, got.stderr, "default/production/a: the quota is used up")
}
