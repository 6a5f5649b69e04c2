package models

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/apps/agent/internal/artifact"
	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/podloader"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/modelstate"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// drainPatience is how long a server that should stop waits until its models serve elsewhere. The
// caller of Drain may give it more time, but not less.
const drainPatience = 10 * time.Minute

// retryRemoval is the time from a failed removal of servers to the next attempt.
const retryRemoval = 5 * time.Second

// retryGone is the time between two checks whether servers still have a deleted model.
const retryGone = time.Second

// defaultEvictions and defaultKeep are the defaults of models.eviction. With them, a server of four
// slots spends a small part of its time on loads that take a second.
const (
	defaultEvictions = int32(10)
	defaultKeep      = 20 * time.Second
)

// failuresUntilDoomed is the number of failed loads of a replica after which a rollout should no longer wait for it.
const failuresUntilDoomed = 3

// Runtime runs deployments of models on the servers that another runtime runs. It passes all other
// deployments to that runtime.
//
// For the rest of the agent, a replica of a model is an instance. Its address is the server's
// address. So gateways route to it, wait for it and release it like a process.
type Runtime struct {
	base    runtime.Runtime
	manager *Manager
	// store has the files of models. Nil: they are elsewhere.
	store *artifact.Store
	// loaders fetches files of models into the pods of servers. Nil: servers have no loaders. Without both, models with
	// artifacts are refused.
	loaders *loaders
	log     *slog.Logger
	files   disk.Files
	name    string
	changes chan struct{}
	// released is the argument of Drain. Nil: no gateway sends to instances.
	released func(instanceID string) bool
	// holds and busy are the arguments of FollowRequests. Nil: no gateway holds requests.
	holds func() bool
	busy  func(deploymentID string) bool

	mu   sync.Mutex
	kept kept
	// workloads has the workload of each deployment in kept.Models.
	workloads map[string]string
	// credentials has the secrets for the artifact of each model, by workload, once the model was
	// applied.
	credentials map[string]artifact.Credentials
	// dirty means that kept differs from the file. writing is held while the file is written.
	dirty   bool
	writing sync.Mutex
	// groups has the group of each replica of a model, by model and server.
	groups map[string]map[string]int
	// described has the last results of describeModel, by workload.
	described map[string]described
	// removed has the ids of deployments of servers whose removal base has accepted. Base may still
	// observe them.
	removed map[string]bool
	// instances has the ids of the servers in the last observation.
	instances map[string]bool
	// removing is held while a removal of servers is passed to base, and while a removal is taken
	// back.
	removing sync.Mutex
	// alarm signals changes at alarmAt.
	alarm   *time.Timer
	alarmAt time.Time
	// order is the greatest Order of all models so far.
	order int64
	// swept is when a sweep of the store was last requested by sweeps.
	swept  time.Time
	sweeps chan struct{}

	// claims guards kept.Claims. It may be locked while the manager's lock is held.
	claims sync.Mutex
}

// described is a model described as a deployment, and the values from which the description was
// made.
type described struct {
	status     *Status
	assignment assignment
	deployment runtime.ObservedDeployment
}

// Wrap returns a Runtime around base. It reads the file of an earlier agent process. store has the
// files of models; nil means that models with artifacts are refused.
func Wrap(base runtime.Runtime, loader Loader, store *artifact.Store, files disk.Files, name string, log *slog.Logger, reg prometheus.Registerer, rand func() float64) (*Runtime, error) {
	r := &Runtime{
		base: base, store: store, credentials: map[string]artifact.Credentials{}, log: log, files: files, name: name, changes: make(chan struct{}, 1), sweeps: make(chan struct{}, 1),
		kept:   kept{Models: map[string]assignment{}, Servers: map[string]assignment{}},
		groups: map[string]map[string]int{}, removed: map[string]bool{}, described: map[string]described{}, workloads: map[string]string{},
	}
	var err error
	cfg := Config{Loader: guardLoader(loader, base), Released: r.isReleased, Claim: r.claimName, Claimed: r.claimedName, Registerer: reg, Log: log, Rand: rand}
	cfg.Prepare, cfg.Discard = r.prepareModel, r.discardModel
	cfg.Holds, cfg.Busy = r.mayHold, r.isBusy
	if r.manager, err = New(cfg); err != nil {
		return nil, err
	}
	if err = r.recallClaims(); err != nil {
		return nil, err
	}
	for workload, a := range r.kept.Models {
		r.order = max(r.order, a.Order)
		r.workloads[a.DeploymentID] = workload
		r.manager.Put(a.asModel(workload))
	}
	if store != nil {
		store.KeepNeeded(r.needsArtifact)
	}
	return r, nil
}

