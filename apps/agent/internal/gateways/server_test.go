package gateways

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/neighbours"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1/gatewayv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// harness serves Gateways on a unix socket, with an inbox and files.
type harness struct {
	*Gateways
	files    disk.Files
	inbox    *inbox.Inbox
	progress chan struct{}
	client   gatewayv1connect.RouteServiceClient
	// as is the caller of new requests. Nil: a caller on the socket.
	as atomic.Pointer[Caller]
}

func (h *harness) caller(req *http.Request) Caller {
	if c := h.as.Load(); c != nil {
		return *c
	}
	return Socket(req)
}

func startHarness(t *testing.T, files disk.Files, expected int) *harness {
	t.Helper()
	in, err := inbox.OpenMemory(inbox.NewMemory())
	require.NoError(t, err)
	r := &harness{files: files, inbox: in, progress: make(chan struct{}, 1)}
	r.Gateways, err = New(Config{
		Inbox: in, Files: files, Name: "gateways.json", Around: "neighbours.binpb", Versions: "versions.json", TableID: ("tbl_" + t.Name())[:min(64, len(t.Name())+4)], Expected: expected,
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	r.OnProgress(func() { signalOn(r.progress) })

	// The path of a socket must be short, and the path of t.TempDir is long.
	dir := t.TempDir()
	t.Chdir(dir)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", "gateway.sock")
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle(r.Handler(rpc.Config{}, r.caller))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 2)
	go func() { done <- rpc.Serve(ctx, rpc.NewServer(rpc.ServerConfig{Handler: mux}), listener, 5*time.Second) }()
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, <-done)
	})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "gateway.sock"))
	}}
	t.Cleanup(transport.CloseIdleConnections)
	r.client = gatewayv1connect.NewRouteServiceClient(&http.Client{Transport: transport}, "http://agent")
	return r
}

// receiveSnapshot receives a snapshot with one deployment and a route to it. The deployment has one
// ready instance.
func (h *harness) receiveSnapshot(t *testing.T) *agentv1.Routes {
	t.Helper()
	route := &agentv1.Routes{AppId: "app_1", Hosts: []string{"chat.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep_2", Weight: 100, WorkloadKey: "dep_1"}}}
	items := []*agentv1.Item{
		{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: "dep_2", Generation: 1, Content: &agentv1.Item_Deployment{Deployment: &agentv1.DeploymentState{
			Action: agentv1.DeploymentState_ACTION_APPLY, WorkloadKey: "dep_1",
			Deployment: &agentv1.Deployment{
				Id: "dep_2", AppName: "chat", Version: 2, Spec: &windlassv1.DeploymentSpec{HealthCheck: &windlassv1.HealthCheck{Path: "/ready"}},
			},
		}}},
		{Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Key: "app_1", Generation: 4, Content: &agentv1.Item_Routes{Routes: route}},
	}
	_, err := h.inbox.Snapshot(&agentv1.SnapshotBegin{Revision: 1, Count: int64(len(items))}, items)
	require.NoError(t, err)
	h.observe(windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
	return route
}

func (h *harness) observe(status windlassv1.InstanceStatus) {
	h.See(runtime.Observation{Deployments: running(status)})
}

func running(status windlassv1.InstanceStatus) []runtime.ObservedDeployment {
	return []runtime.ObservedDeployment{{DeploymentID: "dep_2", Instances: []runtime.Instance{{ID: "ins_1", Address: "127.0.0.1:4000", Status: status}}}}
}

// watcher is a stream whose heartbeats are skipped.
type watcher struct {
	*connect.ServerStreamForClient[gatewayv1.WatchResponse]
	t *testing.T
}

func (h *harness) watch(t *testing.T, req *gatewayv1.WatchRequest) watcher {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	stream, err := h.client.Watch(ctx, req)
	require.NoError(t, err)
	require.True(t, stream.Receive(), stream.Err())
	require.Equal(t, Interval, stream.Msg().GetHeartbeat().GetInterval().AsDuration(), "the first frame comes at once")
	return watcher{stream, t}
}

func (w watcher) next() *gatewayv1.WatchResponse {
	w.t.Helper()
	for w.Receive() {
		if w.Msg().GetHeartbeat() == nil {
			return w.Msg()
		}
	}
	require.NoError(w.t, w.Err())
	require.Fail(w.t, "the stream has ended")
	return nil
}

