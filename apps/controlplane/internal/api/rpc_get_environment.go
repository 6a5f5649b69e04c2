package api

import (
	"context"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetEnvironment returns one environment.
func (a environmentService) GetEnvironment(ctx context.Context, req *windlassv1.GetEnvironmentRequest) (*windlassv1.GetEnvironmentResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.GetEnvironmentResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		e, err := a.findEnvironment(tx, by.WorkspaceID, req.GetEnvironment(), "environment")
		if err != nil {
			return err
		}
		res.Environment, err = a.environmentView(tx, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
