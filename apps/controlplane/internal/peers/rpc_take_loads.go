package peers

import (
	"context"

	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
)

// TakeLoads receives loads that came to another process.
func (h handler) TakeLoads(_ context.Context, req *peerv1.TakeLoadsRequest) (*peerv1.TakeLoadsResponse, error) {
	res := &peerv1.TakeLoadsResponse{}
	for _, r := range req.Regions {
		if h.cfg.Agents.Connected(r.RegionId) {
			h.cfg.Scaler.Take(r.RegionId, r.Loads)
			res.Taken = append(res.Taken, r.RegionId)
		}
	}
	return res, nil
}
