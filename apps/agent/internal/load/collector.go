package load

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/scrape"
	"github.com/windlass-run/windlass/pkg/histogram"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// Interval is the time between two measurements.
	Interval = 5 * time.Second
	// measureTimeout is the deadline of a measurement. The load of an instance that has not
	// answered by then is not known.
	measureTimeout = 4 * time.Second
	// timesWindow is the time over which answer times are reported. Older answers do not count.
	timesWindow = 30 * time.Second
	// maxDeployments is the maximum number of deployments in the LoadReport of an app.
	maxDeployments = 64
	// reportDeployments is the maximum number of deployments of all apps in one report. It keeps a
	// report below the size limit of a request (rpc.DefaultReadMaxBytes), and below the limit of
	// loads in a ReportRequest (10,000).
	reportDeployments = 4000

	// The names of the levels for which a report says why they are not known.
	levelCPU, levelMemory = "cpu", "memory"
)

// Config configures a Collector.
type Config struct {
	// Deployments returns the assigned deployments whose app is scaled.
	Deployments func() []*agentv1.Deployment
	// Observation returns the observed instances of the region. ok is false while they are not
	// known.
	Observation func() (runtime.Observation, bool)
	// Demand returns the demand of clients for an app. ok is false while no gateway has reported
	// it.
	Demand func(appID string, now time.Time) (Asked, bool)
	// Times returns how long answers of a deployment took within the window.
	Times func(deploymentID string, window time.Duration, now time.Time) (latency, firstToken histogram.Counts)
	// Usage measures the CPU and memory that instances use. It is nil if the runtime cannot measure them.
	Usage func(ctx context.Context, instanceIDs []string) (map[string]runtime.Usage, error)
	// ModelNeed returns the room that models need of a server, in percent of its room. ok is false if it
	// is not known. It is nil if the runtime loads no models.
	ModelNeed func(instanceID string) (percent float64, ok bool)
	// Scrape reads the metrics of engines.
	Scrape func(ctx context.Context, targets []scrape.Target) map[string]scrape.Signals
	// Measured is called with the loads of each measurement, by app, before they are reported. It may
	// set raised_to and raised_generation. Nil: no call.
	Measured func(ctx context.Context, loads map[string]*agentv1.LoadReport, now time.Time)

	Log        *slog.Logger
	Registerer prometheus.Registerer
	Rand       func() float64
}

// Collector makes the reports. Run it once.
type Collector struct {
	cfg     Config
	changed chan struct{}
	wake    chan struct{}
	metrics *metrics
	failure string // the last error of Usage that was logged; only measureUsage uses it

	mu       sync.Mutex
	now      map[string]*agentv1.LoadReport // of the last measurement, by app
	answered map[string]*agentv1.LoadReport // of the last answered report, by app
}

// New checks the config and returns a Collector.
func New(cfg Config) (*Collector, error) {
	if cfg.Deployments == nil || cfg.Observation == nil || cfg.Demand == nil || cfg.Times == nil || cfg.Scrape == nil || cfg.Log == nil || cfg.Registerer == nil || cfg.Rand == nil {
		return nil, errors.New("load: every field of Config except Usage and Measured is required")
	}
	c := &Collector{
		cfg: cfg, changed: make(chan struct{}, 1), wake: make(chan struct{}, 1), metrics: newMetrics(cfg.Registerer),
		now: map[string]*agentv1.LoadReport{}, answered: map[string]*agentv1.LoadReport{},
	}
	return c, nil
}

// Assigned must be called when the result of Deployments may have changed. It wakes Run, which
// sleeps while no app is scaled.
func (c *Collector) Assigned() { signalOn(c.wake) }

// Changed is signalled, with a buffer of one, when Due may return something new.
func (c *Collector) Changed() <-chan struct{} { return c.changed }

// Due returns the reports that must be sent now, at most as many as fit into one request.
func (c *Collector) Due() []*agentv1.LoadReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := Due(c.answered, c.now)
	n, deployments := 0, 0
	for ; n < len(due); n++ {
		if deployments += len(due[n].Deployments); deployments > reportDeployments {
			break
		}
	}
	return due[:n]
}

// Answered records that the control plane has answered a report of these loads. It signals Changed
// if more loads are due.
func (c *Collector) Answered(reports []*agentv1.LoadReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range reports {
		c.answered[r.AppId] = r
	}
	c.signalDue()
}

