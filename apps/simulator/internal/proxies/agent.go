package proxies

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/rpc"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1/gatewayv1connect"
)

// streamsHost is the host of the app that streams.
const streamsHost = "streams." + Host

// agent serves two routes, which never change, to a gateway.
type agent struct {
	socket string
	apps   []*gatewayv1.AppRoutes
	close  func() error
}

func newAgent(ctx context.Context, socket string, answering, streaming []string) (*agent, error) {
	a := &agent{socket: socket}
	for i, host := range []string{Host, streamsHost} {
		app := &gatewayv1.AppRoutes{
			AppId: fmt.Sprint("app_", i), AppName: host, Epoch: 1, Generation: 1, Change: int64(i + 1), Hosts: []string{host},
			Targets: []*gatewayv1.Target{{DeploymentId: fmt.Sprint("dep_", i), Version: 1, Weight: 100}},
			Policy:  &gatewayv1.RoutePolicy{Balancing: gatewayv1.Balancing_BALANCING_ROUND_ROBIN},
		}
		for n, at := range [][]string{answering, streaming}[i] {
			app.Targets[0].Instances = append(app.Targets[0].Instances, &gatewayv1.Instance{
				InstanceId: fmt.Sprintf("ins_%d_%d", i, n), Address: at, State: gatewayv1.Instance_STATE_READY,
			})
		}
		a.apps = append(a.apps, app)
	}
	var err error
	a.close, err = Routes(ctx, socket, a, a.apps)
	return a, err
}

// Reports receives what a gateway reports about instances.
type Reports interface {
	Reported(*gatewayv1.ReportRequest)
}

// Reported implements Reports, and ignores the reports.
func (a *agent) Reported(*gatewayv1.ReportRequest) {}

// Routes serves routes to gateways on a socket, as an agent does, until stop is called.
func Routes(ctx context.Context, socket string, reports Reports, apps []*gatewayv1.AppRoutes) (stop func() error, err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for the gateway: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(gatewayv1connect.NewRouteServiceHandler(&routes{apps: apps, reports: reports}))
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		ended <- rpc.Serve(serving, rpc.NewServer(rpc.ServerConfig{Handler: mux}), l, time.Second)
	}()
	return func() error { end(); return <-ended }, nil
}

// routes serves routes that never change to gateways.
type routes struct {
	gatewayv1connect.UnimplementedRouteServiceHandler

	apps    []*gatewayv1.AppRoutes
	reports Reports
}

// Watch implements gatewayv1connect.RouteServiceHandler.
func (a *routes) Watch(ctx context.Context, _ *gatewayv1.WatchRequest, stream *connect.ServerStream[gatewayv1.WatchResponse]) error {
	const interval = 5 * time.Second
	beat := &gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Heartbeat{Heartbeat: &gatewayv1.Heartbeat{Interval: durationpb.New(interval)}}}
	err := errors.Join(
		stream.Send(beat),
		stream.Send(&gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Begin{Begin: &gatewayv1.Begin{TableId: "table"}}}),
		stream.Send(&gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Apps{Apps: &gatewayv1.Apps{Apps: a.apps}}}),
		stream.Send(&gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_End{End: &gatewayv1.End{}}}),
	)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			err = stream.Send(beat)
		}
	}
	return err
}

// Wake implements gatewayv1connect.RouteServiceHandler. The app never starts.
func (a *routes) Wake(context.Context, *gatewayv1.WakeRequest) (*gatewayv1.WakeResponse, error) {
	return &gatewayv1.WakeResponse{}, nil
}

// Report implements gatewayv1connect.RouteServiceHandler.
func (a *routes) Report(_ context.Context, req *gatewayv1.ReportRequest) (*gatewayv1.ReportResponse, error) {
	a.reports.Reported(req)
	return &gatewayv1.ReportResponse{}, nil
}
