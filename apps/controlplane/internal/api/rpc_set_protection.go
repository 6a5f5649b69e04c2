package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/protection"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetProtection makes or replaces the protection of a scope.
func (a protectionService) SetProtection(ctx context.Context, req *windlassv1.SetProtectionRequest) (*windlassv1.SetProtectionResponse, error) {
	if err := checkRules(req.GetRules()); err != nil {
		return nil, err
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.SetProtectionResponse, error) {
		of, have, err := c.protectionAt(req)
		if err != nil {
			return nil, err
		}
		was := slices.IndexFunc(have, func(p model.Protection) bool {
			return p.ScopeID == of.ScopeID && p.ByOperator == of.ByOperator
		})
		if was < 0 && len(have) >= model.MaxProtections {
			return nil, apierr.OverLimit("rules", fmt.Sprintf("the workspace has %d protections, which is the maximum", len(have)),
				"Remove a protection that is not needed, or protect the project or the workspace.")
		}
		approval := proto.CloneOf(req.GetRules().GetApproval())
		appspec.ApprovalWithDefaults(approval)
		of.Approvals, of.ApprovalRole, of.NotDeployer = approval.GetCount(), approval.GetRole(), approval.GetNotDeployer()
		of.BakeTime, of.AutoRollback = req.GetRules().GetBakeTime().AsDuration().Milliseconds(), req.GetRules().GetAutoRollback()
		of.Reason, of.SetBy, of.SetAt = req.GetReason(), c.by.Name, c.at
		after, err := protectionView(c, of)
		if err != nil {
			return nil, err
		}
		var before proto.Message
		if was >= 0 {
			if same := have[was]; sameProtection(same, of) {
				view, err := protectionView(c, same)
				return &windlassv1.SetProtectionResponse{Protection: view, Unchanged: true}, err
			}
			if before, err = protectionView(c, have[was]); err != nil {
				return nil, err
			}
		}
		warnings, err := c.approversMissing(of)
		if err != nil {
			return nil, err
		}
		if err := c.PutProtection(of); err != nil {
			return nil, fmt.Errorf("store protection of workspace %s: %w", of.WorkspaceID, err)
		}
		return &windlassv1.SetProtectionResponse{Protection: after, Warnings: warnings},
			c.auditFor(of.WorkspaceID, "protection", protectionID(of), before, after)
	})
	return res, err
}

// checkRules validates the rules of a protection.
func checkRules(rules *windlassv1.ProtectionRules) error {
	if rules.GetApproval() == nil && rules.GetBakeTime().AsDuration() == 0 && !rules.GetAutoRollback() {
		return apierr.InvalidFix("rules", "the protection has no rules", "Set an approval, a bake time or automatic rollback. RemoveProtection removes a protection.")
	}
	return appspec.CheckApproval(rules.GetApproval(), false, "rules.approval")
}

// inScope is a request that names the scope of a protection.
type inScope interface {
	GetWorkspace() string
	GetProject() string
	GetEnvironment() string
}

// protectionAt returns an empty protection of the request's scope, and all protections of its workspace.
func (c *mutation) protectionAt(req inScope) (of model.Protection, have []model.Protection, err error) {
	w, err := c.api.visibleWorkspace(c, c.by, req.GetWorkspace())
	if err != nil {
		return of, nil, err
	}
	of = model.Protection{WorkspaceID: w.ID, ByOperator: c.by.IsOperator()}
	switch {
	case req.GetProject() != "" && req.GetEnvironment() != "":
		return of, nil, apierr.InvalidFix("environment", "the protection names a project and an environment", "Use one of the two, or neither for the workspace.")
	case of.ByOperator && req.GetProject() != "":
		return of, nil, apierr.InvalidFix("project", "an operator protects a whole workspace", "Leave project out, or ask an owner to set it.")
	case of.ByOperator && req.GetEnvironment() != "":
		return of, nil, apierr.InvalidFix("environment", "an operator protects a whole workspace", "Leave environment out, or ask an owner to set it.")
	case req.GetProject() != "":
		p, err := c.api.findProject(c, w.ID, req.GetProject(), "project")
		if err != nil {
			return of, nil, err
		}
		of.ScopeID = p.ID
	case req.GetEnvironment() != "":
		e, err := c.api.findEnvironment(c, w.ID, req.GetEnvironment(), "environment")
		if err != nil {
			return of, nil, err
		}
		// Deleting the environment also deletes its protection, and waits for this lock.
		if e, err = c.LockEnvironment(w.ID, e.ID); err != nil {
			return of, nil, fmt.Errorf("lock environment %s: %w", e.ID, err)
		}
		of.ScopeID = e.ID
	}
	if have, err = c.ListProtections(w.ID); err != nil {
		return of, nil, fmt.Errorf("list protections of workspace %s: %w", w.ID, err)
	}
	return of, have, nil
}