// signalDue signals Changed if a report is due. The caller holds mu.
func (c *Collector) signalDue() {
	if len(Due(c.answered, c.now)) > 0 {
		signalOn(c.changed)
	}
}

// Reset begins a session, in which the control plane has received no loads yet.
func (c *Collector) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.answered)
	if len(c.now) > 0 {
		signalOn(c.changed)
	}
}

// Run measures the load every Interval while an app is scaled, until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	for {
		deployments := c.cfg.Deployments()
		if len(deployments) == 0 {
			c.setReports(nil)
			select {
			case <-ctx.Done():
				return nil
			case <-c.wake:
			}
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, measureTimeout)
		reports, ok := c.measureApps(bounded, deployments)
		cancel()
		if ok {
			if c.cfg.Measured != nil {
				c.cfg.Measured(ctx, reports, time.Now())
			}
			c.setReports(reports)
		}
		// The jitter spreads the reports of different regions, and the scrapes of one region, over time.
		wait := time.NewTimer(time.Duration((0.9 + 0.1*c.cfg.Rand()) * float64(Interval)))
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-wait.C:
		}
	}
}

// setReports replaces the measured loads. Nil: no app is scaled.
func (c *Collector) setReports(reports map[string]*agentv1.LoadReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = reports
	for id := range c.answered {
		if reports[id] == nil {
			delete(c.answered, id) // if the app is scaled again, its load is sent at once
		}
	}
	c.metrics.apps.Set(float64(len(reports)))
	c.signalDue()
}

