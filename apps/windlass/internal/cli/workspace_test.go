package cli

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// quotaServer is a control plane whose workspace has reached its quota.
type quotaServer struct {
	windlassv1connect.UnimplementedAppServiceHandler
	windlassv1connect.UnimplementedWorkspaceServiceHandler
	refusal error
	quota   *windlassv1.Quota
}

func (f *quotaServer) GetApp(context.Context, *windlassv1.GetAppRequest) (*windlassv1.GetAppResponse, error) {
	return nil, rpc.Error(connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "app", "none")
}

func (f *quotaServer) Deploy(context.Context, *windlassv1.DeployRequest) (*windlassv1.DeployResponse, error) {
	return nil, f.refusal
}

func (f *quotaServer) GetQuota(context.Context, *windlassv1.GetQuotaRequest) (*windlassv1.GetQuotaResponse, error) {
	return &windlassv1.GetQuotaResponse{Quota: f.quota}, nil
}

func (f *quotaServer) SetQuota(_ context.Context, req *windlassv1.SetQuotaRequest) (*windlassv1.SetQuotaResponse, error) {
	q := proto.CloneOf(f.quota)
	q.Own = req.GetOwn()
	proto.Merge(q.Limits, req.GetOwn())
	return &windlassv1.SetQuotaResponse{Quota: q}, nil
}

// windlass runs a command against it.
func (f *quotaServer) windlass(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return runAgainst(t, f, args...)
}

// runAgainst runs a command against the control plane, and returns what it printed, errors included.
func runAgainst(t *testing.T, f interface {
	windlassv1connect.AppServiceHandler
	windlassv1connect.WorkspaceServiceHandler
}, args ...string,
) (string, error) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewAppServiceHandler(f))
	mux.Handle(windlassv1connect.NewWorkspaceServiceHandler(f))
	server := httptest.NewServer(mux)
	defer server.Close()
	var out bytes.Buffer
	env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir()}
	root := New(Config{Stdout: &out, Stderr: &bytes.Buffer{}, Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client()})
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestRefusal_HasTheLimitAndTheFix(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.yaml")
	require.NoError(t, os.WriteFile(file, []byte("app: llama\ncommand: [serve]\nregions: [eu-west-1]\n"), 0o600))
	for _, c := range []struct {
		reason       windlassv1.ErrorReason
		message, fix string
		want         string
	}{
		{
			windlassv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED,
			"the workspace may have 64 GPUs: it has 60, and this call asks for 8 more",
			"Scale down or delete what is not needed (`windlass workspace quota` shows the usage), or ask an operator to raise it: `windlass workspace quota ws_1 --gpus 68`.",
			`the workspace may have 64 GPUs: it has 60, and this call asks for 8 more
Scale down or delete what is not needed (` + "`windlass workspace quota`" + ` shows the usage), or ask an operator to raise it: ` + "`windlass workspace quota ws_1 --gpus 68`.\nSee `windlass explain QUOTA_EXCEEDED`.",
		},
		{
			windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED,
			"the workspace may start work 1200 times a minute and 1000 times at once, and has: wait 50ms",
			"Call again after that.",
			`the workspace may start work 1200 times a minute and 1000 times at once, and has: wait 50ms
Call again after that.` + "\nSee `windlass explain RATE_LIMITED`.",
		},
	} {
		f := &quotaServer{refusal: rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
			Reason: c.reason, Fix: c.fix, Limit: &windlassv1.LimitDetail{Name: "gpus", Max: 64, Used: 60, Asked: 8},
		}, c.message)}
		out, err := f.windlass(t, "deploy", "-f", file)
		require.Error(t, err)
		require.Empty(t, out)
		require.Equal(t, c.want, Explain(err))
		require.EqualValues(t, 64, rpc.DetailOf(err).GetLimit().GetMax())
	}
}

