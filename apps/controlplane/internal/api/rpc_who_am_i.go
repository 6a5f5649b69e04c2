package api

import (
	"context"
	"fmt"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// WhoAmI returns the caller's key and the name of its workspace.
func (a accessService) WhoAmI(ctx context.Context, _ *windlassv1.WhoAmIRequest) (*windlassv1.WhoAmIResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.WhoAmIResponse{Key: keyProto(by.APIKey), ServerVersion: a.cfg.Version}
	if by.WorkspaceID == "" && !by.IsMember() {
		return res, nil
	}
	err = a.cfg.Store.View(ctx, func(tx Tx) (err error) {
		if by.IsMember() {
			if res.Member, err = a.memberView(tx, by.WorkspaceID, by.ID); err != nil {
				return err
			}
		}
		if by.WorkspaceID == "" {
			return nil
		}
		w, err := tx.GetWorkspace(by.WorkspaceID)
		if err != nil {
			return fmt.Errorf("read workspace %s: %w", by.WorkspaceID, err)
		}
		res.WorkspaceName = w.Name
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
