package cli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// environmentServer is a control plane that records requests about environments.
type environmentServer struct {
	windlassv1connect.UnimplementedEnvironmentServiceHandler
	created *windlassv1.CreateEnvironmentRequest
	updated *windlassv1.UpdateEnvironmentRequest
	deleted []string
}

func (e *environmentServer) CreateEnvironment(_ context.Context, req *windlassv1.CreateEnvironmentRequest) (*windlassv1.CreateEnvironmentResponse, error) {
	e.created = req
	return &windlassv1.CreateEnvironmentResponse{Environment: &windlassv1.Environment{ProjectName: req.GetProject(), Name: req.GetName()}}, nil
}

func (e *environmentServer) GetEnvironment(_ context.Context, req *windlassv1.GetEnvironmentRequest) (*windlassv1.GetEnvironmentResponse, error) {
	project, name, _ := strings.Cut(req.GetEnvironment(), "/")
	return &windlassv1.GetEnvironmentResponse{Environment: &windlassv1.Environment{
		Id: "env_1", ProjectName: project, Name: name, Variables: map[string]string{"A": "1"}, ResourceVersion: 7,
	}}, nil
}

func (e *environmentServer) UpdateEnvironment(_ context.Context, req *windlassv1.UpdateEnvironmentRequest) (*windlassv1.UpdateEnvironmentResponse, error) {
	e.updated = req
	return &windlassv1.UpdateEnvironmentResponse{Environment: &windlassv1.Environment{ProjectName: "search", Name: req.GetName()}}, nil
}

func (e *environmentServer) DeleteEnvironment(_ context.Context, req *windlassv1.DeleteEnvironmentRequest) (*windlassv1.DeleteEnvironmentResponse, error) {
	e.deleted = append(e.deleted, req.GetEnvironment())
	return &windlassv1.DeleteEnvironmentResponse{}, nil
}

// windlass runs a command on a terminal on which a person types the answer.
func (e *environmentServer) windlass(t *testing.T, answer string, args ...string) (string, error) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewEnvironmentServiceHandler(e))
	server := httptest.NewServer(mux)
	defer server.Close()
	env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x"}
	var out bytes.Buffer
	root := New(Config{
		Stdin: strings.NewReader(answer), Stdout: &out, Stderr: &out, IsTerminal: func(io.Writer) bool { return true },
		Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client(),
	})
	root.SetArgs(append(args, "--config", filepath.Join(t.TempDir(), "config.yaml")))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestEnvironments_AreNamedInTheContextsProject(t *testing.T) {
	t.Parallel()
	e := &environmentServer{}
	_, err := e.windlass(t, "", "environment", "create", "staging", "--variable", "A=b=c")
	require.NoError(t, err)
	require.Equal(t, "default/staging", e.created.GetProject()+"/"+e.created.GetName())
	require.Equal(t, map[string]string{"A": "b=c"}, e.created.GetVariables())
	text, err := e.windlass(t, "", "environment", "create", "search/staging")
	require.NoError(t, err)
	require.Equal(t, "search", e.created.GetProject())
	require.Contains(t, text, "search/staging")
	_, err = e.windlass(t, "", "environment", "create", "staging", "--variable", "A")
	require.ErrorContains(t, err, `--variable: "A": write NAME=VALUE`)
}

func TestEnvironments_RenameKeepsTheVariables(t *testing.T) {
	t.Parallel()
	e := &environmentServer{}
	text, err := e.windlass(t, "", "environment", "rename", "search/staging", "preview")
	require.NoError(t, err)
	require.Equal(t, "environment search/staging is now search/preview\n", text)
	require.Equal(t, map[string]string{"A": "1"}, e.updated.GetVariables())
	require.EqualValues(t, 7, e.updated.GetResourceVersion())
}

func TestEnvironments_DeletionAsksFirst(t *testing.T) {
	t.Parallel()
	e := &environmentServer{}
	text, err := e.windlass(t, "yes\n", "environment", "delete", "staging")
	require.ErrorContains(t, err, "nothing is deleted")
	require.Contains(t, text, "Delete environment staging, with its variables and secrets? Type its name to go on: ")
	require.Empty(t, e.deleted)
	_, err = e.windlass(t, "staging\n", "environment", "delete", "staging")
	require.NoError(t, err)
	require.Equal(t, []string{"default/staging"}, e.deleted)
}
