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
	// fleetLeast is the least time between two reads of a workspace, because people cannot read a list that
	// changes more often.
	fleetLeast = 500 * time.Millisecond
	// fleetShare bounds the reads of one watched workspace, however large, to a tenth of the time of one
	// connection to the database.
	fleetShare = 10
	// fleetChunk bounds the apps of one response, and so its size.
	fleetChunk = 100
	// fleetBeat is how often a response is sent when there is no news. The proto states it.
	fleetBeat = 15 * time.Second
	// readPage is the size of the pages in which fleets and instances are read.
	readPage = 500
)

// fleetPicture is what a workspace's topic shows to its watchers. A message that did not change since the
// previous picture is the same pointer, so that each watcher finds the changes without comparing messages.
type fleetPicture struct {
	regions map[string]*windlassv1.Region
	apps    map[string]*windlassv1.App
}

func (p *fleetPicture) same(other shown) bool {
	o, ok := other.(*fleetPicture)
	return ok && maps.Equal(p.regions, o.regions) && maps.Equal(p.apps, o.apps)
}

// WatchFleet sends the workspace's regions and apps, and their changes. It ends with the caller or its key,
// or with the server.
func (a fleetService) WatchFleet(ctx context.Context, _ *windlassv1.WatchFleetRequest, out *connect.ServerStream[windlassv1.WatchFleetResponse]) error {
	by, err := callerOf(ctx)
	if err != nil {
		return err
	}
	joined := time.Now()
	kind, read := a.fleet(by.WorkspaceID)
	//nolint:contextcheck // what is read for all watchers outlives the first of them
	t, leave, err := a.hub.join(by, "fleet/"+by.WorkspaceID, kind, a.cfg.Log, read)
	if err != nil {
		return a.refused(err)
	}
	defer leave()

	good := time.NewTicker(a.cfg.KeyCacheTTL)
	defer good.Stop()
	beat := time.NewTicker(fleetBeat)
	defer beat.Stop()
	var sent *fleetPicture
	for {
		latest, changed := t.current(joined)
		if p, _ := latest.(*fleetPicture); p != nil && p != sent {
			for _, res := range p.since(sent) {
				res.SentAt = now()
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
				continue // no picture was read yet, which the missing beat shows
			}
			if err := out.Send(&windlassv1.WatchFleetResponse{SentAt: now()}); err != nil {
				return fmt.Errorf("send beat of workspace %s: %w", by.WorkspaceID, err)
			}
		case <-a.hub.stopped:
			return rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "", "the server is stopping: watch again")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// since returns the responses with all that changed from sent to p. sent is the picture that the reader has, nil for
// none.
func (p *fleetPicture) since(sent *fleetPicture) []*windlassv1.WatchFleetResponse {
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

// fleet returns the kind of a topic that shows a workspace, and the function that reads it. Both are for one
// topic.
func (a fleetService) fleet(workspaceID string) (*topic, func(context.Context) (shown, error)) {
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

// keepEqual replaces messages by equal ones of before.
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
		f, err := a.facts(tx, rows, nil)
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
