package api

import (
	"context"
	"fmt"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RestoreMember lets a removed member sign in again.
func (a memberService) RestoreMember(ctx context.Context, req *windlassv1.RestoreMemberRequest) (*windlassv1.RestoreMemberResponse, error) {
	var hash []byte
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RestoreMemberResponse, error) {
		workspaceID, err := a.scopeOfMembers(c, c.by, req.GetWorkspace())
		if err != nil {
			return nil, err
		}
		m, err := c.tenants().lockMemberByRef(workspaceID, req.GetMember())
		if err != nil {
			return nil, err
		}
		hash = m.Hash
		rules, err := c.ListSignInRules(workspaceID)
		if err != nil {
			return nil, fmt.Errorf("list sign-in rules of workspace %s: %w", workspaceID, err)
		}
		before := a.memberProto(m, rules)
		if m.RemovedAt == 0 {
			return &windlassv1.RestoreMemberResponse{Member: before}, nil
		}
		m.RemovedAt, m.RemovedBy = 0, ""
		if err := c.UpdateMember(m); err != nil {
			return nil, fmt.Errorf("restore member %s: %w", m.ID, err)
		}
		after := a.memberProto(m, rules)
		return &windlassv1.RestoreMemberResponse{Member: after}, c.auditFor(workspaceID, "member", m.ID, before, after)
	})
	if err == nil {
		a.keys.forgetKey(hash)
	}
	return res, err
}
