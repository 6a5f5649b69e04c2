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

func deploymentFromRow(r gen.Deployment) (model.Deployment, error) {
	spec := &windlassv1.DeploymentSpec{}
	if err := proto.Unmarshal(r.Spec, spec); err != nil {
		return model.Deployment{}, fmt.Errorf("decode the spec of %q: %w", r.ID, err)
	}
	return model.Deployment{
		ID: r.ID, WorkspaceID: r.WorkspaceID, AppID: r.AppID, Version: r.Version, Spec: spec, SpecHash: blobOrNil(r.SpecHash), MadeAs: blobOrNil(r.MadeAs),
		RolesMade:     string(r.RolesMade),
		ResolvedImage: r.ResolvedImage, Status: windlassv1.DeploymentStatus(r.Status), Reason: r.Reason,
		Message: r.Message, Source: r.Source, FromVersion: r.FromVersion, CreatedBy: r.CreatedBy, Stable: r.Stable,
		CreatedAt: r.CreatedAt, ReadyAt: r.ReadyAt, EndedAt: r.EndedAt,
	}, nil
}

var insertDeployments = insertInto("InsertDeployments", "deployments",
	"id", "workspace_id", "app_id", "version", "spec", "spec_hash", "resolved_image", "status", "reason", "message",
	"source", "from_version", "created_by", "stable", "created_at", "ready_at", "ended_at", "made_as", "roles_made")

func (t *tx) InsertDeployment(d model.Deployment) error {
	t.touchApp(d.AppID)
	if c := t.shared; c != nil {
		keepRows(c, &c.late.deployments, []string{d.ID, d.AppID}, d)
		return nil
	}
	return t.insertDeployments([]model.Deployment{d})
}

func (t *tx) insertDeployments(deployments []model.Deployment) error {
	if len(deployments) == 0 {
		return nil
	}
	slices.SortFunc(deployments, func(a, b model.Deployment) int { return cmp.Compare(a.ID, b.ID) })
	specs := make(map[string][]byte, len(deployments))
	for _, d := range deployments {
		spec, err := proto.MarshalOptions{Deterministic: true}.Marshal(d.Spec)
		if err != nil {
			return t.queryError(fmt.Errorf("encode the spec: %w", err), "insert deployment", d.ID)
		}
		specs[d.ID] = notNull(spec)
	}
	return t.queryError(runBulk(t, t.db, insertDeployments, deployments, func(args []any, d model.Deployment) []any {
		return append(args, d.ID, d.WorkspaceID, d.AppID, d.Version, specs[d.ID], notNull(d.SpecHash), d.ResolvedImage, int32(d.Status),
			clipText(d.Reason, maxReason), clipText(d.Message, maxMessage), d.Source, d.FromVersion, d.CreatedBy, d.Stable,
			d.CreatedAt, d.ReadyAt, d.EndedAt, notNull(d.MadeAs), []byte(d.RolesMade))
	}), "insert deployment", deployments[0].ID)
}

func (t *tx) GetDeployment(workspaceID, id string) (model.Deployment, error) {
	found, ok, err := prefetchRows(t, theDeployments, "deployment", []string{id}, func(d model.Deployment) string { return d.ID }, t.GetDeployments)
	switch {
	case err != nil:
		return model.Deployment{}, err
	case ok && len(found) == 1 && found[0].WorkspaceID == workspaceID:
		return found[0], nil
	}
	done := t.ignoreDeferred(id)
	defer done()
	return get(t, "get deployment", id, deploymentFromRow)(
		t.q.GetDeployment(t.ctx, gen.GetDeploymentParams{WorkspaceID: workspaceID, ID: id}))
}

func (t *tx) GetDeploymentByVersion(workspaceID, appID string, version int32) (model.Deployment, error) {
	return get(t, fmt.Sprintf("get version %d of app", version), appID, deploymentFromRow)(
		t.q.GetDeploymentByVersion(t.ctx, gen.GetDeploymentByVersionParams{WorkspaceID: workspaceID, AppID: appID, Version: version}))
}

func (t *tx) GetDeployments(ids []string) ([]model.Deployment, error) {
	done := t.ignoreDeferred(ids...)
	defer done()
	return list(t, "get deployments", "", deploymentFromRow)(inChunks(sortDistinct(ids), func(ids []string) ([]gen.Deployment, error) {
		return t.q.GetDeployments(t.ctx, ids)
	}))
}

func (t *tx) GetNewestDeployments(appIDs []string) ([]model.Deployment, error) {
	return list(t, "get newest deployments", "", deploymentFromRow)(inChunks(sortDistinct(appIDs), func(ids []string) ([]gen.Deployment, error) {
		return t.q.GetNewestDeployments(t.ctx, ids)
	}))
}

// updateDeployments sets the mutable columns. All other columns are immutable.
var updateDeployments = rewriteQuery("UpdateDeployments", "deployments", []string{"workspace_id"}, "",
	"status", "reason", "message", "resolved_image", "stable", "ready_at", "ended_at")

func (t *tx) UpdateDeployment(deployments ...model.Deployment) error {
	for _, d := range deployments {
		t.touchApp(d.AppID)
	}
	n, err := runRewrite(t, updateDeployments, deployments, func(args []any, d model.Deployment) []any {
		return append(args, d.ID, d.WorkspaceID, int32(d.Status), clipText(d.Reason, maxReason), clipText(d.Message, maxMessage),
			d.ResolvedImage, d.Stable, d.ReadyAt, d.EndedAt)
	})
	return t.allFound(n, len(deployments), err, "update deployments")
}

func (t *tx) ListDeployments(workspaceID, appID string, p store.Page) ([]model.Deployment, error) {
	if appID == "" {
		return list(t, "list deployments of", workspaceID, deploymentFromRow)(t.q.ListDeployments(t.ctx, gen.ListDeploymentsParams{
			WorkspaceID: workspaceID, Before: beforeCursor(p), Limit: limitOrAll(p.Limit),
		}))
	}
	return list(t, "list deployments of", appID, deploymentFromRow)(t.q.ListDeploymentsOfApp(t.ctx, gen.ListDeploymentsOfAppParams{
		WorkspaceID: workspaceID, AppID: appID, Before: beforeCursor(p), Limit: limitOrAll(p.Limit),
	}))
}
