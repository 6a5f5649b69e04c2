package api

import (
	"context"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetRegion returns one region that the caller may use.
func (a regionService) GetRegion(ctx context.Context, req *windlassv1.GetRegionRequest) (*windlassv1.GetRegionResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.GetRegionResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		r, err := a.findRegion(tx, by, req.GetRegion())
		if err != nil {
			return err
		}
		res.Region, err = a.regionView(tx, by, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
