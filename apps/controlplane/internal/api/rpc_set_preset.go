package api

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetPreset adds a version to a preset of the workspace, or creates the preset.
func (a presetService) SetPreset(ctx context.Context, req *windlassv1.SetPresetRequest) (*windlassv1.SetPresetResponse, error) {
	// The definition is checked before the transaction, because that takes milliseconds.
	p, findings := checkDefinition(req.GetName(), 1, req.GetDefinition())
	if p == nil {
		return nil, refusedDefinition(findings)
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.SetPresetResponse, error) {
		if _, err := c.LockAdmission(c.workspaceID); err != nil { // the lock of the workspace
			return nil, fmt.Errorf("lock workspace %s: %w", c.workspaceID, err)
		}
		version, newest, err := nextPresetVersion(c, c.workspaceID, req.GetName())
		if err != nil {
			return nil, err
		}
		row := model.Preset{
			WorkspaceID: c.workspaceID, Name: req.GetName(), Version: version, Definition: req.GetDefinition(), SetBy: c.by.Name, SetAt: c.at,
		}
		if newest != nil && proto.Equal(newest.Definition, row.Definition) {
			view, err := storedView(*newest)
			return &windlassv1.SetPresetResponse{Preset: view, Findings: presetFindings(findings), Unchanged: true}, err
		}
		if newest == nil {
			have, err := c.ListPresets(c.workspaceID)
			if err != nil {
				return nil, fmt.Errorf("list presets: %w", err)
			}
			if len(have) >= model.MaxPresets {
				return nil, apierr.OverLimit("name", fmt.Sprintf("the workspace has %d presets, and may not have more", len(have)), "Delete one that no app uses.")
			}
		}
		if err := c.InsertPreset(row); err != nil {
			return nil, fmt.Errorf("store preset %s: %w", row.Name, err)
		}
		if err := c.ForgetPresetVersions(c.workspaceID, row.Name, version-model.KeptPresetVersions); err != nil {
			return nil, fmt.Errorf("forget versions of preset %s: %w", row.Name, err)
		}
		after, err := storedView(row)
		if err != nil {
			return nil, err
		}
		var before proto.Message
		if newest != nil {
			if before, err = storedView(*newest); err != nil {
				return nil, err
			}
		}
		return &windlassv1.SetPresetResponse{Preset: after, Findings: presetFindings(findings)}, c.audit("preset", auditID(row.Name), before, after)
	})
	return res, err
}

// auditID names a preset in the audit. It has no id of its own.
func auditID(name string) string { return preset.CustomPrefix + name }

// storedView returns a stored version as the API shows it, with its definition.
func storedView(row model.Preset) (*windlassv1.Preset, error) {
	p, err := compilePreset(row)
	if err != nil {
		return nil, err
	}
	v := customView(p, row, "")
	v.Definition = row.Definition
	return v, nil
}

// refusedDefinition returns the error for a definition: the first finding that is an error, and how many there are.
func refusedDefinition(findings []preset.Finding) error {
	errs := 0
	for _, f := range findings {
		if f.Severity == preset.Error {
			errs++
		}
	}
	first := findings[0]
	for _, f := range findings {
		if f.Severity == preset.Error {
			first = f
			break
		}
	}
	field, text := "definition."+appspec.FileField(first), first.Text
	if errs > 1 {
		text = fmt.Sprintf("%s (and %d more)", text, errs-1)
	}
	return apierr.InvalidFix(field, field+": "+text, appspec.Sentence(first.Fix))
}