func sameProtection(a, b model.Protection) bool {
	a.SetBy, a.SetAt = b.SetBy, b.SetAt
	return a == b
}

// protectionID returns the id of the protection in the audit.
func protectionID(p model.Protection) string { return cmp.Or(p.ScopeID, p.WorkspaceID) }

// keysPage is the number of keys per read.
const keysPage = 500

// approversMissing returns a warning if the workspace's keys and members cannot give the approval.
func (c *mutation) approversMissing(p model.Protection) ([]string, error) {
	asked := protection.ApprovalOf(p)
	if asked == nil {
		return nil, nil
	}
	families, page := map[string]bool{}, model.Page{Limit: keysPage}
	for {
		rows, err := c.ListAPIKeys(p.WorkspaceID, page)
		if err != nil {
			return nil, fmt.Errorf("list API keys: %w", err)
		}
		for _, k := range rows {
			if k.RevokedAt == 0 && (k.ExpiresAt == 0 || k.ExpiresAt > c.at) && k.Role >= asked.GetRole() {
				families[k.Family()] = true
			}
		}
		if len(rows) < page.Limit {
			break
		}
		page.After = rows[len(rows)-1].Name
	}
	if len(families) >= int(asked.GetCount()) {
		return nil, nil
	}
	rules, err := c.ListSignInRules(p.WorkspaceID)
	if err != nil {
		return nil, fmt.Errorf("list sign-in rules of workspace %s: %w", p.WorkspaceID, err)
	}
	for _, r := range rules {
		if r.Issuer == "" && r.FamilyID == "" && r.Role >= asked.GetRole() {
			return nil, nil // an operator's rule with this role may make any number of members approvers
		}
	}
	return []string{fmt.Sprintf("the protection requires %d approvers, but the workspace's keys of role %s or higher belong to only %d: no rollout starts until an operator makes more keys: windlass key create NAME --role %s --workspace WORKSPACE",
		asked.GetCount(), model.RoleName(asked.GetRole()), len(families), model.RoleName(asked.GetRole()))}, nil
}

// protectionViews returns protections of a workspace in the form of the API, without protections of deleted scopes.
func protectionViews(tx Tx, workspaceID string, of ...model.Protection) (out []*windlassv1.Protection, err error) {
	f, ids := noNames(), map[string]bool{}
	for _, p := range of {
		if p.ScopeID != "" {
			ids[p.ScopeID] = true
		}
	}
	if len(ids) > 0 {
		if err := readScopes(tx, f, workspaceID, ids); err != nil {
			return nil, err
		}
	}
	for _, p := range of {
		v := &windlassv1.Protection{
			ByOperator: p.ByOperator, Reason: p.Reason, SetBy: p.SetBy, SetAt: p.SetAt,
			Rules: &windlassv1.ProtectionRules{Approval: protection.ApprovalOf(p), AutoRollback: p.AutoRollback},
		}
		if p.BakeTime > 0 {
			v.Rules.BakeTime = durationpb.New(time.Duration(p.BakeTime) * time.Millisecond)
		}
		if e, ok := f.environments[p.ScopeID]; ok {
			v.Environment = f.projects[e.ProjectID].Name + "/" + e.Name
		} else if v.Project = f.projects[p.ScopeID].Name; v.Project == "" && p.ScopeID != "" {
			continue
		}
		out = append(out, v)
	}
	return out, nil
}

// protectionView returns one protection in the form of the API.
func protectionView(tx Tx, p model.Protection) (*windlassv1.Protection, error) {
	views, err := protectionViews(tx, p.WorkspaceID, p)
	if err != nil {
		return nil, err
	}
	if len(views) == 0 {
		return nil, fmt.Errorf("read scope %s of a protection: %w", p.ScopeID, model.ErrNotFound)
	}
	return views[0], nil
}