func TestQuota_IsShownWithTheUsage(t *testing.T) {
	f := &quotaServer{quota: &windlassv1.Quota{
		WorkspaceName: "search", ResourceVersion: 3,
		Limits: &windlassv1.Limits{
			Apps: new(int64(10000)), Deployments: new(int64(0)), Instances: new(int64(100)), Gpus: new(int64(64)),
			Rollouts: new(int64(20)), StartsPerMinute: new(int64(1200)), StartsBurst: new(int64(1000)),
		},
		Own:   &windlassv1.Limits{Gpus: new(int64(64)), Deployments: new(int64(0))},
		Usage: &windlassv1.Usage{Apps: 12, Deployments: 11, Instances: 40, Gpus: 60, Rollouts: 1, StartsLeft: 998},
	}}
	out, err := f.windlass(t, "workspace", "quota")
	require.NoError(t, err)
	require.Equal(t, `LIMIT               USED   OF          SET BY
apps                12     10000       control plane
deployments         11     unlimited   workspace search
instances           40     100         control plane
gpus                60     64          workspace search
rollouts            1      20          control plane
starts-per-minute   -      1200        control plane
starts-burst        -      1000        control plane

998 calls that start work can be made at once now.
`, out)

	out, err = f.windlass(t, "workspace", "quota", "search", "--gpus", "128", "--apps", "unlimited", "--deployments", "default")
	require.NoError(t, err)
	require.Contains(t, out, "gpus                60     128         workspace search\n")
	require.Contains(t, out, "apps                12     unlimited   workspace search\n")
	require.Contains(t, out, "deployments         11     unlimited   control plane\n")
	for _, bad := range []string{"0", "-1", "many", "1.5"} {
		_, err = f.windlass(t, "workspace", "quota", "--gpus="+bad)
		require.ErrorContains(t, err, `--gpus="`+bad+`": use a number from 1, unlimited or default`)
	}
}

func TestQuota_AsksIfOnlyAnOperatorCanUndoIt(t *testing.T) {
	const warning = "limit gpus goes from 8 to 3: only an operator of the platform can raise it again"
	server := newFakeServer(t)
	sets := 0
	setUp := func(warnings ...string) {
		sets = 0
		server.change(func() {
			server.answers = map[string]func(proto.Message){
				"GetQuota": func(m proto.Message) {
					data, err := proto.Marshal(&windlassv1.GetQuotaResponse{Quota: &windlassv1.Quota{Limits: &windlassv1.Limits{}}, Warnings: warnings})
					require.NoError(t, err)
					proto.Reset(m)
					require.NoError(t, proto.Unmarshal(data, m))
				},
				"SetQuota": func(proto.Message) { sets++ },
			}
		})
	}
	for _, tc := range []struct {
		name     string
		more     []string
		stdin    string
		warnings []string
		code     int
		sets     int
	}{
		{"an owner says yes", nil, "yes\n", []string{warning}, 0, 1},
		{"an owner says no", nil, "no\n", []string{warning}, 1, 0},
		{"an owner said so before", []string{"--yes"}, "", []string{warning}, 0, 1},
		{"an operator", nil, "", nil, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			setUp(tc.warnings...)
			got := runCommand(t, server, true, commandRun{args: append([]string{"workspace", "quota", "--gpus", "3"}, tc.more...), stdin: tc.stdin})
			require.Equal(t, tc.code, got.code, got.stderr)
			require.Equal(t, tc.sets, sets)
			require.Equal(t, len(tc.warnings) > 0, strings.Contains(got.stderr, warning), got.stderr)
		})
	}
	setUp(warning)
	got := runCommand(t, server, false, commandRun{args: []string{"workspace", "quota", "--gpus", "3"}}, "-o", "json")
	require.Zero(t, got.code, "a script is not asked")
	require.Equal(t, 1, sets)
	require.Contains(t, got.stderr, warning)
	mustBeJSON(t, got.stdout)
}

// featureServer is a control plane with the features of a workspace, and tiers.
type featureServer struct {
	windlassv1connect.UnimplementedAppServiceHandler
	windlassv1connect.UnimplementedWorkspaceServiceHandler
	features *windlassv1.WorkspaceFeatures
	tiers    []*windlassv1.Tier
	set      *windlassv1.SetFeaturesRequest
	setTier  *windlassv1.SetTierRequest
}

func (g *featureServer) GetFeatures(context.Context, *windlassv1.GetFeaturesRequest) (*windlassv1.GetFeaturesResponse, error) {
	return &windlassv1.GetFeaturesResponse{Features: g.features}, nil
}

