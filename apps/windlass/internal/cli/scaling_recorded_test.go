package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// loadServer is a control plane that stored six hours of an app's load in us-east-1: 40 requests a second in the third hour
// and otherwise 4, each for 4 s, on 8 replicas.
type loadServer struct {
	windlassv1connect.UnimplementedScalingServiceHandler
	asked []*windlassv1.ListLoadRequest
	begin time.Time
}

func (c *loadServer) ListLoad(_ context.Context, req *windlassv1.ListLoadRequest) (*windlassv1.ListLoadResponse, error) {
	c.asked = append(c.asked, req)
	if !strings.HasSuffix(req.GetApp(), "/chat") {
		return nil, connect.NewError(connect.CodeNotFound, nil)
	}
	res := &windlassv1.ListLoadResponse{}
	for minute := range 6 * 60 {
		s := &windlassv1.LoadSample{At: c.begin.Add(time.Duration(minute) * time.Minute).UnixMilli(), SpanMs: 60_000, Rate: new(float32(4)), Ready: 8, Desired: 8}
		if minute/60 == 2 {
			s.Rate = new(float32(40))
		}
		s.InFlight = new(4 * s.GetRate())
		if s.GetAt() >= req.GetSince() && req.GetRegion() == "us-east-1" {
			res.Samples = append(res.Samples, s)
		}
	}
	return res, nil
}

func (c *loadServer) windlass(t *testing.T, file string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewScalingServiceHandler(c))
	server := httptest.NewServer(mux)
	defer server.Close()
	c.asked, c.begin = nil, time.Now().Truncate(time.Minute).Add(-6*time.Hour)
	path := filepath.Join(t.TempDir(), "app.yaml")
	require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	var out, info bytes.Buffer
	env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir()}
	root := New(Config{Stdout: &out, Stderr: &info, Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client()})
	root.SetArgs(append([]string{"scaling", "simulate", "-f", path}, args...))
	err = root.ExecuteContext(t.Context())
	return out.String(), info.String(), err
}

const simulatedFile = `app: chat
regions: [us-east-1, eu-west-1]
command: [modelserver]
resources: {gpu: {count: 2, product: NVIDIA-H100-80GB-HBM3}}
scaling: {min: 1, max: 12, metrics: [{type: inFlight, target: 20}]}
`

