package process

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/windlass-run/windlass/apps/agent/internal/artifact"
)

// modelRepositoryEnv is the variable with the directory in which a server finds its models, each in
// a directory of its name.
const modelRepositoryEnv = "WINDLASS_MODEL_REPOSITORY"

// modelDirs returns the directories that a server of models needs: first that of its environment,
// which it sees, and last its own repository. It returns nil for other instances.
func (r *Runtime) modelDirs(rec record, d *deployment) []string {
	if r.cfg.ModelsDir == "" || d.spec.GetSpec().GetModels() == nil {
		return nil
	}
	scope := d.spec.GetEnvironmentId()
	repository := artifact.RepositoryDir(r.cfg.ModelsDir, scope, rec.ID)
	return []string{artifact.ScopeDir(r.cfg.ModelsDir, scope), filepath.Dir(repository), repository}
}

// makeModelDirs makes the directories of a launch for models. The instance can read them, and cannot
// change them if it has its own user.
func makeModelDirs(l launch) error {
	for i, dir := range l.models {
		mode := os.FileMode(0o755)
		if i == 0 {
			mode = 0o750 // Other environments must not read the models.
		}
		err := os.MkdirAll(dir, mode)
		if err == nil {
			err = os.Chmod(dir, mode)
		}
		if err == nil && i == 0 && l.User != nil {
			err = os.Chown(dir, 0, l.User.GID)
		}
		if err != nil {
			return fmt.Errorf("make the directory of models: %w", err)
		}
	}
	return nil
}
