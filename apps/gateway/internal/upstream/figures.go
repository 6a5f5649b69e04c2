package upstream

import "github.com/windlass-run/windlass/apps/gateway/internal/balance"

// InFlight is what is under way at the instances of a deployment.
type InFlight struct {
	DeploymentID string
	Version      int32
	Requests     int64
}

// InFlight tells it of each deployment that the route has now, one that has none under way
// included.
func (r *Route) InFlight() []InFlight {
	v := r.now.Load()
	if v == nil {
		return nil
	}
	out := make([]InFlight, 0, len(v.targets))
	for i := range v.targets {
		t := &v.targets[i]
		d := InFlight{DeploymentID: t.DeploymentID, Version: t.Version}
		for _, m := range t.all {
			d.Requests += m.InFlight()
		}
		out = append(out, d)
	}
	return out
}

// Part is what an instance gets of a deployment's requests: 1 is the mean.
type Part struct {
	DeploymentID string
	Version      int32
	InstanceID   string
	Part         float64
}

// Parts of the instances that are ready, of a route that weighs them.
func (r *Route) Parts() []Part {
	v := r.now.Load()
	if v == nil || v.policy.Strategy != balance.Weighted {
		return nil
	}
	var out []Part
	for i := range v.targets {
		t := &v.targets[i]
		for k, part := range balance.RelativeShares(t.endpoints[:t.ready]) {
			out = append(out, Part{t.DeploymentID, t.Version, t.endpoints[k].ID, part})
		}
	}
	return out
}

// Waiting is how many requests are in the queue.
func (r *Route) Waiting() int { return r.queue.len() }
