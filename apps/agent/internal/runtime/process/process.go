package process

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process/portguard"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
	"github.com/windlass-run/windlass/pkg/pool"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Runtime implements runtime.Runtime with local processes.
type Runtime struct {
	cfg     Config
	log     *slog.Logger
	boot    string
	ledger  *ledger
	users   *users // nil: instances run as the agent's user
	cgroups *cgroups
	notes   []string
	metrics *metrics
	meter   meter
	prober  *prober
	changes chan struct{}
	// starts limits how many shims may be starting at the same time.
	starts chan struct{}
	lock   *os.File
	idLock *os.File         // nil: instances run as the agent's user
	guard  *portguard.Guard // nil: instances can call each other's ports
	// released and patience are the arguments of Drain. Nil: no gateway sends to instances.
	released func(instanceID string) bool
	patience func(instanceID string) time.Duration

	// disk serializes writes about one deployment. The deployment's id selects one of the locks, and
	// several deployments can be synced at the same time. A lock is taken before mu, and a goroutine
	// never holds two of them.
	disk [64]sync.Mutex
	seed maphash.Seed

	// mu is locked last, except that the ledger's mutex may be locked while mu is held.
	mu          sync.Mutex
	deployments map[string]*deployment
	workloads   map[string]*workload
	lastSeq     int64
	paused      bool
	ctx         context.Context // context of the keepers; nil before Run
	wg          sync.WaitGroup
}

var _ runtime.Runtime = (*Runtime)(nil)

// New locks the data directory and reads its content. Nothing is started or stopped before Run. A
// caller that does not call Run must call Close.
func New(ctx context.Context, cfg Config) (*Runtime, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	for _, d := range []string{cfg.DataDir, filepath.Join(cfg.DataDir, deploymentsDir), filepath.Join(cfg.DataDir, instancesDir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("process runtime: data directory: %w", err)
		}
	}
	lock, err := lockDataDir(ctx, cfg.DataDir, cfg.LockPatience)
	if err != nil {
		return nil, fmt.Errorf("process runtime: %w", err)
	}
	r := &Runtime{
		cfg: cfg, log: cfg.Log, lock: lock, seed: maphash.MakeSeed(),
		ledger:  newLedger(cfg),
		changes: make(chan struct{}, 1),
		starts:  make(chan struct{}, cfg.StartConcurrency),

		deployments: map[string]*deployment{},
		workloads:   map[string]*workload{},
	}
	if err := r.open(); err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("process runtime: %w", err)
	}
	return r, nil
}

func (r *Runtime) open() error {
	var err error
	if r.boot, err = bootID(); err != nil {
		return err
	}
	if r.metrics, err = newMetrics(r.cfg.Registerer, r.countStates); err != nil {
		return err
	}
	r.prober = newProber(r.cfg.Random, r.metrics.countCheck)
	if r.cgroups, err = openCgroups(r.cfg.CgroupParent); err != nil {
		if r.cfg.CgroupParent != "" {
			return fmt.Errorf("cgroup parent: %w", err)
		}
		r.notes = append(r.notes, "cgroup limits: "+err.Error()+"; CPU and memory of instances are not limited")
	}
	if i := r.cfg.Isolation; i != nil {
		if r.idLock, err = lockIDs(lockDir, i.IDs); err != nil {
			return fmt.Errorf("users of instances: %w", err)
		}
		if r.users, err = openUsers(r.cfg.DataDir, i.IDs); err != nil {
			return fmt.Errorf("users of instances: %w", err)
		}
		if err := r.guardPorts(i); err != nil {
			return err
		}
	}
	if err := r.loadDeployments(); err != nil {
		return err
	}
	if err := r.loadInstances(); err != nil {
		return err
	}
	return r.restorePorts()
}

// Close releases the data directory. Instances keep running. Run also does this at its end.
func (r *Runtime) Close() error {
	if r.guard != nil {
		_ = r.guard.Close()
	}
	if r.idLock != nil {
		_ = r.idLock.Close()
	}
	return r.lock.Close()
}

