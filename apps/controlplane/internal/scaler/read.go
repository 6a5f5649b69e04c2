package scaler

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/scaling"
)

// read reads the apps that changed. If the read fails, the next step reads them.
func (s *Service) read(ctx context.Context, apps Apps) error {
	for {
		s.mu.Lock()
		ids := slices.Sorted(maps.Keys(s.dirty))
		ids = ids[:min(len(ids), readAtOnce)]
		for _, id := range ids {
			delete(s.dirty, id)
		}
		s.mu.Unlock()
		if len(ids) == 0 {
			return nil
		}
		now := time.Now()
		found, err := apps.ScaledApps(ctx, ids)
		s.mu.Lock()
		if err != nil {
			for _, id := range ids {
				s.dirty[id] = true
			}
		} else {
			s.take(ids, found, now)
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// take stores the apps that were read.
func (s *Service) take(ids []string, found []model.ScaledApp, now time.Time) {
	have := map[string]bool{}
	for _, f := range found {
		have[f.AppID] = true
		a := &app{ScaledApp: f, readAt: now, policies: map[string]*scaling.Policy{}, roles: map[string][]scaling.RolePolicy{}, zero: scaling.PoolZero(f.Scaling.Policy)}
		for id := range f.Regions {
			if len(f.Scaling.Policy.GetRoles()) > 0 {
				roles, fault := scaling.NewRoles(f.Scaling.Policy, id)
				if fault != nil {
					s.cfg.Log.Warn("cannot use scaling policy", "app_id", f.AppID, "error", fault)
					continue
				}
				a.roles[id] = roles
				continue
			}
			policy, fault := scaling.New(f.Scaling.Policy, id)
			if fault != nil {
				// The API checks policies. A policy that is not valid here can only come from a newer release.
				s.cfg.Log.Warn("cannot use scaling policy", "app_id", f.AppID, "error", fault)
				continue
			}
			a.policies[id] = &policy
		}
		s.apps[f.AppID] = a
		delete(s.none, f.AppID)
	}
	for _, id := range ids {
		if !have[id] {
			delete(s.apps, id)
			if len(s.none) >= maxNone {
				clear(s.none) // apps that are reported again are read again
			}
			s.none[id] = now
		}
	}
}
