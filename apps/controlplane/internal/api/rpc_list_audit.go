package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListAudit returns the entries of the workspace's audit, the newest first. For an operator, it returns the
// platform's audit.
func (a historyService) ListAudit(ctx context.Context, req *windlassv1.ListAuditRequest) (*windlassv1.ListAuditResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	var rows []model.Audit
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		rows, err = tx.ListAudit(by.WorkspaceID, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list audit: %w", err)
	}
	res := &windlassv1.ListAuditResponse{}
	rows, res.Page = cutPage(rows, page, func(r model.Audit) string { return r.ID })
	for _, r := range rows {
		res.Entries = append(res.Entries, &windlassv1.AuditEntry{
			Id: r.ID, At: r.At, Actor: r.Actor, ActorId: r.ActorID, Source: r.Source, Procedure: r.Procedure,
			ResourceKind: r.ResourceKind, ResourceId: r.ResourceID, Before: r.Before, After: r.After,
		})
	}
	return res, nil
}
