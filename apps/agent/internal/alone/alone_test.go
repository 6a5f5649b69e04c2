package alone_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/alone"
	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	file = "zero.json"
	dep  = "dep_1"
)

// region is an agent's region with one app, whose two replicas may become eight, each for 10 requests.
type region struct {
	t       *testing.T
	files   *disk.Memory
	marks   *zero.Zero
	raiser  *alone.Raiser
	items   []*agentv1.Item
	seen    runtime.Observation
	now     time.Time
	cutAt   time.Time // zero: connected
	changed int
}

func setup(t *testing.T) *region {
	t.Helper()
	r := &region{t: t, files: disk.NewMemory(), now: time.Unix(1_700_000_000, 0)}
	r.items = []*agentv1.Item{{
		Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: dep, Epoch: 1, Generation: 7,
		Content: &agentv1.Item_Deployment{Deployment: &agentv1.DeploymentState{
			Action: agentv1.DeploymentState_ACTION_APPLY,
			Deployment: &agentv1.Deployment{
				Id: dep, AppId: "app_1", AppName: "chat", Replicas: 2, RaiseAlone: &agentv1.RaiseAlone{},
				Scaling: &windlassv1.ScalingPolicy{
					Max: 8, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "10"}},
					Up: &windlassv1.ScalingPace{Window: durationpb.New(20 * time.Second), Step: "100%", Every: durationpb.New(10 * time.Second)},
				},
			},
		}},
	}}
	r.restart(r.files)
	return r
}

