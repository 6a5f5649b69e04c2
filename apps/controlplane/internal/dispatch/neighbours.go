package dispatch

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/neighbours"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// around makes the picture of each region that has an app whose requests may go to others:
// those that serve it with a ready instance and can be reached. A region's own is not in it.
func around(rows []model.AppRegion) map[string]*neighbours.Picture {
	apps := map[string][]model.AppRegion{}
	for _, r := range rows {
		apps[r.AppID] = append(apps[r.AppID], r)
	}
	out := map[string]*neighbours.Picture{}
	for _, r := range rows {
		p := out[r.RegionID]
		if p == nil {
			p = &neighbours.Picture{Region: r.RegionName, Apps: map[string]*gatewayv1.AppNeighbours{}}
			out[r.RegionID] = p
		}
		app := &gatewayv1.AppNeighbours{AppId: r.AppID}
		for _, other := range apps[r.AppID] {
			if other.RegionID != r.RegionID && other.Ready && other.GatewayURL != "" {
				app.Regions = append(app.Regions, &gatewayv1.Neighbour{Region: other.RegionName, GatewayUrl: other.GatewayURL})
			}
		}
		p.Apps[r.AppID] = app
	}
	return out
}

// lookAround has every stream told what is around its region, as of a few seconds ago. A
// database that is away is asked again with full jitter; what was told holds meanwhile.
func (s *Service) lookAround(ctx context.Context) {
	policy := backoff.Policy{Min: s.cfg.Neighbours, Max: 4 * s.cfg.Neighbours}
	failures := 0
	for {
		err := s.look(ctx)
		wait := s.cfg.Neighbours
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			wait = policy.Delay(failures, s.cfg.Random)
			s.cfg.Log.WarnContext(ctx, "cannot read where apps are that cross regions", "error", err, "retry_in", wait)
		default:
			failures = 0
		}
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// look reads once, if anybody is to be told.
func (s *Service) look(ctx context.Context) error {
	s.mu.Lock()
	streams := len(s.streams)
	s.mu.Unlock()
	if streams == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var rows []model.AppRegion
	err := s.cfg.Store.View(ctx, func(tx Tx) (err error) {
		rows, err = tx.CrossRegion()
		return err
	})
	if err != nil {
		return fmt.Errorf("look around: %w", err)
	}
	s.picture(around(rows))
	return nil
}

// picture wakes the streams whose region has another picture than before.
func (s *Service) picture(next map[string]*neighbours.Picture) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for region, p := range next {
		if was := s.pictures[region]; was != nil && len(p.Since(was)) == 0 {
			next[region] = was
		}
	}
	for _, region := range slices.Concat(slices.Collect(maps.Keys(next)), slices.Collect(maps.Keys(s.pictures))) {
		st := s.streams[region]
		if st == nil || next[region] == s.pictures[region] {
			continue
		}
		select {
		case st.around <- struct{}{}:
		default: // it will look anyhow
		}
	}
	s.pictures = next
}

// lookAround sends what the agent does not have of the region's picture.
func (st *stream) lookAround(ctx context.Context) error {
	st.svc.mu.Lock()
	now := st.svc.pictures[st.region]
	st.svc.mu.Unlock()
	for _, frame := range now.Since(st.told) {
		if err := st.send(ctx, "neighbours", &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Neighbours{Neighbours: frame}}); err != nil {
			return err
		}
	}
	st.told = now
	return nil
}
