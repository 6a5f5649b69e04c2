package api

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// fleetLeast is the minimum time between two reads of a workspace, because people cannot read a list that changes
	// more often.
	fleetLeast = 500 * time.Millisecond
	// fleetShare limits the reads of one watched workspace to a tenth of the time of one database connection.
	fleetShare = 10
	// fleetChunk is the maximum number of apps in one response, which bounds its size.
	fleetChunk = 100
	// fleetBeat is how often a response is sent while nothing changes. The proto documents it.
	fleetBeat = 15 * time.Second
	// readPage is the size of the pages in which fleets and instances are read.
	readPage = 500
)

// fleetPicture is the picture of a workspace. A message that did not change since the previous picture is the same
// pointer, so that watchers find changes without comparing messages.
type fleetPicture struct {
	regions map[string]*windlassv1.Region
	apps    map[string]*windlassv1.App
}

func (p *fleetPicture) sameAs(other shown) bool {
	o, ok := other.(*fleetPicture)
	return ok && maps.Equal(p.regions, o.regions) && maps.Equal(p.apps, o.apps)
}

// WatchFleet sends the workspace's regions and apps, and then their changes. It ends when the caller leaves, its key
// is no longer valid, or the server stops.
func (a fleetService) WatchFleet(ctx context.Context, _ *windlassv1.WatchFleetRequest, out *connect.ServerStream[windlassv1.WatchFleetResponse]) error {
	by, err := callerOf(ctx)
	if err != nil {
		return err
	}
	joined := time.Now()
	kind, read := a.fleetTopic(by.WorkspaceID)
	//nolint:contextcheck // a read for all watchers outlives the first watcher
	t, leave, err := a.hub.joinTopic(by, "fleet/"+by.WorkspaceID, kind, a.cfg.Log, read)
	if err != nil {
		return a.countRefusal(err)
	}
	defer leave()

	good := time.NewTicker(a.cfg.KeyCacheTTL)
	defer good.Stop()
	beat := time.NewTicker(fleetBeat)
	defer beat.Stop()
	var sent *fleetPicture
	for {
		latest, changed := t.currentPicture(joined)
		if p, _ := latest.(*fleetPicture); p != nil && p != sent {
			for _, res := range p.changesSince(sent) {
				res.SentAt = nowMillis()
				if err := out.Send(res); err != nil {
					return fmt.Errorf("send fleet of workspace %s: %w", by.WorkspaceID, err)
				}
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
			if err := out.Send(&windlassv1.WatchFleetResponse{SentAt: nowMillis()}); err != nil {
				return fmt.Errorf("send beat of workspace %s: %w", by.WorkspaceID, err)
			}
		case <-a.hub.stopped:
			return rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "", "the server is stopping: watch again")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// changesSince returns responses with all changes from sent to p. sent is the watcher's last picture, nil for none.
func (p *fleetPicture) changesSince(sent *fleetPicture) []*windlassv1.WatchFleetResponse {
	first := &windlassv1.WatchFleetResponse{Reset_: sent == nil}
	if sent == nil {
		sent = &fleetPicture{}
	}
	for _, id := range changedKeys(p.regions, sent.regions) {
		first.Regions = append(first.Regions, p.regions[id])
	}
	first.RemovedRegions = removedKeys(p.regions, sent.regions)
	first.RemovedApps = removedKeys(p.apps, sent.apps)
	out := []*windlassv1.WatchFleetResponse{first}
	for chunk := range slices.Chunk(changedKeys(p.apps, sent.apps), fleetChunk) {
		last := out[len(out)-1]
		if len(last.GetApps()) > 0 {
			last.More = true
			last = &windlassv1.WatchFleetResponse{}
			out = append(out, last)
		}
		for _, id := range chunk {
			last.Apps = append(last.Apps, p.apps[id])
		}
	}
	return out
}

// changedKeys returns the sorted keys of now whose values are new or differ from before.
func changedKeys[V comparable](now, before map[string]V) []string {
	var out []string
	for k, v := range now {
		if old, ok := before[k]; !ok || old != v {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

func removedKeys[V any](now, before map[string]V) []string {
	var out []string
	for k := range before {
		if _, ok := now[k]; !ok {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// fleetTopic returns the kind of a topic that shows a workspace, and the function that reads its pictures. Use both for
// one topic only.
func (a fleetService) fleetTopic(workspaceID string) (*topic, func(context.Context) (shown, error)) {
	var current atomic.Pointer[fleetPicture]
	current.Store(&fleetPicture{})
	kind := &topic{
		pace: pace{least: fleetLeast, reread: reread, share: fleetShare},
		concerns: func(appID string) bool {
			_, ok := current.Load().apps[appID]
			return ok
		},
	}
	return kind, func(ctx context.Context) (shown, error) {
		p, err := a.fleetPicture(ctx, workspaceID)
		if err != nil {
			return nil, err
		}
		before := current.Load()
		keepEqual(p.regions, before.regions)
		keepEqual(p.apps, before.apps)
		current.Store(p)
		return p, nil
	}
}

// keepEqual replaces messages of now by equal messages of before.
func keepEqual[M proto.Message](now, before map[string]M) {
	for id, m := range now {
		if old, ok := before[id]; ok && proto.Equal(old, m) {
			now[id] = old
		}
	}
}

// fleetPicture reads all regions and apps of a workspace.
func (a fleetService) fleetPicture(ctx context.Context, workspaceID string) (*fleetPicture, error) {
	p := &fleetPicture{regions: map[string]*windlassv1.Region{}, apps: map[string]*windlassv1.App{}}
	by := caller{APIKey: model.APIKey{WorkspaceID: workspaceID}}
	err := a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		clear(p.regions)
		clear(p.apps)
		if err := a.readRegions(tx, by, p); err != nil || workspaceID == "" {
			return err
		}
		return a.readApps(tx, workspaceID, p)
	})
	return p, err
}

func (a fleetService) readRegions(tx Tx, by caller, p *fleetPicture) error {
	for page := (model.Page{Limit: readPage}); ; {
		rows, err := tx.ListRegions(by.WorkspaceID, page)
		if err != nil {
			return fmt.Errorf("list regions: %w", err)
		}
		views, err := regionService(a).regionViews(tx, by, rows)
		if err != nil {
			return err
		}
		for _, v := range views {
			p.regions[v.GetId()] = v
		}
		if len(rows) < page.Limit {
			return nil
		}
		page.After = rows[len(rows)-1].Name
	}
}

func (a fleetService) readApps(tx Tx, workspaceID string, p *fleetPicture) error {
	for page := (model.Page{Limit: readPage}); ; {
		rows, err := tx.ListApps(workspaceID, "", page)
		if err != nil {
			return fmt.Errorf("list apps: %w", err)
		}
		f, err := a.loadFacts(tx, rows, nil)
		if err != nil {
			return err
		}
		for _, app := range rows {
			v := appProto(f, app)
			v.RolloutPolicy = nil // a list does not show it, and it may be large
			p.apps[app.ID] = v
		}
		if len(rows) < page.Limit {
			return nil
		}
		last := rows[len(rows)-1]
		page.After = last.Name + "\x00" + last.ID
	}
}