// restart starts another process of the agent, as after kill -9.
func (r *region) restart(files disk.Files) {
	r.t.Helper()
	var err error
	r.marks, err = zero.Open(files, file)
	require.NoError(r.t, err)
	began := r.now
	r.raiser, err = alone.New(alone.Config{
		Assigned: func() []*agentv1.Item { return r.items },
		Away: func(now time.Time) time.Duration {
			if r.cutAt.IsZero() {
				return 0
			}
			return min(now.Sub(r.cutAt), now.Sub(began))
		},
		Observation: func() (runtime.Observation, bool) { return r.seen, true },
		Marks:       r.marks, Changed: func(string) { r.changed++ },
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	require.NoError(r.t, err)
}

func (r *region) deployment() *agentv1.Deployment { return r.items[0].GetDeployment().Deployment }

// replicas returns how many replicas the region runs.
func (r *region) replicas() int32 {
	return max(r.deployment().Replicas, r.marks.Raised(dep, r.items[0].Epoch, r.items[0].Generation))
}

// measure measures the load every 5 s for the time d. All replicas are ready. It returns the last load.
func (r *region) measure(d time.Duration, inFlight float64) *agentv1.DeploymentLoad {
	r.t.Helper()
	var last *agentv1.DeploymentLoad
	for end := r.now.Add(d); r.now.Before(end); r.now = r.now.Add(5 * time.Second) {
		last = &agentv1.DeploymentLoad{DeploymentId: dep, Ready: r.replicas(), InFlight: &inFlight}
		before := r.replicas()
		r.raiser.Observe(r.t.Context(), map[string]*agentv1.LoadReport{"app_1": {AppId: "app_1", Deployments: []*agentv1.DeploymentLoad{last}}}, r.now)
		require.GreaterOrEqual(r.t, r.replicas(), before, "the agent never lowers a number of replicas")
	}
	return last
}

func (r *region) cut() { r.cutAt = r.now }

func TestRaiser_RaisesOnlyWhileCutOff(t *testing.T) {
	t.Parallel()
	r := setup(t)
	require.Zero(t, r.measure(5*time.Minute, 40).RaisedTo, "the control plane decides while there is a stream")
	r.cut()
	r.measure(alone.After, 40)
	require.EqualValues(t, 2, r.replicas(), "a short cut raises nothing")
	load := r.measure(time.Minute, 40)
	require.EqualValues(t, 4, r.replicas())
	require.EqualValues(t, 4, load.RaisedTo)
	require.EqualValues(t, 7, load.RaisedGeneration)
	require.Equal(t, 1, r.changed)

	r.measure(2*time.Minute, 1000)
	require.EqualValues(t, 8, r.replicas(), "the maximum of the policy")
	r.measure(time.Hour, 0)
	require.EqualValues(t, 8, r.replicas())

	// After the cut, the raise is reported until another generation comes, whatever number of replicas that has.
	r.cutAt = time.Time{}
	require.EqualValues(t, 8, r.measure(time.Minute, 0).RaisedTo)
	r.items[0].Generation, r.deployment().Replicas = 8, 3
	load = &agentv1.DeploymentLoad{DeploymentId: dep, Ready: 8, InFlight: new(0.0)}
	r.raiser.Observe(t.Context(), map[string]*agentv1.LoadReport{"app_1": {AppId: "app_1", Deployments: []*agentv1.DeploymentLoad{load}}}, r.now)
	require.Zero(t, load.RaisedTo)
	require.EqualValues(t, 3, r.replicas())
}

func TestRaiser_KilledAgentKeepsTheRaise(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.cut()
	r.measure(2*time.Minute, 40)
	require.EqualValues(t, 4, r.replicas())
	r.restart(r.files)
	require.EqualValues(t, 4, r.measure(5*time.Second, 0).RaisedTo)
	r.measure(alone.After-5*time.Second, 80)
	require.EqualValues(t, 4, r.replicas(), "a new process waits, because it does not know for how long it is cut off")
	r.measure(time.Minute, 80)
	require.EqualValues(t, 8, r.replicas())
}

func TestRaiser_AnotherDeploymentEndsTheRaise(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.cut()
	r.measure(2*time.Minute, 40)
	require.EqualValues(t, 4, r.replicas())
	r.cutAt, r.changed, r.items = time.Time{}, 0, append(r.items, other(r.items[0]))
	load := &agentv1.DeploymentLoad{DeploymentId: dep, Ready: 4, InFlight: new(40.0)}
	r.raiser.Observe(t.Context(), map[string]*agentv1.LoadReport{"app_1": {AppId: "app_1", Deployments: []*agentv1.DeploymentLoad{load}}}, r.now)
	require.EqualValues(t, 2, r.replicas(), "a rollout counts the instances of both")
	require.Zero(t, load.RaisedTo)
	require.Equal(t, 1, r.changed)
}

func TestRaiser_MayNot(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*region){
		"without permission":              func(r *region) { r.deployment().RaiseAlone = nil },
		"during a hold":                   func(r *region) { r.deployment().RaiseAlone.HeldUntil = r.now.Add(time.Hour).UnixMilli() },
		"at zero":                         func(r *region) { r.deployment().Replicas, r.deployment().Wake = 0, 1 },
		"with a metric that is unknown":   func(r *region) { r.deployment().Scaling.Metrics[0].Type = 99 },
		"next to another deployment":      func(r *region) { r.items = append(r.items, other(r.items[0])) },
		"of a pool":                       func(r *region) { r.deployment().Scaling.Roles = []*windlassv1.RoleScaling{{Role: "decode"}} },
		"while an instance lacks room":    func(r *region) { r.seen = lacking(runtime.ReasonUnschedulable) },
		"while the pool's quota is full":  func(r *region) { r.seen = lacking(runtime.ReasonQuotaExceeded) },
		"after a gang gave back its pods": func(r *region) { r.seen = lacking(runtime.ReasonGangTimeout) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			change(r)
			r.cut()
			was := r.replicas()
			r.measure(5*time.Minute, 100)
			require.Equal(t, was, r.replicas())
			require.Zero(t, r.changed)
		})
	}
	t.Run("beyond the quota", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		r.deployment().RaiseAlone.MaxReplicas = 3
		r.cut()
		r.measure(10*time.Minute, 100)
		require.EqualValues(t, 3, r.replicas())
	})
	t.Run("beyond the quota, with many apps", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		const apps = 20
		d := r.deployment()
		d.WorkspaceId, d.RaiseAlone.MaxReplicas = "ws_1", 2+6
		r.items = nil
		for n := range apps {
			one := proto.CloneOf(d)
			one.Id, one.AppId = fmt.Sprintf("dep_%02d", n), fmt.Sprintf("app_%02d", n)
			if n%2 == 1 { // half of the apps need twice as much of the quota for a replica
				one.RaiseAlone.MaxReplicas = 2 + 3
			}
			if n == apps-1 {
				one.WorkspaceId = "ws_2"
			}
			r.items = append(r.items, &agentv1.Item{Key: one.Id, Epoch: 1, Generation: 7, Content: &agentv1.Item_Deployment{
				Deployment: &agentv1.DeploymentState{Action: agentv1.DeploymentState_ACTION_APPLY, Deployment: one},
			}})
		}
		r.cut()
		used, other := 0, 0
		for range 120 {
			loads := map[string]*agentv1.LoadReport{}
			used, other = 0, 0
			for n, item := range r.items {
				one := item.GetDeployment().Deployment
				raised := max(one.Replicas, r.marks.Raised(item.Key, 1, 7))
				loads[one.AppId] = &agentv1.LoadReport{AppId: one.AppId, Deployments: []*agentv1.DeploymentLoad{{DeploymentId: one.Id, Ready: raised, InFlight: new(100.0)}}}
				more := int(raised - one.Replicas)
				if one.WorkspaceId == "ws_2" {
					other += more
				} else {
					used += more * (1 + n%2)
				}
			}
			if r.now.Sub(r.cutAt) == 5*time.Minute {
				r.restart(r.files)
			}
			r.raiser.Observe(t.Context(), loads, r.now)
			r.now = r.now.Add(5 * time.Second)
		}
		require.Equal(t, 6, used, "the apps of a workspace share its quota")
		require.Equal(t, 3, other, "another workspace has its own")
	})
	t.Run("a hold that ends", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		r.deployment().RaiseAlone.HeldUntil = r.now.Add(3 * time.Minute).UnixMilli()
		r.cut()
		r.measure(3*time.Minute, 40)
		require.EqualValues(t, 2, r.replicas())
		r.measure(time.Minute, 40)
		require.EqualValues(t, 4, r.replicas())
	})
}

