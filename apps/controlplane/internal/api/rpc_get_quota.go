package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetQuota returns a workspace's limits and usage.
func (a workspaceService) GetQuota(ctx context.Context, req *windlassv1.GetQuotaRequest) (*windlassv1.GetQuotaResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.GetQuotaResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		w, err := a.visibleWorkspace(tx, by, req.GetWorkspace())
		if err != nil {
			return err
		}
		have, err := tx.GetAdmission(w.ID)
		if err != nil {
			return fmt.Errorf("read limits of workspace %s: %w", w.ID, err)
		}
		if p := req.GetProposed(); p != nil && !by.IsOperator() {
			res.Warnings = loweredLimits(admission.InForce(a.cfg.Limits, have.Own), admission.InForce(a.cfg.Limits, limitsOf(p)))
		}
		res.Quota, err = a.quotaView(tx, w, have)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

func (a *server) quotaView(tx Tx, w model.Workspace, have model.Admission) (*windlassv1.Quota, error) {
	usage, err := a.usageOf(tx, w.ID, "", nil)
	if err != nil {
		return nil, err
	}
	limits := admission.InForce(a.cfg.Limits, have.Own)
	return &windlassv1.Quota{
		WorkspaceId: w.ID, WorkspaceName: w.Name, Limits: limitsProto(limits), Own: limitsProto(have.Own),
		Usage: &windlassv1.Usage{
			Apps: usage.Apps, Deployments: usage.Deployments, Instances: usage.Instances, Gpus: usage.GPUs, Rollouts: usage.Rollouts,
			StartsLeft: admission.RateOf(limits).Left(have.FullAt, have.Now),
		},
		ResourceVersion: have.ResourceVersion,
	}, nil
}

// limitsProto returns limits in the form of the API. Inherited limits are left out.
func limitsProto(l model.Limits) *windlassv1.Limits {
	own := func(v int64) *int64 {
		if v == model.Inherit {
			return nil
		}
		return &v
	}
	return &windlassv1.Limits{
		Apps: own(l.Apps), Deployments: own(l.Deployments), Instances: own(l.Instances), Gpus: own(l.GPUs), Rollouts: own(l.Rollouts),
		StartsPerMinute: own(l.StartsPerMinute), StartsBurst: own(l.StartsBurst),
	}
}

// limitsOf is the inverse of limitsProto.
func limitsOf(l *windlassv1.Limits) model.Limits {
	own := func(v *int64) int64 {
		if v == nil {
			return model.Inherit
		}
		return *v
	}
	return model.Limits{
		Apps: own(l.Apps), Deployments: own(l.Deployments), Instances: own(l.Instances), GPUs: own(l.Gpus), Rollouts: own(l.Rollouts),
		StartsPerMinute: own(l.StartsPerMinute), StartsBurst: own(l.StartsBurst),
	}
}
