package models

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/artifact"
	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/ident"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fakeBase is a runtime whose instances the test sets.
type fakeBase struct {
	runtime.Runtime
	mu       sync.Mutex
	seen     []runtime.ObservedDeployment
	applied  []string
	removed  []string
	mayStop  func(string) bool
	patience func(string) time.Duration
	changes  chan struct{}
	// refuse is the error of Remove.
	refuse error
}

func (f *fakeBase) Apply(_ context.Context, a runtime.Assignment) error {
	f.applied = append(f.applied, a.Deployment.Id)
	return nil
}

func (f *fakeBase) Remove(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return f.refuse
	}
	f.removed = append(f.removed, id)
	f.seen = slices.DeleteFunc(slices.Clone(f.seen), func(d runtime.ObservedDeployment) bool { return d.DeploymentID == id })
	return nil
}

func (f *fakeBase) Observe(context.Context) (runtime.Observation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return runtime.Observation{Deployments: slices.Clone(f.seen)}, nil
}

func (f *fakeBase) Changes() <-chan struct{} { return f.changes }

func (f *fakeBase) Restart(context.Context, string) error { return runtime.ErrUnknownInstance }

func (f *fakeBase) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (f *fakeBase) Drain(released func(string) bool, patience func(string) time.Duration) func() {
	f.mayStop, f.patience = released, patience
	return func() {}
}

// serve sets the instances of the deployment of servers.
func (f *fakeBase) serve(instances ...runtime.Instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = []runtime.ObservedDeployment{{DeploymentID: "dep_servers", Instances: instances}}
}

func instanceOf(id string, status windlassv1.InstanceStatus) runtime.Instance {
	return runtime.Instance{ID: id, Status: status, Address: id + ":80", StartedAt: time.Unix(1, 0)}
}

// fakeLoader has the models of each server.
type fakeLoader struct {
	mu   sync.Mutex
	held map[string]map[string]bool
	fail error
	// onLoad is called for each load. Default: nil.
	onLoad func(s Server, m Model) error
}

func (l *fakeLoader) Held(_ context.Context, s Server, _ []string) ([]Held, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var held []Held
	for name := range l.held[s.ID] {
		held = append(held, Held{Name: name, Checked: true, Ready: true})
	}
	return held, nil
}

func (l *fakeLoader) Load(_ context.Context, s Server, m Model) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail
	}
	if l.onLoad != nil {
		if err := l.onLoad(s, m); err != nil {
			return err
		}
	}
	if l.held[s.ID] == nil {
		l.held[s.ID] = map[string]bool{}
	}
	l.held[s.ID][m.Name] = true
	return nil
}

func (l *fakeLoader) Unload(_ context.Context, s Server, m Model) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held[s.ID], m.Name)
	return nil
}

// modelRuntime is a Runtime with its base, its loader and its gateways.
type modelRuntime struct {
	*Runtime
	t      *testing.T
	base   *fakeBase
	loader *fakeLoader
	files  disk.Files
	// blocked has the instances to which gateways still send.
	mu      sync.Mutex
	blocked map[string]bool
	stop    func()
}

func newModelRuntime(t *testing.T, base *fakeBase, loader *fakeLoader, files disk.Files) *modelRuntime {
	return newStoredRuntime(t, base, loader, files, nil)
}

// newStoredRuntime returns a modelRuntime with a store for files of models.
func newStoredRuntime(t *testing.T, base *fakeBase, loader *fakeLoader, files disk.Files, store *artifact.Store) *modelRuntime {
	m := &modelRuntime{t: t, base: base, loader: loader, files: files, blocked: map[string]bool{}}
	var err error
	m.Runtime, err = Wrap(base, loader, store, files, "models.json", slog.New(slog.DiscardHandler), nil, func() float64 { return 0.5 })
	require.NoError(t, err)
	m.Drain(func(id string) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return !m.blocked[id]
	}, func(string) time.Duration { return 30 * time.Second })
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx) })
	m.stop = func() {
		cancel()
		running.Wait()
	}
	return m
}

