package mysql

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func protectionFromRow(r gen.Protection) (model.Protection, error) {
	return model.Protection{
		WorkspaceID: r.WorkspaceID, ScopeID: r.ScopeID, ByOperator: r.ByOperator,
		Approvals: r.Approvals, ApprovalRole: windlassv1.Role(r.ApprovalRole), NotDeployer: r.NotDeployer,
		BakeTime: r.BakeTime, AutoRollback: r.AutoRollback, Reason: r.Reason, SetBy: r.SetBy, SetAt: r.SetAt,
	}, nil
}

func (t *tx) PutProtection(p model.Protection) error {
	return t.queryError(t.q.PutProtection(t.ctx, gen.PutProtectionParams{
		WorkspaceID: p.WorkspaceID, ScopeID: p.ScopeID, ByOperator: p.ByOperator,
		Approvals: p.Approvals, ApprovalRole: int32(p.ApprovalRole), NotDeployer: p.NotDeployer,
		BakeTime: p.BakeTime, AutoRollback: p.AutoRollback, Reason: p.Reason, SetBy: clipText(p.SetBy, maxName), SetAt: p.SetAt,
	}), "put protection of", p.WorkspaceID+p.ScopeID)
}

// ListProtections reads the protections once for all members of a batch.
func (t *tx) ListProtections(workspaceID string) ([]model.Protection, error) {
	read := func() ([]model.Protection, error) {
		return list(t, "list protections of", workspaceID, protectionFromRow)(t.q.ListProtections(t.ctx, gen.ListProtectionsParams{
			WorkspaceID: workspaceID, Limit: model.MaxProtections,
		}))
	}
	if t.shared != nil {
		return onceList(t, "ListProtections "+workspaceID, read)
	}
	return read()
}

func (t *tx) DeleteProtection(workspaceID, scopeID string, byOperator bool) error {
	n, err := t.q.DeleteProtection(t.ctx, gen.DeleteProtectionParams{WorkspaceID: workspaceID, ScopeID: scopeID, ByOperator: byOperator})
	return t.requireFound(n, err, "delete protection of", workspaceID+scopeID)
}

func (t *tx) DeleteProtectionsOf(workspaceID, scopeID string) error {
	return t.queryError(t.q.DeleteProtectionsOf(t.ctx, gen.DeleteProtectionsOfParams{WorkspaceID: workspaceID, ScopeID: scopeID}),
		"delete protections of", scopeID)
}
