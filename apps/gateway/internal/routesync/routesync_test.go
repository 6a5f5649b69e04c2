package routesync

import (
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/table"
	"github.com/windlass-run/windlass/apps/gateway/internal/traffic"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
	"github.com/windlass-run/windlass/pkg/healthcheck"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

func routes(change func(*gatewayv1.AppRoutes)) *gatewayv1.AppRoutes {
	app := &gatewayv1.AppRoutes{
		AppId: "app_1", AppName: "echo", Epoch: 1, Generation: 2, Change: 3, Hosts: []string{"echo.local"},
		Previews: []*gatewayv1.Preview{{Host: "v1.echo.local", DeploymentId: "dep_1"}},
		Targets: []*gatewayv1.Target{{DeploymentId: "dep_1", Version: 1, Weight: 100, Instances: []*gatewayv1.Instance{
			{InstanceId: "ins_1", Address: "10.0.0.1:8000", State: gatewayv1.Instance_STATE_READY},
			{InstanceId: "ins_2", Address: "[fd00::1]:8000", State: 77},
		}}},
	}
	if change != nil {
		change(app)
	}
	return app
}

func TestApp_WithoutSettingsHasDefaults(t *testing.T) {
	spec, err := specOf(routes(nil))
	require.NoError(t, err)
	require.Equal(t, upstream.DefaultPolicy(), spec.Policy)
	require.Equal(t, []string{"echo.local", "v1.echo.local"}, spec.AllHosts())
	require.Equal(t, upstream.NotReady, spec.Targets[0].Instances[1].State, "a state of a later release is not READY")

	spec, err = specOf(routes(func(a *gatewayv1.AppRoutes) {
		a.Policy = &gatewayv1.RoutePolicy{
			Balancing: gatewayv1.Balancing_BALANCING_AFFINITY, Affinity: &gatewayv1.RoutePolicy_AffinityCookie{AffinityCookie: "session"},
			RequestTimeout: durationpb.New(time.Hour), QueueSize: proto.Int32(0), Retries: proto.Int32(0), MaxInFlight: proto.Int32(4),
			MaxBodyBytes: proto.Int64(1), ResponseTimeout: durationpb.New(0), QueueWait: durationpb.New(0),
		}
	}))
	require.NoError(t, err)
	want := upstream.DefaultPolicy()
	want.Strategy, want.AffinityCookie, want.Total = balance.Affinity, "session", time.Hour
	want.QueueSize, want.QueueWait, want.Retries, want.MaxInFlight, want.MaxBody = 0, 0, 0, 4, 1
	require.Equal(t, want, spec.Policy)
}

func TestBalancing_UnknownIsTheDefault(t *testing.T) {
	strategies := map[string]bool{}
	values := gatewayv1.Balancing(0).Descriptor().Values()
	for i := range values.Len() {
		p, err := policyOf(&gatewayv1.RoutePolicy{Balancing: gatewayv1.Balancing(values.Get(i).Number())})
		require.NoError(t, err)
		strategies[p.Strategy] = true
	}
	require.Len(t, strategies, len(balance.Names()))
	p, err := policyOf(&gatewayv1.RoutePolicy{Balancing: gatewayv1.Balancing(values.Len())})
	require.NoError(t, err)
	require.Equal(t, upstream.DefaultPolicy().Strategy, p.Strategy)
}

// An app whose hosts are only in other regions may still have previews in this region. They need the same keys as
// before. Requests for the hosts need no key here, because another region checks it.
func TestPreview_StaysClosedAfterItsAppLeft(t *testing.T) {
	other := &gatewayv1.AppNeighbours{AppId: "app_1", AppName: "echo", Hosts: []string{"echo.local"}}
	for _, required := range []bool{true, false} {
		left := routes(func(a *gatewayv1.AppRoutes) {
			a.Hosts, a.Policy = nil, &gatewayv1.RoutePolicy{RequireApiKey: required, MaxBodyBytes: new(int64(10))}
		})
		spec, err := specWith(left, other)
		require.NoError(t, err)
		require.Equal(t, required, spec.NeedsKey("v1.echo.local"))
		require.False(t, spec.NeedsKey("echo.local"))
		require.Equal(t, upstream.ElsewherePolicy(), spec.Policy)
		require.Zero(t, spec.Targets[0].Weight)
		require.False(t, spec.Elsewhere, "the agent of this region knows the app")
	}
	spec, err := specWith(&gatewayv1.AppRoutes{AppId: "app_1"}, other)
	require.NoError(t, err)
	require.True(t, spec.Elsewhere)
	require.Equal(t, other.Hosts, spec.Hosts)
	here, err := specWith(routes(nil), other)
	require.NoError(t, err)
	require.Equal(t, upstream.DefaultPolicy(), here.Policy)
}

func TestRoutes_ErrorNamesWhatIsWrong(t *testing.T) {
	for want, change := range map[string]func(*gatewayv1.AppRoutes){
		`host "Echo.local" must be in lower case`:      func(a *gatewayv1.AppRoutes) { a.Hosts[0] = "Echo.local" },
		`host "echo.local:80" must be`:                 func(a *gatewayv1.AppRoutes) { a.Hosts[0] = "echo.local:80" },
		`address "10.0.0.1" of instance ins_1`:         func(a *gatewayv1.AppRoutes) { a.Targets[0].Instances[0].Address = "10.0.0.1" },
		`address "10.0.0.1:http" of instance ins_1`:    func(a *gatewayv1.AppRoutes) { a.Targets[0].Instances[0].Address = "10.0.0.1:http" },
		`weight -1 of dep_1 is negative`:               func(a *gatewayv1.AppRoutes) { a.Targets[0].Weight = -1 },
		`deployment dep_1 is a target twice`:           func(a *gatewayv1.AppRoutes) { a.Targets = append(a.Targets, a.Targets[0]) },
		`preview v1.echo.local is of deployment dep_9`: func(a *gatewayv1.AppRoutes) { a.Previews[0].DeploymentId = "dep_9" },
		`routes without app_id`:                        func(a *gatewayv1.AppRoutes) { a.AppId = "" },
		`policy.idle_timeout`:                          func(a *gatewayv1.AppRoutes) { a.Policy = &gatewayv1.RoutePolicy{IdleTimeout: durationpb.New(-1)} },
	} {
		_, err := specOf(routes(change))
		require.ErrorContains(t, err, want)
	}
}

func TestTarget_ChecksItsOwnInstances(t *testing.T) {
	check := &gatewayv1.HealthCheck{Path: "/ready", Method: "HEAD", ExpectedCodes: []string{"204"}, Timeout: durationpb.New(10 * time.Millisecond)}
	of := func() (one, two upstream.InstanceSpec) {
		spec, err := specOf(routes(func(a *gatewayv1.AppRoutes) {
			a.Targets[0].HealthCheck, a.Targets[0].Instances[1].OtherVersion = check, true
		}))
		require.NoError(t, err)
		return spec.Targets[0].Instances[0], spec.Targets[0].Instances[1]
	}
	one, two := of()
	require.Equal(t, &healthcheck.Check{
		Method: "HEAD", Path: "/ready", Codes: healthcheck.Codes{{First: 204, Last: 204}}, Timeout: time.Second, Agent: "windlass-gateway",
	}, one.Check)
	require.False(t, one.OtherVersion)
	require.True(t, two.OtherVersion)

	check.ExpectedCodes = []string{"2xx"}
	one, _ = of()
	require.Nil(t, one.Check, "this release cannot read the codes")
	check = nil
	one, _ = of()
	require.Nil(t, one.Check)
}

func open(t *testing.T, path string) (*Source, *table.Table, error) {
	routes := table.New(upstream.Config{Now: time.Now, Random: rand.Uint64, Ejected: func(upstream.Ejection) {}, Drained: func(string) {}})
	s, err := Open(Config{GatewayID: "gw_1", Table: routes, Traffic: &traffic.Traffic{}, File: path, Log: slog.New(slog.DiscardHandler), Rand: rand.Float64})
	require.NotNil(t, s)
	return s, routes, err
}

func TestFile_PartialIsNotServed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "routes")
	s, _, err := open(t, path)
	require.NoError(t, err)
	require.False(t, s.Complete())

	data, err := proto.Marshal(routes(nil))
	require.NoError(t, err)
	whole := encode(savedRoutes{tableID: "table-1", apps: map[string][]byte{"app_1": data}})
	require.NoError(t, replaceFile(path, whole))
	s, routes, err := open(t, path)
	require.NoError(t, err)
	require.True(t, s.Complete())
	require.Equal(t, "table-1", s.held.tableID)
	require.NotNil(t, routes.Lookup("echo.local"))

	for i := range whole {
		require.NoError(t, os.WriteFile(path, whole[:i], 0o600))
		s, routes, err := open(t, path)
		require.ErrorContains(t, err, path)
		require.False(t, s.Complete())
		require.Zero(t, routes.Len())
		bad := append([]byte{}, whole...)
		bad[i] ^= 0x20
		_, err = decode(bad)
		require.Error(t, err)
	}
}

