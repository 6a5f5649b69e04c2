package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/ident"
)

// identity identifies a gateway to its agent. It has an id and a lock. The process that uses the id holds the lock. A
// data directory has as many identities as processes ran with it at the same time. Usually that is two, because one
// process takes over from another. A process takes the first identity whose lock is free. The kernel releases a
// process's lock exactly when the process ends, even if it crashes. So for the agent, the successor of a crashed
// process is the same gateway, but a process that runs next to a live one is another gateway.
type identity struct {
	id   string
	lock *flock.Lock
}

// takeIdentity takes an identity of a data directory. The directory must exist.
func takeIdentity(dir string) (identity, error) {
	for n := 0; ; n++ {
		path := filepath.Join(dir, fmt.Sprintf("gateway-%d", n))
		lock, err := flock.Try(path + ".lock")
		if errors.Is(err, flock.ErrHeld) {
			continue
		}
		if err != nil {
			return identity{}, fmt.Errorf("id of the gateway: %w", err)
		}
		id, err := idIn(path)
		if err != nil {
			return identity{}, errors.Join(fmt.Errorf("id of the gateway: %w", err), lock.Unlock())
		}
		return identity{id: id, lock: lock}, nil
	}
}

// release lets another process take the identity.
func (p identity) release() { _ = p.lock.Unlock() } // after an error, the lock ends with the process

// idIn returns the id in the file. If the file has no valid id, idIn writes a new id.
func idIn(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if id := strings.TrimSpace(string(data)); ident.Valid(idPrefix, id) {
		return id, nil
	}
	id := newID()
	// The file is replaced in one step, so that it never contains a part of an id.
	next := path + ".new"
	if err := os.WriteFile(next, []byte(id+"\n"), 0o600); err != nil {
		return "", err
	}
	return id, os.Rename(next, path)
}

const idPrefix = "gw"

func newID() string { return ident.New(idPrefix) }
