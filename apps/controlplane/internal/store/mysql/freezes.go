package mysql

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func freezeFromRow(r gen.Freeze) (model.Freeze, error) {
	f := model.Freeze{
		ID: r.ID, WorkspaceID: r.WorkspaceID, Name: r.Name, ProjectID: r.ProjectID, AppID: r.AppID, Reason: r.Reason,
		OnStart: windlassv1.Freeze_OnStart(r.OnStart), From: r.StartsAt, Until: r.EndsAt,
		TimeZone: r.TimeZone, SetBy: r.SetBy, SetAt: r.SetAt, FromFile: r.FromFile,
	}
	if err := decodeJSON(r.Weekly, &f.Weekly); err != nil {
		return f, fmt.Errorf("weekly windows of freeze %q: %w", r.Name, err)
	}
	return f, nil
}

func (t *tx) PutFreeze(f model.Freeze) error {
	weekly, err := encodeJSON(f.Weekly)
	if err != nil {
		return fmt.Errorf("store: weekly windows of freeze %q: %w", f.Name, err)
	}
	return t.queryError(t.q.PutFreeze(t.ctx, gen.PutFreezeParams{
		ID: f.ID, WorkspaceID: f.WorkspaceID, Name: f.Name, ProjectID: f.ProjectID, AppID: f.AppID, Reason: f.Reason,
		OnStart: int32(f.OnStart), StartsAt: f.From, EndsAt: f.Until, Weekly: weekly,
		TimeZone: f.TimeZone, SetBy: clipText(f.SetBy, maxName), SetAt: f.SetAt, FromFile: f.FromFile,
	}), "put freeze", f.Name)
}

func (t *tx) ListFreezes(workspaceID string, p store.Page) ([]model.Freeze, error) {
	return list(t, "list freezes of", workspaceID, freezeFromRow)(t.q.ListFreezes(t.ctx, gen.ListFreezesParams{
		WorkspaceID: workspaceID, After: p.After, Limit: limitOrAll(p.Limit),
	}))
}

// fewFreezes is the maximum number of freezes that are read once for all members of a batch.
const fewFreezes = 100

func (t *tx) ListFreezesFor(workspaceID, name string, appIDs ...string) ([]model.Freeze, error) {
	if t.shared != nil {
		all, err := onceList(t, "ListFreezes "+workspaceID, func() ([]model.Freeze, error) {
			return t.ListFreezes(workspaceID, store.Page{Limit: fewFreezes + 1})
		})
		if err != nil {
			return nil, err
		}
		if len(all) <= fewFreezes {
			return slices.DeleteFunc(all, func(f model.Freeze) bool {
				return f.FromFile && f.Name != name && !slices.Contains(appIDs, f.AppID)
			}), nil
		}
	}
	return list(t, "list freezes of", workspaceID, freezeFromRow)(t.q.ListFreezesFor(t.ctx, gen.ListFreezesForParams{
		WorkspaceID: workspaceID, Name: name, AppIds: appIDs,
	}))
}

func (t *tx) DeleteFreeze(workspaceID, name string) error {
	n, err := t.q.DeleteFreeze(t.ctx, gen.DeleteFreezeParams{WorkspaceID: workspaceID, Name: name})
	return t.requireFound(n, err, "delete freeze", name)
}

func (t *tx) DeleteFreezesOf(workspaceID, projectID, appID string) error {
	return t.queryError(t.q.DeleteFreezesOf(t.ctx, gen.DeleteFreezesOfParams{
		WorkspaceID: workspaceID, ProjectID: projectID, AppID: appID,
	}), "delete freezes of", projectID+appID)
}

func (t *tx) ListFrozenApps(workspaceID string) ([]string, error) {
	ids, err := t.q.ListFrozenApps(t.ctx, workspaceID)
	return ids, t.queryError(err, "list held apps of", workspaceID)
}
