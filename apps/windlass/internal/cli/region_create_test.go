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
	got *windlassv1.CreateRegionRequest
}

func (f *regionServer) CreateRegion(_ context.Context, req *windlassv1.CreateRegionRequest) (*windlassv1.CreateRegionResponse, error) {
	f.got = req
	return &windlassv1.CreateRegionResponse{Region: &windlassv1.Region{Name: req.GetName()}}, nil
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
