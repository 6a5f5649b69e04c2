package memory

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func (t *tx) GetScalings(appIDs []string) ([]model.Scaling, error) {
	var rows []model.Scaling
	for _, id := range sortDistinct(appIDs) {
		if s, ok := scalingTable.overlayIn(t).get(id); ok {
			rows = append(rows, s)
		}
	}
	return rows, nil
}

func (t *tx) PutScaling(s model.Scaling) error {
	t.touchApp(s.AppID)
	return scalingTable.overlayIn(t).put(s)
}

func (t *tx) ListScalingDecisions(appID string) ([]model.ScalingDecision, error) {
	return scalingDecisionTable.overlayIn(t).list(func(d model.ScalingDecision) bool { return d.AppID == appID }), nil
}

func (t *tx) PutScalingDecision(d model.ScalingDecision) error {
	return scalingDecisionTable.overlayIn(t).put(d)
}

func (t *tx) ListScalingLoads(appID, regionID, role string, since int64) ([]model.LoadChunk, error) {
	rows := scalingLoadTable.overlayIn(t).list(func(c model.LoadChunk) bool {
		return c.AppID == appID && c.RegionID == regionID && c.Role == role && c.BeganAt >= since
	})
	slices.SortFunc(rows, func(a, b model.LoadChunk) int { return cmp.Compare(a.BeganAt, b.BeganAt) })
	return rows, nil
}

func (t *tx) PutScalingLoads(chunks []model.LoadChunk) error {
	for _, c := range chunks {
		if err := scalingLoadTable.overlayIn(t).put(c); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) DeleteScalingLoads(before int64, limit int) (int, error) {
	return forgetRows(scalingLoadTable.overlayIn(t), limit, func(c model.LoadChunk) bool { return c.BeganAt < before },
		func(a, b model.LoadChunk) int { return cmp.Compare(a.BeganAt, b.BeganAt) })
}
