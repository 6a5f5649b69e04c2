package mysql

import (
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

func rollout(r gen.Rollout) (model.Rollout, error) {
	return model.Rollout{
		ID: r.ID, WorkspaceID: r.WorkspaceID, AppID: r.AppID, DeploymentID: r.DeploymentID, Version: r.Version,
		FromDeploymentID: r.FromDeploymentID, FromVersion: r.FromVersion, Status: windlassv1.RolloutStatus(r.Status),
		Reason: r.Reason, Message: r.Message, CreatedBy: r.CreatedBy, CancelRequested: r.CancelRequested,
		CancelledBy: r.CancelledBy, CancelWhy: r.CancelWhy, Traceparent: r.Traceparent, Attempts: r.Attempts,
		CreatedAt: r.CreatedAt, Deadline: r.Deadline, FinishedAt: r.FinishedAt,
	}, nil
}

func (t *tx) InsertRollout(r model.Rollout) error {
	err := t.q.InsertRollout(t.ctx, gen.InsertRolloutParams{
		ID: r.ID, WorkspaceID: r.WorkspaceID, AppID: r.AppID, DeploymentID: r.DeploymentID, Version: r.Version,
		FromDeploymentID: r.FromDeploymentID, FromVersion: r.FromVersion, Status: int32(r.Status),
		Reason: clip(r.Reason, maxReason), Message: clip(r.Message, maxMessage), CreatedBy: r.CreatedBy,
		CancelRequested: r.CancelRequested, CancelledBy: r.CancelledBy, CancelWhy: r.CancelWhy,
		Traceparent: r.Traceparent, Attempts: r.Attempts,
		CreatedAt: r.CreatedAt, Deadline: r.Deadline, FinishedAt: r.FinishedAt,
	})
	t.touch(r.AppID)
	return t.err(err, "insert rollout", r.ID)
}

func (t *tx) GetRollout(workspaceID, id string) (model.Rollout, error) {
	return get(t, "get rollout", id, rollout)(
		t.q.GetRollout(t.ctx, gen.GetRolloutParams{WorkspaceID: workspaceID, ID: id}))
}

func (t *tx) GetRollouts(ids []string) ([]model.Rollout, error) {
	return list(t, "get rollouts", "", rollout)(inChunks(distinct(ids), func(ids []string) ([]gen.Rollout, error) {
		return t.q.GetRollouts(t.ctx, ids)
	}))
}

func (t *tx) UpdateRollout(r model.Rollout) error {
	n, err := t.q.UpdateRollout(t.ctx, gen.UpdateRolloutParams{
		Status: int32(r.Status), Reason: clip(r.Reason, maxReason), Message: clip(r.Message, maxMessage),
		CancelRequested: r.CancelRequested, CancelledBy: r.CancelledBy, CancelWhy: r.CancelWhy,
		Traceparent: r.Traceparent, Attempts: r.Attempts, Deadline: r.Deadline, FinishedAt: r.FinishedAt,
		WorkspaceID: r.WorkspaceID, ID: r.ID,
	})
	t.touch(r.AppID)
	return t.found(n, err, "update rollout", r.ID)
}

func (t *tx) ListRollouts(workspaceID, appID string, p store.Page) ([]model.Rollout, error) {
	return list(t, "list rollouts of", appID, rollout)(t.q.ListRollouts(t.ctx, gen.ListRolloutsParams{
		WorkspaceID: workspaceID, AppID: appID, Before: before(p), Limit: limit(p.Limit),
	}))
}
