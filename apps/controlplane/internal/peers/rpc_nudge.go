package peers

import (
	"context"

	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
)

// Nudge hears what another process committed.
func (s *Service) Nudge(_ context.Context, req *peerv1.NudgeRequest) (*peerv1.NudgeResponse, error) {
	s.metrics.received.Inc()
	s.mu.RLock()
	known := s.senders[req.From] != nil
	s.mu.RUnlock()
	if !known {
		s.again()
	}
	if len(req.Regions) > 0 || req.AllRegions || len(req.Apps) > 0 {
		s.cfg.Nudged(Nudge{Regions: req.Regions, AllRegions: req.AllRegions, Apps: req.Apps})
	}
	return &peerv1.NudgeResponse{}, nil
}
