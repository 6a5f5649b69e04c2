package gateways

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// routable decides, from the gateways' reports, which instances that pass their check count as
// ready:
//
//   - a new instance does not count until every gateway that reports has reached it
//   - an instance does not count while every gateway that reports has ejected it, because they
//     cannot connect to it
//   - an instance counts, with a finding, while every gateway that reports has ejected it for its
//     answers, because the rollout's analysis judges these answers
//
// An instance that ran before this agent process, or that has no route, counts as the runtime
// reports it. So does every instance while no gateway reports. A gateway is ignored before its
// first report, and while it is away. routable is pure.
type routable struct {
	// unwatched has the last observation that was made while no gateway counted. Its instances
	// count, because no gateway could check them.
	unwatched []runtime.ObservedDeployment
	// seen has the last list of each deployment.
	seen map[string]runtime.ObservedDeployment
	// ready are the instances that pass their check, by id.
	ready map[string]*candidate
	// waiting are the entries of ready that some gateway has not reached yet.
	waiting map[string]*candidate
	// found has the findings, by deployment and instance id.
	found map[string]map[string]finding
	// masked has the lists that applyFindings returns, for deployments in found.
	masked map[string]masked
}

// connectError is the reason that a gateway reports when it could not connect; see InstanceHealth.
const connectError = "ConnectError"

// candidate is an instance that passes its check.
type candidate struct {
	deployment, address string
	// since has, by app, the change that first lists the instance as ready.
	since map[string]int64
}

// finding is what gateways found about one instance, and whether it counts as ready.
type finding struct {
	ready           bool
	reason, message string
}

// masked is a list with findings applied. It also has the list and the findings from which it was
// made.
type masked struct {
	from  []runtime.Instance
	found map[string]finding
	list  []runtime.Instance
}

func newRoutable() *routable {
	return &routable{
		seen: map[string]runtime.ObservedDeployment{}, ready: map[string]*candidate{}, waiting: map[string]*candidate{},
		found: map[string]map[string]finding{}, masked: map[string]masked{},
	}
}

// updateCandidates records the observed instances. It must be called after table.setObserved. first
// means that the instances ran before this agent process. The cost grows with the number of
// deployments, and with the number of instances of the changed deployments.
func (h *hub) updateCandidates(seen []runtime.ObservedDeployment, first bool) {
	if len(h.gateways) == 0 {
		h.routable = newRoutable()
		h.unwatched = seen
		return
	}
	h.adoptUnwatched()
	r := h.routable
	now := make(map[string]runtime.ObservedDeployment, len(seen))
	for _, d := range seen {
		now[d.DeploymentID] = d
		was := r.seen[d.DeploymentID]
		if sameLists(was, d) {
			continue
		}
		there := make(map[string]bool, len(d.Instances))
		complete := d.CompleteGroups(func(*runtime.Instance) bool { return true })
		for n := range d.Instances {
			in := &d.Instances[n]
			if in.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_READY || in.Address == "" {
				continue
			}
			// Gateways send to an entry instance, and to one that prefills for it, once its group is complete, and to
			// no other instance.
			if len(d.Roles) > 0 && (!h.leadsTo(&d, in.Role) || !complete[in.Group]) {
				continue
			}
			there[in.ID] = true
			if c := r.ready[in.ID]; c != nil && c.address == in.Address {
				c.deployment = d.DeploymentID
				continue
			}
			c := &candidate{deployment: d.DeploymentID, address: in.Address}
			r.ready[in.ID] = c
			if delete(r.waiting, in.ID); !first {
				if c.since = h.statesWithReady(d.DeploymentID, in.ID); len(c.since) > 0 {
					r.waiting[in.ID] = c
				}
			}
		}
		r.dropCandidates(was, there)
	}
	for id, was := range r.seen {
		if _, ok := now[id]; !ok {
			r.dropCandidates(was, nil)
		}
	}
	r.seen = now
	h.computeFindings()
}

// adoptUnwatched runs once a gateway counts. It records the instances that ran while no gateway
// counted.
func (h *hub) adoptUnwatched() {
	if before := h.unwatched; before != nil && len(h.gateways) > 0 {
		h.unwatched = nil
		h.updateCandidates(before, true)
	}
}

// dropCandidates forgets the instances of the list that are not ready any more, unless another
// deployment has taken them over.
func (r *routable) dropCandidates(was runtime.ObservedDeployment, ready map[string]bool) {
	for n := range was.Instances {
		id := was.Instances[n].ID
		if c := r.ready[id]; c != nil && c.deployment == was.DeploymentID && !ready[id] {
			delete(r.ready, id)
			delete(r.waiting, id)
		}
	}
}

