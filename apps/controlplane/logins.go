package controlplane

import (
	"context"
	"errors"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

// registryLogins returns the opened secrets with which an app's image is pulled. It omits a secret that was deleted
// meanwhile, because the regions report that.
func (p parts) registryLogins(ctx context.Context, app model.App, names []string) ([]string, error) {
	var out []string
	err := p.store.View(ctx, func(tx store.Tx) error {
		out = nil
		for _, name := range names {
			value, err := p.openSecret(tx, app.WorkspaceID, app.EnvironmentID, name)
			if errors.Is(err, model.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			out = append(out, string(value))
		}
		return nil
	})
	return out, err
}