func signalOn(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wants is the set of metric types in the policy of a deployment's app.
type wants map[windlassv1.ScalingMetric_Type]bool

func wantsOf(d *agentv1.Deployment) wants {
	out := wants{}
	for _, m := range d.GetScaling().GetMetrics() {
		out[m.Type] = true
	}
	for _, r := range d.GetScaling().GetRoles() {
		for _, m := range r.Metrics {
			out[m.Type] = true
		}
	}
	return out
}

// needsUsage reports whether the policy needs the CPU or memory that instances use.
func (w wants) needsUsage() bool {
	return w[windlassv1.ScalingMetric_TYPE_CPU] || w[windlassv1.ScalingMetric_TYPE_MEMORY]
}

// neededSignals returns the set of engine signals that the policy needs, by name.
func (w wants) neededSignals() map[string]bool {
	return map[string]bool{scrape.Queue: w[windlassv1.ScalingMetric_TYPE_QUEUE], scrape.Cache: w[windlassv1.ScalingMetric_TYPE_KV_CACHE]}
}

// measureApps returns the loads by app. ok is false while Observation returns nothing.
func (c *Collector) measureApps(ctx context.Context, deployments []*agentv1.Deployment) (_ map[string]*agentv1.LoadReport, ok bool) {
	seen, ok := c.cfg.Observation()
	if !ok {
		return nil, false
	}
	instances := make(map[string][]runtime.Instance, len(deployments))
	for _, d := range seen.Deployments {
		instances[d.DeploymentID] = d.Instances
	}
	var usageOf []string
	var targets []scrape.Target
	for _, d := range deployments {
		w := wantsOf(d)
		if w.needsUsage() {
			usageOf = append(usageOf, readyOf(instances[d.Id])...)
		}
		targets = append(targets, targetsOf(d, instances[d.Id], w.neededSignals())...)
	}
	var used map[string]runtime.Usage
	var problem string
	var measuring sync.WaitGroup
	if len(usageOf) > 0 {
		measuring.Go(func() { used, problem = c.measureUsage(ctx, usageOf) })
	}
	var signals map[string]scrape.Signals
	if len(targets) > 0 {
		signals = c.cfg.Scrape(ctx, targets)
		for _, t := range targets {
			if !hasAny(signals[t.InstanceID], t.Metrics) {
				c.metrics.failures.WithLabelValues("scrape").Inc()
			}
		}
	}
	measuring.Wait()

	now := time.Now()
	out := map[string]*agentv1.LoadReport{}
	asked := map[string]Asked{}
	for _, d := range deployments {
		r := out[d.AppId]
		if r == nil {
			r = &agentv1.LoadReport{AppId: d.AppId, At: now.UnixMilli()}
			out[d.AppId] = r
			if a, known := c.cfg.Demand(d.AppId, now); known {
				asked[d.AppId] = a
				r.Queued = &a.Queued
			}
		}
		a, known := asked[d.AppId]
		r.Deployments = append(r.Deployments, c.deploymentLoad(d, instances[d.Id], used, signals, a, known, now))
		if w := wantsOf(d); w.needsUsage() && problem != "" {
			r.Problems = map[string]string{levelCPU: problem, levelMemory: problem}
		}
	}
	for _, r := range out {
		slices.SortFunc(r.Deployments, func(a, b *agentv1.DeploymentLoad) int { return cmp.Compare(a.DeploymentId, b.DeploymentId) })
		r.Deployments = r.Deployments[:min(len(r.Deployments), maxDeployments)]
	}
	return out, true
}

// measureUsage returns the usage of instances, and why it is not known for all of them. It logs the reason once.
func (c *Collector) measureUsage(ctx context.Context, ids []string) (used map[string]runtime.Usage, problem string) {
	if c.cfg.Usage == nil {
		return nil, "the region's runtime measures neither CPU nor memory"
	}
	used, err := c.cfg.Usage(ctx, ids)
	if err == nil {
		c.failure = ""
		return used, ""
	}
	c.metrics.failures.WithLabelValues("usage").Inc()
	if text := err.Error(); text != c.failure {
		c.failure = text
		c.cfg.Log.WarnContext(ctx, "cannot measure what instances use: apps that are scaled by CPU or memory do not scale down", "error", err)
	}
	if absent, ok := errors.AsType[*runtime.NoUsageError](err); ok {
		return used, absent.Reason
	}
	// Other errors may name objects of other workspaces.
	return used, "the region's agent cannot measure it: the agent's log says why"
}

// deploymentLoad returns the load of one deployment. a is the demand for its app. known is false
// while no gateway has reported the demand.
func (c *Collector) deploymentLoad(d *agentv1.Deployment, instances []runtime.Instance, used map[string]runtime.Usage, signals map[string]scrape.Signals, a Asked, known bool, now time.Time) *agentv1.DeploymentLoad {
	out := Count(instances, Size(d))
	out.DeploymentId = d.Id
	w := wantsOf(d)
	if known {
		out.InFlight = new(a.InFlight[d.Id])
		if perSecond, ok := a.Rate[d.Id]; ok {
			out.Rate = &perSecond
		}
		if w[windlassv1.ScalingMetric_TYPE_LATENCY] || w[windlassv1.ScalingMetric_TYPE_FIRST_TOKEN] {
			latency, firstToken := c.cfg.Times(d.Id, timesWindow, now)
			if w[windlassv1.ScalingMetric_TYPE_LATENCY] {
				out.Latency = latency.Pack()
			}
			if w[windlassv1.ScalingMetric_TYPE_FIRST_TOKEN] {
				out.FirstToken = firstToken.Pack()
			}
		}
	}
	m := measured{wants: w, used: used, signals: signals, modelNeed: c.cfg.ModelNeed}
	switch {
	case runtime.IsPooled(d.GetSpec()):
		for _, role := range runtime.Roles(d.GetSpec()) {
			out.Roles = append(out.Roles, roleLoad(role, instances, m))
		}
	case !runtime.HasRoles(d.GetSpec()): // a mean over instances that do different work has no meaning
		out.Levels = m.levelsOf(instances, d.GetSpec().GetResources())
	}
	return out
}

// roleLoad returns the load of the instances of one role of a pool.
func roleLoad(role runtime.Role, instances []runtime.Instance, m measured) *agentv1.RoleLoad {
	out := &agentv1.RoleLoad{Role: role.Name}
	var own []runtime.Instance
	for n := range instances {
		i := &instances[n]
		if i.Role != role.Name {
			continue
		}
		own = append(own, *i)
		switch i.Status {
		case windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING, windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED:
		case windlassv1.InstanceStatus_INSTANCE_STATUS_READY:
			out.Ready++
		default:
			if !i.Doomed {
				out.Starting++
			}
		}
	}
	out.Levels = m.levelsOf(own, role.Resources)
	return out
}

// measured has the values that were measured at instances, by instance id.
type measured struct {
	wants   wants
	used    map[string]runtime.Usage
	signals map[string]scrape.Signals
	// modelNeed is Config.ModelNeed.
	modelNeed func(instanceID string) (float64, bool)
}

// levelsOf returns the means over the ready instances, by the names of DeploymentLoad.levels, or nil
// if none is known. asks are the resources that each instance requests.
func (m measured) levelsOf(instances []runtime.Instance, asks *windlassv1.Resources) (out map[string]float64) {
	level := func(name string, of func(instanceID string) (float64, bool)) {
		if v, ok := meanOverReady(instances, of); ok {
			if out == nil {
				out = map[string]float64{}
			}
			out[name] = v
		}
	}
	if m.wants[windlassv1.ScalingMetric_TYPE_CPU] && asks.GetCpuMillicores() > 0 {
		level(levelCPU, func(id string) (float64, bool) {
			u, ok := m.used[id]
			return 100 * u.CPUMillicores / float64(asks.CpuMillicores), ok && u.HasCPU
		})
	}
	if m.wants[windlassv1.ScalingMetric_TYPE_MEMORY] && asks.GetMemoryMib() > 0 {
		level(levelMemory, func(id string) (float64, bool) {
			u, ok := m.used[id]
			return 100 * float64(u.MemoryBytes) / float64(int64(asks.MemoryMib)<<20), ok
		})
	}
	if m.wants[windlassv1.ScalingMetric_TYPE_QUEUE] {
		level("queue", func(id string) (float64, bool) { v, ok := m.signals[id][scrape.Queue]; return v, ok })
	}
	if m.wants[windlassv1.ScalingMetric_TYPE_KV_CACHE] {
		level("kvCache", func(id string) (float64, bool) { v, ok := m.signals[id][scrape.Cache]; return v, ok })
	}
	if m.wants[windlassv1.ScalingMetric_TYPE_MODELS] && m.modelNeed != nil {
		level("models", m.modelNeed)
	}
	return out
}

// hasAny reports whether the value of at least one metric was read. metrics maps signals to metric
// names.
func hasAny(read scrape.Signals, metrics map[string]string) bool {
	for signal := range metrics {
		if _, ok := read[signal]; ok {
			return true
		}
	}
	return false
}

func readyOf(instances []runtime.Instance) (ids []string) {
	for n := range instances {
		if instances[n].Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
			ids = append(ids, instances[n].ID)
		}
	}
	return ids
}

