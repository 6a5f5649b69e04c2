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
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	// The definition is checked before the transaction, because the check may take long.
	p, findings, err := a.checkDefinition(ctx, by.WorkspaceID, req.GetName(), 1, req.GetDefinition())
	if err != nil {
		return nil, err
	}
	if p == nil {
		return earlierOr[*windlassv1.SetPresetResponse](ctx, a.server, req, refusedDefinition(findings))
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
			return &windlassv1.SetPresetResponse{Preset: storedView(*newest, ""), Findings: presetFindings(findings), Unchanged: true}, nil
		}
		if newest == nil {
			have, err := c.ListPresets(c.workspaceID)
			if err != nil {
				return nil, fmt.Errorf("list presets: %w", err)
			}
			if len(have) >= model.MaxPresets {
				return nil, apierr.OverLimit("name", fmt.Sprintf("the workspace has %d presets, which is the maximum", len(have)), "Delete a preset that no app uses.")
			}
		}
		if err := c.InsertPreset(row); err != nil {
			return nil, fmt.Errorf("store preset %s: %w", row.Name, err)
		}
		if err := c.ForgetPresetVersions(c.workspaceID, row.Name, version-model.KeptPresetVersions); err != nil {
			return nil, fmt.Errorf("forget versions of preset %s: %w", row.Name, err)
		}
		after := storedView(row, "")
		var before proto.Message
		if newest != nil {
			before = storedView(*newest, "")
		}
		return &windlassv1.SetPresetResponse{Preset: after, Findings: presetFindings(findings)}, c.auditChange("preset", auditID(row.Name), before, after)
	})
	return res, err
}

// auditID returns the id of a preset in the audit, which is made from its name, because presets have no ids.
func auditID(name string) string { return preset.CustomPrefix + name }

// refusedDefinition returns the error for a definition: the first error among the findings, and the number of further
// errors.
func refusedDefinition(findings []preset.Finding) error {
	errs := 0
	for _, f := range findings {
		if f.Severity == preset.Error {
			errs++
		}
	}
	first := findings[0] // errors are first
	field, text := "definition."+appspec.FileField(first), first.Text
	if errs > 1 {
		text = fmt.Sprintf("%s (and %d more)", text, errs-1)
	}
	return apierr.InvalidFix(field, field+": "+text, appspec.Sentence(first.Fix))
}
