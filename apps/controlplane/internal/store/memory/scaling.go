package memory

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

func (t *tx) GetScalings(appIDs []string) ([]model.Scaling, error) {
	var rows []model.Scaling
	for _, id := range distinct(appIDs) {
		if s, ok := scalingTable.in(t).get(id); ok {
			rows = append(rows, s)
		}
	}
	return rows, nil
}

func (t *tx) PutScaling(s model.Scaling) error {
	t.touch(s.AppID)
	return scalingTable.in(t).put(s)
}

func (t *tx) ListScalingDecisions(appID string) ([]model.ScalingDecision, error) {
	return scalingDecisionTable.in(t).list(func(d model.ScalingDecision) bool { return d.AppID == appID }), nil
}

func (t *tx) PutScalingDecision(d model.ScalingDecision) error {
	return scalingDecisionTable.in(t).put(d)
}
