package load_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/load"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/scrape"
	"github.com/windlass-run/windlass/pkg/histogram"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// region is the region that a collector measures.
type region struct {
	mu          sync.Mutex
	deployments []*agentv1.Deployment
	instances   []runtime.Instance
	asked       load.Asked
	known       bool
	used        map[string]runtime.Usage
	usageErr    error
	measured    [][]string // the arguments of Usage
	targets     []scrape.Target
	signals     map[string]scrape.Signals
	needs       map[string]float64
	looks       int
	registry    *prometheus.Registry
}

func (r *region) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *region) collector(t *testing.T) *load.Collector {
	t.Helper()
	r.registry = prometheus.NewRegistry()
	c, err := load.New(load.Config{
		Deployments: func() []*agentv1.Deployment {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.looks++
			return r.deployments
		},
		Observation: func() (runtime.Observation, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return runtime.Observation{Deployments: []runtime.ObservedDeployment{{DeploymentID: "dep_1", Instances: r.instances}}}, true
		},
		Demand: func(string, time.Time) (load.Asked, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.asked, r.known
		},
		Times: func(string, time.Duration, time.Time) (latency, firstToken histogram.Counts) {
			latency[histogram.Bucket(time.Second)] = 7
			return latency, firstToken
		},
		Usage: func(_ context.Context, ids []string) (map[string]runtime.Usage, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.measured = append(r.measured, ids)
			return r.used, r.usageErr
		},
		Scrape: func(_ context.Context, targets []scrape.Target) map[string]scrape.Signals {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.targets = targets
			return r.signals
		},
		ModelNeed: func(id string) (float64, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			need, ok := r.needs[id]
			return need, ok
		},
		Log: slog.New(slog.DiscardHandler), Registerer: r.registry, Rand: func() float64 { return 1 },
	})
	require.NoError(t, err)
	return c
}

// failures returns how many measurements of a part of the load failed.
func (r *region) failures(t *testing.T, part string) float64 {
	t.Helper()
	families, err := r.registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "windlass_agent_load_failures_total" && m.Label[0].GetValue() == part {
				return m.Counter.GetValue()
			}
		}
	}
	return 0
}

func scaled(types ...windlassv1.ScalingMetric_Type) *agentv1.Deployment {
	d := &agentv1.Deployment{
		Id: "dep_1", AppId: "app_1", Scaling: &windlassv1.ScalingPolicy{Max: 4},
		Spec: &windlassv1.DeploymentSpec{Resources: &windlassv1.Resources{CpuMillicores: 2000, MemoryMib: 1024}},
	}
	for _, m := range types {
		d.Scaling.Metrics = append(d.Scaling.Metrics, &windlassv1.ScalingMetric{Type: m, Target: "1"})
	}
	return d
}

func instance(n int, status windlassv1.InstanceStatus) runtime.Instance {
	return runtime.Instance{ID: fmt.Sprintf("ins_%d", n), Group: n, Status: status, Address: fmt.Sprintf("127.0.0.1:%d", 4000+n)}
}

const (
	ready    = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	running  = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
	failed   = windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED
	draining = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
)

// collect runs a collector in virtual time.
func collect(t *testing.T, r *region, test func(t *testing.T, c *load.Collector)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := r.collector(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		test(t, c)
		cancel()
		require.NoError(t, <-done)
	})
}

