package api

import (
	"context"
	"fmt"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// chunkSpan is longer than the time from the first to the last sample of a chunk.
const chunkSpan = 2 * time.Hour

// ListLoad returns the stored load of an app in a region.
func (a scalingService) ListLoad(ctx context.Context, req *windlassv1.ListLoadRequest) (*windlassv1.ListLoadResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	var chunks []model.LoadChunk
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		app, err := a.findApp(tx, by.WorkspaceID, req.GetApp(), false)
		if err != nil {
			return err
		}
		region, err := a.findRegion(tx, by, req.GetRegion())
		if err != nil {
			return err
		}
		chunks, err = tx.ListScalingLoads(app.ID, region.ID, req.GetRole(), max(req.GetSince()-chunkSpan.Milliseconds(), 0))
		if err != nil {
			return fmt.Errorf("list load of app %s: %w", app.ID, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListLoadResponse{}
	newest := int64(-1)
	for _, c := range chunks {
		samples, err := model.DecodeLoads(c.Samples)
		if err != nil {
			return nil, fmt.Errorf("read load of app %s: %w", c.AppID, err)
		}
		for _, s := range samples {
			// Two processes may have stored the same minute, if the region's stream moved in it.
			if s.GetAt() >= req.GetSince() && s.GetAt() > newest {
				res.Samples = append(res.Samples, s)
				newest = s.GetAt()
			}
		}
	}
	return res, nil
}

// StoreLoads stores the load of apps for the scaler.
func (a *API) StoreLoads(ctx context.Context, chunks []model.LoadChunk) error {
	return a.cfg.Store.Update(ctx, func(tx Tx) error { return tx.PutScalingLoads(chunks) })
}
