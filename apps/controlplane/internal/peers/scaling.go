package peers

import (
	"context"
	"fmt"
	"sync"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Scaling returns the newest scaling decision for an app in a region, from the process that has the region's
// stream. It returns nil if the region has not reported the app's load lately. It fails with
// model.ErrAgentUnreachable if no process has the stream, or if that process does not answer.
func (s *Service) Scaling(ctx context.Context, region, app string) (*windlassv1.RegionScaling, error) {
	if s.cfg.Agents.Connected(region) {
		return s.cfg.Scaler.Current(region, app), nil
	}
	_, peer, err := s.holderOf(ctx, region)
	switch {
	case err != nil:
		return nil, fmt.Errorf("find the stream of region %s: %w", region, err)
	case peer.ID == "":
		return nil, fmt.Errorf("read the load in region %s: %w", region, model.ErrAgentUnreachable)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.CallTimeout)
	defer cancel()
	res, err := s.clientOf(peer).GetScaling(ctx, &peerv1.GetScalingRequest{RegionId: region, AppId: app})
	if err != nil {
		return nil, fmt.Errorf("read the load in region %s through %s at %s: %w: %w", region, peer.ID, peer.Address, model.ErrAgentUnreachable, err)
	}
	return res.Scaling, nil
}

// ScalingNow returns the newest scaling decisions for an app, by region id. They are decisions of this process and of
// its peers, without the peers that do not answer in time.
func (s *Service) ScalingNow(ctx context.Context, app string) map[string]*windlassv1.RegionScaling {
	out := s.cfg.Scaler.Live(app)
	ctx, cancel := context.WithTimeout(ctx, s.cfg.CallTimeout)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	s.mu.RLock()
	for _, to := range s.senders {
		asking.Go(func() {
			res, err := to.client.ListScaling(ctx, &peerv1.ListScalingRequest{AppId: app})
			if err != nil {
				s.cfg.Log.DebugContext(ctx, "cannot ask a peer how an app scales", "peer", to.peer.ID, "app_id", app, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for region, d := range res.Regions {
				// While a stream moves, two processes may have decided.
				if d.GetAt() > out[region].GetAt() {
					out[region] = d
				}
			}
		})
	}
	s.mu.RUnlock()
	asking.Wait()
	return out
}