// lacking is an observation of an instance that waits for this reason.
func lacking(reason string) runtime.Observation {
	return runtime.Observation{Deployments: []runtime.ObservedDeployment{{DeploymentID: dep, Instances: []runtime.Instance{{ID: "ins_1", Reason: reason}}}}}
}

func other(item *agentv1.Item) *agentv1.Item {
	return &agentv1.Item{Kind: item.Kind, Key: "dep_2", Epoch: 1, Generation: 1, Content: &agentv1.Item_Deployment{Deployment: &agentv1.DeploymentState{
		Action: agentv1.DeploymentState_ACTION_APPLY, Deployment: &agentv1.Deployment{Id: "dep_2", AppId: "app_1", Replicas: 1, Scaling: item.GetDeployment().Deployment.Scaling},
	}}}
}

func TestRaiser_NothingStartsBeforeTheRaiseIsStored(t *testing.T) {
	t.Parallel()
	r := setup(t)
	files := &broken{Files: r.files, err: errors.New("the disk is full")}
	r.restart(files)
	r.cut()
	r.measure(3*time.Minute, 40)
	require.EqualValues(t, 2, r.replicas())
	require.Zero(t, r.changed)
	files.err = nil
	r.measure(5*time.Second, 40)
	require.EqualValues(t, 4, r.replicas())
	require.Equal(t, 1, r.changed)
}

// broken is Files that cannot be written while err is set.
type broken struct {
	disk.Files
	err error
}

func (b *broken) Replace(name string, data []byte) error {
	if b.err != nil {
		return b.err
	}
	return b.Files.Replace(name, data)
}
