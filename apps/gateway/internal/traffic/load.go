package traffic

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// load counts the requests of one app that wait or are in flight.
type load struct {
	waiting     atomic.Int64
	deployments sync.Map // id -> *demand
}

// demand is the part of a load that was sent to the instances of one deployment.
type demand struct {
	inFlight atomic.Int64
	began    atomic.Uint64
}

// Counted is a request that counts as load of its app until its end. The zero value does not count.
type Counted struct {
	app *load
	at  *demand // nil: it waits for an instance
}

// Begin counts a request of the app. The caller ends it with End.
func (t *Traffic) Begin(appID string) Counted {
	l := t.loadOf(appID)
	l.waiting.Add(1)
	return Counted{app: l}
}

func (t *Traffic) loadOf(appID string) *load {
	found, ok := t.apps.Load(appID)
	if !ok {
		found, _ = t.apps.LoadOrStore(appID, &load{})
	}
	return found.(*load) //nolint:forcetypeassert // nothing else is stored
}

// Sent says that the request is sent to an instance of the deployment.
func (c *Counted) Sent(deploymentID string) {
	if c.app == nil {
		return
	}
	found, ok := c.app.deployments.Load(deploymentID)
	if !ok {
		found, _ = c.app.deployments.LoadOrStore(deploymentID, &demand{})
	}
	d := found.(*demand) //nolint:forcetypeassert // nothing else is stored
	if d == c.at {
		return // another attempt at the same deployment
	}
	d.inFlight.Add(1)
	d.began.Add(1)
	c.leaveOnce()
	c.at = d
}

// End ends the request, however it ended. The second call does nothing.
func (c *Counted) End() {
	if c.app != nil {
		c.leaveOnce()
		*c = Counted{}
	}
}

func (c *Counted) leaveOnce() {
	if c.at == nil {
		c.app.waiting.Add(-1)
	} else {
		c.at.inFlight.Add(-1)
	}
}

// Loads returns the loads that differ from told, sorted by app, and the loads of all apps. The keys of apps
// are the ids of the apps, and the values are the ids of their deployments. A request that begins or ends
// while the counts are read may count only in the next call.
func (t *Traffic) Loads(apps map[string][]string, told map[string]*gatewayv1.AppLoad) (changed []*gatewayv1.AppLoad, all map[string]*gatewayv1.AppLoad) {
	all = make(map[string]*gatewayv1.AppLoad, len(apps))
	for _, id := range slices.Sorted(maps.Keys(apps)) {
		now := t.loadOf(id).readLoad(id, apps[id])
		if before := told[id]; before != nil && isSame(before, now) {
			all[id] = before
			continue
		}
		all[id] = now
		changed = append(changed, now)
	}
	return changed, all
}

// readLoad returns the load. It includes deployments, and other deployments while they have requests in flight.
func (l *load) readLoad(appID string, deployments []string) *gatewayv1.AppLoad {
	out := &gatewayv1.AppLoad{AppId: appID, Queued: clampCount(l.waiting.Load())}
	routed := map[string]bool{}
	for _, id := range deployments {
		routed[id] = true
	}
	l.deployments.Range(func(key, value any) bool {
		id, d := key.(string), value.(*demand) //nolint:forcetypeassert // nothing else is stored
		inFlight := clampCount(d.inFlight.Load())
		if !routed[id] && inFlight == 0 {
			l.deployments.Delete(id)
			return true
		}
		delete(routed, id)
		out.Deployments = append(out.Deployments, &gatewayv1.DeploymentLoad{DeploymentId: id, InFlight: inFlight, Began: d.began.Load()})
		return true
	})
	for id := range routed {
		out.Deployments = append(out.Deployments, &gatewayv1.DeploymentLoad{DeploymentId: id})
	}
	slices.SortFunc(out.Deployments, func(a, b *gatewayv1.DeploymentLoad) int { return cmp.Compare(a.DeploymentId, b.DeploymentId) })
	out.Deployments = out.Deployments[:min(len(out.Deployments), maxDeployments)]
	return out
}

// maxDeployments is how many deployments an AppLoad may have by the gateway's proto.
const maxDeployments = 64

func clampCount(n int64) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

func isSame(a, b *gatewayv1.AppLoad) bool {
	return a.Queued == b.Queued &&
		slices.EqualFunc(a.Deployments, b.Deployments, func(x, y *gatewayv1.DeploymentLoad) bool {
			return x.DeploymentId == y.DeploymentId && x.InFlight == y.InFlight && x.Began == y.Began
		})
}

// ForgetApps drops the loads of apps for which routed returns false.
func (t *Traffic) ForgetApps(routed func(appID string) bool) {
	t.apps.Range(func(key, _ any) bool {
		if id := key.(string); !routed(id) { //nolint:forcetypeassert // nothing else is stored
			t.apps.Delete(id)
		}
		return true
	})
}