// statesWithReady returns the apps whose state lists the instance as ready, with the app's change.
func (h *hub) statesWithReady(deploymentID, instanceID string) map[string]int64 {
	since := map[string]int64{}
	for appID := range h.users[cmp.Or(h.assignment(deploymentID).GetWorkloadKey(), deploymentID)] {
		a := h.apps[appID]
		if readyIn(a.state, instanceID) {
			since[appID] = a.state.Change
		}
	}
	return since
}

// computeFindings computes all findings again. The cost grows with the number of instances that wait
// or are ejected.
func (h *hub) computeFindings() {
	r := h.routable
	found := map[string]map[string]finding{}
	find := func(c *candidate, id string, f finding) {
		if found[c.deployment] == nil {
			found[c.deployment] = map[string]finding{}
		}
		found[c.deployment][id] = f
	}
	reporting := h.reportingGateways()
	for id, c := range r.waiting {
		if why := h.whyUnreached(id, c, reporting); why != "" {
			find(c, id, finding{reason: runtime.ReasonNotRoutable, message: why})
			continue
		}
		delete(r.waiting, id)
		c.since = nil
	}
	if len(reporting) > 0 {
		for id, reason := range reporting[0].ejected {
			c := r.ready[id]
			if c == nil || r.waiting[id] != nil {
				continue
			}
			if slices.ContainsFunc(reporting, func(g *gateway) bool { _, out := g.ejected[id]; return !out }) {
				continue
			}
			f := finding{ready: true, reason: runtime.ReasonEjected, message: "no gateway sends to it, because requests failed: " + reason}
			if reason == connectError {
				f = finding{reason: runtime.ReasonNotRoutable, message: "no gateway can connect to it at " + c.address}
			}
			find(c, id, f)
		}
	}
	r.found = found
	maps.DeleteFunc(r.masked, func(id string, _ masked) bool { return found[id] == nil })
}

// reportingGateways returns the gateways that report about instances, ordered by id.
func (h *hub) reportingGateways() []*gateway {
	var out []*gateway
	for _, id := range slices.Sorted(maps.Keys(h.gateways)) {
		if g := h.gateways[id]; g.verified && g.stream != 0 && g.begun && !g.leaving && g.ejected != nil {
			out = append(out, g)
		}
	}
	return out
}

// whyUnreached returns why the instance does not count yet, or "" if it does.
func (h *hub) whyUnreached(id string, c *candidate, reporting []*gateway) string {
	for _, g := range reporting {
		for appID, change := range c.since {
			if h.apps[appID] != nil && g.served[appID] < change {
				return fmt.Sprintf("waits for gateway %s to receive it", g.id)
			}
		}
		switch reason, unproven := g.unproven[id]; {
		case unproven && reason != "" && reason != connectError:
			return fmt.Sprintf("through gateway %s it does not pass its check at %s: %s", g.id, c.address, reason)
		case unproven && reason != "":
			return fmt.Sprintf("gateway %s cannot reach it at %s: %s", g.id, c.address, reason)
		case unproven:
			return fmt.Sprintf("waits for gateway %s to reach it", g.id)
		}
	}
	return ""
}

// applyFindings returns the observed deployments with the findings applied. A list without findings
// is returned unchanged. While nothing changes, every call returns the same list.
func (r *routable) applyFindings(seen []runtime.ObservedDeployment) []runtime.ObservedDeployment {
	if len(r.found) == 0 {
		return seen
	}
	out := slices.Clone(seen)
	for n := range out {
		d := &out[n]
		found := r.found[d.DeploymentID]
		if found == nil || len(d.Instances) == 0 {
			continue
		}
		was := r.masked[d.DeploymentID]
		if len(was.from) != len(d.Instances) || &was.from[0] != &d.Instances[0] || !maps.Equal(was.found, found) {
			was = masked{from: d.Instances, found: found, list: slices.Clone(d.Instances)}
			for i := range was.list {
				in := &was.list[i]
				f, ok := found[in.ID]
				if !ok || in.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
					continue
				}
				if in.Reason, in.Message = f.reason, f.message; !f.ready {
					in.Status = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
				}
			}
			r.masked[d.DeploymentID] = was
		}
		d.Instances = was.list
	}
	return out
}