// table returns the apps that are sent between Begin and End.
func (w watcher) table() (id string, apps []*gatewayv1.AppRoutes) {
	w.t.Helper()
	begin := w.next().GetBegin()
	require.NotNil(w.t, begin)
	for {
		frame := w.next()
		if frame.GetEnd() != nil {
			return begin.TableId, apps
		}
		apps = append(apps, frame.GetApps().GetApps()...)
	}
}

func (h *harness) report(t *testing.T, id, table string, a *gatewayv1.AppRoutes, instances ...*gatewayv1.InstanceHealth) {
	t.Helper()
	_, err := h.client.Report(t.Context(), &gatewayv1.ReportRequest{GatewayId: id, TableId: table, Instances: instances, Served: []*gatewayv1.Served{
		{AppId: a.AppId, Epoch: a.Epoch, Generation: a.Generation, InstancesChange: a.Change},
	}})
	require.NoError(t, err)
}

const first = "gateway-0001"

func TestWatch_SendsRoutesAndInstancesAndTakesReports(t *testing.T) {
	r := startHarness(t, disk.NewMemory(), 0)
	w := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first, Have: []*gatewayv1.AppVersion{{AppId: "app_gone", Change: 7}}})
	route := r.receiveSnapshot(t)
	table, apps := w.table()
	require.Len(t, apps, 2)
	chat := apps[0]
	require.Equal(t, []any{"app_1", "chat", int64(4), "chat.test"}, []any{chat.AppId, chat.AppName, chat.Generation, chat.Hosts[0]})
	require.Equal(t, "dep_1", chat.Targets[0].WorkloadKey)
	require.Equal(t, int32(2), chat.Targets[0].Version)
	require.Equal(t, "127.0.0.1:4000", chat.Targets[0].Instances[0].Address)
	require.Equal(t, gatewayv1.Instance_STATE_READY, chat.Targets[0].Instances[0].State)
	require.Equal(t, "/ready", chat.Targets[0].HealthCheck.GetPath())
	require.False(t, chat.Targets[0].Instances[0].OtherVersion)
	require.Equal(t, "app_gone", apps[1].AppId, "an app that the region does not route is removed")
	require.Empty(t, apps[1].Hosts)

	require.Equal(t, "waits for gateway "+first+" to serve it", r.Routed("app_1", 0, 4))
	r.report(t, first, table, chat)
	<-r.progress
	require.Empty(t, r.Routed("app_1", 0, 4))
	require.False(t, r.Released("ins_1"), "the gateway has not reported the other app yet")
	r.report(t, first, table, apps[1])
	require.False(t, r.Released("ins_1"), "the instance gets requests")

	r.observe(windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING)
	drained := w.next().GetApps().GetApps()[0]
	require.Equal(t, gatewayv1.Instance_STATE_DRAINING, drained.Targets[0].Instances[0].State)
	require.Greater(t, drained.Change, chat.Change)
	require.False(t, r.Released("ins_1"))
	r.report(t, first, table, drained, &gatewayv1.InstanceHealth{InstanceId: "ins_1", InFlight: 1})
	require.False(t, r.Released("ins_1"), "a request is in flight")
	r.report(t, first, table, drained)
	require.True(t, r.Released("ins_1"))

	r.Route(&agentv1.Routes{AppId: "app_1"}, 0, 5)
	gone := w.next().GetApps().GetApps()[0]
	require.Empty(t, gone.Hosts)
	require.NotEmpty(t, r.Routed("app_1", 0, 5))
	r.report(t, first, table, gone)
	require.Empty(t, r.Routed("app_1", 0, 5))
	r.Route(route, 0, 6)
	require.Equal(t, int64(6), w.next().GetApps().GetApps()[0].Generation)
}

