package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/preview"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// DiffPreset returns the changes that the newest version of the preset would make to an app's live version.
func (a presetService) DiffPreset(ctx context.Context, req *windlassv1.DiffPresetRequest) (*windlassv1.DiffPresetResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	var app model.App
	var live model.Deployment
	var rows []model.Preset
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) (err error) {
		if app, err = a.findApp(tx, by.WorkspaceID, req.GetApp(), true); err != nil || app.LiveDeploymentID == "" {
			return err
		}
		if live, err = tx.GetDeployment(by.WorkspaceID, app.LiveDeploymentID); err != nil {
			return fmt.Errorf("read deployment %s: %w", app.LiveDeploymentID, err)
		}
		rows, err = presetRows(tx, by.WorkspaceID, live.Spec.GetGeneratedBy(), live.Spec.GetServe().GetEngine())
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case app.LiveDeploymentID == "":
		return nil, apierr.NothingToDo(fmt.Sprintf("app %s has no live version", app.Name), "Deploy it first, or wait until it is ready.")
	case live.Spec.GetGeneratedBy() == "":
		return nil, apierr.NothingToDo(fmt.Sprintf("no preset made v%d of app %s", live.Version, app.Name), "Set an engine and a model in serve of the app's file, and deploy it.")
	}
	presets, err := a.compiledPresets(ctx, by.WorkspaceID, rows)
	if err != nil {
		return nil, err
	}
	next, findings, ok := appspec.Upgrade(live.Spec, presets)
	if !ok {
		return nil, apierr.NothingToDo(fmt.Sprintf("preset %s, which made v%d of app %s, was deleted or is unknown to this release", live.Spec.GetGeneratedBy(), live.Version, app.Name),
			"Use `windlass plan -f` with the app's file.")
	}
	res := &windlassv1.DiffPresetResponse{Version: live.Version, GeneratedBy: live.Spec.GetGeneratedBy(), Newest: next.GetGeneratedBy(), Findings: presetFindings(findings)}
	if preset.HasErrors(findings) {
		return res, nil
	}
	res.Changes, err = preview.SpecChanges(live.Spec, next)
	return res, err
}