// UseLoaders makes the loaders of base fetch files of models, if it has some. client must connect only to addresses of
// instances. UseLoaders must be called before Run.
func (r *Runtime) UseLoaders(client *http.Client) {
	base, ok := r.base.(runtime.WithLoaders)
	if !ok {
		return
	}
	if of := base.Loaders(); of != nil {
		r.loaders = &loaders{of, podloader.Client{HTTP: client}}
	}
}

// Apply implements runtime.Runtime.
func (r *Runtime) Apply(ctx context.Context, a runtime.Assignment) error {
	d := a.Deployment
	next := assignment{
		DeploymentID: d.GetId(), AppName: d.GetAppName(), EnvironmentID: d.GetEnvironmentId(), WorkspaceID: d.GetWorkspaceId(),
		Generation: a.Generation, TemplateHash: a.TemplateHash,
		Replicas: int(d.GetReplicas()), MinReady: int(d.GetSpec().GetMinReady()), Model: d.GetSpec().GetModel(), Server: d.GetSpec().GetModels(),
		OnRequest: runtime.IsOnRequest(d.GetSpec()),
	}
	if next.Model == nil {
		// The file is written first, because models on an unknown server are not adopted.
		if err := r.keepServer(d.GetId(), next); err != nil {
			return err
		}
		return r.base.Apply(ctx, a)
	}
	if next.Model.GetArtifact() != nil && r.store == nil && r.loaders == nil {
		return &runtime.Rejection{Code: runtime.ReasonUnsupported, Message: "model.artifact: the agent of this region fetches no files: on Kubernetes, start it with --loader-image, or put the files where the servers find them"}
	}
	r.mu.Lock()
	workload := r.workloadOf(a)
	was, known := r.kept.Models[workload]
	if next.Order = was.Order; !known {
		r.order++
		next.Order = r.order
	}
	if known && was.DeploymentID != next.DeploymentID && was.TemplateHash != next.TemplateHash {
		r.mu.Unlock()
		return &runtime.Rejection{Code: runtime.ReasonUnsupported, Message: "a model cannot take over the replicas of another version in place: use another rollout strategy"}
	}
	next.Loaded = known && was.Loaded && was.TemplateHash == next.TemplateHash
	r.kept.Models[workload], r.workloads[next.DeploymentID] = next, workload
	r.credentials[workload] = artifact.Credentials{Variables: a.Secrets, Docker: a.PullSecrets}
	r.dirty = true
	r.mu.Unlock()
	if err := r.keepClaims(); err != nil {
		return err
	}
	r.manager.Put(next.asModel(workload))
	r.signalChange()
	return nil
}

// workloadOf returns the workload of a model. The caller holds the lock.
func (r *Runtime) workloadOf(a runtime.Assignment) string {
	id := a.Deployment.GetId()
	was := r.kept.Models[a.WorkloadKey]
	// Servers still unload the deleted version, so another version gets a workload of its own.
	if a.WorkloadKey == "" || r.kept.Models[id].DeploymentID == id || was.Deleted && was.TemplateHash != a.TemplateHash {
		return id
	}
	return a.WorkloadKey
}

// noteInstances records the instances of servers, and reports whether one of them is gone. The
// caller holds the lock.
func (r *Runtime) noteInstances(seen []runtime.ObservedDeployment) (lost bool) {
	instances := map[string]bool{}
	for _, d := range seen {
		if _, ok := r.kept.Servers[d.DeploymentID]; ok {
			for _, in := range d.Instances {
				instances[in.ID] = true
			}
		}
	}
	for id := range r.instances {
		lost = lost || !instances[id]
	}
	r.instances = instances
	return lost
}

