package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/share"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// seriesStep is the duration of one sample of an agent. seriesKept is how long agents keep samples.
	seriesStep = 30 * time.Second
	seriesKept = time.Hour
	// maxSamples is the maximum number of samples that are kept of a region while an app is watched.
	maxSamples = int(seriesKept/seriesStep) + 1
	// seriesEvery is how often samples of a watched app are requested from its regions. The proto documents it.
	seriesEvery = 5 * time.Second
	// seriesTimeout is the timeout for a region's answer. It is below readTimeout, so that a read succeeds even if a
	// region does not answer.
	seriesTimeout = 3 * time.Second
	// seriesRegions is the maximum number of regions that get requests at the same time for an app.
	seriesRegions = 64
	// seriesAsks is the maximum number of concurrent requests for series from this process to a region, for all apps.
	// It is small, because an agent answers few requests at the same time, and also serves checks and logs.
	seriesAsks = 2
	// maxSeries is the maximum number of apps whose series are watched, because each needs about 30 KiB per region.
	// The proto documents it.
	maxSeries = 256
	// maxFigure is above any value of a sample, including its time.
	maxFigure = 1e15
)

// ofSeries is the kind of a topic that shows the series of an app.
var ofSeries = &topic{name: "series", most: maxSeries, perWorkspace: maxSeries / 8, pace: pace{least: seriesEvery, reread: seriesEvery / 2}}

// seriesPicture is the picture of an app's series. A sample that did not change is the same pointer as in the
// previous picture.
type seriesPicture struct {
	deleted bool
	regions map[string]*regionSeries // by name
}

// regionSeries has the samples of one region, sorted by time.
type regionSeries struct {
	samples   []*windlassv1.SeriesSample
	keptSince int64
	problem   string
}

func (p *seriesPicture) sameAs(other shown) bool {
	o, ok := other.(*seriesPicture)
	return ok && p.deleted == o.deleted && maps.EqualFunc(p.regions, o.regions, func(a, b *regionSeries) bool {
		return a.keptSince == b.keptSince && a.problem == b.problem && slices.Equal(a.samples, b.samples)
	})
}

// changesSince returns a response with all changes from sent to p. sent is the watcher's last picture, nil for none.
func (p *seriesPicture) changesSince(sent *seriesPicture) *windlassv1.WatchSeriesResponse {
	res := &windlassv1.WatchSeriesResponse{Reset_: sent == nil, StepMs: seriesStep.Milliseconds(), SentAt: nowMillis()}
	if sent == nil {
		sent = &seriesPicture{}
	}
	for _, name := range slices.Sorted(maps.Keys(p.regions)) {
		r, before := p.regions[name], sent.regions[name]
		view := &windlassv1.RegionSeries{Region: name, KeptSince: r.keptSince, Problem: r.problem}
		if before == nil {
			before = &regionSeries{keptSince: -1}
		}
		known := before.byTime()
		for _, s := range r.samples {
			if known[s.GetAt()] != s {
				view.Samples = append(view.Samples, s)
			}
		}
		if len(view.GetSamples()) > 0 || r.keptSince != before.keptSince || r.problem != before.problem {
			res.Regions = append(res.Regions, view)
		}
	}
	res.RemovedRegions = removedKeys(p.regions, sent.regions)
	return res
}

func (r *regionSeries) byTime() map[int64]*windlassv1.SeriesSample {
	out := make(map[int64]*windlassv1.SeriesSample, len(r.samples))
	for _, s := range r.samples {
		out[s.GetAt()] = s
	}
	return out
}

// WatchSeries sends the samples of an app, and then changes. It ends when the caller leaves, its key is no longer
// valid, the app is deleted, or the server stops.
func (a seriesService) WatchSeries(ctx context.Context, req *windlassv1.WatchSeriesRequest, out *connect.ServerStream[windlassv1.WatchSeriesResponse]) error {
	by, err := callerOf(ctx)
	if err != nil {
		return err
	}
	if err := a.hub.checkLimit(by); err != nil { // checked before the app is read, because refused clients try again and again
		return a.countRefusal(err)
	}
	var app model.App
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		app, err = a.findApp(tx, by.WorkspaceID, req.GetApp(), false)
		return err
	})
	if err != nil {
		return err
	}
	send := func(res *windlassv1.WatchSeriesResponse) error {
		if err := out.Send(res); err != nil {
			return fmt.Errorf("send series of app %s: %w", app.ID, err)
		}
		return nil
	}
	return a.watchSeries(ctx, by, app, req.GetOnce(), send)
}

