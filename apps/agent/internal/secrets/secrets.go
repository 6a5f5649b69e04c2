// Package secrets fetches the values that deployments refer to and keeps them,
// sealed, so that a region can restart instances while the control plane is
// away. A kept value is used only for the exact versions that are assigned.
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

// Fetch is the call to the control plane.
type Fetch func(ctx context.Context, req *agentv1.GetSecretsRequest) (*agentv1.GetSecretsResponse, error)

// Cache keeps sealed values in a folder, one file a deployment.
type Cache struct {
	files disk.Files
	box   *seal.Box
	fetch Fetch
}

// Open makes the folder (mode 0700) and its key.
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

// OpenMemory is Open where there is no disk.
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

type kept struct {
	Versions map[string]int32  `json:"versions"`
	Values   map[string]string `json:"values"`
}

func (k kept) has(d *agentv1.Deployment) bool {
	for _, s := range d.Secrets {
		if k.Versions[s.Secret] != s.Version {
			return false
		}
	}
	return true
}

// Values returns the deployment's secret values by name, from the cache when it
// holds the assigned versions, else from the control plane.
func (c *Cache) Values(ctx context.Context, d *agentv1.Deployment, generation int64) (map[string]string, error) {
	k, err := c.load(d.Id)
	if err != nil {
		return nil, err
	}
	if k.has(d) {
		return k.Values, nil
	}
	resp, err := c.fetch(ctx, &agentv1.GetSecretsRequest{DeploymentId: d.Id, Generation: generation})
	if err != nil {
		return nil, &runtime.Rejection{
			Code:      runtime.ReasonSecretUnavailable,
			Message:   "cannot get the deployment's secrets: " + connectMessage(err),
			Retryable: true,
		}
	}
	k = kept{Versions: map[string]int32{}, Values: map[string]string{}}
	for _, s := range resp.Secrets {
		k.Versions[s.Secret], k.Values[s.Secret] = s.Version, s.Value
	}
	return k.Values, c.store(d.Id, k)
}

// Forget drops what is kept of a deployment.
func (c *Cache) Forget(deploymentID string) error {
	if err := c.files.Remove(file(deploymentID)); err != nil {
		return fmt.Errorf("forget secrets of %s: %w", deploymentID, err)
	}
	return nil
}

// file is safe whatever the id is: a name of the folder, never a way out of it.
func file(deploymentID string) string {
	return strings.ReplaceAll(deploymentID, string(filepath.Separator), "_") + ".sealed"
}

func (c *Cache) load(id string) (k kept, err error) {
	sealed, err := c.files.Read(file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return k, fmt.Errorf("read kept secrets of %s: %w", id, err)
	}
	plain, err := c.box.Open(sealed, id)
	if err != nil {
		return k, nil //nolint:nilerr // a damaged cache is an empty one: the values are fetched again
	}
	if err := json.Unmarshal(plain, &k); err != nil {
		return kept{}, nil //nolint:nilerr // likewise
	}
	return k, nil
}

func (c *Cache) store(id string, k kept) error {
	plain, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("encode secrets of %s: %w", id, err)
	}
	sealed, err := c.box.Seal(plain, id)
	if err != nil {
		return err
	}
	if err := c.files.Replace(file(id), sealed); err != nil {
		return fmt.Errorf("keep secrets of %s: %w", id, err)
	}
	return nil
}

// connectMessage is the server's text without the transport's decoration.
func connectMessage(err error) string {
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return ce.Message()
	}
	return err.Error()
}
