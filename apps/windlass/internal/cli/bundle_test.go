package cli

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// secretServer is a control plane whose answers have a secret in every field that can contain one.
type secretServer struct {
	*doctorServer
	windlassv1connect.UnimplementedAppServiceHandler
	windlassv1connect.UnimplementedDeploymentServiceHandler
	windlassv1connect.UnimplementedRolloutServiceHandler
	windlassv1connect.UnimplementedHistoryServiceHandler
}

func (s secretServer) ListApps(context.Context, *windlassv1.ListAppsRequest) (*windlassv1.ListAppsResponse, error) {
	return &windlassv1.ListAppsResponse{Apps: []*windlassv1.App{{Id: "app_1", Name: "chat", Message: "hunter2"}}}, nil
}

func (s secretServer) GetApp(_ context.Context, req *windlassv1.GetAppRequest) (*windlassv1.GetAppResponse, error) {
	if req.App != "default/production/chat" {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no such app"))
	}
	return &windlassv1.GetAppResponse{App: &windlassv1.App{Id: "app_1", Name: "chat"}}, nil
}

func (s secretServer) ListDeployments(context.Context, *windlassv1.ListDeploymentsRequest) (*windlassv1.ListDeploymentsResponse, error) {
	return &windlassv1.ListDeploymentsResponse{Deployments: []*windlassv1.Deployment{{
		Id: "dep_1", Spec: &windlassv1.DeploymentSpec{
			Image: "registry.example/vllm:v1", Command: []string{"serve", "--key", "hunter2"}, Args: []string{"--api-key=hunter2"},
			Env: map[string]string{"OPENAI": "hunter2"}, Message: "with hunter2",
			Roles:     []*windlassv1.RoleSpec{{Args: []string{"hunter2"}, Command: []string{"run", "hunter2"}}},
			Overrides: []*windlassv1.Override{{ExtraArgs: []string{"--key=hunter2"}, Env: map[string]string{"OPENAI": "hunter2"}}},
		},
	}}}, nil
}

func (s secretServer) ListInstances(context.Context, *windlassv1.ListInstancesRequest) (*windlassv1.ListInstancesResponse, error) {
	return &windlassv1.ListInstancesResponse{Instances: []*windlassv1.Instance{{
		Id: "ins_1", Reason: "CrashLoop", Message: "exit code 1: cannot log in with password=hunter2 at https://me:hunter2@db.example",
	}}}, nil
}

func (s secretServer) ListRollouts(context.Context, *windlassv1.ListRolloutsRequest) (*windlassv1.ListRolloutsResponse, error) {
	return nil, errors.New("cannot be read with wl_hunter2")
}

func (s secretServer) ListHistory(context.Context, *windlassv1.ListHistoryRequest) (*windlassv1.ListHistoryResponse, error) {
	return &windlassv1.ListHistoryResponse{Entries: []*windlassv1.HistoryEntry{{Id: "his_1", What: "failed", Why: "token: hunter2"}}}, nil
}

// openBundle returns the files of an archive.
func openBundle(t *testing.T, file string) (files map[string]string) {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	info, err := f.Stat()
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	unpacked, err := gzip.NewReader(f)
	require.NoError(t, err)
	files = map[string]string{}
	for r := tar.NewReader(unpacked); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		folder, name, _ := strings.Cut(h.Name, "/")
		require.Regexp(t, `^windlass-support-\d{8}T\d{6}Z$`, folder)
		files[name] = string(data)
		if path.Ext(name) == ".json" {
			require.True(t, json.Valid(data), name)
		}
	}
}

