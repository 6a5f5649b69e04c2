package api_test

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func routing(p *windlassv1.RoutingPolicy) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Routing = p }
}

func origins(all ...string) *windlassv1.RoutingPolicy {
	return &windlassv1.RoutingPolicy{Cors: &windlassv1.Cors{AllowedOrigins: all}}
}

func TestRouting_ImpossibleIsRefused(t *testing.T) {
	w := setup(t)
	const affinity = windlassv1.RoutingPolicy_BALANCING_AFFINITY
	header := &windlassv1.Affinity{Header: "X-Session"}
	try := func(field, says string, p *windlassv1.RoutingPolicy) {
		t.Helper()
		_, err := w.tryDeploy("chat", "", routing(p))
		refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.routing."+field)
		require.ErrorContains(t, err, says)
	}
	try("affinity", "affinity is not set", &windlassv1.RoutingPolicy{Balancing: affinity})
	try("affinity", "affinity has no effect", &windlassv1.RoutingPolicy{Affinity: header})
	try("affinity", "affinity has no effect", &windlassv1.RoutingPolicy{Balancing: windlassv1.RoutingPolicy_BALANCING_WEIGHTED, Affinity: header})
	try("affinity", "set header or cookie, one of the two", &windlassv1.RoutingPolicy{Balancing: affinity, Affinity: &windlassv1.Affinity{}})
	try("affinity", "set header or cookie, one of the two", &windlassv1.RoutingPolicy{Balancing: affinity, Affinity: &windlassv1.Affinity{Header: "a", Cookie: "b"}})
	try("affinity.header", "", &windlassv1.RoutingPolicy{Balancing: affinity, Affinity: &windlassv1.Affinity{Header: "X Session:"}})
	try("balancing", "", &windlassv1.RoutingPolicy{Balancing: 99})
	try("queueWait", "no request waits", &windlassv1.RoutingPolicy{QueueSize: new(int32(0)), QueueWait: durationpb.New(time.Second)})
	try("queueSize", "", &windlassv1.RoutingPolicy{QueueSize: new(int32(-1))})
	try("retries", "", &windlassv1.RoutingPolicy{Retries: new(int32(11))})
	try("maxInFlight", "", &windlassv1.RoutingPolicy{MaxInFlight: new(int32(-1))})
	try("maxBodyBytes", "", &windlassv1.RoutingPolicy{MaxBodyBytes: new(int64(0))})
	try("responseTimeout", "", &windlassv1.RoutingPolicy{ResponseTimeout: durationpb.New(0)})
	try("idleTimeout", "", &windlassv1.RoutingPolicy{IdleTimeout: durationpb.New(25 * time.Hour)})
	try("crossRegion", "", &windlassv1.RoutingPolicy{CrossRegion: 99})
	try("crossRegion", "without maxInFlight", &windlassv1.RoutingPolicy{CrossRegion: windlassv1.RoutingPolicy_CROSS_REGION_SPILLOVER})
	try("requestTimeout", "", &windlassv1.RoutingPolicy{RequestTimeout: durationpb.New(-1)})

	try("cors.allowedOrigins", "", origins())
	const first = "cors.allowedOrigins[0]"
	for origin, says := range map[string]string{
		"chat.example.com": "no scheme", "ftp://chat.example.com": "neither http nor https", "https://chat.example.com/": "without a slash",
		"https://chat.example.com?q": "without a slash", "https://": "not a host", "https://me@chat.example.com": "not a host",
		"https://Chat.example.com": "lower case", "https://chat.example.com:443": "leave port 443 out", "http://chat.example.com:80": "leave port 80 out",
		"https://chat.example.com:": "not a host|port is missing", "https://a..example.com": "not a host", "https://*example.com": "in front of the domain",
		"https://a.*.example.com": "in front of the domain", "https://*.com": "top-level", "https://*.10.0.0.1": "no subdomains", "https://schön.example": "xn--",
		"null": "no scheme", "https://chat.example.com:99999x": "not a host",
	} {
		_, err := w.tryDeploy("chat", "", routing(origins(origin)))
		refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.routing."+first)
		require.Regexp(t, says, err.Error(), origin)
		require.Contains(t, rpc.DetailOf(err).GetFix(), "https://chat.example.com")
	}
	try("cors.allowedOrigins[1]", "every origin", origins("https://a.test", "*"))
	try("coldStart.hold", "requestTimeout", &windlassv1.RoutingPolicy{
		RequestTimeout: durationpb.New(time.Second), ColdStart: &windlassv1.ColdStart{Hold: durationpb.New(time.Minute)},
	})
	try(first, "browsers refuse", &windlassv1.RoutingPolicy{Cors: &windlassv1.Cors{AllowedOrigins: []string{"*"}, Credentials: true}})
	with := func(edit func(*windlassv1.Cors)) *windlassv1.RoutingPolicy {
		p := origins("https://a.test")
		edit(p.Cors)
		return p
	}
	try("cors.allowedMethods[0]", "", with(func(c *windlassv1.Cors) { c.AllowedMethods = []string{"get"} }))
	try("cors.allowedMethods[0]", "browsers do not send TRACE", with(func(c *windlassv1.Cors) { c.AllowedMethods = []string{"TRACE"} }))
	try("cors.allowedHeaders[0]", "", with(func(c *windlassv1.Cors) { c.AllowedHeaders = []string{"X Key"} }))
	try("cors.exposedHeaders", "the name of a header", with(func(c *windlassv1.Cors) { c.Credentials, c.ExposedHeaders = true, []string{"*"} }))
	try("cors.maxAge", "whole seconds", with(func(c *windlassv1.Cors) { c.MaxAge = durationpb.New(1500 * time.Millisecond) }))

	for _, origin := range []string{"*", "https://chat.example.com", "http://localhost:3000", "https://*.example.com", "http://[::1]:8080", "http://10.0.0.1", "http://*.localhost:3000"} {
		_, err := w.tryDeploy("chat", "", routing(origins(origin)))
		require.NoError(t, err, origin)
	}
	_, err := w.tryDeploy("chat", "", routing(&windlassv1.RoutingPolicy{Balancing: windlassv1.RoutingPolicy_BALANCING_WEIGHTED}))
	require.NoError(t, err)
}