// Run works until ctx ends. Afterwards, instances keep running, unless Config.StopInstancesOnExit
// is set.
func (r *Runtime) Run(ctx context.Context) error {
	kctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	r.mu.Lock()
	if r.ctx != nil {
		r.mu.Unlock()
		return errors.New("process runtime: Run was called before")
	}
	r.ctx = kctx
	// If ctx ended before Run, Run starts no instance, not even for a moment.
	r.paused = r.cfg.StopInstancesOnExit && ctx.Err() != nil
	for _, w := range r.workloads {
		r.keepLocked(w)
	}
	r.mu.Unlock()
	r.wg.Go(func() { r.deleteAllGone(kctx) })
	if r.guard != nil {
		r.wg.Go(func() {
			r.guard.Run(kctx, func(err error) {
				r.log.Warn("addresses of this host may be missing in the isolation of ports", "err", err)
			})
		})
	}

	<-ctx.Done()
	if r.cfg.StopInstancesOnExit {
		r.stopAll(kctx)
	}
	r.mu.Lock()
	cancel()
	r.mu.Unlock()
	r.wg.Wait()
	r.publishAll()
	return r.Close()
}

// publishAll makes Observe return the last state, because a keeper does not finish its pass when
// its context ends.
func (r *Runtime) publishAll() {
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.workloads))
	r.mu.Unlock()
	for _, w := range all {
		w.mu.Lock()
		w.publish(nil, w.view.Load().asOf)
		w.mu.Unlock()
	}
}

// stopAll stops every instance, and waits until all have ended.
func (r *Runtime) stopAll(ctx context.Context) {
	r.mu.Lock()
	r.paused = true
	all := slices.Collect(maps.Values(r.workloads))
	r.mu.Unlock()
	longest := time.Duration(0)
	for _, w := range all {
		longest = max(longest, w.longestGrace())
		w.wakeUp()
	}
	ctx, cancel := context.WithTimeout(ctx, longest+2*killMargin)
	defer cancel()
	tick := time.NewTicker(lockRetry)
	defer tick.Stop()
	for slices.ContainsFunc(all, (*workload).anyLive) {
		select {
		case <-ctx.Done():
			r.log.Warn("instances did not stop in time; they keep running", "waited", longest+2*killMargin)
			return
		case <-tick.C:
		}
	}
}

// Observe implements runtime.Runtime. It shares the lists that the keepers published. So its cost
// depends on the number of deployments, and not on the number of instances.
func (r *Runtime) Observe(context.Context) (runtime.Observation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	byID := map[string]*runtime.ObservedDeployment{}
	for id, d := range r.deployments {
		byID[id] = &runtime.ObservedDeployment{
			DeploymentID: id, Generation: d.generation, TemplateHash: d.template, Roles: d.roles,
			Removing: d.removing, Unsettled: r.unsettledLocked(d),
		}
	}
	for _, w := range r.workloads {
		for id, list := range w.publishedLists() {
			o := byID[id]
			if o == nil {
				// The deployment's assignment is lost.
				o = &runtime.ObservedDeployment{DeploymentID: id}
				byID[id] = o
			}
			if o.Instances == nil {
				o.Instances = list
			} else {
				// The deployment is moving from one workload to another.
				o.Instances = slices.Concat(o.Instances, list)
			}
		}
	}
	out := runtime.Observation{Capacity: &agentv1.Capacity{
		CpuMillicores: int64(r.cfg.CPUMillicores),
		MemoryMib:     int64(r.cfg.MemoryMiB),
		Gpus:          r.ledger.gpuPools(),
		Notes:         slices.Clone(r.notes),
	}}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		out.Deployments = append(out.Deployments, *byID[id])
	}
	return out, nil
}

// Changes implements runtime.Runtime.
func (r *Runtime) Changes() <-chan struct{} { return r.changes }

func (r *Runtime) signalChange() {
	select {
	case r.changes <- struct{}{}:
	default:
	}
}

// Logs implements runtime.Runtime.
func (r *Runtime) Logs(_ context.Context, instanceID string, tailLines int) ([]byte, error) {
	secrets, err := r.Secrets(instanceID)
	if err != nil {
		return nil, err
	}
	b, err := readOutput(r.instanceDir(instanceID), tailLines)
	if err != nil {
		return nil, fmt.Errorf("logs of instance %s: %w", instanceID, err)
	}
	return []byte(secrets.Blank(string(b))), nil
}

// ReadLog implements runtime.Runtime.
func (r *Runtime) ReadLog(_ context.Context, instanceID string, q runtime.LogQuery) (runtime.LogPage, error) {
	secrets, err := r.Secrets(instanceID)
	if err != nil {
		return runtime.LogPage{}, err
	}
	page, err := readPage(r.instanceDir(instanceID), q, secrets, time.Now())
	if err != nil {
		return page, fmt.Errorf("logs of instance %s: %w", instanceID, err)
	}
	return page, nil
}