// Remove implements runtime.Runtime.
func (r *Runtime) Remove(ctx context.Context, deploymentID string) error {
	r.mu.Lock()
	for workload, a := range r.kept.Models {
		if a.DeploymentID != deploymentID {
			continue
		}
		changed := !a.Deleted
		a.Deleted = true
		r.kept.Models[workload] = a
		r.dirty = r.dirty || changed
		r.mu.Unlock()
		if err := r.keepClaims(); err != nil {
			return err
		}
		if changed {
			r.manager.Put(a.asModel(workload))
		}
		r.signalChange()
		return nil
	}
	a, ok := r.kept.Servers[deploymentID]
	if !ok {
		r.mu.Unlock()
		return r.base.Remove(ctx, deploymentID)
	}
	if !a.Deleted {
		a.Deleted, a.DeletedAt = true, time.Now()
		r.kept.Servers[deploymentID] = a
		r.dirty = true
	}
	r.mu.Unlock()
	if err := r.keepClaims(); err != nil {
		return err
	}
	r.signalChange()
	return nil
}

// removeServers makes base remove deployments of servers that were removed. It waits until their
// models serve elsewhere, for drainPatience at most. It forgets deployments that base has removed.
// The manager must know the servers of seen.
func (r *Runtime) removeServers(ctx context.Context, seen runtime.Observation) error {
	present := map[string]*runtime.ObservedDeployment{}
	for i := range seen.Deployments {
		present[seen.Deployments[i].DeploymentID] = &seen.Deployments[i]
	}
	var due []string
	r.mu.Lock()
	for id, a := range r.kept.Servers {
		if !a.Deleted {
			continue
		}
		d := present[id]
		if d == nil && r.removed[id] {
			delete(r.kept.Servers, id)
			delete(r.removed, id)
			r.dirty = true
			continue
		}
		if d != nil {
			d.Removing = true
		}
		if r.removed[id] {
			continue
		}
		left := drainPatience - time.Since(a.DeletedAt)
		if d == nil || left <= 0 || !slices.ContainsFunc(d.Instances, func(in runtime.Instance) bool { return !r.manager.IsEmpty(in.ID) }) {
			due = append(due, id)
			continue
		}
		r.lookIn(left)
	}
	r.mu.Unlock()
	for _, id := range due {
		if err := r.removeServer(ctx, id); err != nil {
			r.log.WarnContext(ctx, "cannot remove servers of models; will try again", "deployment", id, "error", err, "retry_in", retryRemoval)
			r.mu.Lock()
			r.lookIn(retryRemoval)
			r.mu.Unlock()
		}
	}
	return r.keepClaims()
}

// lookIn signals Changes after the given time, unless an earlier signal is planned. The caller
// holds the lock.
func (r *Runtime) lookIn(after time.Duration) {
	at := time.Now().Add(after)
	if r.alarm != nil && time.Now().Before(r.alarmAt) {
		if !at.Before(r.alarmAt) {
			return
		}
		r.alarm.Stop()
	}
	r.alarm, r.alarmAt = time.AfterFunc(after, r.signalChange), at
}

// removeServer makes base remove a deployment of servers, unless it was applied again.
func (r *Runtime) removeServer(ctx context.Context, id string) error {
	r.removing.Lock()
	defer r.removing.Unlock()
	r.mu.Lock()
	deleted := r.kept.Servers[id].Deleted
	r.mu.Unlock()
	if !deleted {
		return nil
	}
	if err := r.base.Remove(ctx, id); err != nil {
		return err
	}
	r.mu.Lock()
	r.removed[id] = true
	r.mu.Unlock()
	r.signalChange()
	return nil
}