// block sets whether gateways still send to an instance.
func (m *modelRuntime) block(id string, blocked bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocked[id] = blocked
}

func (m *modelRuntime) apply(id string, replicas int32, spec *windlassv1.DeploymentSpec) error {
	return m.Apply(m.t.Context(), runtime.Assignment{
		Deployment: &agentv1.Deployment{Id: id, AppName: "fraud", EnvironmentId: "env_1", Replicas: replicas, Spec: spec},
		Generation: 3, TemplateHash: "template-" + id,
	})
}

// serveFraud deploys a model and its server, ins_a.
func (m *modelRuntime) serveFraud() {
	m.t.Helper()
	require.NoError(m.t, m.apply("dep_servers", 1, servers))
	require.NoError(m.t, m.apply("dep_fraud", 1, fraud))
	m.base.serve(instanceOf("ins_a", ready))
}

// restart ends the agent, and returns a new agent with the same servers and file.
func (m *modelRuntime) restart() *modelRuntime {
	m.stop()
	again := newModelRuntime(m.t, m.base, m.loader, m.files)
	m.stop = again.stop
	return again
}

// look observes until nothing changes any more, and returns the deployment, or nil if it is not
// observed.
func (m *modelRuntime) look(id string) *runtime.ObservedDeployment {
	m.t.Helper()
	for range 5 {
		_, err := m.Observe(m.t.Context())
		require.NoError(m.t, err)
		time.Sleep(2 * time.Second)
		synctest.Wait()
	}
	seen, err := m.Observe(m.t.Context())
	require.NoError(m.t, err)
	for _, d := range seen.Deployments {
		if d.DeploymentID == id {
			return &d
		}
	}
	return nil
}

var (
	fraud   = &windlassv1.DeploymentSpec{Model: &windlassv1.LoadedModel{Requires: []string{"onnx"}, MemoryMib: 10}}
	servers = &windlassv1.DeploymentSpec{Models: &windlassv1.ModelServer{Protocol: windlassv1.ModelServer_PROTOCOL_V2, Capabilities: []string{"onnx"}, MemoryMib: 100}}
)

const (
	ready    = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	draining = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	pending  = windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING
)

func runRuntime(t *testing.T, name string, test func(t *testing.T, m *modelRuntime)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newModelRuntime(t, &fakeBase{changes: make(chan struct{}, 1)}, &fakeLoader{held: map[string]map[string]bool{}}, disk.NewMemory())
			defer func() { m.stop() }()
			test(t, m)
		})
	})
}

