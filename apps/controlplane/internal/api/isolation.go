package api

import (
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// mayShare fails if instances of two workspaces in the region could read each other's secrets. It does not fail if
// trusted is true, by which the operator states that the workspaces trust each other.
func (c regionMutation) mayShare(r model.Region, w model.Workspace, trusted bool) error {
	if trusted || r.Isolation() != windlassv1.Isolation_ISOLATION_NONE {
		return nil
	}
	tenants, err := c.tenantsOf(r)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(tenants, func(id string) bool { return id != w.ID }) {
		return nil
	}
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NOT_ISOLATED, Field: "region",
		Fix: "Run the region's agent as root without --trust-all-tenants, grant another region, or set trust_all_tenants (`--trust-all-tenants`) if the workspaces trust each other.",
	}, fmt.Sprintf("another workspace also uses region %s, and its agent does not isolate instances, so each workspace could read the other's secrets", r.Name))
}

// tenantsOf returns the workspaces that have a grant of the region, or still run apps there.
func (c regionMutation) tenantsOf(r model.Region) ([]string, error) {
	tenants, err := c.Tx.RegionWorkspaces(r.ID)
	if err != nil {
		return nil, fmt.Errorf("read grants of region %s: %w", r.ID, err)
	}
	ids, err := c.AppsInRegion(r.ID)
	if err != nil {
		return nil, fmt.Errorf("list apps in region %s: %w", r.ID, err)
	}
	apps, err := c.GetApps(ids)
	if err != nil {
		return nil, fmt.Errorf("read apps in region %s: %w", r.ID, err)
	}
	for _, app := range apps {
		tenants = append(tenants, app.WorkspaceID)
	}
	return tenants, nil
}