// Secrets implements runtime.SecretKeeper.
func (r *Runtime) Secrets(instanceID string) (*redact.Values, error) {
	w := r.find(instanceID)
	if w == nil {
		return nil, fmt.Errorf("secrets of instance %s: %w", instanceID, runtime.ErrUnknownInstance)
	}
	w.mu.Lock()
	_, d, _ := r.wantedOf(w)
	w.learnSecrets(d)
	secrets := w.secrets
	w.mu.Unlock()
	if !secrets.Known() {
		return nil, fmt.Errorf("output of instance %s: %w", instanceID, runtime.ErrSecretsUnknown)
	}
	return secrets, nil
}

// Restart implements runtime.Runtime.
func (r *Runtime) Restart(_ context.Context, instanceID string) error {
	w := r.find(instanceID)
	if w == nil || !w.restartInstance(instanceID) {
		return fmt.Errorf("restart instance %s: %w", instanceID, runtime.ErrUnknownInstance)
	}
	w.wakeUp()
	return nil
}

func (r *Runtime) find(instanceID string) *workload {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workloads {
		for _, in := range w.publishedLists().eachInstance() {
			if in.ID == instanceID {
				return w
			}
		}
	}
	return nil
}

func (r *Runtime) countStates() map[windlassv1.InstanceStatus]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[windlassv1.InstanceStatus]int{}
	for _, w := range r.workloads {
		for _, in := range w.publishedLists().eachInstance() {
			n[in.Status]++
		}
	}
	return n
}

func (r *Runtime) instanceDir(id string) string {
	return filepath.Join(r.cfg.DataDir, instancesDir, id)
}

// pokeBlocked wakes the workloads that wait for resources that were just given back.
func (r *Runtime) pokeBlocked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workloads {
		if w.blocked.Load() {
			w.unblock.Store(true)
			w.wakeUp()
		}
	}
}

// workloadLocked returns the workload of a key, and makes it if necessary. The caller holds mu.
func (r *Runtime) workloadLocked(key string) *workload {
	w := r.workloads[key]
	if w == nil {
		w = newWorkload(r, key)
		r.workloads[key] = w
		r.keepLocked(w)
	}
	return w
}

func (r *Runtime) keepLocked(w *workload) {
	if r.ctx == nil || r.ctx.Err() != nil {
		return
	}
	ctx := r.ctx
	r.wg.Go(func() { w.keepRunning(ctx) })
}

// wantedOf returns the wanted state of a workload, and the deployment that owns it: among the
// deployments that name the workload and are not being removed, the one that was assigned last.
// asOf is the value of workload.assigned at that time.
func (r *Runtime) wantedOf(workload *workload) (_ wanted, _ *deployment, asOf int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	owner := r.ownerLocked(workload.key)
	if owner == nil {
		return wanted{Gone: true}, nil, workload.assigned
	}
	w := wanted{
		Paused:   r.paused,
		Replicas: runtime.GroupsIn(owner.spec),
		Pooled:   runtime.IsPooled(owner.spec.GetSpec()),
		Order:    pool.OrderOf(owner.spec.GetSpec().GetUpdate()),
		Roles:    owner.wantedRoles(),
		Delay:    r.cfg.RestartDelay,

		Unavailable: int(owner.spec.GetMaxUnavailable()),
	}
	if missing := owner.missingSecrets(); len(missing) > 0 {
		w.Held = &block{
			Reason:  runtime.ReasonSecretUnavailable,
			Message: fmt.Sprintf("waits for the values of %v, which are fetched again after each start of the agent", missing),
		}
	}
	return w, owner, workload.assigned
}

func (r *Runtime) ownerLocked(key string) *deployment {
	var owner *deployment
	for _, d := range r.deployments {
		if d.workload == key && !d.removing && (owner == nil || d.seq > owner.seq) {
			owner = d
		}
	}
	return owner
}

// retireWorkload drops a workload that no deployment wants and that has no instances left. It returns false
// if a deployment wants the workload again, or if the keeper has not seen the latest assignment.
func (r *Runtime) retireWorkload(w *workload) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ownerLocked(w.key) != nil || w.isBehind() {
		return false
	}
	delete(r.workloads, w.key)
	return true
}
