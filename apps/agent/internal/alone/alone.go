// Package alone raises the replicas of scaled apps while the agent is cut off from the control plane.
//
//	measured loads ─> Observe    adds them to the windows of the apps, also while connected
//	                     │       no stream for After: decides as the control plane does (package scaling)
//	                     v
//	                  zero.Raise, Keep    the raise is on disk before an instance starts
//	                     │
//	                     v
//	                  Changed    the reconciler applies the same generation with more replicas
//
// The agent only raises: it never lowers a number of replicas by itself. It raises an app only as
// its assignment permits (RaiseAlone), and within the policy's minimum and maximum and the quota.
// The region must have exactly one deployment of the app to run. So nothing is raised during a
// rollout in this region, next to a pinned version, or for a pool. The apps of a workspace share
// what it may raise. An app with an instance that finds no room is not raised further.
//
// A raise belongs to one generation. Loads report it until the control plane answers with another
// generation, which may have the raised number or any other. So what people and deploys wrote
// during the cut wins. A raise also ends when the region gets another deployment of the app,
// because a rollout counts the instances of both versions, and would wait until the raised replicas
// have ended.
//
// Metrics of type prometheus are missing here, because the control plane asks for them. The other
// metrics of the policy decide.
package alone

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	"github.com/windlass-run/windlass/pkg/scaling"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// After is how long the agent must have had no stream before it raises replicas. It is longer than
// the agent needs to connect again after a control plane has restarted. A new process of the agent
// starts this time again, because it does not know when the last stream ended.
const After = 30 * time.Second

// Config configures a Raiser. Every field is required.
type Config struct {
	// Assigned returns the items of the deployments to run whose app is scaled.
	Assigned func() []*agentv1.Item
	// Away returns for how long there has been no stream, and 0 while a stream is open.
	Away func(now time.Time) time.Duration
	// Observation returns the observed instances of the region.
	Observation func() (runtime.Observation, bool)
	// Marks stores the raises.
	Marks *zero.Zero
	// Changed is called with the id of a deployment whose replicas were raised.
	Changed func(deploymentID string)

	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Raiser raises replicas. It is not safe for concurrent use.
type Raiser struct {
	cfg     Config
	metrics *metrics
	apps    map[string]*app
	// spent has, by workspace, which part of the permission by the quota the raises use. 1 is all of it.
	spent map[string]float64
}

// app is a scaled app of which the region runs one deployment.
type app struct {
	// epoch and generation belong to the assignment from which policy was made.
	epoch, generation int64
	policy            *scaling.Policy
	window            scaling.Window
	kept              scaling.Kept
}

// New checks the config and returns a Raiser.
func New(cfg Config) (*Raiser, error) {
	if cfg.Assigned == nil || cfg.Away == nil || cfg.Observation == nil || cfg.Marks == nil || cfg.Changed == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("alone: every field of Config is required")
	}
	return &Raiser{cfg: cfg, metrics: newMetrics(cfg.Registerer), apps: map[string]*app{}}, nil
}

// Observe takes the measured loads, by app. It raises replicas if necessary, and sets raised_to and
// raised_generation of deployments whose replicas are raised.
func (r *Raiser) Observe(ctx context.Context, loads map[string]*agentv1.LoadReport, now time.Time) {
	assigned := map[string][]*agentv1.Item{}
	for _, item := range r.cfg.Assigned() {
		id := item.GetDeployment().GetDeployment().GetAppId()
		assigned[id] = append(assigned[id], item)
	}
	for id := range r.apps {
		if len(assigned[id]) != 1 {
			delete(r.apps, id)
		}
	}
	r.spent = map[string]float64{}
	for _, items := range assigned {
		for _, item := range items {
			r.spent[item.GetDeployment().GetDeployment().GetWorkspaceId()] += partOfQuota(item, r.raisedReplicas(item))
		}
	}
	away, total := r.cfg.Away(now), 0
	for _, id := range slices.Sorted(maps.Keys(assigned)) {
		items := assigned[id]
		if len(items) == 1 && loads[id] != nil {
			r.observeApp(ctx, items[0], loads[id], away, now)
		}
		for _, item := range items {
			d := item.GetDeployment().GetDeployment()
			if len(items) > 1 {
				r.dropRaise(ctx, item)
			}
			n := r.raisedReplicas(item)
			if n <= d.GetReplicas() {
				continue
			}
			total += int(n - d.GetReplicas())
			for _, load := range loads[id].GetDeployments() {
				if load.DeploymentId == item.Key {
					load.RaisedTo, load.RaisedGeneration = n, item.Generation
				}
			}
		}
	}
	r.metrics.raised.Set(float64(total))
}

// raisedReplicas returns the replicas to which the deployment is raised, or 0.
func (r *Raiser) raisedReplicas(item *agentv1.Item) int32 {
	return r.cfg.Marks.Raised(item.Key, item.Epoch, item.Generation)
}

// partOfQuota returns which part of the item's permission by the quota a number of replicas uses. Every permission
// of a workspace is the same share of its quota, in replicas of the app. So the parts of its apps add up.
func partOfQuota(item *agentv1.Item, replicas int32) float64 {
	d := item.GetDeployment().GetDeployment()
	if most := d.GetRaiseAlone().GetMaxReplicas(); replicas > d.GetReplicas() && most > d.GetReplicas() {
		return float64(replicas-d.GetReplicas()) / float64(most-d.GetReplicas())
	}
	return 0
}

