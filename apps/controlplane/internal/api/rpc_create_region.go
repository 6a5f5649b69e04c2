package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CreateRegion makes a region of the workspace, or for an operator a region of the platform. The region is pending
// until an agent joins.
func (a regionService) CreateRegion(ctx context.Context, req *windlassv1.CreateRegionRequest) (*windlassv1.CreateRegionResponse, error) {
	if err := checkLabels(req.GetLabels()); err != nil {
		return nil, err
	}
	if err := checkPlace(req.GetLabels()); err != nil {
		return nil, err
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.CreateRegionResponse, error) {
		switch {
		case req.GetPlatform() && !c.by.IsOperator():
			return nil, apierr.Denied("only operators make regions of the platform", "Leave platform out to make a region of the workspace.")
		case !req.GetPlatform() && c.by.IsOperator():
			return nil, apierr.Invalid("platform", "an operator can only make regions of the platform: set platform")
		}
		// The name must also differ from the names of regions that are granted to the workspace.
		if _, err := c.GetRegionByName(c.workspaceID, req.GetName()); err == nil {
			return nil, apierr.Exists("name", "region", req.GetName())
		} else if !errors.Is(err, model.ErrNotFound) {
			return nil, fmt.Errorf("read region %s: %w", req.GetName(), err)
		}
		r := model.Region{
			ID: ident.New("reg"), WorkspaceID: c.workspaceID, Name: req.GetName(), Labels: req.GetLabels(),
			Status:    windlassv1.RegionStatus_REGION_STATUS_PENDING,
			CreatedAt: c.at, UpdatedAt: c.at, ResourceVersion: 1,
		}
		err := c.InsertRegion(r)
		switch {
		case errors.Is(err, model.ErrExists):
			return nil, apierr.Exists("name", "region", req.GetName())
		case err != nil:
			return nil, fmt.Errorf("create region %s: %w", req.GetName(), err)
		}
		view, err := a.regionView(c, c.by, r)
		if err != nil {
			return nil, err
		}
		return &windlassv1.CreateRegionResponse{Region: view}, c.auditChange("region", r.ID, nil, view)
	})
	return res, err
}

// maxLabel is the maximum length of a label's name or value, in bytes.
const maxLabel = 256

// placeLabels are the labels that say where a map shows a region, with the most degrees that each may have.
var placeLabels = map[string]float64{"latitude": 90, "longitude": 180}

func checkLabels(labels map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if name == "" || len(name) > maxLabel || len(labels[name]) > maxLabel {
			return apierr.Invalid("labels", fmt.Sprintf("label %q: names have 1 to %d bytes, values at most %d", apierr.Clip(name, 64), maxLabel, maxLabel))
		}
	}
	return nil
}

// checkPlace fails if labels give a region one coordinate only, or one that is not on the earth.
func checkPlace(labels map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(placeLabels)) {
		value, set := labels[name]
		if !set {
			continue
		}
		if degrees, err := strconv.ParseFloat(value, 64); err != nil || !(math.Abs(degrees) <= placeLabels[name]) {
			return apierr.InvalidFix("labels", fmt.Sprintf("label %s=%q is not a number of degrees from %g to %g", name, apierr.Clip(value, 64), -placeLabels[name], placeLabels[name]),
				"Use decimal degrees, such as latitude=52.4 and longitude=4.9. North and east are positive.")
		}
	}
	_, latitude := labels["latitude"]
	if _, longitude := labels["longitude"]; latitude != longitude {
		return apierr.InvalidFix("labels", "only one of the labels latitude and longitude is set", "Set both, or none.")
	}
	return nil
}
