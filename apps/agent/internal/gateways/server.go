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
	// maxGateways bounds the gateways of a region: a client that makes ids in a loop must not use
	// up the agent's memory.
	maxGateways = 1000
	// maxFrame bounds the bytes of a frame with several apps.
	maxFrame = 1 << 20
	// maxReport bounds the bytes of a report: enough for 100,000 apps.
	maxReport = 32 << 20
	// maxElements bounds the elements of that report: a few for the traffic of each app.
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

// Limits of what gateways send. A report of the largest region fits twice, and several
// of the usual size.
func Limits(registerer prometheus.Registerer) func(procedure string) rpc.Limits {
	limits := rpc.Limits{MessageBytes: maxReport, Elements: maxElements, Budget: rpc.NewBudget("gateways", 4*maxReport, registerer)}
	return func(string) rpc.Limits { return limits }
}

// Watch implements RouteService. It sends a frame at least every two intervals, which is half of
// the time that a gateway waits for one.
func (g *Gateways) Watch(ctx context.Context, req *gatewayv1.WatchRequest, stream *connect.ServerStream[gatewayv1.WatchResponse]) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // the caller gave up before: it must not end another stream
	}
	caller := callerOf(ctx)
	err := caller.identify(&req.GatewayId)
	if err != nil {
		return err
	}
	one, err := g.open(req, caller.Verified)
	if err != nil {
		return err
	}
	log := g.cfg.Log.With("gateway", req.GatewayId, "version", req.Version)
	log.InfoContext(ctx, "a gateway connected", "holds", len(req.Have))
	defer func() {
		g.mu.Lock()
		left := g.hub.close(one, time.Now())
		if left {
			g.left(one.id)
		}
		g.reassess()
		g.mu.Unlock()
		signal(g.wake)
		g.progress()
		log.InfoContext(ctx, "a gateway's stream ended", "left", left)
	}()
	send := func(frames ...*gatewayv1.WatchResponse) error {
		for _, frame := range frames {
			// A gateway that reads nothing must not count as connected.
			rpc.SetWriteDeadline(ctx, time.Now().Add(silences*Interval))
			if err := stream.Send(frame); err != nil {
				return err
			}
		}
		return nil
	}
	if err := send(heartbeat()); err != nil {
		return err
	}
	beat := time.NewTicker(Interval)
	defer beat.Stop()
	known := g.known
	var around *neighbours.Picture // the one that was sent last
	for quiet := true; ; {
		var frames, more []*gatewayv1.WatchResponse
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-known:
			known, quiet = nil, false
			frames = g.whole(one)
			around, more = g.neighbours(around)
		case <-one.poke:
			frames, err = g.news(one)
			around, more = g.neighbours(around)
			quiet = quiet && len(frames)+len(more) == 0
		case <-beat.C:
			g.Learn()
			if err = g.stillThere(one); quiet {
				frames = []*gatewayv1.WatchResponse{heartbeat()}
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

func heartbeat() *gatewayv1.WatchResponse {
	return &gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Heartbeat{Heartbeat: &gatewayv1.Heartbeat{Interval: durationpb.New(Interval)}}}
}

func (g *Gateways) open(req *gatewayv1.WatchRequest, verified bool) (*gateway, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.hub.gateways[req.GatewayId]
	if old == nil && len(g.hub.gateways) >= maxGateways {
		return nil, rpc.Error(connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "gateway_id",
			fmt.Sprintf("%d gateways are here already; a gateway keeps its gateway_id for as long as its process lives", maxGateways))
	}
	defer signal(g.wake)
	if old != nil && old.process != "" && old.process != req.ProcessId {
		g.left(req.GatewayId)
		g.joined(req.GatewayId) // a new process counts its requests from 0
	}
	if req.TableId == "" {
		g.joined(req.GatewayId) // it has not reported to any agent yet
	}
	one := g.hub.open(req.GatewayId, req.ProcessId, req.Have, req.TableId == g.cfg.TableID, time.Now())
	one.holdsRequests = slices.Contains(req.Features, featureHold)
	if one.verified = verified; !verified {
		g.hub.judge()
	}
	g.reassess()
	return one, nil
}

// whole returns the frames, from Begin to End, of all that the gateway does not have.
func (g *Gateways) whole(one *gateway) []*gatewayv1.WatchResponse {
	g.mu.Lock()
	g.hub.begin(one, time.Now())
	apps := g.hub.take(one)
	g.mu.Unlock()
	out := []*gatewayv1.WatchResponse{{Frame: &gatewayv1.WatchResponse_Begin{Begin: &gatewayv1.Begin{TableId: g.cfg.TableID}}}}
	out = append(out, framed(apps)...)
	return append(out, &gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_End{End: &gatewayv1.End{}}})
}

func (g *Gateways) news(one *gateway) ([]*gatewayv1.WatchResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch now := g.hub.gateways[one.id]; {
	case now == one:
	case now != nil && now.process != one.process:
		return nil, rpc.Error(connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "gateway_id",
			"a stream of another process took the place of this one; each process needs a gateway_id of its own")
	default:
		return nil, rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, "gateway_id",
			"a later stream of this gateway took the place of this one: watch again")
	}
	return framed(g.hub.take(one)), nil
}

// framed packs apps into frames.
func framed(apps []*gatewayv1.AppRoutes) []*gatewayv1.WatchResponse {
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

func (g *Gateways) stillThere(one *gateway) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if one.silent(time.Now(), silences*Interval) {
		return rpc.Error(connect.CodeDeadlineExceeded, windlassv1.ErrorReason_ERROR_REASON_UNSPECIFIED, "gateway_id",
			fmt.Sprintf("this gateway did not report for %s: it is to report every %s", silences*Interval, Interval))
	}
	return nil
}

// Report implements RouteService.
func (g *Gateways) Report(ctx context.Context, req *gatewayv1.ReportRequest) (*gatewayv1.ReportResponse, error) {
	caller := callerOf(ctx)
	if err := caller.identify(&req.GatewayId); err != nil {
		return nil, err
	}
	ok := req.TableId == g.cfg.TableID
	if ok {
		g.mu.Lock()
		if ok = g.hub.heed(req, time.Now()); ok && caller.Verified {
			now := time.Now()
			g.seen.Tell(req.GatewayId, countsOf(req.Traffic), now)
			g.demand.Tell(req.GatewayId, g.scaled(req.Loads), now)
		}
		g.reassess()
		g.mu.Unlock()
	}
	if !ok {
		return nil, rpc.Error(connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, "table_id",
			"there is no stream of this gateway with this table: watch again")
	}
	g.progress()
	return &gatewayv1.ReportResponse{}, nil
}
