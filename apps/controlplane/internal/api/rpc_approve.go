package api

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Approve gives the caller's approval at the gates at which the rollout waits.
func (a rolloutService) Approve(ctx context.Context, req *windlassv1.ApproveRequest) (res *windlassv1.ApproveResponse, err error) {
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.ApproveResponse, error) {
		out := &windlassv1.ApproveResponse{}
		by := model.Approval{ByID: c.by.ID, By: c.by.Name, Family: c.by.Family(), Role: c.by.Role, At: c.at, Comment: req.GetComment()}
		if out, err := c.versions().approveStart(req.GetApp(), req.GetRolloutId(), by); out != nil || err != nil {
			return out, err
		}
		did, err := c.rollouts().applyCommand(command{req.GetApp(), req.GetRolloutId(), req.GetComment()}, "Approved", func(progress *model.Progress) (text string, err error) {
			names, err := c.rollouts().regionNames(progress)
			if err != nil {
				return "", err
			}
			var where []string
			where, out.Missing, err = plan.Approve(progress, by, func(id string) string { return names[id].ShownName() })
			text = fmt.Sprintf("as %s, at %s", model.RoleName(c.by.Role), strings.Join(where, ", "))
			if len(out.Missing) > 0 {
				text += "; " + strings.Join(out.Missing, "; ")
			}
			return text, err
		})
		out.RolloutId, out.Unchanged = did.rolloutID, did.unchanged
		return out, err
	})
	return res, err
}

// regionNames returns the regions of the progress's waves, by id.
func (c rolloutMutation) regionNames(progress *model.Progress) (map[string]model.Region, error) {
	ids := map[string]bool{}
	for _, w := range progress.Waves {
		for _, r := range w.Regions {
			ids[r.RegionID] = true
		}
	}
	return c.api.regionsByID(c.mutation, ids)
}

// refusedByGate returns the API's error for a gate's refusal, and other errors unchanged.
func refusedByGate(err error) error {
	if refusal, ok := errors.AsType[*plan.GateRefusal](err); ok {
		return gateError(refusal)
	}
	return err
}

// gateError returns the API's error for a gate's refusal.
func gateError(r *plan.GateRefusal) error {
	code, reason := connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_APPROVAL_NEEDED
	if r.NotApprover {
		code, reason = connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_NOT_AN_APPROVER
	}
	return rpc.ErrorWith(code, &windlassv1.ErrorDetail{Reason: reason, Fix: r.Fix}, r.Message)
}

// approvalProto returns the state of a gate, nil for none.
func approvalProto(c *model.Progress, gate *windlassv1.Approval, given []model.Approval) *windlassv1.ApprovalProgress {
	if gate == nil {
		return nil
	}
	out := &windlassv1.ApprovalProgress{
		Asked:   &windlassv1.Approval{Role: gate.GetRole(), Count: gate.GetCount(), NotDeployer: gate.GetNotDeployer()},
		Missing: plan.Missing(c, gate, given),
	}
	out.Given = approvalsProto(given)
	return out
}

func approvalsProto(given []model.Approval) (out []*windlassv1.ApprovalGiven) {
	for _, a := range given {
		out = append(out, &windlassv1.ApprovalGiven{By: a.By, Role: a.Role, At: a.At, Comment: a.Comment})
	}
	return out
}
