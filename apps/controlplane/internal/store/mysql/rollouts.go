package mysql

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func rolloutFromRow(r gen.Rollout) (model.Rollout, error) {
	return model.Rollout{
		ID: r.ID, WorkspaceID: r.WorkspaceID, AppID: r.AppID, DeploymentID: r.DeploymentID, Version: r.Version,
		FromDeploymentID: r.FromDeploymentID, FromVersion: r.FromVersion, Status: windlassv1.RolloutStatus(r.Status),
		Reason: r.Reason, Message: r.Message, CreatedBy: r.CreatedBy, CancelRequested: r.CancelRequested,
		CancelledBy: r.CancelledBy, CancelWhy: r.CancelWhy, Traceparent: r.Traceparent, Attempts: r.Attempts,
		CreatedAt: r.CreatedAt, Deadline: r.Deadline, FinishedAt: r.FinishedAt,
		FrozenSince: r.HeldSince, FrozenUntil: r.HeldUntil, FrozenBy: r.HeldBy, FrozenScope: r.HeldScope,
		FrozenWhy: r.HeldWhy, OverrideBy: r.OverrideBy, OverrideWhy: r.OverrideWhy, StartGate: r.StartGate.String,
	}, nil
}

var insertRollouts = insertInto("InsertRollouts", "rollouts",
	"id", "workspace_id", "app_id", "deployment_id", "version", "from_deployment_id", "from_version", "status",
	"reason", "message", "created_by", "cancel_requested", "cancelled_by", "cancel_why", "traceparent", "attempts",
	"created_at", "deadline", "finished_at", "held_since", "held_until", "held_by", "held_scope", "held_why", "override_by", "override_why", "start_gate")

func (t *tx) InsertRollout(r model.Rollout) error {
	t.touchApp(r.AppID)
	if c := t.shared; c != nil {
		keepRows(c, &c.late.rollouts, []string{r.ID, r.AppID}, r)
		return nil
	}
	return t.insertRollouts([]model.Rollout{r})
}

func (t *tx) insertRollouts(rollouts []model.Rollout) error {
	if len(rollouts) == 0 {
		return nil
	}
	slices.SortFunc(rollouts, func(a, b model.Rollout) int { return cmp.Compare(a.ID, b.ID) })
	return t.queryError(runBulk(t, t.db, insertRollouts, rollouts, func(args []any, r model.Rollout) []any {
		return append(args, r.ID, r.WorkspaceID, r.AppID, r.DeploymentID, r.Version, r.FromDeploymentID, r.FromVersion, int32(r.Status),
			clipText(r.Reason, maxReason), clipText(r.Message, maxMessage), r.CreatedBy, r.CancelRequested, r.CancelledBy, r.CancelWhy, r.Traceparent, r.Attempts,
			r.CreatedAt, r.Deadline, r.FinishedAt, r.FrozenSince, r.FrozenUntil, r.FrozenBy, r.FrozenScope, r.FrozenWhy, r.OverrideBy, r.OverrideWhy, r.StartGate)
	}), "insert rollout", rollouts[0].ID)
}

func (t *tx) GetRollout(workspaceID, id string) (model.Rollout, error) {
	return get(t, "get rollout", id, rolloutFromRow)(
		t.q.GetRollout(t.ctx, gen.GetRolloutParams{WorkspaceID: workspaceID, ID: id}))
}

func (t *tx) GetActiveRollouts(rolloutIDs []string) ([]model.ActiveRollout, error) {
	return list(t, "get active rollouts", "", func(r gen.GetActiveRolloutsRow) (f model.ActiveRollout, err error) {
		if f.Rollout, err = rolloutFromRow(r.Rollout); err != nil {
			return f, err
		}
		if f.Deployment, err = deploymentFromRow(r.Deployment); err != nil || !r.Staged {
			return f, err
		}
		s, err := rolloutState(gen.AppStaging{
			AppID: r.Rollout.AppID, WorkspaceID: r.Rollout.WorkspaceID, Policy: r.Policy, Course: r.Course, UpdatedAt: r.StagedAt,
		})
		f.RolloutState = &s
		return f, err
	})(inChunks(sortDistinct(rolloutIDs), func(ids []string) ([]gen.GetActiveRolloutsRow, error) {
		return t.q.GetActiveRollouts(t.ctx, ids)
	}))
}