// meanOverReady returns the mean over the ready instances whose value is known. ok is false if
// there are no such instances.
func meanOverReady(instances []runtime.Instance, of func(instanceID string) (float64, bool)) (v float64, ok bool) {
	n := 0
	for i := range instances {
		if instances[i].Status != windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
			continue
		}
		if one, known := of(instances[i].ID); known {
			v += one
			n++
		}
	}
	return v / float64(max(n, 1)), n > 0
}

// Size returns the number of instances in a replica of the deployment.
func Size(d *agentv1.Deployment) (n int) {
	for _, r := range runtime.Roles(d.GetSpec()) {
		n += r.Instances
	}
	return n
}

// Count counts replicas by state. A replica is ready when it has size instances and all of them are
// ready. It does not count replicas that are draining, that have ended or that have a doomed
// instance.
func Count(instances []runtime.Instance, size int) *agentv1.DeploymentLoad {
	type replica struct {
		ready            int
		starting, doomed bool
	}
	replicas := map[int]replica{}
	for n := range instances {
		i := &instances[n]
		r := replicas[i.Group]
		switch i.Status {
		case windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING, windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED:
			continue
		case windlassv1.InstanceStatus_INSTANCE_STATUS_READY:
			r.ready++
		default:
			r.starting = r.starting || !i.Doomed
			r.doomed = r.doomed || i.Doomed
		}
		replicas[i.Group] = r
	}
	out := &agentv1.DeploymentLoad{}
	for _, r := range replicas {
		switch {
		case r.doomed:
		case r.starting, r.ready < size:
			out.Starting++
		default:
			out.Ready++
		}
	}
	return out
}

// targetsOf returns the metrics pages with these signals, for each ready instance of a deployment.
func targetsOf(d *agentv1.Deployment, instances []runtime.Instance, signals map[string]bool) []scrape.Target {
	var out []scrape.Target
	for _, s := range sourcesOf(d.GetSpec(), signals) {
		for n := range instances {
			i := &instances[n]
			if i.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
				continue
			}
			if address, ok := addressOf(i.Address, s.port); ok {
				out = append(out, scrape.Target{InstanceID: i.ID, WorkspaceID: d.GetWorkspaceId(), Address: address, Path: s.path, Metrics: s.metrics})
			}
		}
	}
	return out
}
