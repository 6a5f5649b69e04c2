// Package secrets fetches the values of the secrets that deployments refer to. It caches them in
// sealed form, so that a region can restart instances while the control plane is unreachable. A
// cached value is used only if it has the assigned version.
package secrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/seal"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Fetch fetches a deployment's secrets from the control plane.
type Fetch func(ctx context.Context, req *agentv1.GetSecretsRequest) (*agentv1.GetSecretsResponse, error)

// Cache stores sealed values in a folder, with one file per deployment.
type Cache struct {
	files disk.Files
	box   *seal.Box
	fetch Fetch
}

// Open creates the folder (mode 0700) and the key that seals the values, if they do not exist.
func Open(dir string, fetch Fetch) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	box, err := seal.LoadOrCreate(filepath.Join(dir, "key"))
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	return &Cache{files: disk.Dir(dir), box: box, fetch: fetch}, nil
}

// OpenMemory is Open with files in memory, for an agent without a disk.
func OpenMemory(files *disk.Memory, fetch Fetch) (*Cache, error) {
	keyset, err := files.Read("key")
	if errors.Is(err, fs.ErrNotExist) {
		if keyset, err = seal.Generate(); err == nil {
			err = files.Replace("key", keyset)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	box, err := seal.New(keyset)
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	return &Cache{files: files, box: box, fetch: fetch}, nil
}

// entry has the cached values of one deployment and their versions, by secret.
type entry struct {
	Versions map[string]int32  `json:"versions"`
	Values   map[string]string `json:"values"`
}

// hasVersions reports whether the entry holds each secret of d in the assigned version.
func (e entry) hasVersions(d *agentv1.Deployment) bool {
	for _, s := range d.Secrets {
		if e.Versions[s.Secret] != s.Version {
			return false
		}
	}
	return true
}

// Values returns the deployment's secret values by name. They come from the cache if it has the
// assigned versions, and otherwise from the control plane.
func (c *Cache) Values(ctx context.Context, d *agentv1.Deployment, generation int64) (map[string]string, error) {
	e, err := c.load(d.Id)
	if err != nil {
		return nil, err
	}
	if e.hasVersions(d) {
		return e.Values, nil
	}
	resp, err := c.fetch(ctx, &agentv1.GetSecretsRequest{DeploymentId: d.Id, Generation: generation})
	if err != nil {
		return nil, &runtime.Rejection{
			Code:      runtime.ReasonSecretUnavailable,
			Message:   "cannot get the deployment's secrets: " + connectMessage(err),
			Retryable: true,
		}
	}
	e = entry{Versions: map[string]int32{}, Values: map[string]string{}}
	for _, s := range resp.Secrets {
		e.Versions[s.Secret], e.Values[s.Secret] = s.Version, s.Value
	}
	return e.Values, c.store(d.Id, e)
}

// Forget removes the cached values of a deployment.
func (c *Cache) Forget(deploymentID string) error {
	if err := c.files.Remove(fileName(deploymentID)); err != nil {
		return fmt.Errorf("forget secrets of %s: %w", deploymentID, err)
	}
	return nil
}

// fileName returns a name without path separators, so that no id can name a file outside of the
// folder.
func fileName(deploymentID string) string {
	return strings.ReplaceAll(deploymentID, string(filepath.Separator), "_") + ".sealed"
}

func (c *Cache) load(id string) (e entry, err error) {
	sealed, err := c.files.Read(fileName(id))
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	if err != nil {
		return e, fmt.Errorf("read cached secrets of %s: %w", id, err)
	}
	plain, err := c.box.Open(sealed, id)
	if err != nil {
		return e, nil //nolint:nilerr // a damaged file counts as missing: the values are fetched again
	}
	if err := json.Unmarshal(plain, &e); err != nil {
		return entry{}, nil //nolint:nilerr // as above
	}
	return e, nil
}

func (c *Cache) store(id string, e entry) error {
	plain, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode secrets of %s: %w", id, err)
	}
	sealed, err := c.box.Seal(plain, id)
	if err != nil {
		return err
	}
	if err := c.files.Replace(fileName(id), sealed); err != nil {
		return fmt.Errorf("cache secrets of %s: %w", id, err)
	}
	return nil
}

// connectMessage returns the server's message without the code that Connect puts before it.
func connectMessage(err error) string {
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return ce.Message()
	}
	return err.Error()
}
