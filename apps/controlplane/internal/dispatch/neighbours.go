package dispatch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/neighbours"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// neighboursOf makes a picture for each region. A picture has the apps whose requests may go to other regions, and
// for each app the other regions that have a ready instance and a gateway URL. Regions without the app also get a
// picture, because their gateways forward requests for the app's hosts to a region with the app. Tenants control the
// gateway URLs of workspaces' regions, so regions of the platform only get URLs that an operator has approved.
func neighboursOf(rows []model.AppRegion, may []model.WorkspaceRegion) map[string]*neighbours.Picture {
	apps := map[string][]model.AppRegion{}
	for _, r := range rows {
		apps[r.AppID] = append(apps[r.AppID], r)
	}
	of := map[string][]model.WorkspaceRegion{}
	for _, w := range may {
		of[w.WorkspaceID] = append(of[w.WorkspaceID], w)
	}
	out := map[string]*neighbours.Picture{}
	tell := func(regionID, regionName string, app *gatewayv1.AppNeighbours) {
		p := out[regionID]
		if p == nil {
			p = &neighbours.Picture{Region: regionName, Apps: map[string]*gatewayv1.AppNeighbours{}}
			out[regionID] = p
		}
		if p.Apps[app.AppId] == nil {
			p.Apps[app.AppId] = app
		}
	}
	for _, serving := range apps {
		for _, r := range serving {
			tell(r.RegionID, r.RegionName, neighboursFor(serving, r.RegionID, r.Platform, false))
		}
		// All regions in which the app does not run share these two messages.
		own, platform := neighboursFor(serving, "", false, true), neighboursFor(serving, "", true, true)
		for _, r := range of[serving[0].WorkspaceID] {
			all := own
			if r.Platform {
				all = platform
			}
			tell(r.RegionID, r.RegionName, all)
		}
	}
	return out
}

// neighboursFor returns the neighbours of an app for a region: the other regions in which the app is ready. If
// platform is set, it returns only approved regions. wakes is set for a region in which the app does not run. If no
// region is ready, such a region gets the regions where the app is at zero, because a request that is handed over
// there wakes the app.
func neighboursFor(serving []model.AppRegion, regionID string, platform, wakes bool) *gatewayv1.AppNeighbours {
	one := serving[0]
	app := &gatewayv1.AppNeighbours{AppId: one.AppID, AppName: one.AppName, Hosts: one.Hosts}
	add := func(serves func(model.AppRegion) bool) {
		for _, other := range serving {
			if other.RegionID != regionID && serves(other) && other.GatewayURL != "" && (other.GatewayApproved || !platform) {
				app.Regions = append(app.Regions, &gatewayv1.Neighbour{Region: other.RegionName, GatewayUrl: other.GatewayURL})
			}
		}
	}
	add(func(r model.AppRegion) bool { return r.Ready })
	if wakes && len(app.Regions) == 0 {
		add(func(r model.AppRegion) bool { return r.AtZero })
	}
	return app
}

// lookAround reads the neighbours of regions in a loop, and wakes streams whose region's neighbours changed. Its
// waits are random, so that it does not read the database at the same times as the tailer. While the database is
// unreachable, it retries with full jitter, and streams keep their pictures.
func (s *Service) lookAround(ctx context.Context) {
	policy := backoff.Policy{Min: s.cfg.Neighbours, Max: 4 * s.cfg.Neighbours}
	failures := 0
	for {
		err := s.readPictures(ctx)
		wait := time.Duration((0.95 + 0.1*s.cfg.Random()) * float64(s.cfg.Neighbours))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			wait = policy.Delay(failures, s.cfg.Random)
			s.cfg.Log.WarnContext(ctx, "cannot read the regions of apps with crossRegion", "error", err, "retry_in", wait)
		default:
			failures = 0
		}
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// readPictures reads all pictures once, if this process has streams. Without streams, it drops the pictures, so that
// the next stream does not get an old picture.
func (s *Service) readPictures(ctx context.Context) error {
	s.mu.Lock()
	streams := len(s.streams)
	if streams == 0 {
		s.pictures = nil
	}
	s.mu.Unlock()
	if streams == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var rows []model.AppRegion
	var may []model.WorkspaceRegion
	err := s.cfg.Store.View(ctx, func(tx Tx) (err error) {
		if rows, err = tx.CrossRegion(); err != nil || len(rows) == 0 {
			may = nil
			return err
		}
		workspaces := map[string]bool{}
		for _, r := range rows {
			workspaces[r.WorkspaceID] = true
		}
		may, err = tx.RegionsOf(slices.Sorted(maps.Keys(workspaces)))
		return err
	})
	if err != nil {
		return fmt.Errorf("read neighbours: %w", err)
	}
	s.storePictures(neighboursOf(rows, may))
	return nil
}

// storePictures stores the pictures, and wakes the streams whose regions' pictures changed, in the order of their
// regions.
func (s *Service) storePictures(next map[string]*neighbours.Picture) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for region, p := range next {
		if was := s.pictures[region]; was != nil && len(p.Since(was)) == 0 {
			next[region] = was
		}
	}
	was := s.pictures
	s.pictures = next
	for _, region := range slices.Sorted(maps.Keys(s.streams)) {
		if was != nil && next[region] == was[region] {
			continue
		}
		select {
		case s.streams[region].around <- struct{}{}:
		default: // the stream is already signalled
		}
	}
}

// nothing is the picture of a region without neighbours. It is also sent, because an agent that was disconnected and
// its gateways may still have an earlier picture.
var nothing = &neighbours.Picture{}

// pictureFor returns the picture of the region's neighbours, nil if it was not read yet.
func (s *Service) pictureFor(region string) *neighbours.Picture {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pictures[region]; p != nil || s.pictures == nil {
		return p
	}
	return nothing
}

// lookAround sends the parts of the region's picture that the agent does not have.
func (st *stream) lookAround(ctx context.Context) error {
	now := st.svc.pictureFor(st.region)
	if now == nil {
		return nil
	}
	for _, frame := range now.Since(st.told) {
		if err := st.sendFrame(ctx, "neighbours", &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Neighbours{Neighbours: frame}}); err != nil {
			return err
		}
	}
	st.told = now
	return nil
}