func TestWatch_DoesNotResendStatesThatAGatewayHas(t *testing.T) {
	r := startHarness(t, disk.NewMemory(), 0)
	r.receiveSnapshot(t)
	w := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first})
	table, apps := w.table()
	have := []*gatewayv1.AppVersion{{AppId: "app_1", Generation: 4, Change: apps[0].Change}}
	again := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first, TableId: table, Have: have})
	for w.Receive() {
	}
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(w.Err()), "a gateway has one stream")
	_, apps = again.table()
	require.Empty(t, apps)
	other := r.watch(t, &gatewayv1.WatchRequest{GatewayId: "gateway-0002", TableId: "tbl_other", Have: have})
	_, apps = other.table()
	require.Len(t, apps, 1, "changes from different tables cannot be compared")
	require.Empty(t, r.Annotate(&agentv1.Capacity{}).Notes)
}

func TestReport_WithoutAStreamIsRefused(t *testing.T) {
	r := startHarness(t, disk.NewMemory(), 0)
	_, err := r.client.Report(t.Context(), &gatewayv1.ReportRequest{GatewayId: first, TableId: "tbl_" + t.Name()})
	require.Equal(t, connect.CodeFailedPrecondition, connect.CodeOf(err))
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, rpc.ReasonOf(err))
	_, err = r.client.Report(t.Context(), &gatewayv1.ReportRequest{GatewayId: "x", TableId: "t"})
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, rpc.ReasonOf(err))
}

func TestExpected_RoutesWaitForGatewaysWithANote(t *testing.T) {
	r := startHarness(t, disk.NewMemory(), 2)
	r.receiveSnapshot(t)
	require.Equal(t, "0 of 2 expected gateways serve it", r.Routed("app_1", 0, 4))
	for n := range 2 {
		id := fmt.Sprintf("gateway-%04d", n)
		w := r.watch(t, &gatewayv1.WatchRequest{GatewayId: id})
		table, apps := w.table()
		r.report(t, id, table, apps[0])
	}
	require.Empty(t, r.Routed("app_1", 0, 4))
	c := &agentv1.Capacity{Notes: []string{"cgroup limits: not permitted"}}
	require.Equal(t, c, r.Annotate(c))

	short := startHarness(t, disk.NewMemory(), 1)
	noted := short.Annotate(c)
	require.Equal(t, []string{"cgroup limits: not permitted", "0 of 1 expected gateways are connected: new routes wait"}, noted.Notes)
	require.Same(t, noted, short.Annotate(c), "the same result while nothing changes")
}

func TestGateway_CountsAcrossAgentRestartsUnlessItLeft(t *testing.T) {
	files := disk.NewMemory()
	require.NoError(t, files.Replace("gateways.json", []byte(`["`+first+`"]`)))
	r := startHarness(t, files, 0)
	r.receiveSnapshot(t)
	require.Contains(t, r.Routed("app_1", 0, 4), first+", which is away")
	require.False(t, r.Released("ins_none"), "it is not known what the gateway serves")
	require.Contains(t, r.Annotate(&agentv1.Capacity{}).Notes[0], "gateway "+first+" is away")

	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.client.Watch(ctx, &gatewayv1.WatchRequest{GatewayId: first})
	require.NoError(t, err)
	table, _ := watcher{stream, t}.table()
	_, err = r.client.Report(t.Context(), &gatewayv1.ReportRequest{GatewayId: first, TableId: table, Leaving: true})
	require.NoError(t, err)
	<-r.progress
	require.False(t, r.Released("ins_1"), "the gateway has not reported that its requests have ended")
	cancel()
	<-r.progress
	require.Empty(t, r.Routed("app_1", 0, 4))
	require.Eventually(t, func() bool {
		data, err := files.Read("gateways.json")
		return err == nil && string(data) == "[]"
	}, time.Minute, 10*time.Millisecond)
}

