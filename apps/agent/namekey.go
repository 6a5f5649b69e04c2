package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
)

// nameKeyFile has the key with which names of Kubernetes Secrets are made from their values.
const (
	nameKeyFile = "name.key"
	nameKeySize = 32
)

// nameKey returns the key with which names of Secrets are made. It is the key that the region's
// agents share, or this agent's own key if the shared key cannot be reached. This agent's own key
// is good enough, because no running pod depends on the key.
func (m *member) nameKey(ctx context.Context) ([]byte, error) {
	files := m.cfg.ownFiles()
	own, err := files.Read(nameKeyFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the key of names: %w", err)
	}
	key := own
	if len(key) != nameKeySize {
		key = make([]byte, nameKeySize)
		if _, err := rand.Read(key); err != nil {
			return nil, fmt.Errorf("make the key of names: %w", err)
		}
	}
	if m.shared != nil {
		if shared, err := m.shared.ShareKey(ctx, key); err != nil {
			m.cfg.Log.WarnContext(ctx, "cannot share the key of names; continuing with this agent's own", "error", err)
		} else {
			key = shared
		}
	}
	if !bytes.Equal(key, own) {
		if err := files.Replace(nameKeyFile, key); err != nil {
			return nil, fmt.Errorf("store the key of names: %w", err)
		}
	}
	return key, nil
}
