package cli

import (
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const withRouting = `
app: chat
command: [serve]
regions: [eu]
routing:
  balancing: affinity
  affinity: {header: X-Session}
  responseTimeout: 2m
  idleTimeout: 30s
  requestTimeout: 0s
  queueSize: 0
  queueWait: 1.5s
  retries: 1
  maxInFlight: 8
  maxBodyBytes: 1048576
  crossRegion: spillover
  requireApiKey: true
  cors:
    allowedOrigins: ["https://*.example.com"]
    allowedMethods: [GET, POST]
    allowedHeaders: ["*"]
    exposedHeaders: [X-Request-Id]
    credentials: true
    maxAge: 10m
`

func TestAppFile_ParsesTheRoutingPolicy(t *testing.T) {
	file, err := parseAppFile([]byte(withRouting))
	require.NoError(t, err)
	want := &windlassv1.RoutingPolicy{
		Balancing: windlassv1.RoutingPolicy_BALANCING_AFFINITY, Affinity: &windlassv1.Affinity{Header: "X-Session"},
		ResponseTimeout: durationpb.New(2 * time.Minute), IdleTimeout: durationpb.New(30 * time.Second), RequestTimeout: durationpb.New(0),
		QueueSize: new(int32(0)), QueueWait: durationpb.New(1500 * time.Millisecond), Retries: new(int32(1)), MaxInFlight: new(int32(8)), MaxBodyBytes: new(int64(1 << 20)),
		CrossRegion: windlassv1.RoutingPolicy_CROSS_REGION_SPILLOVER, RequireApiKey: true,
		Cors: &windlassv1.Cors{
			AllowedOrigins: []string{"https://*.example.com"}, AllowedMethods: []string{"GET", "POST"}, AllowedHeaders: []string{"*"},
			ExposedHeaders: []string{"X-Request-Id"}, Credentials: true, MaxAge: durationpb.New(10 * time.Minute),
		},
	}
	require.True(t, proto.Equal(want, file.Spec.GetRouting()), "%v", file.Spec.GetRouting())

	for from, says := range map[string][2]string{
		"balancing: affinity":            {"balancing: fastest", "routing.balancing: fastest is not one of the choices: use roundRobin or leastRequests or powerOfTwo or affinity or weighted"},
		"affinity: {header: X-Session}":  {"affinity: X-Session", "routing.affinity: want a mapping, got X-Session: write for example {header: X-Session}"},
		"queueWait: 1.5s":                {"queueWait: 2", "routing.queueWait: 2 has no unit: write for example 10s or 5m"},
		"crossRegion: spillover":         {"crossRegion: always", "routing.crossRegion: always is not one of the choices: use off or failover or spillover"},
		"requireApiKey: true":            {"requireApiKey: 1", "routing.requireApiKey: want true or false, got 1"},
		"retries: 1":                     {"retrys: 1", "routing.retrys: no such field: did you mean retries?"},
		"maxInFlight: 8":                 {"maxInFlight: 1.5", "routing.maxInFlight: 1.5 is not a whole number in range"},
		"credentials: true":              {"credentials: yes please", "routing.cors.credentials: want true or false, got yes please"},
		"allowedMethods: [GET, POST]":    {"allowedMethods: GET", "routing.cors.allowedMethods: want a list, got GET: write [GET]"},
		`exposedHeaders: [X-Request-Id]`: {"exposedHeaders: [1]", "routing.cors.exposedHeaders[0]: 1 is not a text: put it in quotes"},
	} {
		require.Contains(t, withRouting, from)
		_, err := parseAppFile([]byte(strings.Replace(withRouting, from, says[0], 1)))
		require.ErrorContains(t, err, ": "+says[1])
	}
}

func TestDiffSpecs_ShowsChangesAndRemovalOfRouting(t *testing.T) {
	file, err := parseAppFile([]byte(withRouting))
	require.NoError(t, err)
	with := file.Spec
	changed := proto.CloneOf(with)
	changed.Routing.Retries = new(int32(3))
	changed.Routing.Cors = nil
	lines, err := diffSpecs(with, changed)
	require.NoError(t, err)
	require.Equal(t, []string{
		"- routing.cors.allowedHeaders[0]: *", "- routing.cors.allowedMethods[0]: GET", "- routing.cors.allowedMethods[1]: POST",
		"- routing.cors.allowedOrigins[0]: https://*.example.com", "- routing.cors.credentials: true",
		"- routing.cors.exposedHeaders[0]: X-Request-Id", "- routing.cors.maxAge: 600s", "~ routing.retries: 1 -> 3",
	}, lines)
	without := proto.CloneOf(with)
	without.Routing = nil
	lines, err = diffSpecs(with, without)
	require.NoError(t, err)
	require.Len(t, lines, 19)
	require.Contains(t, lines, "- routing.queueSize: 0")
}

func TestRoutePolicies_ShowThePolicyInForce(t *testing.T) {
	policy := &windlassv1.RoutingPolicy{
		Balancing: windlassv1.RoutingPolicy_BALANCING_LEAST_REQUESTS, QueueWait: durationpb.New(3 * time.Second),
		Cors: &windlassv1.Cors{AllowedOrigins: []string{"*"}},
	}
	in := func(name string, p *windlassv1.RoutingPolicy) *windlassv1.RegionRoute {
		return &windlassv1.RegionRoute{Region: name, Policy: p}
	}
	shown := func(regions ...*windlassv1.RegionRoute) string {
		var b strings.Builder
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		require.NoError(t, routePolicies(w, []*windlassv1.Route{
			{Kind: windlassv1.Route_KIND_STABLE, Regions: regions}, {Kind: windlassv1.Route_KIND_PREVIEW, Regions: []*windlassv1.RegionRoute{in("eu", nil)}},
		}))
		require.NoError(t, w.Flush())
		return b.String()
	}
	require.Empty(t, shown())
	require.Equal(t, []string{"ROUTING", "REGIONS", "defaults", "eu,", "us"}, strings.Fields(shown(in("eu", nil), in("us", nil))))
	require.Equal(t, []string{
		"ROUTING", "REGIONS", "balancing=least-requests", "cors.allowedOrigins[0]=*", "queueWait=3s", "eu,", "us", "defaults", "af",
	}, strings.Fields(shown(in("eu", policy), in("af", nil), in("us", policy))))
}