func (g *featureServer) SetFeatures(_ context.Context, req *windlassv1.SetFeaturesRequest) (*windlassv1.SetFeaturesResponse, error) {
	g.set = req
	return &windlassv1.SetFeaturesResponse{Features: g.features}, nil
}

func (g *featureServer) ListTiers(context.Context, *windlassv1.ListTiersRequest) (*windlassv1.ListTiersResponse, error) {
	return &windlassv1.ListTiersResponse{Tiers: g.tiers}, nil
}

func (g *featureServer) SetTier(_ context.Context, req *windlassv1.SetTierRequest) (*windlassv1.SetTierResponse, error) {
	g.setTier = req
	return &windlassv1.SetTierResponse{Tier: &windlassv1.Tier{Name: req.GetName(), Features: req.GetFeatures()}}, nil
}

func TestFeatures_AreShownWithTheirSource(t *testing.T) {
	const (
		autoscaling = windlassv1.Feature_FEATURE_AUTOSCALING
		canary      = windlassv1.Feature_FEATURE_CANARY
		analysis    = windlassv1.Feature_FEATURE_ANALYSIS
	)
	g := &featureServer{features: &windlassv1.WorkspaceFeatures{
		WorkspaceId: "ws_1", WorkspaceName: "search", Tier: "basic", ResourceVersion: 3,
		Features: []windlassv1.Feature{autoscaling, canary}, TierFeatures: []windlassv1.Feature{autoscaling, analysis},
		Allowed: []windlassv1.Feature{canary}, Denied: []windlassv1.Feature{analysis},
	}}
	out, err := runAgainst(t, g, "workspace", "features")
	require.NoError(t, err)
	require.Equal(t, `FEATURE       ALLOWED   SET BY
multiRegion   no        tier basic
autoscaling   yes       tier basic
scaleToZero   no        tier basic
crossRegion   no        tier basic
canary        yes       workspace search
blueGreen     no        tier basic
analysis      no        workspace search
serve         no        tier basic
roles         no        tier basic
`, out)
	require.Nil(t, g.set)

	_, err = runAgainst(t, g, "workspace", "features", "search", "--tier", "large", "--deny", "canary,multi-region", "--inherit", "analysis")
	require.NoError(t, err)
	g.set.Mutation = nil
	require.True(t, proto.Equal(&windlassv1.SetFeaturesRequest{
		Workspace: "ws_1", Tier: "large", Denied: []windlassv1.Feature{canary, windlassv1.Feature_FEATURE_MULTI_REGION}, ResourceVersion: 3,
	}, g.set), "%v", g.set)

	_, err = runAgainst(t, g, "workspace", "features", "search", "--allow", "magic")
	require.ErrorContains(t, err, `--allow="magic": use multiRegion, autoscaling, `)
	_, err = runAgainst(t, g, "workspace", "features", "search", "--allow", "canary", "--deny", "canary")
	require.ErrorContains(t, err, "--allow and --deny name the feature canary")
}

func TestTier_SetReplacesAllFeatures(t *testing.T) {
	g := &featureServer{tiers: []*windlassv1.Tier{{Name: "basic", ResourceVersion: 2}, {Name: "default", Features: allFeatures()}}}
	out, err := runAgainst(t, g, "workspace", "tier", "list")
	require.NoError(t, err)
	require.Equal(t, `TIER      FEATURES
basic     -
default   multiRegion, autoscaling, scaleToZero, crossRegion, canary, blueGreen, analysis, serve, roles
`, out)
	for names, want := range map[string][]windlassv1.Feature{
		"all": allFeatures(), "none": nil, "blue-green,canary,blueGreen": {windlassv1.Feature_FEATURE_BLUE_GREEN, windlassv1.Feature_FEATURE_CANARY},
	} {
		_, err = runAgainst(t, g, "workspace", "tier", "set", "basic", "--features", names)
		require.NoError(t, err)
		require.Equal(t, want, g.setTier.GetFeatures(), names)
		require.EqualValues(t, 2, g.setTier.GetResourceVersion())
	}
	_, err = runAgainst(t, g, "workspace", "tier", "set", "basic", "--features", "all,canary")
	require.ErrorContains(t, err, `--features="all": use multiRegion`)
}
