package api

import (
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// An app may start or grow only in regions that the workspace owns or that are granted to it. When a grant is
// revoked, running instances stay, and the app may shrink there. Calls use this file to check their own changes.
// Package plan checks later changes by a rollout or a pin.

// mayGrow fails if the workspace may no longer use one of the regions (by id).
func (c versionMutation) mayGrow(regions map[string]bool, asked plan.Asked) error {
	closed, err := c.closedRegions(regions)
	if err != nil || len(closed) == 0 {
		return err
	}
	names := strings.Join(closed, ", ")
	fix := "Ask an operator to grant the region again, or deploy without it. You may reduce replicas."
	if asked.All != nil {
		fix = "Scale other regions by name (`windlass scale APP N --region REGION`), deploy without this region, or ask an operator to grant it again."
	}
	return rpc.ErrorWith(connect.CodePermissionDenied, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_REGION_CLOSED, Field: "region", Fix: fix,
	}, fmt.Sprintf("the workspace may no longer use region %s: running instances stay, but the app cannot grow there", names))
}

// closedRegions returns the names of the regions (by id) that the workspace may no longer use.
func (c versionMutation) closedRegions(regions map[string]bool) (names []string, err error) {
	if len(regions) == 0 {
		return nil, nil
	}
	found, err := c.GetRegions(keysOf(regions))
	if err != nil {
		return nil, fmt.Errorf("read regions: %w", err)
	}
	found = slices.DeleteFunc(found, func(r model.Region) bool { return r.WorkspaceID == c.workspaceID })
	if len(found) == 0 {
		return nil, nil
	}
	for _, r := range found {
		names = append(names, r.Name)
	}
	usable, err := c.GetRegionsByName(c.workspaceID, names)
	if err != nil {
		return nil, fmt.Errorf("read regions of workspace %s: %w", c.workspaceID, err)
	}
	names = nil
	for _, r := range found {
		if !slices.ContainsFunc(usable, func(u model.Region) bool { return u.ID == r.ID }) {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// grownRows returns the regions in which a row gets more replicas.
func grownRows(rows, changed []model.Topology) map[string]bool {
	grown := map[string]bool{}
	for _, now := range changed {
		i := slices.IndexFunc(rows, func(t model.Topology) bool { return t.DeploymentID == now.DeploymentID && t.RegionID == now.RegionID })
		if i < 0 || now.Replicas > rows[i].Replicas || growsRole(rows[i], now) {
			grown[now.RegionID] = true
		}
	}
	return grown
}

// grownSizes returns the regions that have more replicas in after than in before.
func grownSizes(before, after *model.Progress) map[string]bool {
	grown := map[string]bool{}
	note := func(was, is map[string]int32) {
		for region, n := range is {
			if had, ok := was[region]; ok && n > had {
				grown[region] = true
			}
		}
	}
	note(before.Sizes, after.Sizes)
	note(before.OldSizes, after.OldSizes)
	for _, b := range after.Lagging {
		if was := before.LaggingIn(b.RegionID); was != nil {
			for region := range grownSizes(was.Progress, b.Progress) {
				grown[region] = true
			}
		}
	}
	return grown
}

// closedHolds returns a text for each region of the rollout that the workspace may no longer use.
func (c versionMutation) closedHolds(progress *model.Progress) (out []string, err error) {
	regions := map[string]bool{}
	for _, w := range progress.Waves {
		for _, r := range w.Regions {
			regions[r.RegionID] = true
		}
	}
	closed, err := c.closedRegions(regions)
	for _, name := range closed {
		out = append(out, "nothing starts in region "+name+", which the workspace may no longer use")
	}
	return out, err
}