func TestRuntime(t *testing.T) {
	runRuntime(t, "runs a model as instances with the addresses of servers", func(t *testing.T, m *modelRuntime) {
		require.NoError(t, m.apply("dep_servers", 2, servers))
		require.NoError(t, m.apply("dep_fraud", 2, fraud))
		require.Equal(t, []string{"dep_servers"}, m.base.applied, "the base runtime does not know the model")
		m.base.serve(instanceOf("ins_a", ready), instanceOf("ins_b", ready))
		d := m.look("dep_fraud")
		require.EqualValues(t, 3, d.Generation)
		require.Len(t, d.Instances, 2)
		addresses, groups, ids := map[string]bool{}, map[int]bool{}, map[string]bool{}
		for _, in := range d.Instances {
			require.Equal(t, ready, in.Status)
			require.True(t, ident.Valid("ins", in.ID), in.ID)
			require.True(t, d.IsCurrent(&in))
			addresses[in.Address], groups[in.Group], ids[in.ID] = true, true, true
		}
		require.Equal(t, map[string]bool{"ins_a:80": true, "ins_b:80": true}, addresses)
		require.Equal(t, map[int]bool{0: true, 1: true}, groups)
		require.Len(t, ids, 2)
	})
	runRuntime(t, "says why a replica has no server", func(t *testing.T, m *modelRuntime) {
		require.NoError(t, m.apply("dep_servers", 1, &windlassv1.DeploymentSpec{Models: &windlassv1.ModelServer{Protocol: windlassv1.ModelServer_PROTOCOL_V2, MemoryMib: 100}}))
		require.NoError(t, m.apply("dep_fraud", 1, fraud))
		m.base.serve(instanceOf("ins_a", ready))
		d := m.look("dep_fraud")
		require.Len(t, d.Instances, 1)
		require.Equal(t, pending, d.Instances[0].Status)
		require.Equal(t, runtime.ReasonUnschedulable, d.Instances[0].Reason)
		require.Equal(t, "1 server lacks capability onnx", d.Instances[0].Message)
	})
	runRuntime(t, "an unloaded model is ready on request, also after a restart, once it was loaded", func(t *testing.T, m *modelRuntime) {
		evicting := proto.CloneOf(servers)
		evicting.Models.Slots, evicting.Models.Eviction = 1, &windlassv1.ModelEviction{Keep: durationpb.New(0)}
		one, other := proto.CloneOf(fraud), proto.CloneOf(fraud)
		for name, spec := range map[string]*windlassv1.DeploymentSpec{"one": one, "other": other} {
			spec.Model.Name, spec.Routing = name, &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}
		}
		require.NoError(t, m.apply("dep_servers", 1, evicting))
		require.NoError(t, m.apply("dep_one", 1, one))
		m.base.serve(instanceOf("ins_a", ready))
		require.Equal(t, "ins_a:80", m.look("dep_one").Instances[0].Address)
		require.NoError(t, m.apply("dep_other", 1, other))
		in := m.look("dep_other").Instances[0]
		require.Equal(t, pending, in.Status, "it was never loaded, and without gateways nothing is evicted")
		m.FollowRequests(func() bool { return true }, func(string) bool { return false })
		require.Equal(t, "ins_a:80", m.look("dep_other").Instances[0].Address)

		again := m.restart()
		again.FollowRequests(func() bool { return true }, func(string) bool { return false })
		in = again.look("dep_one").Instances[0]
		require.Equal(t, ready, in.Status)
		require.Empty(t, in.Address)
		require.Equal(t, runtime.ReasonUnloaded, in.Reason)
		require.Equal(t, "a request loads it again: 1 server has no free slot", in.Message)
		again.Requested([]string{"dep_one", "dep_servers", "dep_unknown"})
		require.Equal(t, "ins_a:80", again.look("dep_one").Instances[0].Address)
		require.Equal(t, runtime.ReasonUnloaded, again.look("dep_other").Instances[0].Reason)
	})
	runRuntime(t, "says why a load failed, and is doomed after several failures", func(t *testing.T, m *modelRuntime) {
		m.loader.fail = errors.New("400 Bad Request: no such model")
		m.serveFraud()
		failed := func() bool {
			for _, in := range m.look("dep_fraud").Instances {
				if in.Reason == runtime.ReasonLoadFailed {
					require.Equal(t, "server ins_a: 400 Bad Request: no such model", in.Message)
					return in.Doomed
				}
			}
			return false
		}
		for range 20 {
			if failed() {
				return
			}
		}
		require.Fail(t, "the instance is never doomed")
	})
	runRuntime(t, "unloads a model once gateways have released it", func(t *testing.T, m *modelRuntime) {
		m.serveFraud()
		id := m.look("dep_fraud").Instances[0].ID
		m.block(id, true)
		require.NoError(t, m.Remove(t.Context(), "dep_fraud"))
		require.Empty(t, m.base.removed)
		d := m.look("dep_fraud")
		require.True(t, d.Removing)
		require.Equal(t, draining, d.Instances[0].Status)
		require.True(t, m.loader.held["ins_a"]["fraud"])
		m.block(id, false)
		require.Nil(t, m.look("dep_fraud"))
		require.False(t, m.loader.held["ins_a"]["fraud"])
	})
	runRuntime(t, "stops a server once its models serve elsewhere", func(t *testing.T, m *modelRuntime) {
		require.NoError(t, m.apply("dep_servers", 2, servers))
		require.NoError(t, m.apply("dep_fraud", 1, fraud))
		m.base.serve(instanceOf("ins_a", ready))
		require.Len(t, m.look("dep_fraud").Instances, 1)
		require.False(t, m.base.mayStop("ins_a"))
		require.True(t, m.base.mayStop("ins_other"))
		m.base.serve(instanceOf("ins_a", draining))
		d := m.look("dep_fraud")
		require.Equal(t, ready, d.Instances[0].Status, "there is no other server")
		require.False(t, m.base.mayStop("ins_a"))
		m.base.serve(instanceOf("ins_a", draining), instanceOf("ins_b", ready))
		d = m.look("dep_fraud")
		require.Len(t, d.Instances, 1)
		require.Equal(t, "ins_b:80", d.Instances[0].Address)
		require.True(t, m.base.mayStop("ins_a"))
	})
	runRuntime(t, "waits for gateways, however often it is asked", func(t *testing.T, m *modelRuntime) {
		m.serveFraud()
		require.Len(t, m.look("dep_fraud").Instances, 1)
		m.block("ins_other", true)
		for range 60 {
			require.False(t, m.base.mayStop("ins_other"), "a gateway still sends to ins_other")
			time.Sleep(time.Second)
		}
		require.Equal(t, 30*time.Second, m.base.patience("ins_other"))
		require.Equal(t, 10*time.Minute, m.base.patience("ins_a"), "the model of ins_a serves nowhere else")
	})
	runRuntime(t, "removes servers once their models serve elsewhere", func(t *testing.T, m *modelRuntime) {
		other := func(d runtime.ObservedDeployment) {
			m.base.mu.Lock()
			defer m.base.mu.Unlock()
			m.base.seen = append(m.base.seen, d)
		}
		require.NoError(t, m.apply("dep_servers", 1, servers))
		require.NoError(t, m.apply("dep_others", 1, servers))
		require.NoError(t, m.apply("dep_fraud", 1, fraud))
		m.base.serve(instanceOf("ins_a", ready))
		require.Equal(t, "ins_a:80", m.look("dep_fraud").Instances[0].Address)
		require.NoError(t, m.Remove(t.Context(), "dep_servers"))
		d := m.look("dep_fraud")
		require.Equal(t, ready, d.Instances[0].Status, "there is no other server")
		require.Equal(t, "ins_a:80", d.Instances[0].Address)
		require.Empty(t, m.base.removed)
		require.True(t, m.look("dep_servers").Removing)

		// A new agent continues the removal.
		again := m.restart()
		again.look("dep_fraud")
		require.Empty(t, m.base.removed)
		other(runtime.ObservedDeployment{DeploymentID: "dep_others", Instances: []runtime.Instance{instanceOf("ins_b", ready)}})
		require.Equal(t, "ins_b:80", again.look("dep_fraud").Instances[0].Address)
		require.Equal(t, []string{"dep_servers"}, m.base.removed)
		require.Nil(t, again.look("dep_servers"))
		require.NotContains(t, again.kept.Servers, "dep_servers")
	})
	runRuntime(t, "removes servers whose models serve nowhere else, after drainPatience", func(t *testing.T, m *modelRuntime) {
		m.serveFraud()
		m.look("dep_fraud")
		require.NoError(t, m.Remove(t.Context(), "dep_servers"))
		m.look("dep_fraud")
		wait := func() {
			select {
			case <-m.Changes():
			default:
			}
			began := time.Now()
			<-m.Changes()
			require.Less(t, time.Since(began), drainPatience)
		}
		wait()
		m.base.refuse = errors.New("the cluster does not answer")
		require.NotNil(t, m.look("dep_servers"))
		m.base.refuse = nil
		wait()
		require.Equal(t, pending, m.look("dep_fraud").Instances[0].Status)
		require.Equal(t, []string{"dep_servers"}, m.base.removed)
	})
	runRuntime(t, "keeps servers that are applied again while they drain", func(t *testing.T, m *modelRuntime) {
		m.serveFraud()
		m.look("dep_fraud")
		require.NoError(t, m.Remove(t.Context(), "dep_servers"))
		m.look("dep_fraud")
		require.NoError(t, m.apply("dep_servers", 1, servers))
		time.Sleep(2 * drainPatience)
		require.Equal(t, "ins_a:80", m.look("dep_fraud").Instances[0].Address)
		require.Empty(t, m.base.removed)
	})
	runRuntime(t, "adopts models after a restart, and unloads models that were deleted meanwhile", func(t *testing.T, m *modelRuntime) {
		require.NoError(t, m.apply("dep_servers", 2, servers))
		require.NoError(t, m.apply("dep_fraud", 1, fraud))
		m.base.serve(instanceOf("ins_a", ready), instanceOf("ins_b", ready))
		before := m.look("dep_fraud").Instances
		again := m.restart()
		require.Equal(t, before[0].ID, again.look("dep_fraud").Instances[0].ID)
		require.NoError(t, again.Remove(t.Context(), "dep_fraud"))
		require.Nil(t, again.look("dep_fraud"))
		require.Empty(t, m.loader.held["ins_a"])
		require.Empty(t, m.loader.held["ins_b"])
	})
	runRuntime(t, "continues after a restart to unload a deleted version, and does not take it for the next version", func(t *testing.T, m *modelRuntime) {
		require.NoError(t, m.apply("dep_servers", 1, servers))
		require.NoError(t, m.apply("dep_1", 1, fraud))
		m.base.serve(instanceOf("ins_a", ready))
		id := m.look("dep_1").Instances[0].ID
		m.block(id, true)
		require.NoError(t, m.apply("dep_2", 1, fraud))
		require.NoError(t, m.Remove(t.Context(), "dep_1"))
		require.NotNil(t, m.look("dep_1"))
		again := m.restart()
		again.block(id, true)
		require.NotNil(t, again.look("dep_1"), "the server has the old version")
		require.Equal(t, pending, again.look("dep_2").Instances[0].Status, "the server has the old version")
		again.block(id, false)
		require.Equal(t, ready, again.look("dep_2").Instances[0].Status)
		require.Nil(t, again.look("dep_1"))
		require.NoError(t, again.Remove(t.Context(), "dep_2"))
		require.Nil(t, again.look("dep_2"))
		require.Empty(t, m.loader.held["ins_a"])
	})
	runRuntime(t, "loads a new version, and knows after a restart which version a server has", func(t *testing.T, m *modelRuntime) {
		require.NoError(t, m.apply("dep_servers", 2, servers))
		require.NoError(t, m.apply("dep_2", 1, fraud))
		m.base.serve(instanceOf("ins_a", ready))
		require.Equal(t, "ins_a:80", m.look("dep_2").Instances[0].Address)
		require.NoError(t, m.apply("dep_1", 1, fraud))
		require.Equal(t, "1 server has another version of the model", m.look("dep_1").Instances[0].Message)
		m.base.serve(instanceOf("ins_a", ready), instanceOf("ins_b", ready))
		require.Equal(t, "ins_b:80", m.look("dep_1").Instances[0].Address)
		again := m.restart()
		require.Equal(t, "ins_b:80", again.look("dep_1").Instances[0].Address)
		require.Equal(t, "ins_a:80", again.look("dep_2").Instances[0].Address)
		require.NoError(t, again.Remove(t.Context(), "dep_1"))
		require.Nil(t, again.look("dep_1"))
		require.Empty(t, again.kept.Claims)
		require.True(t, m.loader.held["ins_a"]["fraud"])
		require.False(t, m.loader.held["ins_b"]["fraud"])
	})
	runRuntime(t, "forgets the claims of servers that are gone", func(t *testing.T, m *modelRuntime) {
		require.NoError(t, m.apply("dep_servers", 2, servers))
		require.NoError(t, m.apply("dep_1", 1, fraud))
		require.NoError(t, m.apply("dep_2", 1, fraud))
		m.base.serve(instanceOf("ins_a", ready), instanceOf("ins_b", ready))
		m.look("dep_1")
		claimed := func() []string {
			data, err := m.files.Read("models.json")
			require.NoError(t, err)
			var file kept
			require.NoError(t, json.Unmarshal(data, &file))
			return slices.Sorted(maps.Keys(file.Claims))
		}
		require.Equal(t, []string{"ins_a", "ins_b"}, claimed())
		m.base.serve(instanceOf("ins_b", ready), instanceOf("ins_c", ready))
		m.look("dep_1")
		require.Equal(t, []string{"ins_b", "ins_c"}, claimed())
		m.base.serve()
		m.look("dep_1")
		require.Empty(t, claimed())
	})
	runRuntime(t, "gives the version after a deleted one a workload of its own", func(t *testing.T, m *modelRuntime) {
		m.serveFraud()
		id := m.look("dep_fraud").Instances[0].ID
		m.block(id, true)
		require.NoError(t, m.Remove(t.Context(), "dep_fraud"))
		next := runtime.Assignment{
			Deployment:  &agentv1.Deployment{Id: "dep_2", AppName: "fraud", EnvironmentId: "env_1", Spec: fraud, Replicas: 1},
			WorkloadKey: "dep_fraud", TemplateHash: "other",
		}
		require.NoError(t, m.Apply(t.Context(), next))
		require.Equal(t, pending, m.look("dep_2").Instances[0].Status)
		m.block(id, false)
		require.Equal(t, ready, m.look("dep_2").Instances[0].Status)
		require.NoError(t, m.Apply(t.Context(), next))
		require.Equal(t, ready, m.look("dep_2").Instances[0].Status)
		require.Nil(t, m.look("dep_fraud"))
	})
	runRuntime(t, "is not ready while its server is not", func(t *testing.T, m *modelRuntime) {
		m.serveFraud()
		require.Equal(t, ready, m.look("dep_fraud").Instances[0].Status)
		m.base.serve(instanceOf("ins_a", windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING))
		in := m.look("dep_fraud").Instances[0]
		require.Equal(t, runtime.ReasonHealthCheckFailed, in.Reason)
		require.Equal(t, "ins_a:80", in.Address)
	})
	runRuntime(t, "loads an instance again on request", func(t *testing.T, m *modelRuntime) {
		m.serveFraud()
		id := m.look("dep_fraud").Instances[0].ID
		require.NoError(t, m.Restart(t.Context(), id))
		require.Equal(t, ready, m.look("dep_fraud").Instances[0].Status)
		require.ErrorIs(t, m.Restart(t.Context(), "ins_none"), runtime.ErrUnknownInstance)
	})
	runRuntime(t, "refuses to take over the replicas of another version", func(t *testing.T, m *modelRuntime) {
		require.NoError(t, m.apply("dep_fraud", 1, fraud))
		var rejection *runtime.Rejection
		require.ErrorAs(t, m.Apply(t.Context(), runtime.Assignment{
			Deployment: &agentv1.Deployment{Id: "dep_2", Spec: fraud}, WorkloadKey: "dep_fraud", TemplateHash: "other",
		}), &rejection)
		require.Equal(t, runtime.ReasonUnsupported, rejection.Code)
		require.NoError(t, m.Apply(t.Context(), runtime.Assignment{
			Deployment: &agentv1.Deployment{Id: "dep_2", AppName: "fraud", Spec: fraud, Replicas: 1}, WorkloadKey: "dep_fraud", TemplateHash: "template-dep_fraud",
		}))
		require.Nil(t, m.look("dep_fraud"))
		require.NotNil(t, m.look("dep_2"))
	})
	runRuntime(t, "leaves servers of other environments alone", func(t *testing.T, m *modelRuntime) {
		require.NoError(t, m.Apply(t.Context(), runtime.Assignment{Deployment: &agentv1.Deployment{Id: "dep_servers", AppName: "shared", EnvironmentId: "env_2", Spec: servers}}))
		require.NoError(t, m.apply("dep_fraud", 1, fraud))
		m.base.serve(instanceOf("ins_a", ready))
		require.Equal(t, "there is no server for models", m.look("dep_fraud").Instances[0].Message)
	})
}
