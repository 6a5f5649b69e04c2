package gateways

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/neighbours"
	"github.com/windlass-run/windlass/pkg/rpc"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1/gatewayv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// maxGateways is the maximum number of gateways of a region. A client that makes up ids in a
	// loop must not use up the agent's memory.
	maxGateways = 1000
	// maxFrame is the maximum size of a frame with several apps, in bytes.
	maxFrame = 1 << 20
	// maxReport is the maximum size of a report, in bytes: enough for 100,000 apps.
	maxReport = 32 << 20
	// maxElements is the maximum number of elements of a report. The traffic of an app has a few
	// elements.
	maxElements = 500_000
)

// Handler serves RouteService. callerOf identifies the caller of a request.
func (g *Gateways) Handler(cfg rpc.Config, callerOf func(*http.Request) Caller) (path string, handler http.Handler) {
	cfg.ReadMaxBytes = maxReport
	path, routes := gatewayv1connect.NewRouteServiceHandler(g, rpc.HandlerOptions(cfg)...)
	routes = rpc.WithWriteDeadline(routes)
	return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		routes.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, callerOf(r))))
	})
}

// Limits returns the limits of the messages from gateways. The budget has room for four reports of
// the maximum size at the same time.
func Limits(registerer prometheus.Registerer) func(procedure string) rpc.Limits {
	limits := rpc.Limits{MessageBytes: maxReport, Elements: maxElements, Budget: rpc.NewBudget("gateways", 4*maxReport, registerer)}
	return func(string) rpc.Limits { return limits }
}

// Watch implements RouteService. It sends a frame at least every two intervals, because a gateway
// ends a stream after three intervals without a frame.
func (g *Gateways) Watch(ctx context.Context, req *gatewayv1.WatchRequest, stream *connect.ServerStream[gatewayv1.WatchResponse]) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // the caller has given up already, so this call must not replace another stream
	}
	caller := callerOf(ctx)
	err := caller.addName(&req.GatewayId)
	if err != nil {
		return err
	}
	one, err := g.openStream(req, caller.Verified)
	if err != nil {
		return err
	}
	log := g.cfg.Log.With("gateway", req.GatewayId, "version", req.Version)
	log.InfoContext(ctx, "a gateway connected", "holds", len(req.Have))
	defer func() {
		g.mu.Lock()
		left := g.hub.closeStream(one, time.Now())
		if left {
			g.forgetCounts(one.id)
		}
		g.renewAsleep()
		g.mu.Unlock()
		signalOn(g.wake)
		g.progress()
		log.InfoContext(ctx, "a gateway's stream ended", "left", left)
	}()
	send := func(frames ...*gatewayv1.WatchResponse) error {
		for _, frame := range frames {
			// The deadline ends the stream of a gateway that reads nothing, so that it does not count as connected.
			rpc.SetWriteDeadline(ctx, time.Now().Add(silences*Interval))
			if err := stream.Send(frame); err != nil {
				return err
			}
		}
		return nil
	}
	if err := send(newHeartbeat()); err != nil {
		return err
	}
	beat := time.NewTicker(Interval)
	defer beat.Stop()
	known := g.complete
	var around *neighbours.Picture // the neighbours that were sent last
	for quiet := true; ; {
		var frames, more []*gatewayv1.WatchResponse
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-known:
			known, quiet = nil, false
			frames = g.wholeTable(one)
			around, more = g.neighbourFrames(around)
		case <-one.poke:
			frames, err = g.changedApps(one)
			around, more = g.neighbourFrames(around)
			quiet = quiet && len(frames)+len(more) == 0
		case <-beat.C:
			g.Learn()
			if err = g.checkReporting(one); quiet {
				frames = []*gatewayv1.WatchResponse{newHeartbeat()}
			}
			quiet = true
		}
		if err != nil {
			return err
		}
		if err := send(slices.Concat(frames, more)...); err != nil {
			return err
		}
	}
}

func newHeartbeat() *gatewayv1.WatchResponse {
	return &gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Heartbeat{Heartbeat: &gatewayv1.Heartbeat{Interval: durationpb.New(Interval)}}}
}

