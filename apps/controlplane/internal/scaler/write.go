package scaler

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// write writes one decision, and records the outcome.
func (s *Service) write(ctx context.Context, apps Apps, w write) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := apps.Rescale(ctx, w.Rescale)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targets[w.at]
	if t != nil {
		t.writing = false
	}
	outcome := outcomeOf(w, err)
	s.metrics.decisions.WithLabelValues(outcome).Inc()
	if err != nil || w.Writes {
		// The app is read again before the next decision.
		if s.apps[w.at.app] != nil {
			s.dirty[w.at.app] = true
		}
	}
	if t == nil {
		return
	}
	if err == nil {
		t.recorded = record{now, w.decision.Wanted, lasting(w.decision.Limit)}
		if w.missing >= 0 {
			t.silent[w.missing] = true
		}
		if w.Writes {
			t.kept = w.decision.Kept
			s.metrics.delay.Observe(now.Sub(w.heard).Seconds())
		}
		return
	}
	t.next = now.Add(every)
	if errors.Is(err, model.ErrStale) {
		return
	}
	if quota, ok := quotaOf(err, s.apps[w.at.app], w); ok {
		t.quota, t.quotaUntil = &quota, now.Add(refusedFor)
		return
	}
	if rpc.DetailOf(err).GetReason() == windlassv1.ErrorReason_ERROR_REASON_REGION_CLOSED {
		t.closedUntil = now.Add(refusedFor)
		return
	}
	if outcome == "refused" {
		t.retryAt = now.Add(refusedFor)
		s.cfg.Log.Info("scaling decision refused", "app_id", w.AppID, "region_id", w.RegionID, "error", err)
		return
	}
	t.retryAt = now.Add(10 * every)
	if ctx.Err() == nil || errors.Is(err, context.DeadlineExceeded) {
		s.cfg.Log.Warn("cannot write scaling decision", "app_id", w.AppID, "region_id", w.RegionID, "error", err)
	}
}

func outcomeOf(w write, err error) string {
	switch {
	case errors.Is(err, model.ErrStale):
		return "conflict"
	case err != nil && rpc.DetailOf(err) != nil && connect.CodeOf(err) != connect.CodeInternal:
		return "refused"
	case err != nil:
		return "error"
	case !w.Writes:
		return "kept"
	case w.decision.Wanted > w.decision.Desired:
		return "up"
	}
	return "down"
}

// quotaOf returns how many replicas the quota allows in the region, from the error of a refused decision.
func quotaOf(err error, a *app, w write) (replicas int, ok bool) {
	detail := rpc.DetailOf(err)
	if detail.GetReason() != windlassv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED || a == nil {
		return 0, false
	}
	region := a.Regions[w.RegionID]
	free, each := max(detail.GetLimit().GetMax()-detail.GetLimit().GetUsed(), 0), region.Instances
	if detail.GetLimit().GetName() == "gpus" {
		each = region.GPUs
	}
	return int(region.Counted) + int(free/max(each, 1)), true
}
