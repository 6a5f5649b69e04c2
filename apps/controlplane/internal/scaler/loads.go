package scaler

import (
	"time"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Observe takes loads that a region reported to this process. If the region's stream is on another process, Observe
// passes the loads on. It returns how many loads were dropped. It does not block.
func (s *Service) Observe(regionID string, loads []*agentv1.LoadReport) (dropped int) {
	needs := s.needs.Load()
	switch {
	case needs == nil:
		return len(loads)
	case needs.Holds(regionID):
		return s.Take(regionID, loads)
	case needs.PassOn != nil:
		return needs.PassOn(regionID, loads)
	}
	return len(loads)
}

// Take stores loads of a region whose stream is on this process. It drops loads of apps that are known not to scale in
// the region, and loads of unknown apps above maxTargets and maxStrays. It returns how many loads it dropped. It ignores
// a late load, see lateFor. It does not block.
func (s *Service) Take(regionID string, loads []*agentv1.LoadReport) (dropped int) {
	now := time.Now()
	s.mu.Lock()
	for _, load := range loads {
		at := appRegion{load.GetAppId(), regionID}
		t := s.targets[at]
		a := s.apps[at.app]
		old := a == nil || now.Sub(a.readAt) >= readAgain
		elsewhere := !old && !a.scalesIn(regionID) && !s.dirty[at.app]
		if now.Sub(s.none[at.app]) < readAgain || elsewhere || t == nil && len(s.targets) >= maxTargets {
			dropped++
			continue
		}
		if t == nil {
			t = &target{stray: a == nil || !a.scalesIn(regionID)}
			if t.stray && !s.addStray(regionID, now) {
				dropped++
				continue
			}
			s.targets[at] = t
		}
		if load.GetAt() < t.at && now.Sub(t.heard) < lateFor {
			continue
		}
		if old {
			s.dirty[at.app] = true
		}
		t.load, t.heard, t.at = load, now, load.GetAt()
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return dropped
}

// addStray counts a stray of the region, and reports whether the region may have it. Called with mu held.
func (s *Service) addStray(regionID string, now time.Time) bool {
	in := s.strays[regionID]
	if in == nil || now.Sub(in.since) >= strayFor {
		in = &strays{since: now}
		s.strays[regionID] = in
	}
	if in.n >= maxStrays {
		return false
	}
	in.n++
	return true
}

// noStray removes a target from the count of strays, because its app scales in the region. Called with mu held.
func (s *Service) noStray(at appRegion, t *target) {
	if in := s.strays[at.region]; t.stray && in != nil {
		in.n = max(in.n-1, 0)
	}
	t.stray = false
}