func TestRouting_PolicyComesFromTheServedVersion(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		first := &windlassv1.RoutingPolicy{Retries: new(int32(0)), QueueWait: durationpb.New(3 * time.Second)}
		second := origins("https://*.example.com")
		w.deploy("chat", args("a"), routing(&windlassv1.RoutingPolicy{}))
		w.settle("chat")
		require.Nil(t, w.version("chat", 1).GetSpec().GetRouting(), "an empty block is stored as none")

		plan := w.planned("chat", nil, args("a"), routing(first))
		require.Equal(t, outcomeRollout, plan.GetOutcome())
		var changes []string
		for _, c := range plan.GetChanges() {
			changes = append(changes, strings.TrimPrefix(c.GetKind().String(), "KIND_")+" "+c.GetPath()+" "+c.GetNew())
		}
		require.Equal(t, []string{"ADDED routing.queueWait 3s", "ADDED routing.retries 0"}, changes)

		specs := map[string]*windlassv1.RoutingPolicy{}
		generation := int64(0)
		follow := func(p *windlassv1.RoutingPolicy) {
			t.Helper()
			deployed := w.deploy("chat", args("a"), routing(p))
			require.False(t, deployed.GetUnchanged(), "a new block makes a version")
			specs[deployed.GetDeploymentId()] = p
			for range 40 {
				require.NoError(t, w.stepper.Step(ctx, deployed.GetAppId()))
				for _, r := range w.routesOf("chat") {
					for _, in := range r.GetRegions() {
						if r.GetKind() == windlassv1.Route_KIND_STABLE {
							// Instances are kept, so each region has targets of only one version.
							require.Len(t, in.GetTargets(), 1)
							want := specs[in.GetTargets()[0].GetDeploymentId()]
							require.True(t, proto.Equal(want, in.GetPolicy()) || want == nil && in.GetPolicy() == nil, "%v, want %v", in, want)
						}
					}
				}
				w.report(deployed.GetAppId())
			}
			app, err := w.apps(w.viewer).GetApp(ctx, &windlassv1.GetAppRequest{App: "chat"})
			require.NoError(t, err)
			require.Equal(t, deployed.GetDeploymentId(), app.GetApp().GetLiveDeploymentId())
			for _, r := range w.routesOf("chat") {
				if r.GetKind() != windlassv1.Route_KIND_STABLE {
					continue
				}
				require.Equal(t, windlassv1.RouteState_ROUTE_STATE_RUNNING, r.GetState(), "%v", r)
				require.Greater(t, r.GetRegions()[0].GetGeneration(), generation)
				generation = r.GetRegions()[0].GetGeneration()
			}
		}
		follow(first)
		follow(second)
		require.True(t, w.deploy("chat", args("a"), routing(second)).GetUnchanged())
		follow(nil)
	})
}

func TestRouting_ChangeKeepsInstances(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		stored := func(version int32) (d model.Deployment) {
			t.Helper()
			require.NoError(t, w.store.View(t.Context(), func(tx store.Tx) (err error) {
				d, err = tx.GetDeployment(w.workspace, w.version("chat", version).GetId())
				return err
			}))
			return d
		}
		minReady := func(s *windlassv1.DeploymentSpec) { s.MinReady = 1 }
		w.deploy("chat", args("a"))
		w.settle("chat")
		first := stored(1)
		require.Empty(t, first.MadeAs)

		w.deploy("chat", args("a"), routing(origins("*")))
		require.Equal(t, first.SpecHash, stored(2).MadeAs)
		require.NotEqual(t, first.SpecHash, stored(2).SpecHash, "another version has another hash")
		w.settle("chat")
		w.deploy("chat", args("a"), minReady)
		require.Equal(t, first.SpecHash, stored(3).MadeAs, "the hash of the version for which the instances were made")
		w.settle("chat")
		_, err := w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat", Version: 2})
		require.NoError(t, err)
		require.Equal(t, first.SpecHash, stored(4).MadeAs)
		w.settle("chat")

		w.deploy("chat", args("b"))
		require.Empty(t, stored(5).MadeAs)
		// The version in flight ends, and the instances of the live version are kept.
		w.deploy("chat", args("b"), routing(origins("*")))
		require.Empty(t, stored(6).MadeAs)
		w.deploy("chat", args("a"), routing(origins("https://a.test")))
		require.Equal(t, first.SpecHash, stored(7).MadeAs)
		w.settle("chat")
		require.EqualValues(t, 7, w.app("chat").GetLiveVersion())
	})
}
