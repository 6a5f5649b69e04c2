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
	if w.refused != "" && !errors.Is(err, model.ErrStale) {
		t.told, t.toldAt = w.refused, now // set even after a failure, so that the write is not repeated every second
	}
	if err == nil {
		for _, p := range w.parts {
			of := t.partOf(p.role)
			if of == nil {
				continue
			}
			of.recorded = record{now, p.decision.Wanted, lastingLimit(p.decision.Limit)}
			if p.missing >= 0 {
				of.silent[p.missing] = true
			}
			if p.writes {
				of.kept = p.decision.Kept
			}
		}
		if w.Writes {
			t.refused, t.told = "", ""
			s.metrics.delay.Observe(now.Sub(w.heard).Seconds())
		}
		return
	}
	t.next = now.Add(every)
	if errors.Is(err, model.ErrStale) {
		return
	}
	if quotas := quotasOf(err, s.apps[w.at.app], w); quotas != nil {
		for role, quota := range quotas {
			if of := t.partOf(role); of != nil {
				of.quota, of.quotaUntil = &quota, now.Add(refusedFor)
			}
		}
		return
	}
	if no, ok := errors.AsType[*model.NoRoomError](err); ok {
		for role, fit := range no.Fits {
			if of := t.partOf(role); of != nil {
				of.room, of.roomUntil = new(int(fit)), now.Add(refusedFor)
			}
		}
		s.cfg.Log.Info("a region has no room for a scaling decision", "app_id", w.AppID, "region_id", w.RegionID, "error", err)
		return
	}
	if rpc.DetailOf(err).GetReason() == windlassv1.ErrorReason_ERROR_REASON_REGION_CLOSED {
		t.closedUntil = now.Add(refusedFor)
		return
	}
	if outcome == "refused" {
		if t.raised.generation == w.Generation {
			t.raiseRefused = w.Generation
		}
		t.retryAt, t.refused = now.Add(refusedFor), messageOf(err)
		s.cfg.Log.Info("scaling decision refused", "app_id", w.AppID, "region_id", w.RegionID, "error", err)
		return
	}
	t.retryAt = now.Add(10 * every)
	if ctx.Err() == nil || errors.Is(err, context.DeadlineExceeded) {
		s.cfg.Log.Warn("cannot write scaling decision", "app_id", w.AppID, "region_id", w.RegionID, "error", err)
	}
}

// messageOf returns the message of an error of the API.
func messageOf(err error) string {
	if e, ok := errors.AsType[*connect.Error](err); ok {
		return e.Message()
	}
	return err.Error()
}

func isNoRoom(err error) bool {
	_, ok := errors.AsType[*model.NoRoomError](err)
	return ok
}

func outcomeOf(w write, err error) string {
	switch {
	case errors.Is(err, model.ErrStale):
		return "conflict"
	case isNoRoom(err), err != nil && rpc.DetailOf(err) != nil && connect.CodeOf(err) != connect.CodeInternal:
		return "refused"
	case err != nil:
		return "error"
	case !w.Writes:
		return "kept"
	}
	outcome := "kept" // a pool at zero, which will start with other numbers
	for _, p := range w.parts {
		switch {
		case p.decision.Wanted > p.decision.Desired:
			return "up"
		case p.decision.Wanted < p.decision.Desired:
			outcome = "down"
		}
	}
	return outcome
}

// quotasOf returns how many replicas the quota allows in the region, from the error of a refused decision. For a pool,
// it returns how many instances the quota allows of each role that the decision would grow. It returns nil for another
// error, and for a pool if the decision would grow no role.
func quotasOf(err error, a *app, w write) map[string]int {
	detail := rpc.DetailOf(err)
	if detail.GetReason() != windlassv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED || a == nil {
		return nil
	}
	region := a.Regions[w.RegionID]
	free := max(detail.GetLimit().GetMax()-detail.GetLimit().GetUsed(), 0)
	cost := func(instances, gpus int64) int64 {
		if detail.GetLimit().GetName() == "gpus" {
			return max(gpus, 1)
		}
		return max(instances, 1)
	}
	if len(w.Roles) == 0 && w.Pool == nil {
		return map[string]int{"": int(region.Counted) + int(free/cost(region.Instances, region.GPUs))}
	}
	out := map[string]int{}
	// The roles get the rest of the quota in their order, because all grow in one change.
	for _, r := range w.Roles {
		if r.Wanted <= r.From {
			continue
		}
		each := cost(region.RoleCosts[r.Role].Instances, region.RoleCosts[r.Role].GPUs)
		if detail.GetLimit().GetName() == "gpus" && region.RoleCosts[r.Role].GPUs == 0 {
			continue // instances of the role do not use the quota
		}
		room := free / each
		out[r.Role] = int(r.From) + int(room)
		free -= min(room, int64(r.Wanted-r.From)) * each
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
