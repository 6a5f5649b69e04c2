package api

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ApproveGateway lets the platform's regions send requests to a workspace's region at one address. The approval ends
// when the region's agent reports another address.
func (a regionService) ApproveGateway(ctx context.Context, req *windlassv1.ApproveGatewayRequest) (*windlassv1.ApproveGatewayResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.ApproveGatewayResponse, error) {
		r, err := c.regions().tenantRegion(req.GetRegion())
		if err != nil {
			return nil, err
		}
		if url := req.GetGatewayUrl(); url != "" && url != r.GatewayURL {
			return nil, rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
				Reason: windlassv1.ErrorReason_ERROR_REASON_CONFLICT, Field: "gateway_url",
				Fix: "Check the region's current address, and approve it.",
			}, fmt.Sprintf("region %s has gateway_url %q", r.ID, r.GatewayURL))
		}
		before, err := regionProto(r)
		if err != nil {
			return nil, err
		}
		r.ApprovedGatewayURL = req.GetGatewayUrl()
		if err := c.regions().storeRegion(&r); err != nil {
			return nil, err
		}
		after, err := regionProto(r)
		if err != nil {
			return nil, err
		}
		return &windlassv1.ApproveGatewayResponse{Region: after}, c.auditChange("region", r.ID, before, after)
	})
	return res, err
}

// tenantRegion locks and returns a workspace's region, for an operator.
func (c regionMutation) tenantRegion(id string) (r model.Region, err error) {
	if !ident.Valid("reg", id) {
		return r, apierr.Missing("region", "region", id, "Name it by its id, because two workspaces may use the same name.")
	}
	r, err = c.LockRegion(id)
	switch {
	case errors.Is(err, model.ErrNotFound):
		return r, apierr.Missing("region", "region", id, "Name a region of a workspace by its id.")
	case err != nil:
		return r, fmt.Errorf("lock region %s: %w", id, err)
	case r.WorkspaceID == "":
		return r, apierr.NothingToDo(fmt.Sprintf("region %s belongs to the platform, and needs no approval", r.Name), "Name a region of a workspace.")
	}
	return r, nil
}