func TestSimulateLast_ComparesTheFilesPolicyWithWhatRan(t *testing.T) {
	c := &loadServer{}
	out, info, err := c.windlass(t, simulatedFile, "--last", "24h")
	require.NoError(t, err)
	require.Len(t, c.asked, 2)
	require.Equal(t, "default/production/chat", c.asked[0].GetApp())
	require.Contains(t, info, "left out, because no load is stored: eu-west-1")
	require.Contains(t, info, "us-east-1: the stored load covers 6h00m of the last 24h00m, from ")
	require.Contains(t, info, "a replica is assumed to serve 20 requests at a time")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 5)
	require.Equal(t, strings.Fields("REGION ALGORITHM REPLICA-HOURS GPU-HOURS OVER OBJECTIVE LONGEST WAIT PEAK TURNS"), strings.Fields(lines[0]))
	require.Equal(t, strings.Fields("us-east-1 ran 48.00 96.00 NVIDIA-H100-80GB-HBM3 0.00% 0.0s 8 0"), strings.Fields(lines[1]))
	// docs/guides/scaling.md shows this table.
	require.Equal(t, strings.Fields("windlass 15.52 31.04 NVIDIA-H100-80GB-HBM3 2.39% 43.0s 12 2"), strings.Fields(lines[2]))
	require.Equal(t, "hpa", strings.Fields(lines[3])[0])

	out, _, err = c.windlass(t, simulatedFile, "--last", "3h", "--region", "us-east-1", "--app", "other/production/chat", "--concurrency", "40", "-o", "json")
	require.NoError(t, err)
	require.Equal(t, "other/production/chat", c.asked[0].GetApp())
	var got struct {
		Regions []struct {
			Region                       string
			CoveredSeconds, AskedSeconds float64
			Concurrency                  int
			Outcomes                     []struct {
				Algorithm    string
				ReplicaHours float64
				GPUHours     map[string]float64
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Len(t, got.Regions, 1)
	require.InDelta(t, 3*3600, got.Regions[0].CoveredSeconds, 61)
	require.EqualValues(t, 3*3600, got.Regions[0].AskedSeconds)
	require.Equal(t, 40, got.Regions[0].Concurrency)
	ours := got.Regions[0].Outcomes[1]
	require.Equal(t, "windlass", ours.Algorithm)
	require.InDelta(t, 3, ours.ReplicaHours, 1)
	require.InDelta(t, 2*ours.ReplicaHours, ours.GPUHours["NVIDIA-H100-80GB-HBM3"], 0.001)
}

func TestSimulateLast_RefusesWithAFix(t *testing.T) {
	c := &loadServer{}
	kvCache := strings.Replace(simulatedFile, "inFlight, target: 20", "cpu, target: 50", 1)
	for name, test := range map[string]struct {
		file string
		args []string
		want string
	}{
		"negative":          {simulatedFile, []string{"--last=-1h"}, "--last=-1h0m0s: use a time above 0, up to 3d"},
		"too long":          {simulatedFile, []string{"--last", "200h"}, "the load is kept for that long"},
		"both":              {simulatedFile, []string{"--last", "1h", "--trace", "x.csv"}, "--last and --trace cannot be given together"},
		"neither":           {simulatedFile, nil, "give --trace FILE or --last DURATION"},
		"service":           {simulatedFile, []string{"--last", "1h", "--service", "2s"}, "--service: leave it out with --last"},
		"app with a trace":  {simulatedFile, []string{"--trace", "x.csv", "--app", "chat"}, "--app: leave it out with --trace"},
		"unknown app":       {simulatedFile, []string{"--last", "1h", "--app", "none"}, "not_found"},
		"no load":           {simulatedFile, []string{"--last", "1h", "--region", "eu-west-1"}, "no load of default/production/chat is stored in eu-west-1"},
		"a metric lacks":    {kvCache, []string{"--last", "1h", "--region", "us-east-1"}, "scaling.metrics[0]"},
		"how to measure it": {kvCache, []string{"--last", "1h", "--region", "us-east-1"}, "the stored load has no value of cpu in us-east-1: deploy the app with this metric and mode: advise"},
		"no scaling":        {"app: chat\nregions: [us-east-1]\ncommand: [modelserver]\n", []string{"--last", "1h"}, "scaling: missing"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := c.windlass(t, test.file, test.args...)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestSimulateLast_CountsGPUsOfAllInstances(t *testing.T) {
	role := func(name string, instances, hosts, gpus int32) *windlassv1.RoleSpec {
		r := &windlassv1.RoleSpec{Name: name, Instances: instances, Hosts: hosts}
		if gpus > 0 {
			r.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: gpus, Product: "L4"}}
		}
		return r
	}
	spec := &windlassv1.DeploymentSpec{
		Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 8}},
		Roles:     []*windlassv1.RoleSpec{role("prefill", 3, 0, 1), role("decode", 0, 2, 0)},
		Overrides: []*windlassv1.Override{{Regions: []string{"eu"}, Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 4, Product: "A100"}}}},
	}
	require.Equal(t, map[string]int32{"L4": 3, "any": 16}, gpusOfReplica(spec, "us", ""))
	require.Equal(t, map[string]int32{"L4": 3, "A100": 8}, gpusOfReplica(spec, "eu", ""))
	require.Equal(t, map[string]int32{"L4": 1}, gpusOfReplica(spec, "us", "prefill"))
	spec.Roles = nil
	require.Equal(t, map[string]int32{"any": 8}, gpusOfReplica(spec, "us", ""))
	require.Empty(t, gpusOfReplica(&windlassv1.DeploymentSpec{}, "us", ""))
}
