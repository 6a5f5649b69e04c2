package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListApiKeys returns keys by name, without their values.
func (a accessService) ListApiKeys(ctx context.Context, req *windlassv1.ListApiKeysRequest) (*windlassv1.ListApiKeysResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	var rows []model.APIKey
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		rows, err = tx.ListAPIKeys(by.WorkspaceID, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list API keys: %w", err)
	}
	res := &windlassv1.ListApiKeysResponse{}
	rows, res.Page = cutPage(rows, page, func(k model.APIKey) string { return k.Name })
	for _, k := range rows {
		res.Keys = append(res.Keys, keyProto(k))
	}
	return res, nil
}
