package fleet

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/trail"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetSecrets returns the values that a deployment of the caller's region needs.
// A deployment that is not assigned there gets the same error as one that does not exist.
func (s *Service) GetSecrets(ctx context.Context, req *agentv1.GetSecretsRequest) (*agentv1.GetSecretsResponse, error) {
	region, err := s.callerRegion(ctx, agentv1connect.AgentServiceGetSecretsProcedure)
	if err != nil {
		return nil, err
	}
	var sealed []model.Secret
	err = s.cfg.Store.View(ctx, func(tx Tx) error {
		sealed, err = s.secretsOf(tx, region.ID, req)
		return err
	})
	read := trail.Entry{Procedure: agentv1connect.AgentServiceGetSecretsProcedure, ResourceKind: "deployment", ResourceID: req.GetDeploymentId(), Outcome: outcomeOf(err)}
	if len(sealed) > 0 {
		read.WorkspaceID, read.Outcome = sealed[0].WorkspaceID, trail.Done
	}
	s.noteCall(region, rpc.ClientOf(ctx), read)
	if err != nil {
		return nil, err
	}
	out := &agentv1.GetSecretsResponse{}
	for _, secret := range sealed {
		value, err := s.cfg.Box.Open(secret.Ciphertext, model.SecretContext(secret.EnvironmentID, secret.Name, secret.Version))
		if err != nil {
			return nil, fmt.Errorf("open secret %s version %d of environment %s: %w", secret.Name, secret.Version, secret.EnvironmentID, err)
		}
		out.Secrets = append(out.Secrets, &agentv1.SecretValue{Secret: secret.Name, Version: secret.Version, Value: string(value)})
	}
	return out, nil
}

func (s *Service) secretsOf(tx Tx, regionID string, req *agentv1.GetSecretsRequest) ([]model.Secret, error) {
	rows, err := tx.GetAssignments(map[string][]string{regionID: {req.DeploymentId}})
	if err != nil {
		return nil, fmt.Errorf("read assignment of %s: %w", req.DeploymentId, err)
	}
	var row model.Topology
	if len(rows) > 0 {
		row = rows[0].Topology
	}
	running := row.Assigned()
	if !running || row.Generation < req.Generation {
		return nil, rpc.Error(connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "deployment_id",
			"the deployment is not assigned to this region at the requested generation")
	}
	deployments, err := tx.GetDeployments([]string{req.DeploymentId})
	if err != nil {
		return nil, fmt.Errorf("read deployment %s: %w", req.DeploymentId, err)
	}
	if len(deployments) == 0 {
		return nil, fmt.Errorf("deployment %s is assigned to region %s, but does not exist", req.DeploymentId, regionID)
	}
	app, err := tx.GetApp(row.WorkspaceID, row.AppID)
	if err != nil {
		return nil, fmt.Errorf("read app %s: %w", row.AppID, err)
	}
	var out []model.Secret
	seen := map[string]bool{}
	for _, ref := range override.In(deployments[0].Spec, regionID).GetSecrets() {
		if seen[ref.Secret] {
			continue
		}
		seen[ref.Secret] = true
		secret, err := s.secretOf(tx, app, ref)
		if errors.Is(err, model.ErrNotFound) {
			return nil, rpc.Error(connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_SECRET, "spec.secrets",
				fmt.Sprintf("secret %q is not in the environment: set it with `windlass secret set`", ref.Secret))
		}
		if err != nil {
			return nil, fmt.Errorf("read secret %s: %w", ref.Secret, err)
		}
		out = append(out, secret)
	}
	return out, nil
}

// secretOf returns the version that the reference names, or the newest. It also returns the newest version if the
// named version was deleted, because an older instance that restarts needs a value.
func (s *Service) secretOf(tx Tx, app model.App, ref *windlassv1.SecretReference) (model.Secret, error) {
	if ref.GetVersion() != 0 {
		secret, err := tx.GetSecretVersion(app.WorkspaceID, app.EnvironmentID, ref.GetSecret(), ref.GetVersion())
		if !errors.Is(err, model.ErrNotFound) {
			return secret, err
		}
	}
	return tx.GetSecret(app.WorkspaceID, app.EnvironmentID, ref.GetSecret())
}