// watchSeries sends pictures of an app, or with once only the first picture. Callers with once share reads with
// watchers, so that many callers send no more requests to regions than one.
func (a seriesService) watchSeries(ctx context.Context, by caller, app model.App, once bool, send func(*windlassv1.WatchSeriesResponse) error) error {
	var last *seriesPicture
	//nolint:contextcheck // a read for all watchers outlives the first watcher
	t, leave, err := a.hub.joinTopic(by, "series/"+app.ID, ofSeries, a.cfg.Log, func(ctx context.Context) (shown, error) {
		p, err := a.seriesPicture(ctx, app, last)
		if err != nil {
			return nil, err
		}
		last = p
		return p, nil
	})
	if err != nil {
		return a.countRefusal(err)
	}
	defer leave()

	good, beat := time.NewTicker(a.cfg.KeyCacheTTL), time.NewTicker(fleetBeat)
	defer good.Stop()
	defer beat.Stop()
	var sent *seriesPicture
	var late <-chan time.Time
	if once {
		late = time.After(2 * readTimeout)
	}
	for {
		// A picture that was read before this watcher joined can be used, because it is at most seriesEvery old.
		latest, changed := t.currentPicture(time.Time{})
		if p, _ := latest.(*seriesPicture); p != nil && p != sent {
			if err := send(p.changesSince(sent)); err != nil || p.deleted || once {
				return err
			}
			sent = p
			beat.Reset(fleetBeat)
		}
		select {
		case <-changed:
		case <-good.C:
			if err := a.stillIn(ctx, by); err != nil {
				return err
			}
		case <-beat.C:
			if sent == nil {
				continue // no beat is sent before the first picture was read
			}
			if err := send(&windlassv1.WatchSeriesResponse{StepMs: seriesStep.Milliseconds(), SentAt: nowMillis()}); err != nil {
				return err
			}
		case <-late:
			return rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "", "the series cannot be read now: try again")
		case <-a.hub.stopped:
			return rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "", "the server is stopping: watch again")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// seriesPicture requests the samples since before from all regions of the app. before is the previous picture, nil
// for none.
func (a seriesService) seriesPicture(ctx context.Context, app model.App, before *seriesPicture) (*seriesPicture, error) {
	p := &seriesPicture{regions: map[string]*regionSeries{}}
	var regions map[string]model.Region
	err := a.cfg.Store.View(ctx, func(tx Tx) error {
		read, err := tx.GetApp(app.WorkspaceID, app.ID)
		if errors.Is(err, model.ErrNotFound) || err == nil && read.DeletedAt != 0 {
			p.deleted = true
			return nil
		}
		if err != nil {
			return fmt.Errorf("read app %s: %w", app.ID, err)
		}
		rows, err := tx.ListTopology([]string{app.ID})
		if err != nil {
			return fmt.Errorf("list topology of app %s: %w", app.ID, err)
		}
		ids := map[string]bool{}
		for _, t := range rows {
			if t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED || t.UpdatedAt > nowMillis()-seriesKept.Milliseconds() {
				ids[t.RegionID] = true
			}
		}
		regions, err = a.regionsByID(tx, ids)
		return err
	})
	if err != nil || p.deleted {
		return p, err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, seriesRegions)
	for _, r := range regions {
		var known *regionSeries
		if before != nil {
			known = before.regions[r.Name]
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			got := a.regionSeries(ctx, app.ID, r, known)
			mu.Lock()
			defer mu.Unlock()
			p.regions[r.Name] = got
		})
	}
	wg.Wait()
	return p, nil
}

