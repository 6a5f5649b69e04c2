package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetQuota gives a workspace limits of its own.
func (a *API) SetQuota(ctx context.Context, req *windlassv1.SetQuotaRequest) (*windlassv1.SetQuotaResponse, error) {
	res, _, err := mutate(ctx, a, req, func(c *change) (*windlassv1.SetQuotaResponse, error) {
		w, err := a.visibleWorkspace(c, c.by, req.GetWorkspace())
		if err != nil {
			return nil, err
		}
		have, err := c.LockAdmission(w.ID)
		if err != nil {
			return nil, fmt.Errorf("lock workspace %s: %w", w.ID, err)
		}
		if have.ResourceVersion != req.GetResourceVersion() {
			return nil, conflict("quota of workspace", w.ID, have.ResourceVersion)
		}
		own := limitsOf(req.GetOwn())
		if !c.by.IsOperator() {
			if err := stricter(admission.InForce(a.cfg.Limits, have.Own), admission.InForce(a.cfg.Limits, own)); err != nil {
				return nil, err
			}
		}
		before := limitsProto(have.Own)
		have.Own, have.UpdatedAt = own, c.at
		have.ResourceVersion++
		if err := c.PutLimits(have); err != nil {
			return nil, fmt.Errorf("store limits of workspace %s: %w", w.ID, err)
		}
		quota, err := a.quotaView(c, w, have)
		if err != nil {
			return nil, err
		}
		return &windlassv1.SetQuotaResponse{Quota: quota}, c.audit("quota", w.ID, before, limitsProto(own))
	})
	return res, err
}

// stricter fails when one of the limits becomes wider than it was.
func stricter(was, is model.Limits) error {
	rate, newRate := admission.RateOf(was), admission.RateOf(is)
	for _, l := range []struct {
		name    string
		was, is int64
	}{
		{"apps", was.Apps, is.Apps},
		{"deployments", was.Deployments, is.Deployments},
		{"instances", was.Instances, is.Instances},
		{"gpus", was.GPUs, is.GPUs},
		{"rollouts", was.Rollouts, is.Rollouts},
		{"starts_per_minute", was.StartsPerMinute, is.StartsPerMinute},
		{"starts_burst", rate.Burst, newRate.Burst},
	} {
		if l.was != 0 && (l.is == 0 || l.is > l.was) {
			return denied(fmt.Sprintf("limit %s is %d: to raise it takes an operator", l.name, l.was),
				"Ask an operator of the platform; an owner may lower it.")
		}
	}
	return nil
}