func TestCollector(t *testing.T) {
	t.Run("measures nothing while no app is scaled", func(t *testing.T) {
		r := &region{}
		collect(t, r, func(t *testing.T, c *load.Collector) {
			time.Sleep(24 * time.Hour)
			require.Equal(t, 1, r.looks)
			require.Empty(t, c.Due())
			select {
			case <-c.Changed():
				t.Fatal("nothing is due")
			default:
			}
			r.set(func() { r.deployments = []*agentv1.Deployment{scaled(windlassv1.ScalingMetric_TYPE_IN_FLIGHT)} })
			c.Assigned()
			synctest.Wait()
			require.Len(t, c.Due(), 1)
		})
	})

	t.Run("reports changes, all loads to a new session, and every load again after 30 s", func(t *testing.T) {
		r := &region{
			deployments: []*agentv1.Deployment{scaled(windlassv1.ScalingMetric_TYPE_IN_FLIGHT)}, known: true,
			asked:     load.Asked{Queued: 1, InFlight: map[string]float64{"dep_1": 8}, Rate: map[string]float64{"dep_1": 2}},
			instances: []runtime.Instance{instance(0, ready), instance(1, running), instance(2, draining), {Group: 3, Status: failed, Doomed: true}},
		}
		collect(t, r, func(t *testing.T, c *load.Collector) {
			<-c.Changed()
			due := c.Due()
			require.Len(t, due, 1)
			one := due[0].Deployments[0]
			require.Equal(t, []int32{1, 1}, []int32{one.Ready, one.Starting})
			require.InDelta(t, 1, *due[0].Queued, 0)
			require.InDelta(t, 8, *one.InFlight, 0)
			require.InDelta(t, 2, *one.Rate, 0)
			require.Empty(t, one.Levels)
			require.Empty(t, one.Latency, "no metric of the policy needs latencies")
			c.Answered(due)
			time.Sleep(12 * time.Second)
			require.Empty(t, c.Due())
			r.set(func() { r.asked.InFlight = map[string]float64{"dep_1": 16} })
			begin := time.Now()
			<-c.Changed()
			require.LessOrEqual(t, time.Since(begin), load.Interval)
			c.Answered(c.Due())
			c.Reset()
			<-c.Changed()
			require.Len(t, c.Due(), 1, "a new session has received no loads")
			c.Answered(c.Due())
			begin = time.Now()
			<-c.Changed()
			require.InDelta(t, 30, time.Since(begin).Seconds(), load.Interval.Seconds())
			// An app that is not scaled any more is not reported.
			r.set(func() { r.deployments = nil })
			time.Sleep(load.Interval)
			synctest.Wait()
			require.Empty(t, c.Due())
		})
		require.Empty(t, r.measured, "no metric of the policy needs usage")
		require.Empty(t, r.targets)
	})

	t.Run("sends the loads of many apps in several reports, one after the other", func(t *testing.T) {
		r := &region{}
		for n := range 5000 {
			d := scaled(windlassv1.ScalingMetric_TYPE_IN_FLIGHT)
			d.Id, d.AppId = fmt.Sprintf("dep_%d", n), fmt.Sprintf("app_%d", n)
			r.deployments = append(r.deployments, d)
		}
		collect(t, r, func(t *testing.T, c *load.Collector) {
			sent := map[string]bool{}
			begin := time.Now()
			for _, want := range []int{4000, 1000} {
				<-c.Changed()
				due := c.Due()
				require.Len(t, due, want)
				for _, one := range due {
					sent[one.AppId] = true
				}
				c.Answered(due)
			}
			require.Len(t, sent, 5000)
			require.Empty(t, c.Due())
			require.Zero(t, time.Since(begin), "the rest does not wait for the next measurement")
		})
	})

	t.Run("reports the mean of the ready instances whose value is known", func(t *testing.T) {
		r := &region{
			deployments: []*agentv1.Deployment{scaled(windlassv1.ScalingMetric_TYPE_CPU, windlassv1.ScalingMetric_TYPE_MEMORY, windlassv1.ScalingMetric_TYPE_LATENCY)},
			known:       true,
			instances:   []runtime.Instance{instance(0, ready), instance(1, ready), instance(2, ready), instance(3, running)},
			used: map[string]runtime.Usage{
				"ins_0": {CPUMillicores: 1000, HasCPU: true, MemoryBytes: 256 << 20}, "ins_1": {MemoryBytes: 768 << 20},
				"ins_3": {CPUMillicores: 9000, HasCPU: true, MemoryBytes: 1 << 40},
			},
		}
		collect(t, r, func(t *testing.T, c *load.Collector) {
			one := c.Due()[0].Deployments[0]
			require.InDelta(t, 50, one.Levels["cpu"], 0.001)
			require.InDelta(t, 50, one.Levels["memory"], 0.001)
			require.EqualValues(t, 7, total(one.Latency))
			require.Empty(t, one.FirstToken)
			require.Equal(t, [][]string{{"ins_0", "ins_1", "ins_2"}}, r.measured)
		})
	})

	t.Run("says why usage is not known, and nothing of other workspaces", func(t *testing.T) {
		r := &region{
			deployments: []*agentv1.Deployment{scaled(windlassv1.ScalingMetric_TYPE_CPU)},
			instances:   []runtime.Instance{instance(0, ready)}, usageErr: &runtime.NoUsageError{Reason: "no metrics API"},
		}
		collect(t, r, func(t *testing.T, c *load.Collector) {
			problem := func(want string) {
				t.Helper()
				due := c.Due()
				require.Len(t, due, 1)
				require.Equal(t, want, due[0].Problems["cpu"])
				c.Answered(due)
			}
			<-c.Changed()
			problem("no metrics API")
			r.set(func() { r.usageErr = errors.New("namespace of another workspace: forbidden") })
			<-c.Changed()
			problem("the region's agent cannot measure it: the agent's log says why")
			r.set(func() { r.usageErr = nil })
			<-c.Changed()
			problem("")
		})
	})

	t.Run("reads the engine's metrics of ready instances, if the policy needs them", func(t *testing.T) {
		d := scaled(windlassv1.ScalingMetric_TYPE_QUEUE, windlassv1.ScalingMetric_TYPE_KV_CACHE)
		d.Spec.Ports = []*windlassv1.Port{{Name: "http"}, {Name: "metrics", Port: 8001}, {Name: "other"}}
		d.Spec.Generated = &windlassv1.Generated{Metrics: []*windlassv1.EngineMetric{
			{Signal: "queue", Metric: "e_waiting", Port: "http", Path: "/metrics"},
			{Signal: "cache", Metric: "e_cache", Port: "metrics", Path: "/m"},
			{Signal: "running", Metric: "e_running", Port: "http", Path: "/metrics"},
			{Signal: "cache", Metric: "e_lost", Port: "other", Path: "/metrics"},
		}}
		r := &region{
			deployments: []*agentv1.Deployment{d},
			instances:   []runtime.Instance{instance(0, ready), instance(1, running), instance(2, ready), {ID: "ins_3", Group: 3, Status: ready}},
			signals:     map[string]scrape.Signals{"ins_0": {"queue": 4, "cache": 0.5}, "ins_2": {"queue": 2}},
		}
		collect(t, r, func(t *testing.T, c *load.Collector) {
			require.ElementsMatch(t, []scrape.Target{
				{InstanceID: "ins_0", Address: "127.0.0.1:4000", Path: "/metrics", Metrics: map[string]string{"queue": "e_waiting"}},
				{InstanceID: "ins_2", Address: "127.0.0.1:4002", Path: "/metrics", Metrics: map[string]string{"queue": "e_waiting"}},
				{InstanceID: "ins_0", Address: "127.0.0.1:8001", Path: "/m", Metrics: map[string]string{"cache": "e_cache"}},
				{InstanceID: "ins_2", Address: "127.0.0.1:8001", Path: "/m", Metrics: map[string]string{"cache": "e_cache"}},
			}, r.targets)
			require.Equal(t, map[string]float64{"queue": 3, "kvCache": 0.5}, c.Due()[0].Deployments[0].Levels)
			require.InDelta(t, 1, r.failures(t, "scrape"), 0, "one of the two pages of ins_2")
		})
	})

	t.Run("reports the room that models need of servers", func(t *testing.T) {
		r := &region{
			deployments: []*agentv1.Deployment{scaled(windlassv1.ScalingMetric_TYPE_MODELS)},
			instances:   []runtime.Instance{instance(0, ready), instance(1, running)},
			needs:       map[string]float64{"ins_0": 150},
		}
		collect(t, r, func(t *testing.T, c *load.Collector) {
			require.Equal(t, map[string]float64{"models": 150}, c.Due()[0].Deployments[0].Levels)
		})
	})

	t.Run("leaves out unknown values", func(t *testing.T) {
		r := &region{
			deployments: []*agentv1.Deployment{scaled(windlassv1.ScalingMetric_TYPE_CPU, windlassv1.ScalingMetric_TYPE_LATENCY)},
			instances:   []runtime.Instance{instance(0, ready)},
			usageErr:    errors.New("away"),
		}
		collect(t, r, func(t *testing.T, c *load.Collector) {
			due := c.Due()
			require.Nil(t, due[0].Queued)
			require.Nil(t, due[0].Deployments[0].InFlight)
			require.Nil(t, due[0].Deployments[0].Rate)
			require.Empty(t, due[0].Deployments[0].Levels)
			require.Empty(t, due[0].Deployments[0].Latency)
			require.EqualValues(t, 1, due[0].Deployments[0].Ready)
			require.InDelta(t, 1, r.failures(t, "usage"), 0)
		})
	})
}

func total(packed []uint64) uint64 {
	c := histogram.Unpack(packed)
	return c.Total()
}

func TestCount(t *testing.T) {
	t.Parallel()
	got := load.Count([]runtime.Instance{
		{Group: 0, Status: ready},
		{Group: 0, Status: ready},
		{Group: 1, Status: ready},
		{Group: 1, Status: running},
		{Group: 2, Status: ready},
		{Group: 2, Status: failed, Doomed: true},
		{Group: 3, Status: draining},
		{Group: 4, Status: failed},
		{Group: 5, Status: ready},
	}, 2)
	require.Equal(t, []int32{1, 3}, []int32{got.Ready, got.Starting})
}