func TestPreview_LeadsToOneDeploymentWithOrWithoutARoute(t *testing.T) {
	const apply, remove = agentv1.DeploymentState_ACTION_APPLY, agentv1.DeploymentState_ACTION_DELETE
	ready := windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	tab := newTable(func(id string) *agentv1.DeploymentState {
		return &agentv1.DeploymentState{WorkloadKey: "dep_1", Deployment: &agentv1.Deployment{AppName: "chat", Version: int32(id[4] - '0')}}
	})
	state := func(id string, action agentv1.DeploymentState_Action) *agentv1.DeploymentState {
		return &agentv1.DeploymentState{Action: action, WorkloadKey: "dep_1", Deployment: &agentv1.Deployment{Id: id, AppId: "app_1", PreviewHost: id + ".test"}}
	}
	require.Equal(t, []string{"app_1"}, tab.setDeployment("dep_2", state("dep_2", apply)))
	require.Empty(t, tab.setDeployment("dep_2", state("dep_2", apply)), "nothing changed")
	require.Equal(t, []string{"app_1"}, tab.setObserved([]runtime.ObservedDeployment{{DeploymentID: "dep_2", TemplateHash: "new", Instances: []runtime.Instance{
		{ID: "ins_old", Address: "127.0.0.1:1", Status: ready, TemplateHash: "old"}, {ID: "ins_new", Address: "127.0.0.1:2", Status: ready, TemplateHash: "new"},
	}}}))
	told := tab.apps["app_1"].state
	require.Empty(t, told.Hosts)
	require.Equal(t, []any{"chat", "dep_2.test", "dep_2"}, []any{told.AppName, told.Previews[0].Host, told.Previews[0].DeploymentId})
	require.Len(t, told.Targets[0].Instances, 1, "the instance that will be replaced has another version")
	require.Equal(t, "ins_new", told.Targets[0].Instances[0].InstanceId)
	require.Zero(t, told.Targets[0].Weight)

	tab.setRoute(&agentv1.Routes{AppId: "app_1", Hosts: []string{"chat.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep_1", Weight: 100}}}, 1, 1)
	told = tab.apps["app_1"].state
	require.Equal(t, []int32{100, 0}, []int32{told.Targets[0].Weight, told.Targets[1].Weight})
	require.Len(t, told.Previews, 1)
	require.Equal(t, []string{"app_1"}, tab.setRoute(&agentv1.Routes{AppId: "app_1"}, 1, 2), "the preview stays")
	require.False(t, tab.apps["app_1"].isGone())
	require.Equal(t, []string{"app_1"}, tab.setDeployment("dep_2", state("dep_2", remove)))
	require.True(t, tab.apps["app_1"].isGone())
	require.Empty(t, tab.users)
}

// A gateway receives all neighbours first, and then their changes. So does a gateway that connects
// later.
func TestWatch_SendsOtherRegions(t *testing.T) {
	r := startHarness(t, disk.NewMemory(), 0)
	around := func(whole bool, app string, regions ...string) {
		n := &gatewayv1.Neighbours{Region: "here", Whole: whole, Apps: []*gatewayv1.AppNeighbours{{AppId: app}}}
		for _, name := range regions {
			n.Apps[0].Regions = append(n.Apps[0].Regions, &gatewayv1.Neighbour{Region: name, GatewayUrl: "http://" + name})
		}
		r.Around(n)
	}
	var has *neighbours.Picture
	told := func(w watcher) map[string]*gatewayv1.AppNeighbours {
		t.Helper()
		n := w.next().GetNeighbours()
		require.NotNil(t, n)
		has = has.With(n)
		require.Equal(t, "here", has.Region)
		return has.Apps
	}
	w := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first})
	around(true, "app_1", "there")
	r.receiveSnapshot(t)
	if f := w.next(); f.GetNeighbours() != nil { // may come before or after the table
		has = has.With(f.GetNeighbours())
		w.table()
	} else {
		for f.GetEnd() == nil {
			f = w.next()
		}
		told(w)
	}
	require.Equal(t, "http://there", has.Apps["app_1"].Regions[0].GatewayUrl)
	around(false, "app_2", "there", "elsewhere")
	require.Len(t, told(w), 2)
	around(false, "app_1")
	require.Len(t, told(w), 1)

	has = nil
	late := r.watch(t, &gatewayv1.WatchRequest{GatewayId: "gateway-0002"})
	late.table()
	require.Len(t, told(late)["app_2"].Regions, 2)
	around(true, "app_3", "there")
	require.Len(t, told(late), 1)
}

