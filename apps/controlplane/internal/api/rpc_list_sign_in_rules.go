package api

import (
	"context"
	"fmt"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListSignInRules returns rules by name, and the issuers that the control plane accepts.
func (a memberService) ListSignInRules(ctx context.Context, req *windlassv1.ListSignInRulesRequest) (*windlassv1.ListSignInRulesResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListSignInRulesResponse{Issuer: a.signInIssuer()}
	if a.cfg.SSO != nil {
		res.FederationIssuers = a.cfg.SSO.FederationIssuers()
	}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		workspaceID, err := a.scopeOfMembers(tx, by, req.GetWorkspace())
		if err != nil {
			return err
		}
		rules, err := tx.ListSignInRules(workspaceID)
		if err != nil {
			return fmt.Errorf("list sign-in rules of workspace %s: %w", workspaceID, err)
		}
		res.Rules = nil
		for _, r := range rules {
			res.Rules = append(res.Rules, ruleProto(r))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
