package peers

import (
	"context"

	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
)

// Nudge receives the changes that another process committed.
func (h handler) Nudge(_ context.Context, req *peerv1.NudgeRequest) (*peerv1.NudgeResponse, error) {
	h.metrics.received.Inc()
	h.mu.RLock()
	known := h.senders[req.From] != nil
	h.mu.RUnlock()
	if !known {
		h.requestRound()
	}
	if len(req.Regions) > 0 || req.AllRegions || len(req.Apps) > 0 {
		h.nudged(Nudge{Regions: req.Regions, AllRegions: req.AllRegions, Apps: req.Apps})
	}
	return &peerv1.NudgeResponse{}, nil
}
