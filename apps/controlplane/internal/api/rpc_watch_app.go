package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// firstHistory is the number of entries of the history in the first response.
	firstHistory = 20
	// historyWindow is the number of entries of the history that are read with each picture. If more entries are
	// written between two responses to a slow watcher, the watcher can read them with ListHistory.
	historyWindow = 100
)

// WatchApp sends a picture of the app at once and after each change. It ends when the caller leaves, its key is no
// longer valid, the app is deleted, or the server stops.
func (a appService) WatchApp(ctx context.Context, req *windlassv1.WatchAppRequest, out *connect.ServerStream[windlassv1.WatchAppResponse]) error {
	by, err := callerOf(ctx)
	if err != nil {
		return err
	}
	if !req.GetOnce() {
		if err := a.hub.checkLimit(by); err != nil { // checked before the app is read, because refused clients try again and again
			return a.countRefusal(err)
		}
	}
	var app model.App
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		if app, err = a.findApp(tx, by.WorkspaceID, req.GetApp(), true); err != nil || req.GetRollout() == "" {
			return err
		}
		_, err = a.rolloutOf(tx, app, req.GetRollout())
		return err
	})
	if err != nil {
		return err
	}
	if req.GetOnce() {
		return a.showOnce(ctx, app, req.GetRollout(), out)
	}
	joined := time.Now()
	//nolint:contextcheck // a read for all watchers outlives the first watcher
	t, leave, err := a.hub.joinTopic(by, app.ID, ofApp, a.cfg.Log, func(ctx context.Context) (shown, error) {
		return a.readPicture(ctx, app.WorkspaceID, app.ID)
	})
	if err != nil {
		return a.countRefusal(err)
	}
	defer leave()

	ticker := time.NewTicker(a.cfg.KeyCacheTTL)
	defer ticker.Stop()
	var sent *picture
	for {
		latest, changed := t.currentPicture(joined)
		if p, _ := latest.(*picture); p != nil && p != sent {
			res := p.changesSince(sent)
			if err := a.askedRollout(ctx, app, req.GetRollout(), res); err != nil {
				return err
			}
			if err := out.Send(res); err != nil {
				return fmt.Errorf("send picture of app %s: %w", app.ID, err)
			}
			if p.view.GetDeleted() {
				return nil
			}
			sent = p
		}
		select {
		case <-changed:
		case <-ticker.C:
			if err := a.stillIn(ctx, by); err != nil {
				return err
			}
		case <-a.hub.stopped:
			return rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "", "the server is stopping: watch again")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// showOnce sends one picture. It does not count as a watcher.
func (a appService) showOnce(ctx context.Context, app model.App, rollout string, out *connect.ServerStream[windlassv1.WatchAppResponse]) error {
	p, err := a.readPicture(ctx, app.WorkspaceID, app.ID)
	if err != nil {
		return err
	}
	res := p.changesSince(nil)
	if err := a.askedRollout(ctx, app, rollout, res); err != nil {
		return err
	}
	if err := out.Send(res); err != nil {
		return fmt.Errorf("send picture of app %s: %w", app.ID, err)
	}
	return nil
}

// rolloutOf returns the app's rollout with the id.
func (a *server) rolloutOf(tx Tx, app model.App, id string) (model.Rollout, error) {
	gone := apierr.Missing("rollout", "rollout", id, fmt.Sprintf("`windlass list deployments %s` shows its rollouts.", app.Name))
	if !plainID(id) {
		return model.Rollout{}, gone
	}
	r, err := tx.GetRollout(app.WorkspaceID, id)
	switch {
	case errors.Is(err, model.ErrNotFound), err == nil && r.AppID != app.ID:
		return r, gone
	case err != nil:
		return r, fmt.Errorf("read rollout %s: %w", id, err)
	}
	return r, nil
}

// askedRollout adds the requested rollout and its deployment to the response, unless the shared picture already has
// them, because the rollout is the app's newest.
func (a appService) askedRollout(ctx context.Context, app model.App, id string, res *windlassv1.WatchAppResponse) error {
	if id == "" {
		return nil
	}
	if res.GetRollout().GetId() == id {
		res.AskedRollout = proto.CloneOf(res.GetRollout())
		return nil
	}
	return a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		r, err := a.rolloutOf(tx, app, id)
		if err != nil {
			return err
		}
		if res.AskedRollout, err = a.rolloutWithProgress(tx, r); err != nil {
			return err
		}
		if slices.ContainsFunc(res.GetDeployments(), func(d *windlassv1.Deployment) bool { return d.GetId() == r.DeploymentID }) {
			return nil
		}
		found, err := tx.GetDeployments([]string{r.DeploymentID})
		if err != nil {
			return fmt.Errorf("read deployment %s: %w", r.DeploymentID, err)
		}
		views, err := a.deploymentViews(tx, found)
		if err != nil {
			return err
		}
		res.Deployments = append(res.GetDeployments(), views...)
		slices.SortFunc(res.Deployments, func(x, y *windlassv1.Deployment) int { return int(x.GetVersion() - y.GetVersion()) })
		return nil
	})
}

