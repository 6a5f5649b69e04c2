package peers

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Scaling returns the newest scaling decision for an app in a region, from the process that has the region's
// stream. It returns nil if the region has not reported the app's load lately. It fails with
// model.ErrAgentUnreachable if no process has the stream, or if that process does not answer.
func (s *Service) Scaling(ctx context.Context, region, app string) (*windlassv1.RegionScaling, error) {
	if s.cfg.Agents.Connected(region) {
		return s.cfg.Scaling(region, app), nil
	}
	_, peer, err := s.holder(ctx, region)
	switch {
	case err != nil:
		return nil, fmt.Errorf("find the stream of region %s: %w", region, err)
	case peer.ID == "":
		return nil, fmt.Errorf("read the load in region %s: %w", region, model.ErrAgentUnreachable)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.CallTimeout)
	defer cancel()
	res, err := s.client(peer).GetScaling(ctx, &peerv1.GetScalingRequest{RegionId: region, AppId: app})
	if err != nil {
		return nil, fmt.Errorf("read the load in region %s through %s at %s: %w: %w", region, peer.ID, peer.Address, model.ErrAgentUnreachable, err)
	}
	return res.Scaling, nil
}
