package mysql

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// scalingPolicy decodes a policy. Empty bytes mean no policy, because every policy has a max.
func scalingPolicy(b []byte) (*windlassv1.ScalingPolicy, error) {
	if len(b) == 0 {
		return nil, nil
	}
	p := &windlassv1.ScalingPolicy{}
	return p, proto.Unmarshal(b, p)
}

func scalingFromRow(r gen.AppScaling) (s model.Scaling, err error) {
	s = model.Scaling{AppID: r.AppID, WorkspaceID: r.WorkspaceID, UpdatedAt: r.UpdatedAt}
	if s.Policy, err = scalingPolicy(r.Policy); err != nil {
		return s, fmt.Errorf("decode scaling of app %q: %w", r.AppID, err)
	}
	s.Holds, err = model.DecodeHolds(r.Holds)
	return s, err
}

func (t *tx) GetScalings(appIDs []string) ([]model.Scaling, error) {
	if rows, ok, err := prefetchRows(t, theApps, "scaling", appIDs, func(s model.Scaling) string { return s.AppID }, t.getScalings); ok {
		return rows, err
	}
	return t.getScalings(appIDs)
}

func (t *tx) getScalings(appIDs []string) ([]model.Scaling, error) {
	return list(t, "get scaling of apps", "", scalingFromRow)(inChunks(sortDistinct(appIDs), func(ids []string) ([]gen.AppScaling, error) {
		return t.q.GetScalings(t.ctx, ids)
	}))
}

func (t *tx) PutScaling(s model.Scaling) (err error) {
	p := gen.PutScalingParams{AppID: s.AppID, WorkspaceID: s.WorkspaceID, Policy: []byte{}, UpdatedAt: s.UpdatedAt}
	if s.Policy != nil {
		if p.Policy, err = proto.Marshal(s.Policy); err != nil {
			return fmt.Errorf("store: encode scaling of app %q: %w", s.AppID, err)
		}
	}
	if p.Holds, err = model.EncodeHolds(s.Holds); err != nil {
		return fmt.Errorf("store: encode holds of app %q: %w", s.AppID, err)
	}
	t.touchApp(s.AppID)
	return t.queryError(t.q.PutScaling(t.ctx, p), "put scaling of app", s.AppID)
}

func (t *tx) ListScalingDecisions(appID string) ([]model.ScalingDecision, error) {
	return list(t, "list scaling decisions of", appID, func(r gen.ScalingDecision) (model.ScalingDecision, error) {
		d := model.ScalingDecision{
			AppID: r.AppID, RegionID: r.Region, WorkspaceID: r.WorkspaceID, Decision: &windlassv1.RegionScaling{}, DecidedAt: r.DecidedAt,
		}
		return d, proto.Unmarshal(r.Decision, d.Decision)
	})(t.q.ListScalingDecisions(t.ctx, appID))
}

func (t *tx) PutScalingDecision(d model.ScalingDecision) error {
	b, err := proto.Marshal(d.Decision)
	if err != nil {
		return fmt.Errorf("store: encode scaling decision of app %q: %w", d.AppID, err)
	}
	return t.queryError(t.q.PutScalingDecision(t.ctx, gen.PutScalingDecisionParams{
		AppID: d.AppID, Region: d.RegionID, WorkspaceID: d.WorkspaceID, Decision: b, DecidedAt: d.DecidedAt,
	}), "put scaling decision of app", d.AppID)
}

func (t *tx) ListScalingLoads(appID, regionID, role string, since int64) ([]model.LoadChunk, error) {
	return list(t, "list scaling loads of", appID, func(r gen.ScalingLoad) (model.LoadChunk, error) {
		return model.LoadChunk{AppID: r.AppID, RegionID: r.Region, Role: r.Role, WorkspaceID: r.WorkspaceID, BeganAt: r.BeganAt, Samples: r.Samples}, nil
	})(t.q.ListScalingLoads(t.ctx, gen.ListScalingLoadsParams{AppID: appID, Region: regionID, Role: role, BeganAt: since}))
}

var putScalingLoads = insertInto("PutScalingLoads", "scaling_loads", "app_id", "region", "role", "began_at", "workspace_id", "samples").replacingColumns("samples")

func (t *tx) PutScalingLoads(chunks []model.LoadChunk) error {
	if len(chunks) == 0 {
		return nil
	}
	chunks = slices.SortedFunc(slices.Values(chunks), func(a, b model.LoadChunk) int {
		return cmp.Or(cmp.Compare(a.AppID, b.AppID), cmp.Compare(a.RegionID, b.RegionID), cmp.Compare(a.Role, b.Role), cmp.Compare(a.BeganAt, b.BeganAt))
	})
	return t.queryError(runBulk(t, t.db, putScalingLoads, chunks, func(args []any, c model.LoadChunk) []any {
		return append(args, c.AppID, c.RegionID, c.Role, c.BeganAt, c.WorkspaceID, c.Samples)
	}), "put scaling loads", chunks[0].AppID)
}