// regionSeries requests the samples of an app from a region's agent. If the agent does not answer, known samples
// stay.
func (a seriesService) regionSeries(ctx context.Context, appID string, r model.Region, known *regionSeries) *regionSeries {
	if known == nil {
		known = &regionSeries{}
	}
	out := &regionSeries{samples: known.samples, keptSince: known.keptSince}
	if !slices.Contains(r.AgentFeatures, agentv1.Feature_FEATURE_SERIES.String()) {
		out.problem = fmt.Sprintf("the agent of region %s (%s) keeps no series: update it", r.Name, cmp.Or(r.AgentVersion, "unknown version"))
		return out
	}
	req := &agentv1.SeriesRequest{AppId: appID}
	if n := len(known.samples); n > 0 {
		req.Since = known.samples[n-1].GetAt() // the last sample may have been sent before its step ended
	}
	asking, cancel := context.WithTimeout(ctx, seriesTimeout)
	defer cancel()
	res, err := a.askSeries(asking, appID, r.ID, req)
	if ctx.Err() != nil {
		out.problem = known.problem // the read ended before this region could answer
		return out
	}
	if err != nil {
		out.problem = fmt.Sprintf("region %s does not answer: retrying", r.Name)
		return out
	}
	out.keptSince = res.GetKeptSince()
	out.samples = mergeSamples(known.samples, res.GetSamples(), nowMillis())
	return out
}

// askSeries sends a request to an agent. It waits for its turn, because apps share the region's seriesAsks requests.
func (a seriesService) askSeries(ctx context.Context, appID, regionID string, req *agentv1.SeriesRequest) (*agentv1.SeriesResponse, error) {
	slots := a.seriesSlots.slotsOf(regionID)
	if err := slots.Acquire(ctx, appID); err != nil {
		return nil, fmt.Errorf("wait to ask region %s: %w", regionID, err)
	}
	defer slots.Release(appID)
	data, err := a.cfg.Agents.Ask(ctx, regionID, &agentv1.Request{Kind: &agentv1.Request_Series{Series: req}})
	if err != nil {
		return nil, err
	}
	res := &agentv1.SeriesResponse{}
	// Unknown fields are dropped, because they are not checked and would be kept in memory.
	return res, proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, res)
}

// regionSlots has slots for each region, which are made on first use.
type regionSlots struct {
	mu       sync.Mutex
	byRegion map[string]*share.Slots
}

func (s *regionSlots) slotsOf(regionID string) *share.Slots {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byRegion == nil {
		s.byRegion = map[string]*share.Slots{}
	}
	if s.byRegion[regionID] == nil {
		s.byRegion[regionID] = share.NewSlots(seriesAsks)
	}
	return s.byRegion[regionID]
}

// mergeSamples adds samples of an agent to known samples, and drops samples that are older than seriesKept. It also
// drops invalid samples, because tenants control their agents. at is the current time, in unix ms.
func mergeSamples(known, more []*windlassv1.SeriesSample, at int64) []*windlassv1.SeriesSample {
	byTime := (&regionSeries{samples: known}).byTime()
	for _, s := range more[max(0, len(more)-maxSamples):] {
		// A sample from the future, after a wrong clock, would make all other samples too old.
		if !isSoundSample(s) || s.GetAt() > at+2*seriesStep.Milliseconds() {
			continue
		}
		if old := byTime[s.GetAt()]; old == nil || !proto.Equal(old, s) {
			byTime[s.GetAt()] = s
		}
	}
	out := slices.SortedFunc(maps.Values(byTime), func(x, y *windlassv1.SeriesSample) int { return cmp.Compare(x.GetAt(), y.GetAt()) })
	out = out[max(0, len(out)-maxSamples):]
	for len(out) > 0 && out[0].GetAt() < out[len(out)-1].GetAt()-seriesKept.Milliseconds() {
		out = out[1:]
	}
	return out
}

// isSoundSample reports whether the values of the sample are plausible.
func isSoundSample(s *windlassv1.SeriesSample) bool {
	for _, v := range []float64{
		float64(s.GetAt()), float64(s.GetSpanMs()), float64(s.GetRequests()), float64(s.GetErrors()), float64(s.GetWanted()), float64(s.GetReady()),
		s.GetLatencyP95(), s.GetFirstTokenP95(), s.GetQueued(),
	} {
		if math.IsNaN(v) || v < 0 || v > maxFigure {
			return false
		}
	}
	return s.GetAt()%seriesStep.Milliseconds() == 0 && s.GetSpanMs() <= seriesStep.Milliseconds()
}
