package controlplane

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/webhook"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

// hookFacts reads the facts that a webhook's request contains, and the secrets that sign it. If a secret was deleted
// meanwhile, hookFacts omits it and the check reports that.
func (p parts) hookFacts(ctx context.Context, call analysis.Call, secrets []string) (facts webhook.Facts, err error) {
	err = p.store.View(ctx, func(tx store.Tx) error {
		workspace, err := tx.GetWorkspace(call.Workspace.ID)
		if err != nil {
			return fmt.Errorf("read workspace %s: %w", call.Workspace.ID, err)
		}
		project, err := tx.GetProject(workspace.ID, call.Project.ID)
		if err != nil {
			return fmt.Errorf("read project %s: %w", call.Project.ID, err)
		}
		environment, err := tx.GetEnvironment(workspace.ID, call.Environment.ID)
		if err != nil {
			return fmt.Errorf("read environment %s: %w", call.Environment.ID, err)
		}
		facts = webhook.Facts{
			Workspace: workspace.Name, Project: project.Name, Environment: environment.Name, Secrets: map[string][]byte{},
		}
		for _, name := range secrets {
			value, err := p.openSecret(tx, workspace.ID, environment.ID, name)
			if errors.Is(err, model.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			facts.Secrets[name] = value
		}
		return nil
	})
	return facts, err
}

// openSecret returns the newest value of a secret.
func (p parts) openSecret(tx store.Tx, workspaceID, environmentID, name string) ([]byte, error) {
	s, err := tx.GetSecret(workspaceID, environmentID, name)
	if err != nil {
		return nil, fmt.Errorf("read secret %s: %w", name, err)
	}
	value, err := p.box.Open(s.Ciphertext, model.SecretContext(s.EnvironmentID, s.Name, s.Version))
	if err != nil {
		return nil, fmt.Errorf("open secret %s version %d of environment %s: %w", name, s.Version, s.EnvironmentID, err)
	}
	return value, nil
}
