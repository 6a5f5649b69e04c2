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
	"maps"
	"reflect"
	"slices"
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
	// Workload whose instances serve; empty: DeploymentID.
	Workload string `json:"workload,omitempty"`
}

// Table is a file of routes by app. It is safe for concurrent use.
//
// The file is written whole, by one call for all that wait: what a change costs does
// not grow with the apps that change beside it, and what it costs to encode not with
// those that there are.
type Table struct {
	files disk.Files
	name  string

	mu     sync.Mutex
	stored sync.Cond // a write ended
	rows   map[string]row
	apps   []string // sorted
	// changes counts them; those up to saved are in the file. writing: a call writes it.
	changes, saved uint64
	writing        bool
}

// row is a route as it is, and its line of the file.
type row struct {
	Route
	line []byte
}

// Open reads the file of that name, or starts with an empty table.
func Open(files disk.Files, name string) (*Table, error) {
	t := &Table{files: files, name: name, rows: map[string]row{}}
	t.stored.L = &t.mu
	data, err := files.Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	routes := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(data, &routes)
	}
	for _, app := range slices.Sorted(maps.Keys(routes)) {
		err = errors.Join(err, t.read(app, routes[app]))
	}
	if err != nil {
		return nil, fmt.Errorf("read routes %s: %w", name, err)
	}
	t.saved = t.changes
	return t, nil
}

// Serve stores an app's routes; without targets it takes them out. A lower
// (epoch, generation) than the one stored changes nothing. After an error the same call
// stores them.
func (t *Table) Serve(r *agentv1.Routes, epoch, generation int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	held, had := t.rows[r.AppId]
	if had && (epoch < held.Epoch || (epoch == held.Epoch && generation < held.Generation)) {
		return nil
	}
	next := Route{AppID: r.AppId, Epoch: epoch, Generation: generation, Hosts: r.Hosts}
	for _, target := range r.Targets {
		next.Targets = append(next.Targets, Target{DeploymentID: target.DeploymentId, Weight: target.Weight, Workload: target.WorkloadKey})
	}
	switch {
	case len(next.Targets) == 0 && had:
		t.remove(r.AppId)
	case len(next.Targets) > 0 && !reflect.DeepEqual(next, held.Route):
		if err := t.put(r.AppId, next); err != nil {
			return err
		}
	}
	return t.save()
}

// read takes an app's line of the file as it is.
func (t *Table) read(app string, line []byte) error {
	var r Route
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("decode routes of %s: %w", app, err)
	}
	name, err := json.Marshal(app)
	if err != nil {
		return fmt.Errorf("encode the name of %s: %w", app, err)
	}
	t.keep(app, row{Route: r, line: slices.Concat(name, []byte(":"), line)})
	return nil
}

func (t *Table) put(app string, r Route) error {
	line, err := json.Marshal(map[string]Route{app: r})
	if err != nil {
		return fmt.Errorf("encode routes of %s: %w", app, err)
	}
	t.keep(app, row{Route: r, line: line[1 : len(line)-1]}) // without the braces
	return nil
}

func (t *Table) keep(app string, r row) {
	if _, had := t.rows[app]; !had {
		at, _ := slices.BinarySearch(t.apps, app)
		t.apps = slices.Insert(t.apps, at, app)
	}
	t.rows[app] = r
	t.changes++
}

func (t *Table) remove(app string) {
	at, _ := slices.BinarySearch(t.apps, app)
	t.apps = slices.Delete(t.apps, at, at+1)
	delete(t.rows, app)
	t.changes++
}

// save returns when all that changed up to now is in the file. t.mu is held, and let go
// of meanwhile.
func (t *Table) save() error {
	for mine := t.changes; t.saved < mine; {
		if t.writing {
			t.stored.Wait()
			continue
		}
		t.writing = true
		upto, data := t.changes, t.encode()
		t.mu.Unlock()
		err := t.files.Replace(t.name, data)
		t.mu.Lock()
		t.writing = false
		t.stored.Broadcast()
		if err != nil {
			return fmt.Errorf("write routes: %w", err)
		}
		t.saved = upto
	}
	return nil
}

// encode makes a JSON object, of one line per app.
func (t *Table) encode() []byte {
	size := 4
	for _, app := range t.apps {
		size += len(t.rows[app].line) + 2
	}
	out := append(make([]byte, 0, size), '{')
	for i, app := range t.apps {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, '\n'), t.rows[app].line...)
	}
	return append(out, "\n}\n"...)
}
