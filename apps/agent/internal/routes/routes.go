// Package routes is the region's table of routes: what a gateway beside the
// agent serves from, also while the agent and the control plane are away. Being
// in the file is what "the region serves it" means until a gateway acknowledges
// for itself.
package routes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"sync"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Route is one app's entry.
type Route struct {
	AppID      string   `json:"app_id"`
	Epoch      int64    `json:"epoch"`
	Generation int64    `json:"generation"`
	Hosts      []string `json:"hosts"`
	Targets    []Target `json:"targets"`
}

// Target is a weighted deployment.
type Target struct {
	DeploymentID string `json:"deployment_id"`
	Weight       int32  `json:"weight"`
}

// Table is a file of routes by app. It is safe for concurrent use.
type Table struct {
	files disk.Files
	name  string

	mu     sync.Mutex
	routes map[string]Route
}

// Open reads the file of that name, or starts with an empty table.
func Open(files disk.Files, name string) (*Table, error) {
	t := &Table{files: files, name: name, routes: map[string]Route{}}
	data, err := files.Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &t.routes)
	}
	if err != nil {
		return nil, fmt.Errorf("read routes %s: %w", name, err)
	}
	return t, nil
}

// Serve stores an app's routes; without targets it takes them out. A lower
// (epoch, generation) than the one stored changes nothing.
func (t *Table) Serve(r *agentv1.Routes, epoch, generation int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	held, had := t.routes[r.AppId]
	if had && (epoch < held.Epoch || (epoch == held.Epoch && generation < held.Generation)) {
		return nil
	}
	next := Route{AppID: r.AppId, Epoch: epoch, Generation: generation, Hosts: r.Hosts}
	for _, target := range r.Targets {
		next.Targets = append(next.Targets, Target{DeploymentID: target.DeploymentId, Weight: target.Weight})
	}
	if (had && reflect.DeepEqual(next, held)) || (!had && len(next.Targets) == 0) {
		return nil
	}
	if len(next.Targets) == 0 {
		delete(t.routes, r.AppId)
	} else {
		t.routes[r.AppId] = next
	}
	if err := t.save(); err != nil {
		delete(t.routes, r.AppId)
		if had {
			t.routes[r.AppId] = held
		}
		return err
	}
	return nil
}

func (t *Table) save() error {
	data, err := json.MarshalIndent(t.routes, "", "  ")
	if err != nil {
		return fmt.Errorf("encode routes: %w", err)
	}
	if err := t.files.Replace(t.name, data); err != nil {
		return fmt.Errorf("write routes: %w", err)
	}
	return nil
}
