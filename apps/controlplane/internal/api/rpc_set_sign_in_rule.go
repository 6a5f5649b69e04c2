package api

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetSignInRule makes the rule with the name, or replaces it.
func (a memberService) SetSignInRule(ctx context.Context, req *windlassv1.SetSignInRuleRequest) (*windlassv1.SetSignInRuleResponse, error) {
	var workspaceID string
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (_ *windlassv1.SetSignInRuleResponse, err error) {
		if workspaceID, err = a.scopeOfMembers(c, c.by, req.GetWorkspace()); err != nil {
			return nil, err
		}
		r, err := a.ruleOf(c.by, workspaceID, req.GetRule())
		if err != nil {
			return nil, err
		}
		have, err := c.ListSignInRules(workspaceID)
		if err != nil {
			return nil, fmt.Errorf("list sign-in rules of workspace %s: %w", workspaceID, err)
		}
		was := slices.IndexFunc(have, func(h model.SignInRule) bool { return h.Name == r.Name })
		warnings := a.warningsOf(r)
		var before proto.Message
		switch {
		case was < 0 && len(have) >= model.MaxSignInRules:
			return nil, apierr.OverLimit("rule", fmt.Sprintf("there are %d sign-in rules, which is the maximum", len(have)), "Remove a rule that is not needed.")
		case was >= 0 && sameRule(have[was], r):
			return &windlassv1.SetSignInRuleResponse{Rule: ruleProto(have[was]), Unchanged: true, Warnings: warnings}, nil
		case was >= 0:
			before = ruleProto(have[was])
		}
		r.SetBy, r.SetAt = c.by.Name, c.at
		if err := c.PutSignInRule(r); err != nil {
			return nil, fmt.Errorf("store sign-in rule %s: %w", r.Name, err)
		}
		return &windlassv1.SetSignInRuleResponse{Rule: ruleProto(r), Warnings: warnings},
			c.auditFor(workspaceID, "sign_in_rule", ruleID(r), before, ruleProto(r))
	})
	if err == nil {
		a.keys.forgetMembers(workspaceID)
	}
	return res, err
}

// warningsOf returns warnings of a rule that has no effect.
func (a *server) warningsOf(r model.SignInRule) []string {
	if r.Issuer == "" && a.signInIssuer() == "" {
		return []string{"the rule has no effect yet, because the control plane has no issuer: an operator sets --oidc-issuer"}
	}
	return nil
}