// Observe implements runtime.Runtime.
func (r *Runtime) Observe(ctx context.Context) (runtime.Observation, error) {
	seen, err := r.base.Observe(ctx)
	if err != nil {
		return seen, err
	}
	r.mu.Lock()
	servers := r.serversOf(seen)
	if r.noteInstances(seen.Deployments) {
		r.dropClaims()
	}
	none := len(r.kept.Models) == 0 && len(servers) == 0
	r.requestSweep()
	r.mu.Unlock()
	r.manager.SetServers(servers)
	if err := r.removeServers(ctx, seen); err != nil {
		return seen, err
	}
	if none {
		return seen, nil
	}
	status := r.manager.Status()
	seen.Deployments = slices.Grow(slices.Clip(seen.Deployments), len(status))
	r.mu.Lock()
	gone, keep := false, false
	for _, s := range status {
		a, ok := r.kept.Models[s.ModelID]
		if !ok {
			continue
		}
		isGone := a.Deleted && s.State == modelstate.ModelTerminated && r.manager.IsGone(s.ModelID)
		if a.Deleted && s.State == modelstate.ModelTerminated && !isGone {
			r.lookIn(retryGone) // A server's answer that changes no replica causes no signal.
		}
		if isGone {
			delete(r.kept.Models, s.ModelID)
			delete(r.groups, s.ModelID)
			delete(r.credentials, s.ModelID)
			delete(r.described, s.ModelID)
			if r.workloads[a.DeploymentID] == s.ModelID {
				delete(r.workloads, a.DeploymentID)
			}
			r.manager.Drop(s.ModelID)
			r.unlinkGone(a)
			r.dirty, gone = true, true
			continue
		}
		if !a.Loaded && s.Available > 0 {
			a.Loaded = true
			r.kept.Models[s.ModelID] = a
			r.manager.Put(a.asModel(s.ModelID))
			r.dirty, keep = true, true
		}
		was := r.described[s.ModelID]
		if was.status != s || was.assignment != a {
			was = described{s, a, r.describeModel(s, a)}
			r.described[s.ModelID] = was
		}
		seen.Deployments = append(seen.Deployments, was.deployment)
	}
	if gone {
		r.dropClaims()
	}
	r.mu.Unlock()
	if gone || keep {
		err = r.keepClaims()
	}
	return seen, err
}

// serversOf returns the instances that serve models.
func (r *Runtime) serversOf(seen runtime.Observation) []Server {
	var servers []Server
	for _, d := range seen.Deployments {
		a, ok := r.kept.Servers[d.DeploymentID]
		if !ok {
			continue
		}
		for _, in := range d.Instances {
			s := Server{
				ID: in.ID, Incarnation: fmt.Sprint(in.StartedAt.UnixNano(), "-", in.Restarts), App: a.AppName, Scope: a.EnvironmentID, Workspace: a.WorkspaceID, Index: in.Group,
				Address: in.Address, Protocol: V2, Capabilities: a.Server.GetCapabilities(), Memory: a.Server.GetMemoryMib() << 20, Slots: int(a.Server.GetSlots()),
			}
			if e := a.Server.GetEviction(); e != nil {
				s.Evictions, s.Keep = int(cmp.Or(e.GetPerMinute(), defaultEvictions)), defaultKeep
				if e.Keep != nil {
					s.Keep = e.Keep.AsDuration()
				}
			}
			s.Draining = d.Removing || a.Deleted
			switch a.Server.GetProtocol() {
			case windlassv1.ModelServer_PROTOCOL_LORA:
				s.Protocol = LoRA
			case windlassv1.ModelServer_PROTOCOL_SGLANG:
				s.Protocol = SGLang
			case windlassv1.ModelServer_PROTOCOL_V2, windlassv1.ModelServer_PROTOCOL_UNSPECIFIED:
			}
			switch in.Status {
			case windlassv1.InstanceStatus_INSTANCE_STATUS_READY:
				s.Ready = true
			case windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING:
				s.Ready, s.Draining = true, true
			case windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING:
			default:
				continue
			}
			if s.Address != "" {
				servers = append(servers, s)
			}
		}
	}
	return servers
}

