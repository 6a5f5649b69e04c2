package peers

import (
	"context"

	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
)

// ListScaling returns the decisions of this process.
func (h handler) ListScaling(_ context.Context, req *peerv1.ListScalingRequest) (*peerv1.ListScalingResponse, error) {
	return &peerv1.ListScalingResponse{Regions: h.cfg.Scaler.Live(req.AppId)}, nil
}
