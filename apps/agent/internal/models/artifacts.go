package models

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/artifact"
	"github.com/windlass-run/windlass/apps/agent/internal/podloader"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// sweepEvery is the time between two sweeps of the store.
const sweepEvery = 10 * time.Minute

// appliedWithin is how long the fetch of a model waits until the model is applied, and appliedEvery is how often it looks.
const (
	appliedWithin = 30 * time.Second
	appliedEvery  = 50 * time.Millisecond
)

// errSecretsLater means that a model is known only from the agent's file, which has no secrets.
var errSecretsLater = errors.New("the secrets of the model are not known yet: they come with its assignment")

// referenceOf returns the artifact of a model, or the zero Reference if it has none.
func referenceOf(m *windlassv1.LoadedModel) artifact.Reference {
	a := m.GetArtifact()
	return artifact.Reference{URL: a.GetUrl(), Endpoint: a.GetEndpoint(), Region: a.GetRegion()}
}

// loaders calls the loaders in the pods of servers.
type loaders struct {
	runtime.Loaders
	podloader.Client
}

// errNoStore means that a model has files, and that this agent cannot get them to servers.
var errNoStore = errors.New("this agent does not fetch files of models")

// discardWithin limits the time of a call that removes the files of an unloaded model.
const discardWithin = 10 * time.Second

// prepareModel implements the manager's Config.Prepare.
func (r *Runtime) prepareModel(ctx context.Context, s Server, m Model) (Model, error) {
	c, err := r.awaitCredentials(ctx, m.ID)
	switch {
	case err != nil:
		return m, err
	case r.loaders != nil:
		return r.prepareInPod(ctx, s, m, c)
	case r.store == nil:
		return m, errNoStore
	}
	dir, err := r.store.Fetch(ctx, s.Scope, s.Workspace, m.Artifact, c)
	if err != nil {
		return m, &shownError{clipReason(blankSecrets(c, err.Error())), err}
	}
	if s.Protocol.HasAdapters() {
		m.Path = dir
		return m, nil
	}
	return m, r.store.Link(s.Scope, s.ID, m.Name, dir)
}

// prepareInPod makes the loader in the server's pod fetch the files of a model.
func (r *Runtime) prepareInPod(ctx context.Context, s Server, m Model, c artifact.Credentials) (Model, error) {
	at, err := r.loaders.LoaderOf(s.ID)
	if err != nil {
		return m, err
	}
	dir, err := r.loaders.Prepare(ctx, at, podloader.Request{
		Name: m.Name, Adapter: s.Protocol.HasAdapters(), Workspace: s.Workspace, Reference: m.Artifact, Credentials: c,
	})
	if err != nil {
		return m, &shownError{clipReason(blankSecrets(c, err.Error())), err}
	}
	if s.Protocol.HasAdapters() {
		m.Path = dir
	}
	return m, nil
}

// awaitCredentials returns the secrets of a model. After a restart of the agent, it waits until the model is applied.
func (r *Runtime) awaitCredentials(ctx context.Context, workload string) (artifact.Credentials, error) {
	limited, cancel := context.WithTimeout(ctx, appliedWithin)
	defer cancel()
	for {
		r.mu.Lock()
		c, known := r.credentials[workload]
		r.mu.Unlock()
		if known {
			return c, nil
		}
		select {
		case <-time.After(appliedEvery):
		case <-limited.Done():
			return c, errSecretsLater
		}
	}
}

// blankSecrets removes the secrets of a model from a text.
func blankSecrets(c artifact.Credentials, text string) string {
	values := slices.Concat(slices.Collect(maps.Values(c.Variables)), slices.Collect(maps.Values(c.Docker)))
	return redact.New(values...).Blank(text)
}

// discardModel implements the manager's Config.Discard.
func (r *Runtime) discardModel(s Server, m Model) {
	if s.Protocol.HasAdapters() && r.loaders == nil {
		return
	}
	var err error
	switch {
	case r.loaders != nil:
		ctx, cancel := context.WithTimeout(context.Background(), discardWithin)
		defer cancel()
		var at runtime.Loader
		if at, err = r.loaders.LoaderOf(s.ID); err == nil {
			err = r.loaders.Discard(ctx, at, m.Name)
		}
	case r.store != nil:
		err = r.store.Unlink(s.Scope, s.ID, m.Name)
	}
	if err != nil {
		r.log.Warn("cannot remove an unloaded model from the repository of its server", "server", s.ID, "model", m.Name, "error", err)
	}
}

// needsArtifact implements the store's KeepNeeded. A deleted model needs its files until no server
// has it.
func (r *Runtime) needsArtifact(scope, dir string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.kept.Models {
		if a.EnvironmentID == scope && artifact.DirOf(referenceOf(a.Model)) == dir {
			return true
		}
	}
	return false
}

// unlinkGone removes a model that is gone from the repositories of all servers. A repository may
// still have the model, because a server that restarted lost it without an unload. Once no
// repository has hard links to the files, the store frees disk space when it deletes them. The
// caller holds the lock.
func (r *Runtime) unlinkGone(gone assignment) {
	if r.store == nil || gone.Model.GetArtifact() == nil {
		return
	}
	name := gone.asModel("").Name
	for _, a := range r.kept.Models {
		if a.EnvironmentID == gone.EnvironmentID && a.asModel("").Name == name {
			return // Another version has the name.
		}
	}
	for server := range r.instances {
		if err := r.store.Unlink(gone.EnvironmentID, server, name); err != nil {
			r.log.Warn("cannot remove a deleted model from the repository of a server", "server", server, "model", name, "error", err)
		}
	}
}

// requestSweep requests a sweep, if the last one is long ago. The caller holds the lock, and has called noteInstances.
func (r *Runtime) requestSweep() {
	if r.store == nil || time.Since(r.swept) < sweepEvery {
		return
	}
	r.swept = time.Now()
	select {
	case r.sweeps <- struct{}{}:
	default: // one is due already
	}
}

// sweepOnRequest sweeps until ctx ends. It is done in a goroutine of its own, because it may take long.
func (r *Runtime) sweepOnRequest(ctx context.Context) error {
	for {
		select {
		case <-r.sweeps:
			r.sweepFiles(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// sweepFiles deletes files of models that are gone. It keeps the repositories of servers that do not run at the moment, because
// they may be starting.
func (r *Runtime) sweepFiles(ctx context.Context) {
	r.mu.Lock()
	ids, scopes := maps.Clone(r.instances), map[string]bool{}
	for _, kept := range []map[string]assignment{r.kept.Models, r.kept.Servers} {
		for _, a := range kept {
			scopes[a.EnvironmentID] = true
		}
	}
	r.mu.Unlock()
	if err := r.store.Sweep(ctx, func(scope string) bool { return scopes[scope] }, ids); err != nil && ctx.Err() == nil {
		r.log.WarnContext(ctx, "cannot delete files of models that are not needed any more", "error", err)
	}
}
