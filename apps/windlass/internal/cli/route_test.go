package cli

import (
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestRouteTables_HaveARowPerHostOrRegion(t *testing.T) {
	share := func(v, percent int32) *windlassv1.RouteShare {
		return &windlassv1.RouteShare{Version: v, Percent: percent}
	}
	routes := []*windlassv1.Route{
		{
			Host: "chat-1.apps.test", Kind: windlassv1.Route_KIND_STABLE, App: "default/production/chat",
			State: windlassv1.RouteState_ROUTE_STATE_PROVISIONING, Message: "1 of 2 regions serve the newest route",
			Regions: []*windlassv1.RegionRoute{
				{Region: "eu", State: windlassv1.RouteState_ROUTE_STATE_RUNNING, Generation: 4, AcknowledgedGeneration: 4, Targets: []*windlassv1.RouteShare{share(1, 90), share(2, 10)}},
				{Region: "us", State: windlassv1.RouteState_ROUTE_STATE_PROVISIONING, Generation: 3, AcknowledgedGeneration: 2, Targets: []*windlassv1.RouteShare{share(1, 100)}},
			},
		},
		{
			Host: "v2-chat-1.apps.test", Kind: windlassv1.Route_KIND_PREVIEW, App: "default/production/chat", Version: 2,
			State:   windlassv1.RouteState_ROUTE_STATE_RUNNING,
			Regions: []*windlassv1.RegionRoute{{Region: "eu", State: windlassv1.RouteState_ROUTE_STATE_RUNNING, Targets: []*windlassv1.RouteShare{share(2, 100)}}},
		},
		{Host: "chat.example.com", Kind: windlassv1.Route_KIND_DOMAIN, App: "default/production/chat", State: windlassv1.RouteState_ROUTE_STATE_PENDING, Message: "the domain is yet to be verified"},
	}
	rows := func(table func(*tabwriter.Writer, []*windlassv1.Route)) []string {
		var b strings.Builder
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		table(w, routes)
		require.NoError(t, w.Flush())
		var lines []string
		for line := range strings.Lines(b.String()) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return lines
	}
	require.Equal(t, []string{
		"HOST KIND APP VERSIONS REGIONS STATE MESSAGE",
		"chat-1.apps.test stable default/production/chat differ, see `windlass route show` eu, us provisioning 1 of 2 regions serve the newest route",
		"v2-chat-1.apps.test preview default/production/chat v2 100% eu running",
		"chat.example.com domain default/production/chat - - pending the domain is yet to be verified",
	}, rows(routeTable))
	require.Equal(t, []string{
		"HOST REGION SHARES GENERATION SERVED STATE MESSAGE",
		"chat-1.apps.test eu v1 90%, v2 10% 4 4 running",
		"chat-1.apps.test us v1 100% 3 2 provisioning",
		"v2-chat-1.apps.test eu v2 100% - - running",
		"chat.example.com - - - - pending the domain is yet to be verified",
	}, rows(routeRegions))
}
