package api

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// regionViews returns regions with the reports of their agents. Only operators see the number of instances of all
// workspaces in a region of the platform.
func (a regionService) regionViews(tx Tx, by caller, rows []model.Region) ([]*windlassv1.Region, error) {
	ids, own := map[string]bool{}, map[string]bool{}
	for _, r := range rows {
		ids[r.ID] = true
		if r.WorkspaceID == by.WorkspaceID {
			own[r.ID] = true
		}
	}
	heads, err := tx.GetHeads(keysOf(ids))
	if err != nil {
		return nil, fmt.Errorf("read heads: %w", err)
	}
	revisions := map[string]int64{}
	for _, h := range heads {
		revisions[h.RegionID] = h.Revision
	}
	instances, err := tx.CountInstances(keysOf(own))
	if err != nil {
		return nil, fmt.Errorf("count instances: %w", err)
	}
	quarantined, err := tx.CountQuarantine(keysOf(own))
	if err != nil {
		return nil, fmt.Errorf("count quarantined workloads: %w", err)
	}
	var out []*windlassv1.Region
	for _, r := range rows {
		v, err := regionProto(r)
		if err != nil {
			return nil, err
		}
		v.Revision = revisions[r.ID]
		v.Instances, v.Quarantined = int32(instances[r.ID]), int32(quarantined[r.ID])
		out = append(out, v)
	}
	return out, nil
}

func (a regionService) regionView(tx Tx, by caller, r model.Region) (*windlassv1.Region, error) {
	views, err := a.regionViews(tx, by, []model.Region{r})
	if err != nil {
		return nil, err
	}
	return views[0], nil
}

// regionProto returns the region's row in the form of the API.
func regionProto(r model.Region) (*windlassv1.Region, error) {
	capacity, err := rollup.Capacity(r)
	if err != nil {
		return nil, err
	}
	return &windlassv1.Region{
		Id: r.ID, Name: r.Name, WorkspaceId: r.WorkspaceID, Labels: r.Labels, Status: r.Status, Message: r.Message,
		AgentVersion: r.AgentVersion, Runtime: r.AgentRuntime, GatewayUrl: r.GatewayURL, GatewayApproved: r.GatewayApproved(), Isolation: r.Isolation(),
		ReceivedRevision: r.ReceivedRevision, LastReportAt: r.LastReportAt,
		CpuMillicores: capacity.GetCpuMillicores(), MemoryMib: capacity.GetMemoryMib(), Notes: capacity.GetNotes(),
		Gpus: rollup.GPUs(capacity), TopologyWords: capacity.GetTopologyWords(),
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, ResourceVersion: r.ResourceVersion,
	}, nil
}

func quarantineProto(r model.Region, q model.Quarantined) *windlassv1.QuarantinedWorkload {
	return &windlassv1.QuarantinedWorkload{
		Region: r.Name, Key: q.Key, Instances: q.Instances, Since: q.Since, Approved: q.ApprovedAt != 0,
	}
}

func (a *server) regionsByID(tx Tx, ids map[string]bool) (map[string]model.Region, error) {
	rows, err := tx.GetRegions(keysOf(ids))
	if err != nil {
		return nil, fmt.Errorf("read regions: %w", err)
	}
	out := map[string]model.Region{}
	for _, r := range rows {
		out[r.ID] = r
	}
	return out, nil
}