// changesSince returns the picture as a response. sent is the watcher's last picture, nil for none. Entries of the history
// that are in sent are left out.
func (p *picture) changesSince(sent *picture) *windlassv1.WatchAppResponse {
	res := proto.CloneOf(p.view)
	if sent == nil {
		res.History = p.history[max(0, len(p.history)-firstHistory):]
		return res
	}
	// Ids are ordered by time, but clocks of processes differ, so a new entry may sort before an entry that was sent.
	known := map[string]bool{}
	for _, h := range sent.history {
		known[h.GetId()] = true
	}
	for _, h := range p.history {
		if !known[h.GetId()] && (len(sent.history) == 0 || h.GetId() > sent.history[0].GetId()) {
			res.History = append(res.History, h)
		}
	}
	return res
}

// readPicture reads the picture of an app.
func (a appService) readPicture(ctx context.Context, workspaceID, appID string) (*picture, error) {
	p := &picture{view: &windlassv1.WatchAppResponse{}}
	err := a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		app, err := tx.GetApp(workspaceID, appID)
		if err != nil {
			return fmt.Errorf("read app %s: %w", appID, err)
		}
		rollout, err := a.lastRollout(tx, app)
		if err != nil {
			return err
		}
		shown, err := tx.GetDeployments(deploymentsShown(app, rollout))
		if err != nil {
			return fmt.Errorf("read deployments of app %s: %w", appID, err)
		}
		f, err := a.loadFacts(tx, []model.App{app}, shown)
		if err != nil {
			return err
		}
		p.view.App = appProto(f, app)
		if p.view.App.Urls, err = urlsOf(tx, f, app); err != nil {
			return err
		}
		shown = append(shown, f.laggingNotIn(app, shown)...)
		shown = append(shown, f.pinnedNotIn(app, shown)...)
		shown = append(shown, f.remainingNotIn(app, shown)...)
		slices.SortFunc(shown, func(x, y model.Deployment) int { return int(x.Version - y.Version) })
		for _, d := range shown {
			p.view.Deployments = append(p.view.Deployments, deploymentProto(f, app, d))
		}
		if rollout != nil {
			p.view.Rollout = rolloutView(f, app, *rollout)
			if p.view.Rollout.PreviewUrls, err = previewURLs(tx, f, app, *rollout); err != nil {
				return err
			}
		}
		p.view.Deleted = app.DeletedAt != 0
		rows, err := tx.ListHistory(workspaceID, appID, model.Page{Limit: historyWindow})
		if err != nil {
			return fmt.Errorf("list history of app %s: %w", appID, err)
		}
		slices.Reverse(rows)
		p.history, err = a.historyViews(tx, rows)
		return err
	})
	return p, err
}

// lastRollout returns the rollout in flight, or else the newest rollout, or nil.
func (a appService) lastRollout(tx Tx, app model.App) (*model.Rollout, error) {
	if app.RolloutID != "" {
		r, err := tx.GetRollout(app.WorkspaceID, app.RolloutID)
		if err == nil {
			return &r, nil
		}
		if !errors.Is(err, model.ErrNotFound) {
			return nil, fmt.Errorf("read rollout %s: %w", app.RolloutID, err)
		}
	}
	rows, err := tx.ListRollouts(app.WorkspaceID, app.ID, model.Page{Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("list rollouts of app %s: %w", app.ID, err)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	return &rows[0], nil
}

// deploymentsShown returns the ids of the live deployment and of the rollout's deployment.
func deploymentsShown(app model.App, r *model.Rollout) []string {
	set := map[string]bool{app.LiveDeploymentID: true}
	if r != nil {
		set[r.DeploymentID] = true
	}
	delete(set, "")
	return keysOf(set)
}
