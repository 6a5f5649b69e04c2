package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// echoServer is a control plane with the app echo, of which v4 is live. It has no instances.
type echoServer struct {
	windlassv1connect.UnimplementedAppServiceHandler
	windlassv1connect.UnimplementedDeploymentServiceHandler
	plan *windlassv1.PlanDeployResponse
}

func (*echoServer) GetApp(_ context.Context, r *windlassv1.GetAppRequest) (*windlassv1.GetAppResponse, error) {
	if r.GetApp() != "default/production/echo" {
		return nil, rpc.Error(connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "app", "no such app")
	}
	return &windlassv1.GetAppResponse{App: &windlassv1.App{Name: "echo", LiveDeploymentId: "dep_4", LiveVersion: 4}}, nil
}

func (*echoServer) GetDeployment(context.Context, *windlassv1.GetDeploymentRequest) (*windlassv1.GetDeploymentResponse, error) {
	return &windlassv1.GetDeploymentResponse{Deployment: &windlassv1.Deployment{Spec: &windlassv1.DeploymentSpec{Command: []string{"serve"}, Regions: []string{"eu"}}}}, nil
}

func (s *echoServer) PlanDeploy(context.Context, *windlassv1.PlanDeployRequest) (*windlassv1.PlanDeployResponse, error) {
	return s.plan, nil
}

func (*echoServer) RestartInstance(_ context.Context, r *windlassv1.RestartInstanceRequest) (*windlassv1.RestartInstanceResponse, error) {
	return nil, rpc.Error(connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "instance", fmt.Sprintf("instance %q does not exist", r.GetInstance()))
}

// windlass runs a command against it, and returns all that was printed.
func (s *echoServer) windlass(t *testing.T, args ...string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewAppServiceHandler(s))
	mux.Handle(windlassv1connect.NewDeploymentServiceHandler(s))
	server := httptest.NewServer(mux)
	defer server.Close()
	var out bytes.Buffer
	env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir()}
	root := New(Config{Stdout: &out, Stderr: &out, Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client()})
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); err != nil {
		Report(&out, err)
	}
	return out.String()
}

func TestRestart_OfAnApp(t *testing.T) {
	s := &echoServer{}
	require.Equal(t, "windlass: \"echo\" is an app, and restart takes one instance: `windlass list instances echo` lists the instances of echo; restart each by its name\n", s.windlass(t, "restart", "echo"))
	require.Contains(t, s.windlass(t, "restart", "ins_1"), `instance "ins_1" does not exist`)
}

func TestDeploy_SaysWhetherChangesCreateAVersion(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.yaml")
	write := func(text string) {
		require.NoError(t, os.WriteFile(file, []byte("app: echo\nregions: [eu]\n"+text), 0o600))
	}
	message := &windlassv1.FieldChange{Path: "message", Kind: windlassv1.FieldChange_KIND_ADDED, New: "first"}
	unchanged := &windlassv1.PlanDeployResponse{Outcome: windlassv1.PlanDeployResponse_OUTCOME_UNCHANGED, Version: 4, LiveVersion: 4, WouldRun: true, Changes: []*windlassv1.FieldChange{message}}
	rollout := &windlassv1.PlanDeployResponse{Outcome: windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT, Version: 5, LiveVersion: 4, WouldRun: true, Changes: []*windlassv1.FieldChange{message}}

	write("command: [serve]\nmessage: first\n")
	require.Equal(t, "default/production/echo: differs from v4, which is live, only in message, which creates no version:\n  + message: first\n", (&echoServer{plan: unchanged}).windlass(t, "deploy", "--diff", "-f", file))
	require.Contains(t, (&echoServer{plan: unchanged}).windlass(t, "plan", "-f", file), "\nDiffers from v4, and creates no version:\n  + message: first\n")
	require.Contains(t, (&echoServer{plan: rollout}).windlass(t, "deploy", "--diff", "-f", file), "changes against v4, which is live:\n", "the plan knows of a change that the list does not have")

	write("command: [other]\nmessage: first\n")
	require.Contains(t, (&echoServer{plan: rollout}).windlass(t, "deploy", "--diff", "-f", file), "changes against v4, which is live:\n  ~ command[0]: serve -> other\n  + message: first\n")
}
