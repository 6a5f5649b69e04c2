package api

import (
	"context"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RemoveSignInRule deletes a rule. Members lose the role that only this rule gave them.
func (a memberService) RemoveSignInRule(ctx context.Context, req *windlassv1.RemoveSignInRuleRequest) (*windlassv1.RemoveSignInRuleResponse, error) {
	var workspaceID string
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (_ *windlassv1.RemoveSignInRuleResponse, err error) {
		if workspaceID, err = a.scopeOfMembers(c, c.by, req.GetWorkspace()); err != nil {
			return nil, err
		}
		have, err := c.ListSignInRules(workspaceID)
		if err != nil {
			return nil, fmt.Errorf("list sign-in rules of workspace %s: %w", workspaceID, err)
		}
		i := slices.IndexFunc(have, func(r model.SignInRule) bool { return r.Name == req.GetName() })
		if i < 0 {
			return nil, noRule(req.GetName())
		}
		if err := c.DeleteSignInRule(workspaceID, have[i].Name); err != nil {
			return nil, fmt.Errorf("remove sign-in rule %s: %w", have[i].Name, err)
		}
		return &windlassv1.RemoveSignInRuleResponse{}, c.auditFor(workspaceID, "sign_in_rule", ruleID(have[i]), ruleProto(have[i]), nil)
	})
	if err == nil {
		a.keys.forgetMembers(workspaceID)
	}
	return res, err
}
