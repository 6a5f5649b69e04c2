package mysql

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

func deployment(r gen.Deployment) (model.Deployment, error) {
	spec := &windlassv1.DeploymentSpec{}
	if err := proto.Unmarshal(r.Spec, spec); err != nil {
		return model.Deployment{}, fmt.Errorf("decode the spec of %q: %w", r.ID, err)
	}
	return model.Deployment{
		ID: r.ID, WorkspaceID: r.WorkspaceID, AppID: r.AppID, Version: r.Version, Spec: spec, SpecHash: blob(r.SpecHash), MadeAs: blob(r.MadeAs),
		ResolvedImage: r.ResolvedImage, Status: windlassv1.DeploymentStatus(r.Status), Reason: r.Reason,
		Message: r.Message, Source: r.Source, FromVersion: r.FromVersion, CreatedBy: r.CreatedBy, Stable: r.Stable,
		CreatedAt: r.CreatedAt, ReadyAt: r.ReadyAt, EndedAt: r.EndedAt,
	}, nil
}

func (t *tx) InsertDeployment(d model.Deployment) error {
	spec, err := proto.MarshalOptions{Deterministic: true}.Marshal(d.Spec)
	if err != nil {
		return t.err(fmt.Errorf("encode the spec: %w", err), "insert deployment", d.ID)
	}
	err = t.q.InsertDeployment(t.ctx, gen.InsertDeploymentParams{
		ID: d.ID, WorkspaceID: d.WorkspaceID, AppID: d.AppID, Version: d.Version, Spec: notNull(spec), SpecHash: notNull(d.SpecHash),
		MadeAs:        notNull(d.MadeAs),
		ResolvedImage: d.ResolvedImage, Status: int32(d.Status), Reason: clip(d.Reason, maxReason),
		Message: clip(d.Message, maxMessage), Source: d.Source, FromVersion: d.FromVersion, CreatedBy: d.CreatedBy,
		Stable: d.Stable, CreatedAt: d.CreatedAt, ReadyAt: d.ReadyAt, EndedAt: d.EndedAt,
	})
	t.touch(d.AppID)
	return t.err(err, "insert deployment", d.ID)
}

func (t *tx) GetDeployment(workspaceID, id string) (model.Deployment, error) {
	return get(t, "get deployment", id, deployment)(
		t.q.GetDeployment(t.ctx, gen.GetDeploymentParams{WorkspaceID: workspaceID, ID: id}))
}

func (t *tx) GetDeploymentByVersion(workspaceID, appID string, version int32) (model.Deployment, error) {
	return get(t, fmt.Sprintf("get version %d of app", version), appID, deployment)(
		t.q.GetDeploymentByVersion(t.ctx, gen.GetDeploymentByVersionParams{WorkspaceID: workspaceID, AppID: appID, Version: version}))
}

func (t *tx) GetDeployments(ids []string) ([]model.Deployment, error) {
	return list(t, "get deployments", "", deployment)(inChunks(distinct(ids), func(ids []string) ([]gen.Deployment, error) {
		return t.q.GetDeployments(t.ctx, ids)
	}))
}

// What else there is of a deployment is immutable.
var updateDeployments = rewriting("UpdateDeployments", "deployments", []string{"workspace_id"}, "",
	"status", "reason", "message", "resolved_image", "stable", "ready_at", "ended_at")

func (t *tx) UpdateDeployment(deployments ...model.Deployment) error {
	for _, d := range deployments {
		t.touch(d.AppID)
	}
	n, err := runRewrite(t, updateDeployments, deployments, func(args []any, d model.Deployment) []any {
		return append(args, d.ID, d.WorkspaceID, int32(d.Status), clip(d.Reason, maxReason), clip(d.Message, maxMessage),
			d.ResolvedImage, d.Stable, d.ReadyAt, d.EndedAt)
	})
	return t.allFound(n, len(deployments), err, "update deployments")
}

func (t *tx) ListDeployments(workspaceID, appID string, p store.Page) ([]model.Deployment, error) {
	if appID == "" {
		return list(t, "list deployments of", workspaceID, deployment)(t.q.ListDeployments(t.ctx, gen.ListDeploymentsParams{
			WorkspaceID: workspaceID, Before: before(p), Limit: limit(p.Limit),
		}))
	}
	return list(t, "list deployments of", appID, deployment)(t.q.ListDeploymentsOfApp(t.ctx, gen.ListDeploymentsOfAppParams{
		WorkspaceID: workspaceID, AppID: appID, Before: before(p), Limit: limit(p.Limit),
	}))
}
