package peers

import (
	"context"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/rpc"
	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetScaling returns how an app scales in a region whose stream is here.
func (h handler) GetScaling(_ context.Context, req *peerv1.GetScalingRequest) (*peerv1.GetScalingResponse, error) {
	if !h.cfg.Agents.Connected(req.RegionId) {
		return nil, rpc.Error(connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "region_id",
			"the region's stream is not here")
	}
	return &peerv1.GetScalingResponse{Scaling: h.cfg.Scaler.Current(req.RegionId, req.AppId)}, nil
}