// instanceID returns the instance id of a model's replica on a server. It is the same after a
// restart of the agent.
func instanceID(workload, server string) string {
	sum := sha256.Sum256([]byte(workload + "\x00" + server))
	return ident.From("ins", time.UnixMilli(0), binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:]))
}

// describeModel describes a model as a deployment. The caller holds the lock.
func (r *Runtime) describeModel(s *Status, a assignment) runtime.ObservedDeployment {
	d := runtime.ObservedDeployment{DeploymentID: a.DeploymentID, Generation: a.Generation, TemplateHash: a.TemplateHash, Removing: a.Deleted}
	add := func(server string, in runtime.Instance) {
		in.ID, in.Role, in.TemplateHash, in.RuntimeName = instanceID(s.ModelID, server), "main", a.TemplateHash, server
		in.Group = r.groupOf(s.ModelID, server)
		d.Instances = append(d.Instances, in)
	}
	present := map[string]bool{}
	for _, one := range s.Replicas {
		in := runtime.Instance{StartedAt: one.Since, Message: one.Reason}
		switch f := one.State.Facts(); {
		case f.Routed && !one.ServerReady:
			in.Status, in.Address, in.Reason = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING, one.Address, runtime.ReasonHealthCheckFailed
			in.Message = "server " + one.ServerID + " does not pass its health check"
		case f.Routed:
			in.Status, in.Address, in.ReadyAt, in.Message = windlassv1.InstanceStatus_INSTANCE_STATUS_READY, one.Address, one.Since, ""
		case one.State == modelstate.LoadFailed:
			in.Status, in.Reason, in.Doomed = windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, runtime.ReasonLoadFailed, one.Failures >= failuresUntilDoomed
			in.Message = "server " + one.ServerID + ": " + one.Reason
		case one.State == modelstate.LoadedUnavailable:
			// Without an address, gateways do not send to the replica even if few others are ready.
			in.Status, in.Reason = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING, runtime.ReasonHealthCheckFailed
		case f.Leaving:
			in.Status, in.Address = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING, one.Address
		case one.ServerEvicts && a.OnRequest && a.Loaded:
			// Requests wait meanwhile.
			in.Status, in.Reason, in.Message = windlassv1.InstanceStatus_INSTANCE_STATUS_READY, runtime.ReasonUnloaded, "server "+one.ServerID+" loads it"
		default:
			in.Status, in.Reason, in.Message = windlassv1.InstanceStatus_INSTANCE_STATUS_CREATING, runtime.ReasonNotReady, "server "+one.ServerID+" loads it"
		}
		present[one.ServerID] = true
		add(one.ServerID, in)
	}
	if !a.Deleted {
		for n := range s.Short {
			server := fmt.Sprint("none-", n)
			present[server] = true
			if s.OnRequest {
				add(server, runtime.Instance{Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY, Reason: runtime.ReasonUnloaded, Message: "a request loads it again: " + s.Refused})
				continue
			}
			add(server, runtime.Instance{Status: windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING, Reason: runtime.ReasonUnschedulable, Message: s.Refused})
		}
	}
	maps.DeleteFunc(r.groups[s.ModelID], func(server string, _ int) bool { return !present[server] })
	return d
}

// groupOf returns the group of a replica. A new replica gets the lowest free group.
func (r *Runtime) groupOf(workload, server string) int {
	groups := r.groups[workload]
	if groups == nil {
		groups = map[string]int{}
		r.groups[workload] = groups
	}
	group, ok := groups[server]
	if !ok {
		for _, taken := range slices.Sorted(maps.Values(groups)) {
			if taken == group {
				group++
			}
		}
		groups[server] = group
	}
	return group
}

// Changes implements runtime.Runtime.
func (r *Runtime) Changes() <-chan struct{} { return r.changes }

func (r *Runtime) signalChange() {
	select {
	case r.changes <- struct{}{}:
	default:
	}
}

// replicaOf returns the model and the server of an instance that is a replica.
func (r *Runtime) replicaOf(id string) (workload, server string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for workload, groups := range r.groups {
		for server := range groups {
			if instanceID(workload, server) == id {
				return workload, server, true
			}
		}
	}
	return "", "", false
}