func TestSupportBundle(t *testing.T) {
	s := secretServer{doctorServer: newDoctorServer()}
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewAccessServiceHandler(s))
	mux.Handle(windlassv1connect.NewRegionServiceHandler(s))
	mux.Handle(windlassv1connect.NewAppServiceHandler(s))
	mux.Handle(windlassv1connect.NewDeploymentServiceHandler(s))
	mux.Handle(windlassv1connect.NewRolloutServiceHandler(s))
	mux.Handle(windlassv1connect.NewHistoryServiceHandler(s))
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, "windlass_regions{status=\"connected\"} 1\n")
	})
	mux.HandleFunc("GET /page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "hunter2")
	})
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	env := func() map[string]string {
		return map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_hunter2"}
	}
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")

	t.Run("it has no secrets, and has the data for troubleshooting", func(t *testing.T) {
		_, code := windlass(t, env(), "support-bundle", "--file", file, "--metrics", server.URL+"/metrics", "--metrics", server.URL+"/page")
		require.Zero(t, code)
		files := openBundle(t, file)
		for name, text := range files {
			require.NotContains(t, text, "hunter2", name)
		}
		require.Contains(t, files["about.json"], `"windlass": "v0.3.1"`)
		require.Contains(t, files["about.json"], `"controlPlane": "v0.3.0"`)
		require.Contains(t, files["doctor.json"], `"check": "certificate"`)
		require.Contains(t, files["regions.json"], `"name": "us"`)
		require.Contains(t, files["apps/app_1/deployments.json"], `"registry.example/vllm:v1"`)
		require.Contains(t, files["apps/app_1/deployments.json"], `"serve"`)
		require.Contains(t, files["apps/app_1/deployments.json"], `"OPENAI": "[redacted]"`)
		require.Contains(t, files["apps/app_1/instances.json"], `"CrashLoop"`)
		require.Contains(t, files["apps/app_1/history.json"], `"failed"`)
		require.Contains(t, files["metrics/1.txt"], "windlass_regions")
		require.NotContains(t, files, "apps/app_1/rollouts.json")
		require.Contains(t, files["errors.json"], "rollouts.json: ")
		require.Contains(t, files["errors.json"], "/page: ")
	})

	t.Run("with --messages, credentials are removed from messages", func(t *testing.T) {
		_, code := windlass(t, env(), "support-bundle", "--file", file, "--messages")
		require.Zero(t, code)
		files := openBundle(t, file)
		text := files["apps/app_1/instances.json"]
		require.Contains(t, text, "exit code 1: cannot log in with password=[redacted] at https://[redacted]@db.example")
		require.NotContains(t, text+files["apps/app_1/history.json"], "hunter2")
	})

	t.Run("an unknown app does not keep other apps out of the bundle", func(t *testing.T) {
		_, code := windlass(t, env(), "support-bundle", "--file", file, "--app", "gone", "--app", "chat")
		require.Zero(t, code)
		files := openBundle(t, file)
		require.Contains(t, files["apps.json"], `"chat"`)
		require.Contains(t, files["errors.json"], "app gone: ")
	})

	t.Run("without a control plane the bundle has the errors", func(t *testing.T) {
		e := env()
		e["WINDLASS_SERVER"] = "http://127.0.0.1:1"
		out, code := windlass(t, e, "support-bundle", "--file", file, "-o", "json")
		require.Zero(t, code)
		require.Contains(t, out, `"apps": 0`)
		files := openBundle(t, file)
		require.Contains(t, files["doctor.json"], `"fail"`)
		require.Contains(t, files["errors.json"], "who am I: ")
	})

	t.Run("a file that cannot be written is an error", func(t *testing.T) {
		_, code := windlass(t, env(), "support-bundle", "--file", t.TempDir())
		require.Equal(t, 1, code)
	})

	t.Run("a folder that does not exist is not created", func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "typo")
		lost := filepath.Join(folder, "bundle.tar.gz")
		_, code := windlass(t, env(), "support-bundle", "--file", lost)
		require.Equal(t, 1, code)
		require.NoDirExists(t, folder)
		require.EqualError(t, folderExists(lost), "--file="+lost+": the folder "+folder+" does not exist: create it first, or give another place")
		require.ErrorContains(t, folderExists(filepath.Join(file, "bundle.tar.gz")), file+" is not a folder: give another place")
		require.NoError(t, folderExists("bundle.tar.gz"))
	})
}

func TestRedactor(t *testing.T) {
	for text, want := range map[string]string{
		"key wl_abc-DEF_1 was refused":                               "key [redacted] was refused",
		"app key wlk_abc, link https://cp/ui/#link=wll_x-_9":         "app key [redacted], link https://cp/ui/#link=[redacted]",
		"Authorization: Bearer abcdef.ghi":                           "Authorization: Bearer [redacted]",
		"HF_TOKEN=hf_abc; MODEL=llama":                               "HF_TOKEN=[redacted]; MODEL=llama",
		`{"password": "x y"}`:                                        `{"password": "[redacted] y"}`,
		"mysql://root:pass@db.example:3306/x":                        "mysql://[redacted]@db.example:3306/x",
		"-----BEGIN PRIVATE KEY-----\nab\n-----END PRIVATE KEY-----": "[redacted]",
		"10 tokens a second of model llama":                          "10 tokens a second of model llama",
		"the region is unreachable":                                  "the region is unreachable",
		"mine is the-key":                                            "mine is [redacted]",
	} {
		require.Equal(t, want, redactor{secret: "the-key"}.redactText(text))
	}
}