func (g *Gateways) openStream(req *gatewayv1.WatchRequest, verified bool) (*gateway, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.hub.gateways[req.GatewayId]
	if old == nil && len(g.hub.gateways) >= maxGateways {
		return nil, rpc.Error(connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "gateway_id",
			fmt.Sprintf("the region has %d gateways already, which is the limit; a gateway must keep its gateway_id while its process runs", maxGateways))
	}
	defer signalOn(g.wake)
	if old != nil && old.process != "" && old.process != req.ProcessId {
		g.forgetCounts(req.GatewayId)
		g.countFromNow(req.GatewayId) // a new process counts its requests from 0
	}
	if req.TableId == "" {
		g.countFromNow(req.GatewayId) // the gateway has not reported to any agent yet
	}
	one := g.hub.openStream(req.GatewayId, req.ProcessId, req.Have, req.TableId == g.cfg.TableID, time.Now())
	one.holdsRequests, one.pairs = slices.Contains(req.Features, featureHold), slices.Contains(req.Features, featurePairing)
	if one.verified = verified; !verified {
		g.hub.computeFindings()
	}
	g.renewAsleep()
	return one, nil
}

// wholeTable returns the frames, from Begin to End, of all apps whose state the gateway does not have.
func (g *Gateways) wholeTable(one *gateway) []*gatewayv1.WatchResponse {
	g.mu.Lock()
	g.hub.beginTable(one, time.Now())
	apps := g.hub.takeDirty(one)
	g.mu.Unlock()
	out := []*gatewayv1.WatchResponse{{Frame: &gatewayv1.WatchResponse_Begin{Begin: &gatewayv1.Begin{TableId: g.cfg.TableID}}}}
	out = append(out, packFrames(apps)...)
	return append(out, &gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_End{End: &gatewayv1.End{}}})
}

// changedApps returns the frames of the dirty apps. It fails if another stream has replaced this
// stream.
func (g *Gateways) changedApps(one *gateway) ([]*gatewayv1.WatchResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch now := g.hub.gateways[one.id]; {
	case now == one:
	case now != nil && now.process != one.process:
		return nil, rpc.Error(connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "gateway_id",
			"a stream of another process has replaced this one: give each process its own gateway_id")
	default:
		return nil, rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, "gateway_id",
			"a later stream of this gateway has replaced this one: watch again")
	}
	return packFrames(g.hub.takeDirty(one)), nil
}

// packFrames packs apps into frames of at most maxFrame bytes. A larger app gets a frame of its
// own.
func packFrames(apps []*gatewayv1.AppRoutes) []*gatewayv1.WatchResponse {
	var out []*gatewayv1.WatchResponse
	var frame []*gatewayv1.AppRoutes
	size := 0
	flush := func() {
		if len(frame) > 0 {
			out = append(out, &gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Apps{Apps: &gatewayv1.Apps{Apps: frame}}})
		}
		frame, size = nil, 0
	}
	for _, a := range apps {
		n := proto.Size(a)
		if size+n > maxFrame {
			flush()
		}
		frame, size = append(frame, a), size+n
	}
	flush()
	return out
}

// checkReporting returns an error if the gateway is silent.
func (g *Gateways) checkReporting(one *gateway) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if one.isSilent(time.Now(), silences*Interval) {
		return rpc.Error(connect.CodeDeadlineExceeded, windlassv1.ErrorReason_ERROR_REASON_UNSPECIFIED, "gateway_id",
			fmt.Sprintf("this gateway did not report for %s: it must report every %s", silences*Interval, Interval))
	}
	return nil
}

// Report implements RouteService.
func (g *Gateways) Report(ctx context.Context, req *gatewayv1.ReportRequest) (*gatewayv1.ReportResponse, error) {
	caller := callerOf(ctx)
	if err := caller.addName(&req.GatewayId); err != nil {
		return nil, err
	}
	ok := req.TableId == g.cfg.TableID
	var used map[string]uint64
	if ok {
		g.mu.Lock()
		if ok = g.hub.applyReport(req, time.Now()); ok && caller.Verified {
			now := time.Now()
			g.traffic.Tell(req.GatewayId, countsOf(req.Traffic), now)
			used = g.demand.Tell(req.GatewayId, g.scaledLoads(req.Loads), now)
		}
		g.renewAsleep()
		g.mu.Unlock()
	}
	if !ok {
		return nil, rpc.Error(connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, "table_id",
			"this gateway has no stream with this table: watch again")
	}
	for id, requests := range used {
		g.used(id, requests)
	}
	g.progress()
	return &gatewayv1.ReportResponse{}, nil
}
