package routesync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
	"github.com/windlass-run/windlass/pkg/backoff"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// Changed makes Report report the health of instances, because it has changed.
func (s *Source) Changed() { s.signalChange(s.report) }

// Leave makes Report report that the gateway takes no more requests.
func (s *Source) Leave() {
	s.mu.Lock()
	s.leaving = true
	s.mu.Unlock()
	s.signalChange(s.report)
}

// Part waits until the agent got the report that Leave causes, or until ctx ends. If no agent is connected, it returns
// at once. An agent that does not get the report waits for the gateway as for a gateway that lost its connection.
func (s *Source) Part(ctx context.Context) {
	s.mu.Lock()
	alone := s.stream == ""
	s.mu.Unlock()
	if alone {
		return
	}
	select {
	case <-s.parted:
	case <-ctx.Done():
	}
}

// Report sends reports to the agent until ctx ends: which routes are served, the health of instances, traffic and load.
func (s *Source) Report(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		req := s.nextReport(time.Now())
		if req == nil { // there is no stream
			select {
			case <-ctx.Done():
			case <-s.report:
			}
			continue
		}
		err := s.sendReport(ctx, req)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			failures = 0
			s.awaitReport(ctx)
		case connect.CodeOf(err) == connect.CodeFailedPrecondition:
			// The agent does not know the stream that the gateway follows.
			s.mu.Lock()
			s.stream = ""
			if s.cut != nil {
				s.cut(fmt.Errorf("report: %w", err))
			}
			s.mu.Unlock()
		default:
			s.cfg.Log.WarnContext(ctx, "report failed; will send it again", "attempt", failures, "error", err)
			_ = backoff.Sleep(ctx, again.Delay(failures, s.cfg.Rand)) // the loop sees that ctx ended
			failures++
		}
	}
	return ctx.Err()
}

// loadEvery is the time between two checks of the load of apps.
const loadEvery = time.Second

// awaitReport returns when a report is due, or when ctx ends.
func (s *Source) awaitReport(ctx context.Context) {
	due, look := time.NewTimer(s.currentInterval()), time.NewTicker(loadEvery)
	defer due.Stop()
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.report:
			return
		case <-due.C:
			return
		case <-look.C:
			s.mu.Lock()
			told := s.loads
			s.mu.Unlock()
			if changed, _ := s.changedLoads(told); len(changed) > 0 {
				return
			}
		}
	}
}

// changedLoads returns the loads that differ from told, and the loads of all apps with scaling.
func (s *Source) changedLoads(told map[string]*gatewayv1.AppLoad) (changed []*gatewayv1.AppLoad, all map[string]*gatewayv1.AppLoad) {
	apps := map[string][]string{}
	for _, r := range s.cfg.Table.Routes() {
		if spec := r.Now(); spec != nil && spec.CountsLoad {
			apps[spec.AppID] = nil
			for _, t := range spec.Targets {
				apps[spec.AppID] = append(apps[spec.AppID], t.DeploymentID)
			}
		}
	}
	return s.cfg.Traffic.Loads(apps, told)
}

// pending is a report, and the state that it adds to the reported state.
type pending struct {
	*gatewayv1.ReportRequest

	stream string
	number int
	all    bool
	served map[string]*gatewayv1.Served
	// requests has the count of each deployment as of this report. Nil: the report has no traffic.
	requests map[string]uint64
	// loads has the load of each app as of this report. Nil: the report has no loads.
	loads map[string]*gatewayv1.AppLoad
}

// nextReport returns the report that is due, or nil if there is no stream. Traffic of all deployments is due once in
// an interval. Acknowledgements of routes and the health of instances are small and due at once, because the agent
// waits for them.
func (s *Source) nextReport(now time.Time) *pending {
	s.mu.Lock()
	p := &pending{stream: s.stream, number: s.number, all: s.all, served: maps.Clone(s.served)}
	leaving, id := s.leaving, s.id
	requests, counts := s.requests, now.Sub(s.counted) >= s.interval || s.all || s.leaving
	if counts {
		s.counted = now
	}
	loads, looks := s.loads, now.Sub(s.looked) >= loadEvery || s.all || s.leaving
	if looks {
		s.looked = now
	}
	s.mu.Unlock()
	if p.stream == "" {
		return nil
	}
	tell := maps.Clone(p.served)
	if p.all {
		requests, loads = nil, nil
		for _, spec := range s.cfg.Table.Specs() {
			if tell[spec.AppID] == nil && !spec.Elsewhere {
				tell[spec.AppID] = &gatewayv1.Served{AppId: spec.AppID, Epoch: spec.Epoch, Generation: spec.Generation, InstancesChange: spec.Change}
			}
		}
	}
	p.ReportRequest = &gatewayv1.ReportRequest{
		GatewayId: id, ProcessId: s.cfg.ProcessID, TableId: p.stream, Leaving: leaving,
		Served: make([]*gatewayv1.Served, 0, len(tell)),
	}
	for _, app := range slices.Sorted(maps.Keys(tell)) {
		p.Served = append(p.Served, tell[app])
	}
	if counts {
		p.Traffic, p.requests = s.cfg.Traffic.Changed(requests)
	}
	if looks {
		p.Loads, p.loads = s.changedLoads(loads)
	}
	for _, h := range mergeHealth(s.cfg.Table.Health()) {
		p.Instances = append(p.Instances, &gatewayv1.InstanceHealth{
			InstanceId: h.InstanceID, Ejected: h.Ejected, Unproven: h.Unproven, Reason: h.Reason, InFlight: int32(min(h.InFlight, math.MaxInt32)),
		})
	}
	return p
}

// mergeHealth merges the health of instances that are in several routes.
func mergeHealth(all []upstream.Health) []upstream.Health {
	sums := map[string]upstream.Health{}
	for _, h := range all {
		sum := sums[h.InstanceID]
		sum.InstanceID = h.InstanceID
		sum.Ejected, sum.Unproven = sum.Ejected || h.Ejected, sum.Unproven || h.Unproven
		sum.Reason = cmp.Or(sum.Reason, h.Reason)
		sum.InFlight += h.InFlight
		sums[h.InstanceID] = sum
	}
	out := make([]upstream.Health, 0, len(sums))
	for _, id := range slices.Sorted(maps.Keys(sums)) {
		out = append(out, sums[id])
	}
	return out
}

// sendReport sends the report. After success, its content is not sent again.
func (s *Source) sendReport(ctx context.Context, p *pending) error {
	ctx, cancel := context.WithTimeoutCause(ctx, max(s.currentInterval(), reportTimeout), errors.New("the agent did not answer the report"))
	defer cancel()
	if _, err := s.cfg.Client.Report(ctx, p.ReportRequest); err != nil {
		return err
	}
	s.noteReported(p)
	return nil
}

func (s *Source) noteReported(p *pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.number != p.number {
		return // another stream has begun, and its first report contains everything
	}
	if p.Leaving {
		select {
		case <-s.parted: // an earlier report has closed it
		default:
			close(s.parted)
		}
	}
	s.all = s.all && !p.all
	if p.requests != nil {
		s.requests = p.requests
	}
	if p.loads != nil {
		s.loads = p.loads
	}
	for app, was := range p.served {
		if s.served[app] == was {
			delete(s.served, app)
		}
	}
}
