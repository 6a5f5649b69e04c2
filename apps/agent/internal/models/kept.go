package models

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// kept is the content of the file. It tells a new agent process which models to adopt before the
// reconciler has applied all deployments.
type kept struct {
	// Models has the deployments of models, by workload. Servers has the deployments of servers, by
	// id. A removed deployment stays until all its models are unloaded, or all its servers are
	// gone.
	Models  map[string]assignment `json:"models"`
	Servers map[string]assignment `json:"servers"`
	// Claims has the workload whose model a server loaded last under a name, by the server's
	// instance id and the model's name. It has no entry if only one workload had the name at that
	// load.
	Claims map[string]map[string]string `json:"claims,omitempty"`
}

// assignment is the stored part of a deployment.
type assignment struct {
	DeploymentID  string `json:"deployment"`
	AppName       string `json:"app"`
	EnvironmentID string `json:"environment"`
	WorkspaceID   string `json:"workspace,omitempty"`
	Generation    int64  `json:"generation"`
	TemplateHash  string `json:"template"`
	Replicas      int    `json:"replicas"`
	MinReady      int    `json:"minReady"`
	// Order is the position of the model in the order in which models were added.
	Order int64 `json:"order,omitempty"`
	// Deleted means that the model should be unloaded everywhere, or that the servers should end.
	// DeletedAt is when the servers were deleted.
	Deleted bool `json:"deleted,omitempty"`
	// OnRequest means that gateways hold requests for the model while no server has it. Loaded means
	// that a server has loaded the model before.
	OnRequest bool                    `json:"onRequest,omitempty"`
	Loaded    bool                    `json:"loaded,omitempty"`
	DeletedAt time.Time               `json:"deletedAt,omitzero"`
	Model     *windlassv1.LoadedModel `json:"model,omitempty"`
	Server    *windlassv1.ModelServer `json:"server,omitempty"`
}

func (a assignment) asModel(workload string) Model {
	return Model{
		ID: workload, Deployment: a.DeploymentID, Order: a.Order, OnRequest: a.OnRequest, Loaded: a.Loaded, Name: cmp.Or(a.Model.GetName(), a.AppName), Path: a.Model.GetPath(), Requires: a.Model.GetRequires(), App: a.Model.GetServer(),
		Artifact: referenceOf(a.Model),
		Scope:    a.EnvironmentID, Memory: a.Model.GetMemoryMib() << 20, Replicas: a.Replicas, MinReplicas: cmp.Or(a.MinReady, min(1, a.Replicas)), Deleted: a.Deleted,
	}
}

// recallClaims reads the file that an earlier agent process stored, if there is one.
func (r *Runtime) recallClaims() error {
	data, err := r.files.Read(r.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		err = json.Unmarshal(data, &r.kept)
	}
	if err != nil {
		return fmt.Errorf("read the models of the region from %s (without the file, models that were deleted meanwhile stay loaded): %w", r.name, err)
	}
	return nil
}

// keepServer records whether a deployment's instances are servers of models, and undoes an earlier
// removal of them. It waits until a removal that has begun is done.
func (r *Runtime) keepServer(id string, a assignment) error {
	r.mu.Lock()
	_, known := r.kept.Servers[id]
	r.mu.Unlock()
	if a.Server == nil && !known {
		return nil
	}
	r.removing.Lock()
	defer r.removing.Unlock()
	r.mu.Lock()
	if a.Server != nil {
		r.kept.Servers[id] = a
	} else {
		delete(r.kept.Servers, id)
	}
	delete(r.removed, id)
	r.dirty = true
	r.mu.Unlock()
	return r.keepClaims()
}

// keepClaims writes the file if its content has changed. When it returns nil, every change before the
// call is in the file.
func (r *Runtime) keepClaims() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	if !r.dirty {
		r.mu.Unlock()
		return nil
	}
	r.dirty = false
	r.claims.Lock()
	data, err := json.Marshal(r.kept)
	r.claims.Unlock()
	r.mu.Unlock()
	if err == nil {
		err = r.files.Replace(r.name, data)
	}
	if err != nil {
		r.mu.Lock()
		r.dirty = true
		r.mu.Unlock()
		return fmt.Errorf("store the models of the region: %w", err)
	}
	return nil
}

// claimName implements the manager's Config.Claim.
func (r *Runtime) claimName(server, name, workload string) error {
	r.claims.Lock()
	changed := r.kept.Claims[server][name] != workload
	if changed {
		if r.kept.Claims == nil {
			r.kept.Claims = map[string]map[string]string{}
		}
		if r.kept.Claims[server] == nil {
			r.kept.Claims[server] = map[string]string{}
		}
		r.kept.Claims[server][name] = workload
	}
	r.claims.Unlock()
	if changed {
		r.mu.Lock()
		r.dirty = true
		r.mu.Unlock()
	}
	return r.keepClaims()
}

// claimedName implements the manager's Config.Claimed.
func (r *Runtime) claimedName(server, name string) string {
	r.claims.Lock()
	defer r.claims.Unlock()
	return r.kept.Claims[server][name]
}

// dropClaims forgets the claims of workloads that are gone, and of instances that the last
// observation does not show. The caller holds the lock.
func (r *Runtime) dropClaims() {
	r.claims.Lock()
	defer r.claims.Unlock()
	maps.DeleteFunc(r.kept.Claims, func(server string, names map[string]string) bool {
		before := len(names)
		maps.DeleteFunc(names, func(_, workload string) bool {
			_, known := r.kept.Models[workload]
			return !known
		})
		gone := len(names) == 0 || !r.instances[server]
		r.dirty = r.dirty || gone || len(names) < before
		return gone
	})
}
