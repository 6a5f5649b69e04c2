package upstream

import "github.com/windlass-run/windlass/apps/gateway/internal/balance"

// InFlight is the number of requests under way at the instances of a deployment.
type InFlight struct {
	DeploymentID string
	Version      int32
	Requests     int64
}

// InFlight returns the number of requests under way for each deployment that the route has now. Deployments without
// requests are included.
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

// Part is an instance's share of the requests of its deployment, relative to the mean share, which is 1.
type Part struct {
	DeploymentID string
	Version      int32
	InstanceID   string
	Part         float64
}

// Parts returns the parts of the ready instances. It returns nil unless the route's strategy is balance.Weighted.
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

// Waiting returns how many requests are in the queue.
func (r *Route) Waiting() int { return r.queue.len() }
