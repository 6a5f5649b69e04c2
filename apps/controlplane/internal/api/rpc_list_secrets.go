package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListSecrets returns secrets by name, without their values.
func (a environmentService) ListSecrets(ctx context.Context, req *windlassv1.ListSecretsRequest) (*windlassv1.ListSecretsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListSecretsResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		e, err := a.findEnvironment(tx, by.WorkspaceID, req.GetEnvironment(), "environment")
		if err != nil {
			return err
		}
		rows, err := tx.ListSecrets(by.WorkspaceID, e.ID, page)
		if err != nil {
			return fmt.Errorf("list secrets of environment %s: %w", e.ID, err)
		}
		rows, res.Page = cutPage(rows, page, func(s model.Secret) string { return s.Name })
		for _, s := range rows {
			res.Secrets = append(res.Secrets, secretProto(s))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
