package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
)

// Shared stores the region's credential for agents that stand by for each other, because a join
// token is valid for only one join. An agent that takes over needs the newest credential.
type Shared interface {
	// Load returns the value that was last stored. Nil: no value was stored.
	Load(ctx context.Context) ([]byte, error)
	Store(ctx context.Context, value []byte) error
}

// shareEvery is the time between two checks of the file. The file changes when the credential is
// renewed, at half of its lifetime.
const shareEvery = 10 * time.Second

// Fetch replaces the credential in the file by the shared credential, if that is newer.
func Fetch(ctx context.Context, path string, shared Shared) error {
	theirs, err := shared.Load(ctx)
	if err != nil || len(theirs) == 0 {
		return err
	}
	ours, err := readIfThere(path)
	if err != nil {
		return err
	}
	if !newerIdentity(theirs, ours) {
		return nil
	}
	c := &Credentials{files: disk.Dir(filepath.Dir(path)), name: filepath.Base(path)}
	value := bundle{identity: &c.id}
	if err := json.Unmarshal(theirs, &value); err != nil {
		return fmt.Errorf("the shared credential cannot be read (empty the Secret and give a new join token): %w", err)
	}
	// The key is written first, because the credential is useless without it.
	if len(value.Key) > 0 {
		if err := c.files.Replace(keyName, value.Key); err != nil {
			return fmt.Errorf("store the key of the credential: %w", err)
		}
	}
	return c.saveFile()
}

// bundle has what the agents share: the credential, and the key to which it is bound.
type bundle struct {
	*identity
	Key []byte `json:"key,omitempty"`
}

// readBundle returns the shared bundle of this agent. Nil: it has not joined.
func readBundle(path string) ([]byte, error) {
	ours, err := readIfThere(path)
	if err != nil || len(ours) == 0 {
		return nil, err
	}
	key, err := readIfThere(filepath.Join(filepath.Dir(path), keyName))
	if err != nil || len(key) == 0 {
		return ours, err
	}
	value := bundle{identity: &identity{}, Key: key}
	if err := json.Unmarshal(ours, value.identity); err != nil {
		return nil, fmt.Errorf("read credential: %w", err)
	}
	return json.Marshal(value)
}

// Give shares the file's credential with the other agents, if it is newer than the shared one.
func Give(ctx context.Context, path string, shared Shared) error {
	ours, err := readBundle(path)
	if err != nil || len(ours) == 0 {
		return err
	}
	theirs, err := shared.Load(ctx)
	if err != nil {
		return err
	}
	if !newerIdentity(ours, theirs) {
		return nil
	}
	return shared.Store(ctx, ours)
}

// Share calls Give whenever the file has changed, until ctx ends. While the file stays the same, it
// makes no calls.
func Share(ctx context.Context, path string, shared Shared, log *slog.Logger) error {
	var given []byte
	for {
		ours, err := readBundle(path)
		if err == nil && !bytes.Equal(ours, given) {
			if err = Give(ctx, path, shared); err == nil {
				given = ours
			}
		}
		if err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "cannot share the credential; will try again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(shareEvery):
		}
	}
}

func readIfThere(path string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Clean(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read credential: %w", err)
	}
	return data, nil
}

// newerIdentity reports whether a holds a credential that is newer than b's.
func newerIdentity(a, b []byte) bool {
	var x, y identity
	if json.Unmarshal(a, &x) != nil || x.Credential == "" {
		return false
	}
	return json.Unmarshal(b, &y) != nil || y.Credential == "" || x.IssuedAt > y.IssuedAt
}