func (t *tx) GetRollouts(ids []string) ([]model.Rollout, error) {
	return list(t, "get rollouts", "", rolloutFromRow)(inChunks(sortDistinct(ids), func(ids []string) ([]gen.Rollout, error) {
		return t.q.GetRollouts(t.ctx, ids)
	}))
}

var updateRollouts = rewriteQuery("UpdateRollouts", "rollouts", []string{"workspace_id"}, "",
	"status", "reason", "message", "cancel_requested", "cancelled_by", "cancel_why", "traceparent", "attempts", "deadline", "finished_at",
	"held_since", "held_until", "held_by", "held_scope", "held_why", "override_by", "override_why", "start_gate")

func (t *tx) UpdateRollout(rollouts ...model.Rollout) error {
	for _, r := range rollouts {
		t.touchApp(r.AppID)
	}
	n, err := runRewrite(t, updateRollouts, rollouts, func(args []any, r model.Rollout) []any {
		return append(args, r.ID, r.WorkspaceID, int32(r.Status), clipText(r.Reason, maxReason), clipText(r.Message, maxMessage),
			r.CancelRequested, r.CancelledBy, r.CancelWhy, r.Traceparent, r.Attempts, r.Deadline, r.FinishedAt,
			r.FrozenSince, r.FrozenUntil, r.FrozenBy, r.FrozenScope, r.FrozenWhy, r.OverrideBy, r.OverrideWhy, r.StartGate)
	})
	return t.allFound(n, len(rollouts), err, "update rollouts")
}

func rolloutState(r gen.AppStaging) (model.RolloutState, error) {
	s := model.RolloutState{AppID: r.AppID, WorkspaceID: r.WorkspaceID, UpdatedAt: r.UpdatedAt}
	if len(r.Policy) > 0 {
		s.Policy = &windlassv1.RolloutPolicy{}
		if err := proto.Unmarshal(r.Policy, s.Policy); err != nil {
			return s, fmt.Errorf("decode policy of app %q: %w", r.AppID, err)
		}
	}
	var err error
	s.Progress, err = model.DecodeProgress(r.Course)
	return s, err
}

func (t *tx) GetRolloutStates(appIDs []string) ([]model.RolloutState, error) {
	if rows, ok, err := prefetchRows(t, theApps, "rollout state", appIDs, func(s model.RolloutState) string { return s.AppID }, t.getRolloutStates); ok {
		return rows, err
	}
	return t.getRolloutStates(appIDs)
}

func (t *tx) getRolloutStates(appIDs []string) ([]model.RolloutState, error) {
	return list(t, "get rollout states", "", rolloutState)(inChunks(sortDistinct(appIDs), func(ids []string) ([]gen.AppStaging, error) {
		return t.q.GetStagings(t.ctx, ids)
	}))
}

func (t *tx) PutRolloutState(s model.RolloutState) error {
	p := gen.PutStagingParams{AppID: s.AppID, WorkspaceID: s.WorkspaceID, Policy: []byte{}, UpdatedAt: s.UpdatedAt}
	var err error
	if s.Policy != nil {
		policy := proto.CloneOf(s.Policy)
		if policy.Strategy == windlassv1.RolloutPolicy_STRATEGY_UNSPECIFIED {
			// Unspecified means rolling, but an encoded empty message has no bytes, like a missing policy.
			policy.Strategy = windlassv1.RolloutPolicy_STRATEGY_ROLLING
		}
		if p.Policy, err = proto.Marshal(policy); err != nil {
			return fmt.Errorf("store: encode policy of app %q: %w", s.AppID, err)
		}
	}
	if p.Course, err = model.EncodeProgress(s.Progress); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	t.touchApp(s.AppID)
	return t.queryError(t.q.PutStaging(t.ctx, p), "put rollout state of app", s.AppID)
}

func (t *tx) ListRollouts(workspaceID, appID string, p store.Page) ([]model.Rollout, error) {
	return list(t, "list rollouts of", appID, rolloutFromRow)(t.q.ListRollouts(t.ctx, gen.ListRolloutsParams{
		WorkspaceID: workspaceID, AppID: appID, Before: beforeCursor(p), Limit: limitOrAll(p.Limit),
	}))
}