// An agent that has not connected to the control plane yet sends the neighbours that the previous
// process stored. If the file is damaged, the agent starts without neighbours.
func TestNeighbours_AreSentAfterARestart(t *testing.T) {
	files := disk.NewMemory()
	r := startHarness(t, files, 0)
	want := &gatewayv1.Neighbours{Region: "here", Whole: true, Apps: []*gatewayv1.AppNeighbours{
		{AppId: "app_1", AppName: "chat", Hosts: []string{"chat.test"}, Regions: []*gatewayv1.Neighbour{{Region: "there", GatewayUrl: "http://there"}}},
	}}
	r.Around(want)
	kept := func() *gatewayv1.Neighbours {
		data, _ := files.Read("neighbours.binpb") // the only possible error is that the file does not exist
		n := &gatewayv1.Neighbours{}
		require.NoError(t, proto.Unmarshal(data, n))
		return n
	}
	require.Eventually(t, func() bool { return proto.Equal(want, kept()) }, 30*time.Second, time.Millisecond)

	r = startHarness(t, files, 0)
	r.receiveSnapshot(t)
	w := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first})
	w.table()
	got := w.next().GetNeighbours()
	require.True(t, proto.Equal(want, got), "%v", got)
	nothing := &gatewayv1.Neighbours{Whole: true}
	r.Around(nothing)
	got = w.next().GetNeighbours()
	require.True(t, proto.Equal(nothing, got), "%v", got)
	require.Eventually(t, func() bool { return proto.Equal(nothing, kept()) }, 30*time.Second, time.Millisecond)

	require.NoError(t, files.Replace("neighbours.binpb", []byte("x")))
	startHarness(t, files, 0).receiveSnapshot(t)
}

// An agent process that was suspended runs again. It then answers every call that a gateway made
// meanwhile.
func TestWatch(t *testing.T) {
	t.Run("a late retry of the same process is not a conflict", func(t *testing.T) {
		r := startHarness(t, disk.NewMemory(), 0)
		r.receiveSnapshot(t)
		var late []watcher
		for range 3 {
			w := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first, ProcessId: "run_1"})
			w.table()
			late = append(late, w)
		}
		for _, w := range late[:2] {
			for w.Receive() {
			}
			require.Equal(t, connect.CodeUnavailable, connect.CodeOf(w.Err()), w.Err())
		}
		require.Equal(t, 1, r.connectedCount())
	})
	t.Run("a call replaces no stream if its caller has given up", func(t *testing.T) {
		r := startHarness(t, disk.NewMemory(), 0)
		r.receiveSnapshot(t)
		w := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first, ProcessId: "run_2"})
		table, _ := w.table()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, r.Watch(gone, &gatewayv1.WatchRequest{GatewayId: first, ProcessId: "run_1"}, nil), context.Canceled)
		_, err := r.client.Report(t.Context(), &gatewayv1.ReportRequest{GatewayId: first, ProcessId: "run_2", TableId: table})
		require.NoError(t, err)
	})
}

// Once another process has the id of a gateway that crashed, nothing waits for the crashed process,
// and its late reports are refused.
func TestGateway_TakesThePlaceOfAnEndedProcess(t *testing.T) {
	r := startHarness(t, disk.NewMemory(), 0)
	r.receiveSnapshot(t)
	w := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first, ProcessId: "run_1"})
	table, apps := w.table()
	tell := func(process string, leaving bool) error {
		_, err := r.client.Report(t.Context(), &gatewayv1.ReportRequest{
			GatewayId: first, ProcessId: process, TableId: table, Leaving: leaving,
			Served:    []*gatewayv1.Served{{AppId: "app_1", Generation: apps[0].Generation, InstancesChange: apps[0].Change}},
			Instances: []*gatewayv1.InstanceHealth{{InstanceId: "ins_1", InFlight: 1}},
		})
		return err
	}
	require.NoError(t, tell("run_1", true))
	require.Empty(t, r.Routed("app_1", 0, 4))

	again := r.watch(t, &gatewayv1.WatchRequest{GatewayId: first, ProcessId: "run_2"})
	_, apps = again.table()
	for w.Receive() {
	}
	require.Equal(t, connect.CodeAborted, connect.CodeOf(w.Err()))
	require.NotEmpty(t, r.Routed("app_1", 0, 4), "the new process has not reported the app yet")
	require.Equal(t, connect.CodeFailedPrecondition, connect.CodeOf(tell("run_1", true)))
	require.NotEmpty(t, r.Routed("app_1", 0, 4))
	require.NoError(t, tell("run_2", false))
	require.Empty(t, r.Routed("app_1", 0, 4))
	require.Equal(t, 1, r.connectedCount())
	require.Empty(t, r.Annotate(&agentv1.Capacity{}).Notes)
}
