package cli

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// regionServer is a control plane that records the last request to create a region.
type regionServer struct {
	windlassv1connect.UnimplementedRegionServiceHandler
	got     *windlassv1.CreateRegionRequest
	updated *windlassv1.UpdateRegionRequest
}

func (f *regionServer) CreateRegion(_ context.Context, req *windlassv1.CreateRegionRequest) (*windlassv1.CreateRegionResponse, error) {
	f.got = req
	return &windlassv1.CreateRegionResponse{Region: &windlassv1.Region{Name: req.GetName()}}, nil
}

func (f *regionServer) GetRegion(context.Context, *windlassv1.GetRegionRequest) (*windlassv1.GetRegionResponse, error) {
	return &windlassv1.GetRegionResponse{Region: &windlassv1.Region{Id: "reg_1", Name: "eu", Labels: map[string]string{"tier": "small", "old": "1"}, ResourceVersion: 7}}, nil
}

func (f *regionServer) UpdateRegion(_ context.Context, req *windlassv1.UpdateRegionRequest) (*windlassv1.UpdateRegionResponse, error) {
	f.updated = req
	return &windlassv1.UpdateRegionResponse{Region: &windlassv1.Region{Name: "eu", Labels: req.GetLabels()}}, nil
}

func TestRegionLabel(t *testing.T) {
	f := &regionServer{}
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewRegionServiceHandler(f))
	server := httptest.NewServer(mux)
	defer server.Close()
	run := func(args ...string) error {
		env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir()}
		root := New(Config{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}, Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client()})
		root.SetArgs(append([]string{"region", "label", "eu"}, args...))
		return root.ExecuteContext(t.Context())
	}
	require.NoError(t, run("latitude=52.4", "longitude=-4.9", "--unset", "old"))
	require.Equal(t, map[string]string{"tier": "small", "latitude": "52.4", "longitude": "-4.9"}, f.updated.GetLabels(), "other labels stay")
	require.Equal(t, []any{"reg_1", int64(7)}, []any{f.updated.GetRegion(), f.updated.GetResourceVersion()}, "a change of somebody else is not overwritten")
	f.updated = nil
	require.ErrorContains(t, run(), "give LABEL=VALUE, or --unset LABEL")
	require.ErrorContains(t, run("tier"), "write NAME=VALUE")
	require.Nil(t, f.updated)
}

func TestRegionCreate(t *testing.T) {
	f := &regionServer{}
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewRegionServiceHandler(f))
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, c := range []struct {
		name     string
		flags    []string
		platform bool
	}{
		{name: "a region is the workspace's by default"},
		{name: "with --platform it is the platform's", flags: []string{"--platform"}, platform: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir()}
			root := New(Config{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}, Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client()})
			root.SetArgs(append([]string{"region", "create", "eu"}, c.flags...))
			require.NoError(t, root.ExecuteContext(t.Context()))
			require.Equal(t, c.platform, f.got.GetPlatform())
		})
	}
}