// Logs implements runtime.Runtime. A replica of a model has no output, because its server writes
// the output.
func (r *Runtime) Logs(ctx context.Context, id string, tailLines int) ([]byte, error) {
	return r.base.Logs(ctx, id, tailLines)
}

// ReadLog implements runtime.Runtime.
func (r *Runtime) ReadLog(ctx context.Context, id string, q runtime.LogQuery) (runtime.LogPage, error) {
	return r.base.ReadLog(ctx, id, q)
}

// Restart implements runtime.Runtime. It loads a replica of a model again.
func (r *Runtime) Restart(ctx context.Context, id string) error {
	workload, server, ok := r.replicaOf(id)
	if !ok {
		return r.base.Restart(ctx, id)
	}
	if !r.manager.Reload(workload, server) {
		return runtime.ErrUnknownInstance
	}
	return nil
}

// Usage implements runtime.Meter. It is not known how much of a server's resources a replica of a
// model uses.
func (r *Runtime) Usage(ctx context.Context, ids []string) (map[string]runtime.Usage, error) {
	meter, ok := r.base.(runtime.Meter)
	if !ok {
		return map[string]runtime.Usage{}, nil
	}
	return meter.Usage(ctx, ids)
}

// Drain implements runtime.Drainer. A server in use stops only once its models serve elsewhere, or
// after drainPatience. For all other instances, released and patience decide.
func (r *Runtime) Drain(released func(instanceID string) bool, patience func(instanceID string) time.Duration) (again func()) {
	r.released = released
	base := func() {}
	if d, ok := r.base.(runtime.Drainer); ok {
		base = d.Drain(
			func(id string) bool { return released(id) && !r.manager.Serves(id) },
			func(id string) time.Duration {
				if r.manager.Serves(id) {
					return max(drainPatience, patience(id))
				}
				return patience(id)
			})
	}
	return func() {
		r.manager.Again()
		base()
	}
}

// FollowRequests implements runtime.RequestLoader.
func (r *Runtime) FollowRequests(holds func() bool, busy func(deploymentID string) bool) {
	r.holds, r.busy = holds, busy
}

// Requested implements runtime.RequestLoader.
func (r *Runtime) Requested(deploymentIDs []string) {
	for _, id := range deploymentIDs {
		if workload, ok := r.workload(id); ok {
			r.manager.Request(workload)
		}
	}
}

// Used implements runtime.RequestLoader.
func (r *Runtime) Used(deploymentID string, requests uint64) {
	if workload, ok := r.workload(deploymentID); ok {
		r.manager.Used(workload, requests)
	}
}

// ModelNeed implements runtime.RequestLoader.
func (r *Runtime) ModelNeed(instanceID string) (percent float64, ok bool) {
	return r.manager.Need(instanceID)
}

func (r *Runtime) workload(deploymentID string) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	workload, ok := r.workloads[deploymentID]
	return workload, ok
}

// mayHold implements the manager's Config.Holds, and isBusy implements Config.Busy.
func (r *Runtime) mayHold() bool { return r.holds != nil && r.holds() }

func (r *Runtime) isBusy(deploymentID string) bool { return r.busy != nil && r.busy(deploymentID) }

// isReleased implements the manager's Config.Released.
func (r *Runtime) isReleased(workload, server string) bool {
	return r.released == nil || r.released(instanceID(workload, server))
}

// Run implements runtime.Runtime.
func (r *Runtime) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.base.Run(ctx) })
	group.Go(func() error { return r.manager.Run(ctx) })
	group.Go(func() error { return r.sweepOnRequest(ctx) })
	group.Go(func() error {
		for {
			select {
			case <-r.base.Changes():
			case <-r.manager.Changed():
			case <-ctx.Done():
				return nil
			}
			r.signalChange()
		}
	})
	return group.Wait()
}

// Close closes the base runtime, if it can be closed.
func (r *Runtime) Close() error {
	if closer, ok := r.base.(interface{ Close() error }); ok {
		return closer.Close()
	}
	return nil
}