func FuzzDecode(f *testing.F) {
	data, err := proto.Marshal(routes(nil))
	require.NoError(f, err)
	f.Add(encode(savedRoutes{tableID: "t", apps: map[string][]byte{"app_1": data}}))
	f.Add([]byte(fileHead))
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, err := decode(data); err == nil {
			again, err := decode(encode(h))
			require.NoError(t, err)
			require.Equal(t, h, again)
		}
	})
}

// A stream that breaks in the middle of another table leaves a mixture of two tables. Its numbers must not be compared
// with the numbers of either table.
func TestTable_PartialHasNoID(t *testing.T) {
	s, _, err := open(t, "")
	require.NoError(t, err)
	s.beginTable("table-1")
	s.applyRoutes(t.Context(), routes(nil))
	require.False(t, s.Complete())
	s.endTable("table-1")
	require.True(t, s.Complete())
	require.Equal(t, "table-1", s.held.tableID)
	s.beginTable("table-1") // the same agent again, so the kept routes still belong to its table
	require.Equal(t, "table-1", s.held.tableID)
	s.beginTable("table-2")
	s.applyRoutes(t.Context(), routes(nil))
	require.Empty(t, s.held.tableID)
}

func TestReport_RepeatsOnlyUnsentAcknowledgements(t *testing.T) {
	s, _, err := open(t, "")
	require.NoError(t, err)
	s.beginTable("table-1")
	s.applyRoutes(t.Context(), routes(nil))
	require.Nil(t, s.nextReport(time.Now()), "no report is sent before the agent's table has arrived")
	s.endTable("table-1")
	first := s.nextReport(time.Now())
	require.Len(t, first.Served, 1)
	require.Equal(t, int64(3), first.Served[0].InstancesChange)
	s.applyRoutes(t.Context(), routes(func(a *gatewayv1.AppRoutes) { a.Change = 4 })) // while the first report is under way
	s.noteReported(first)
	second := s.nextReport(time.Now())
	require.Len(t, second.Served, 1)
	require.Equal(t, int64(4), second.Served[0].InstancesChange)
	s.noteReported(second)
	require.Empty(t, s.nextReport(time.Now()).Served)

	// A removal is acknowledged, too. Routes that cannot be served are not acknowledged.
	s.applyRoutes(t.Context(), &gatewayv1.AppRoutes{AppId: "app_1", Epoch: 1, Generation: 3, Change: 5})
	s.applyRoutes(t.Context(), routes(func(a *gatewayv1.AppRoutes) { a.AppId, a.Hosts[0] = "app_2", "BAD" }))
	third := s.nextReport(time.Now())
	require.Len(t, third.Served, 1)
	require.Equal(t, int64(5), third.Served[0].InstancesChange)

	// Another stream began while the report was under way, so all routes must be acknowledged again.
	s.endTable("table-1")
	s.noteReported(third)
	require.True(t, s.nextReport(time.Now()).all)
}

func TestTraffic_IsReportedOnceInAnInterval(t *testing.T) {
	s, _, err := open(t, "")
	require.NoError(t, err)
	s.beginTable("table-1")
	s.applyRoutes(t.Context(), routes(nil))
	s.endTable("table-1")
	count := func() { s.cfg.Traffic.Ended(traffic.Request{DeploymentID: "dep_1"}) }
	now := time.Unix(1_700_000_000, 0)
	requests := func(after time.Duration) []uint64 {
		now = now.Add(after)
		p := s.nextReport(now)
		var out []uint64
		for _, d := range p.Traffic {
			out = append(out, d.Requests)
		}
		s.noteReported(p)
		return out
	}
	count()
	require.Equal(t, []uint64{1}, requests(0), "the first report has all traffic")
	count()
	require.Empty(t, requests(s.interval/2), "the interval has not passed")
	require.Equal(t, []uint64{2}, requests(s.interval/2))
	require.Empty(t, requests(s.interval), "nothing is new")
	count()
	require.Equal(t, []uint64{3}, requests(s.interval))
	count()
	s.Leave()
	require.Equal(t, []uint64{4}, requests(0), "the report of a gateway that leaves has all traffic")
}
