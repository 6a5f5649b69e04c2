package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListMembers returns members by id, with their current roles.
func (a memberService) ListMembers(ctx context.Context, req *windlassv1.ListMembersRequest) (*windlassv1.ListMembersResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	var rows []model.Member
	var rules []model.SignInRule
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		workspaceID, err := a.scopeOfMembers(tx, by, req.GetWorkspace())
		if err != nil {
			return err
		}
		if rows, err = tx.ListMembers(workspaceID, page); err != nil {
			return fmt.Errorf("list members of workspace %s: %w", workspaceID, err)
		}
		rules, err = tx.ListSignInRules(workspaceID)
		return err
	})
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListMembersResponse{}
	rows, res.Page = cutPage(rows, page, func(m model.Member) string { return m.ID })
	for _, m := range rows {
		res.Members = append(res.Members, a.memberProto(m, rules))
	}
	return res, nil
}
