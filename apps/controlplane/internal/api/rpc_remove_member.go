package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RemoveMember ends all sessions of a member, and refuses its later sign-ins. API keys that the member created stay, and
// the answer names them.
func (a memberService) RemoveMember(ctx context.Context, req *windlassv1.RemoveMemberRequest) (*windlassv1.RemoveMemberResponse, error) {
	var hash []byte
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RemoveMemberResponse, error) {
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
		keys, err := c.tenants().keysMadeBy(workspaceID, m.ID)
		if err != nil {
			return nil, err
		}
		before := a.memberProto(m, rules)
		if m.RemovedAt != 0 {
			return &windlassv1.RemoveMemberResponse{Member: before, Keys: keys}, nil
		}
		m.RemovedAt, m.RemovedBy = c.at, c.by.Name
		if err := c.UpdateMember(m); err != nil {
			return nil, fmt.Errorf("remove member %s: %w", m.ID, err)
		}
		if err := c.DeleteBrowserSessionsOfKey(m.ID); err != nil {
			return nil, fmt.Errorf("end sessions of member %s: %w", m.ID, err)
		}
		after := a.memberProto(m, rules)
		return &windlassv1.RemoveMemberResponse{Member: after, Keys: keys}, c.auditFor(workspaceID, "member", m.ID, before, after)
	})
	if err == nil {
		a.keys.forgetKey(hash)
	}
	return res, err
}

// keysMadeBy returns the names of keys that the member made, directly or with another key, and that still work.
func (c tenantMutation) keysMadeBy(workspaceID, memberID string) (names []string, err error) {
	var all []model.APIKey
	for page := (model.Page{Limit: keysPage}); ; page.After = all[len(all)-1].Name {
		rows, err := c.ListAPIKeys(workspaceID, page)
		if err != nil {
			return nil, fmt.Errorf("list API keys: %w", err)
		}
		all = append(all, rows...)
		if len(rows) < page.Limit {
			break
		}
	}
	made := map[string]bool{memberID: true}
	for found := true; found; {
		found = false
		for _, k := range all {
			if made[k.MadeBy] && !made[k.ID] {
				made[k.ID], found = true, true
			}
		}
	}
	for _, k := range all {
		if made[k.ID] && k.RevokedAt == 0 && (k.ExpiresAt == 0 || k.ExpiresAt > c.at) {
			names = append(names, k.Name)
		}
	}
	return names, nil
}
