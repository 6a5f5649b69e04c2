package api

import (
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/protection"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// protectionsOf returns the protections that apply to the version's rollout. A straight rollback to a version that
// was stable needs no bake time, and needs approvals only if it keeps gates.
func (c versionMutation) protectionsOf(app model.App, v version) ([]model.Protection, error) {
	of, err := c.protectionsOn(app)
	if err != nil || !v.Straight {
		return of, err
	}
	of = slices.Clone(of)
	for i := range of {
		of[i].BakeTime = 0
		if !v.KeepGates {
			of[i].Approvals = 0
		}
	}
	return of, nil
}

// protectionsOn returns the protections whose scope includes the app.
func (c versionMutation) protectionsOn(app model.App) ([]model.Protection, error) {
	all, err := c.ListProtections(app.WorkspaceID)
	if err != nil {
		return nil, fmt.Errorf("list protections of workspace %s: %w", app.WorkspaceID, err)
	}
	return protection.For(all, app), nil
}

// mayServeAgain fails for a version that was never live if a protection requires approval of the app's rollouts,
// because a pin would serve the version without approval.
func (c versionMutation) mayServeAgain(app model.App, d model.Deployment) error {
	if d.ReadyAt != 0 {
		return nil
	}
	of, err := c.protectionsOn(app)
	if err != nil || !protection.Approves(of) {
		return err
	}
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_APPROVAL_NEEDED, Field: "version",
		Fix: "Pin a version that was live, or roll to this one first: `windlass rollback --version`.",
	}, fmt.Sprintf("v%d was never live, and a protection requires approval of every version that serves", d.Version))
}

// mayLeave fails for a caller that may not approve rollouts of the app. After a domain is removed, another app could
// take it, and that app may have no protection.
func (c versionMutation) mayLeave(app model.App) error {
	of, err := c.protectionsOn(app)
	if err != nil {
		return err
	}
	for _, p := range of {
		if asked := protection.ApprovalOf(p); asked != nil && c.by.Role < asked.GetRole() {
			return notApprover("domain", asked.GetRole(), fmt.Sprintf(
				"the protection of the %s requires %s of every version that serves the domain, and after the removal another app could take the domain", protection.Scope(p, app), protection.Text(asked)))
		}
	}
	return nil
}

// maySkip fails for a caller who may not end a bake that a protection requires.
func (c versionMutation) maySkip(progress *model.Progress) error {
	if !progress.BakeProtected || owner.allowsRole(c.by.Role) {
		return nil
	}
	return notApprover("", windlassv1.Role_ROLE_OWNER, "a protection requires the bake time of this rollout")
}

func notApprover(field string, role windlassv1.Role, message string) error {
	return rpc.ErrorWith(connect.CodePermissionDenied, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NOT_AN_APPROVER, Field: field,
		Fix: "Use a key of role " + model.RoleName(role) + ". `windlass protection list` shows the protections.",
	}, message)
}

// approveStart gives an approval at the start gate of the rollout in flight. It returns nil if no start gate waits. It
// fails if the rollout is not the rollout want, unless want is empty.
func (c versionMutation) approveStart(ref, want string, by model.Approval) (*windlassv1.ApproveResponse, error) {
	app, err := c.lockedApp(ref)
	if err != nil {
		return nil, err
	}
	if err := requireNotDeleted(app); err != nil {
		return nil, err
	}
	f, err := c.activeRolloutOf(app)
	if err != nil || f.rollout == nil || f.deployment == nil || !plan.AwaitsStart(*f.rollout, *f.deployment) {
		return nil, err
	}
	if err := sameRollout(app, f.rollout.ID, want); err != nil {
		return nil, err
	}
	r := *f.rollout
	changed, left, err := plan.ApproveStart(&r, by)
	if err != nil {
		return nil, refusedByGate(err)
	}
	out := &windlassv1.ApproveResponse{RolloutId: r.ID, Unchanged: !changed}
	if left != "" {
		out.Missing = []string{"the start needs " + left}
	}
	if !changed {
		return out, nil
	}
	if err := c.UpdateRollout(r); err != nil {
		return nil, fmt.Errorf("store approval of rollout %s: %w", r.ID, err)
	}
	text := fmt.Sprintf("as %s, at the start", model.RoleName(c.by.Role))
	if left != "" {
		text += "; " + left + " is missing"
	}
	if by.Comment != "" {
		text += ": " + by.Comment
	}
	c.log(app, model.History{What: "Approved", Why: text, RolloutID: r.ID, DeploymentID: r.DeploymentID, Version: r.Version})
	if err := c.wake(app.ID); err != nil {
		return nil, err
	}
	return out, c.auditChange("rollout", r.ID, rolloutProto(*f.rollout), rolloutProto(r))
}

// startApprovalProto returns the start gate of the rollout, nil for none.
func startApprovalProto(r model.Rollout) *windlassv1.ApprovalProgress {
	g, ok := r.Gate()
	if !ok {
		return nil
	}
	return &windlassv1.ApprovalProgress{Asked: g.Asked(), Given: approvalsProto(g.Approvals), Missing: plan.StartMissing(r)}
}