// mostReplicas returns how many replicas the quota permits, after what the other apps of the workspace use of it.
// limited is false if there is no limit.
func (r *Raiser) mostReplicas(item *agentv1.Item) (n int, limited bool) {
	d := item.GetDeployment().GetDeployment()
	n = int(d.GetRaiseAlone().GetMaxReplicas())
	if n <= 0 {
		return 0, false
	}
	others := max(r.spent[d.GetWorkspaceId()]-partOfQuota(item, r.raisedReplicas(item)), 0)
	// The small number keeps errors of rounding from losing a replica.
	more := math.Floor(float64(n-int(d.GetReplicas()))*(1-others) + 1e-6)
	return int(d.GetReplicas()) + max(int(more), 0), true
}

// observeApp adds the load of an app to its window, and decides if the agent is cut off.
func (r *Raiser) observeApp(ctx context.Context, item *agentv1.Item, load *agentv1.LoadReport, away time.Duration, now time.Time) {
	d := item.GetDeployment().GetDeployment()
	if runtime.IsPooled(d.GetSpec()) || len(d.GetScaling().GetRoles()) > 0 {
		return
	}
	a := r.apps[d.AppId]
	if a == nil {
		a = &app{}
		r.apps[d.AppId] = a
	}
	if a.policy == nil || a.epoch != item.Epoch || a.generation != item.Generation {
		policy, fault := scaling.New(d.Scaling, "")
		if fault != nil {
			// The control plane checks policies. Only a newer release can have sent one that is not
			// valid here.
			r.cfg.Log.WarnContext(ctx, "cannot use scaling policy: the app's replicas are not raised without the control plane", "app", d.AppName, "error", fault)
			delete(r.apps, d.AppId)
			return
		}
		a.policy, a.epoch, a.generation = &policy, item.Epoch, item.Generation
	}
	a.window.Add(scaling.SampleOf(load, map[string]bool{item.Key: true}, now), a.policy.Up.Window)
	if away < After || d.RaiseAlone == nil || d.Replicas == 0 {
		return
	}
	r.decideApp(ctx, item, a, now)
}

// decideApp raises the replicas of an app if the policy wants more.
func (r *Raiser) decideApp(ctx context.Context, item *agentv1.Item, a *app, now time.Time) {
	d := item.GetDeployment().GetDeployment()
	have := max(d.Replicas, r.raisedReplicas(item))
	state := scaling.State{Desired: int(have), StartupBudget: d.GetSpec().GetHealthCheck().GetStartupBudget().AsDuration(), Kept: a.kept}
	if until := d.RaiseAlone.HeldUntil; until > 0 {
		state.HoldUntil = time.UnixMilli(until)
	}
	if most, limited := r.mostReplicas(item); limited {
		state.Quota = &most
	}
	if r.lacksRoom(item.Key) {
		state.Room = new(int(have))
	}
	decided := scaling.Decide(a.policy, &a.window, state, now)
	if a.kept = decided.Unwritten; decided.Wanted <= int(have) {
		return
	}
	before := r.cfg.Marks.Raise(item.Key, zero.Raise{Epoch: item.Epoch, Generation: item.Generation, Replicas: int32(decided.Wanted)})
	if err := r.cfg.Marks.Keep(); err != nil {
		// Without the mark on disk, the next process would stop the replicas that this process
		// starts.
		r.cfg.Marks.Raise(item.Key, before)
		r.metrics.raises.WithLabelValues("error").Inc()
		r.cfg.Log.ErrorContext(ctx, "cannot store that replicas are raised: they stay as they are", "app", d.AppName, "deployment", item.Key, "error", err)
		return
	}
	a.kept = decided.Kept
	r.spent[d.WorkspaceId] += partOfQuota(item, int32(decided.Wanted)) - partOfQuota(item, have)
	r.metrics.raises.WithLabelValues("raised").Inc()
	r.cfg.Log.InfoContext(ctx, "raised replicas without the control plane", "app", d.AppName, "deployment", item.Key,
		"generation", item.Generation, "assigned", d.Replicas, "from", have, "to", decided.Wanted, "ready", decided.Ready)
	r.cfg.Changed(item.Key)
}

// dropRaise ends the raise of a deployment, if there is one.
func (r *Raiser) dropRaise(ctx context.Context, item *agentv1.Item) {
	before := r.raisedReplicas(item)
	if before == 0 {
		return
	}
	// If the mark stays on disk, the next process drops it again.
	r.cfg.Marks.Raise(item.Key, zero.Raise{})
	d := item.GetDeployment().GetDeployment()
	r.cfg.Log.InfoContext(ctx, "ended a raise, because the region got another deployment of the app", "app", d.GetAppName(), "deployment", item.Key, "from", before, "to", d.GetReplicas())
	r.cfg.Changed(item.Key)
}

// noRoom has the reasons of instances for which there is no room. More replicas would wait with them.
var noRoom = []string{runtime.ReasonUnschedulable, runtime.ReasonQuotaExceeded, runtime.ReasonGangTimeout}

// lacksRoom reports whether an instance of the deployment finds no room in the region.
func (r *Raiser) lacksRoom(deploymentID string) bool {
	seen, ok := r.cfg.Observation()
	if !ok {
		return true
	}
	for i := range seen.Deployments {
		if seen.Deployments[i].DeploymentID != deploymentID {
			continue
		}
		for n := range seen.Deployments[i].Instances {
			if slices.Contains(noRoom, seen.Deployments[i].Instances[n].Reason) {
				return true
			}
		}
	}
	return false
}
