package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/windlass-run/windlass/pkg/localstack"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
)

// ports are the components' ports on 127.0.0.1.
type ports struct{ etcd, api, controllerManager, scheduler int }

// takePorts gives each component the port of the last run if it is free, so that an old kubeconfig still
// works, or else another one. It returns an error if wantAPI is taken.
func takePorts(dataDir string, wantAPI int) (ports, error) {
	file := filepath.Join(dataDir, "ports.json")
	last := map[string]int{}
	b, err := os.ReadFile(file)
	switch {
	case err == nil:
		if err := json.Unmarshal(b, &last); err != nil {
			return ports{}, fmt.Errorf("read %s: %w; remove it", file, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return ports{}, err
	}
	if wantAPI != 0 {
		last["api"] = wantAPI
	}
	// The folder of claims is shared by all clusters of this user.
	pool := localstack.Ports{Claims: localstack.ClaimsFolder()}
	var out ports
	for _, p := range []struct {
		name string
		port *int
	}{
		{"api", &out.api},
		{"etcd", &out.etcd},
		{"controller-manager", &out.controllerManager},
		{"scheduler", &out.scheduler},
	} {
		port, taken, err := pool.Take(last[p.name])
		if err != nil {
			return ports{}, fmt.Errorf("a port for %s: %w", p.name, err)
		}
		if taken && p.name == "api" && wantAPI != 0 {
			return ports{}, fmt.Errorf("port %d is taken by another process", wantAPI)
		}
		last[p.name], *p.port = port, port
	}
	if b, err = json.Marshal(last); err != nil {
		return ports{}, err
	}
	return out, atomicfile.Write(file, b, 0o600)
}
