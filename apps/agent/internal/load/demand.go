package load

import (
	"time"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

const (
	// rateWindow is the time over which a rate is averaged, in seconds.
	rateWindow = 10
	// leastRate is the shortest time over which a rate is computed.
	leastRate = 2 * time.Second
)

// Demand adds up the loads of scaled apps that the region's gateways report. It is pure, and not
// safe for concurrent use.
type Demand struct {
	// gateways has the last report of each gateway, by app. fresh is false for a gateway that ran
	// before this agent process. The first report of such a gateway for an app only sets the start
	// of the count.
	gateways map[string]*reported
	apps     map[string]*appRates
}

type reported struct {
	fresh bool
	apps  map[string]*gatewayv1.AppLoad
}

// appRates has the request rates of an app.
type appRates struct {
	// since is when a gateway first reported the app.
	since time.Time
	rates map[string]*rate // by deployment
}

// rate has the number of requests in each of the last rateWindow seconds.
type rate [rateWindow + 1]struct {
	second int64
	n      uint64
}

func (r *rate) add(n uint64, now time.Time) {
	second := now.Unix()
	slot := &r[second%int64(len(r))]
	if slot.second != second {
		slot.second, slot.n = second, 0
	}
	slot.n += n
}

func (r *rate) sumAt(now time.Time) (n uint64) {
	for _, slot := range r {
		if slot.second > now.Unix()-rateWindow && slot.second <= now.Unix() {
			n += slot.n
		}
	}
	return n
}

// NewDemand returns a Demand without gateways.
func NewDemand() *Demand {
	return &Demand{gateways: map[string]*reported{}, apps: map[string]*appRates{}}
}

// Joined adds a gateway whose process has not reported to any agent yet, so all its requests are
// new.
func (d *Demand) Joined(gateway string) {
	d.gateways[gateway] = &reported{fresh: true, apps: map[string]*gatewayv1.AppLoad{}}
}

// Left forgets a gateway and its part of the load. A gateway that is only away has not left.
func (d *Demand) Left(gateway string) { delete(d.gateways, gateway) }

// Tell adds a gateway's report. It returns the number of new requests, by deployment that got some.
func (d *Demand) Tell(gateway string, loads []*gatewayv1.AppLoad, now time.Time) map[string]uint64 {
	grown := map[string]uint64{}
	g := d.gateways[gateway]
	if g == nil {
		g = &reported{apps: map[string]*gatewayv1.AppLoad{}}
		d.gateways[gateway] = g
	}
	for _, l := range loads {
		before, known := g.apps[l.AppId]
		g.apps[l.AppId] = l
		a := d.ratesOf(l.AppId, now)
		if !known && !g.fresh {
			continue // it is not known when the requests counted so far came
		}
		for _, dep := range l.Deployments {
			n := counterGrowth(dep.Began, beganOf(before, dep.DeploymentId))
			a.rateOf(dep.DeploymentId).add(n, now)
			if n > 0 {
				grown[dep.DeploymentId] += n
			}
		}
	}
	return grown
}

// counterGrowth returns by how much a counter grew. A counter that is lower than before has
// restarted at 0.
func counterGrowth(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func beganOf(l *gatewayv1.AppLoad, deploymentID string) uint64 {
	for _, d := range l.GetDeployments() {
		if d.DeploymentId == deploymentID {
			return d.Began
		}
	}
	return 0
}

func (d *Demand) ratesOf(id string, now time.Time) *appRates {
	a := d.apps[id]
	if a == nil {
		a = &appRates{since: now, rates: map[string]*rate{}}
		d.apps[id] = a
	}
	return a
}

func (a *appRates) rateOf(deploymentID string) *rate {
	r := a.rates[deploymentID]
	if r == nil {
		r = &rate{}
		a.rates[deploymentID] = r
	}
	return r
}

// Asked is the demand of clients for one app.
type Asked struct {
	// Queued is the number of requests that wait at gateways for an instance.
	Queued float64
	// InFlight is the number of requests that instances work on, by deployment. Rate is the number
	// of new requests per second, by deployment. Rate is empty until the app's requests were
	// counted for leastRate.
	InFlight, Rate map[string]float64
}

// Look returns the demand for the app. ok is false while no gateway has reported it. Look drops the
// rate of a deployment once no gateway reports it and its last requests are older than rateWindow.
func (d *Demand) Look(appID string, now time.Time) (_ Asked, ok bool) {
	a := d.apps[appID]
	if a == nil {
		return Asked{}, false
	}
	out := Asked{InFlight: map[string]float64{}, Rate: map[string]float64{}}
	known := false
	for _, g := range d.gateways {
		l := g.apps[appID]
		if l == nil {
			continue
		}
		known = true
		out.Queued += float64(l.Queued)
		for _, dep := range l.Deployments {
			out.InFlight[dep.DeploymentId] += float64(dep.InFlight)
		}
	}
	if !known {
		return Asked{}, false
	}
	for id, r := range a.rates {
		if _, ok := out.InFlight[id]; !ok && r.sumAt(now) == 0 {
			delete(a.rates, id)
		}
	}
	counted := min(now.Sub(a.since), rateWindow*time.Second)
	if counted >= leastRate {
		for id := range out.InFlight {
			out.Rate[id] = 0
		}
		for id, r := range a.rates {
			out.Rate[id] = float64(r.sumAt(now)) / counted.Seconds()
		}
	}
	return out, true
}

// Forget drops the apps for which keep returns false.
func (d *Demand) Forget(keep func(appID string) bool) {
	for id := range d.apps {
		if !keep(id) {
			delete(d.apps, id)
		}
	}
	for _, g := range d.gateways {
		for id := range g.apps {
			if !keep(id) {
				delete(g.apps, id)
			}
		}
	}
}
