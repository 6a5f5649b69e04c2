package api

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetQuota sets a workspace's own limits.
func (a workspaceService) SetQuota(ctx context.Context, req *windlassv1.SetQuotaRequest) (*windlassv1.SetQuotaResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.SetQuotaResponse, error) {
		w, err := a.visibleWorkspace(c, c.by, req.GetWorkspace())
		if err != nil {
			return nil, err
		}
		have, err := c.LockAdmission(w.ID)
		if err != nil {
			return nil, fmt.Errorf("lock workspace %s: %w", w.ID, err)
		}
		if have.ResourceVersion != req.GetResourceVersion() {
			return nil, apierr.Conflict("quota of workspace", w.ID, have.ResourceVersion)
		}
		own := limitsOf(req.GetOwn())
		if proto.Equal(limitsProto(have.Own), limitsProto(own)) {
			quota, err := a.quotaView(c, w, have)
			return &windlassv1.SetQuotaResponse{Quota: quota, Unchanged: true}, err
		}
		was, is := admission.InForce(a.cfg.Limits, have.Own), admission.InForce(a.cfg.Limits, own)
		var warnings []string
		if !c.by.IsOperator() {
			if err := requireNotRaised(was, is); err != nil {
				return nil, err
			}
			warnings = loweredLimits(was, is)
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
		return &windlassv1.SetQuotaResponse{Quota: quota, Warnings: warnings}, c.auditFor(w.ID, "quota", w.ID, before, limitsProto(own))
	})
	return res, err
}

// limitChange is a limit before and after a change, 0 for none.
type limitChange struct {
	name    string
	was, is int64
}

func limitChanges(was, is model.Limits) []limitChange {
	rate, newRate := admission.RateOf(was), admission.RateOf(is)
	return []limitChange{
		{"apps", was.Apps, is.Apps},
		{"deployments", was.Deployments, is.Deployments},
		{"instances", was.Instances, is.Instances},
		{"gpus", was.GPUs, is.GPUs},
		{"rollouts", was.Rollouts, is.Rollouts},
		{"starts_per_minute", was.StartsPerMinute, is.StartsPerMinute},
		{"starts_burst", rate.Burst, newRate.Burst},
	}
}

// loweredLimits returns a warning for each limit that an owner lowers, because only an operator can raise it again.
func loweredLimits(was, is model.Limits) (warnings []string) {
	for _, l := range limitChanges(was, is) {
		if l.is == l.was || l.is == 0 || l.was != 0 && l.is > l.was {
			continue
		}
		from := "unlimited"
		if l.was != 0 {
			from = fmt.Sprint(l.was)
		}
		warnings = append(warnings, fmt.Sprintf("limit %s goes from %s to %d: only an operator of the platform can raise it again", l.name, from, l.is))
	}
	return warnings
}

// requireNotRaised fails if one of the limits is raised.
func requireNotRaised(was, is model.Limits) error {
	for _, l := range limitChanges(was, is) {
		if l.was != 0 && (l.is == 0 || l.is > l.was) {
			return apierr.Denied(fmt.Sprintf("limit %s is %d: only an operator may raise it", l.name, l.was),
				"Ask an operator of the platform. An owner may only lower it.")
		}
	}
	return nil
}
