package chaos

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/fleet"
	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// disagreement describes why the database and the regions do not agree. They may still come to agree later.
type disagreement struct {
	kind, app string
	place     place
	text      string
}

func (d *disagreement) String() string {
	if d.place == (place{}) {
		return d.kind + ": " + d.text
	}
	return fmt.Sprintf("%s: %s: %s", d.kind, d.place, d.text)
}

// sight has the running and the ready instances, by region and then by deployment.
type sight struct {
	running map[string]map[string]int
	ready   map[string]map[string][]string
	// models has the servers that hold each model, by region and then by model.
	models map[string]map[string][]string
}

func (c *checker) readSight() sight {
	s := sight{running: map[string]map[string]int{}, ready: map[string]map[string][]string{}}
	for _, m := range c.w.Fleet.Members() {
		s.running[m.Region], s.ready[m.Region] = m.Runtime.Running(), m.Runtime.Ready()
	}
	if c.requests != nil {
		s.models = c.requests.models.held()
	}
	return s
}

// compareAll compares the database with the running instances. It returns nil when everything is settled and
// equal. No fault occurs during the call.
func (c *checker) compareAll(ctx context.Context) (*disagreement, error) {
	for _, p := range c.w.Stack.Planes() {
		if !c.w.Stack.Runs(p.Name) {
			return &disagreement{kind: "not healed", text: p.Name + " does not run\n" + c.w.Stack.LogEnd(p.Name)}, nil
		}
	}
	for _, m := range c.w.Fleet.Members() {
		if !m.Connected() {
			return &disagreement{kind: "an agent stays away", place: place{region: m.Region}, text: "no stream"}, nil
		}
	}
	b, err := readBooks(ctx, c.w.DB)
	if err != nil {
		return nil, err
	}
	return c.compareContent(b, c.readSight()), nil
}

// compareContent compares the content of the database with the running instances.
func (c *checker) compareContent(b books, s sight) *disagreement {
	if len(b.holes) > 0 {
		return &disagreement{kind: "a feed has a hole", place: place{region: b.holes[0]}, text: fmt.Sprint(b.holes)}
	}
	// A place that is behind explains more than the rollout that waits for it.
	if d := c.agreeRows(b, s); d != nil {
		return d
	}
	if len(b.moving) > 0 {
		first := slices.MinFunc(b.moving, func(a, b moving) int { return cmp.Compare(a.text, b.text) })
		return &disagreement{kind: "a rollout is stuck", app: first.app, place: place{deployment: first.deployment}, text: first.text}
	}
	if d := c.agreeInstances(b, s); d != nil {
		return d
	}
	if d := agreeModels(b, s); d != nil {
		return d
	}
	if d := b.agreeSlots(); d != nil {
		return d
	}
	if d := agreeDecisions(b); d != nil {
		return d
	}
	if c.requests != nil {
		if o, n := c.requests.oldestWaiting(); n > 0 {
			return &disagreement{heldForEver, o.at.app, place{region: o.at.region}, fmt.Sprintf("%d wait, the oldest for %s", n, time.Since(o.begun).Round(time.Millisecond))}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, app := range c.acknowledged {
		if !b.deployments[id] {
			return &disagreement{kind: "an acknowledged deployment is lost", app: app, place: place{deployment: id}, text: "no such row"}
		}
	}
	return nil
}

// patience has the time in which everything must settle (converge), and the time after which it counts as stuck
// (end).
type patience struct{ converge, end time.Duration }

// recordUnsettled records that something still disagrees. took is the time since all faults were mended. If it is
// longer than p.converge, that is a violation (late). If it is longer than p.end, that is a violation of another kind
// (stuck).
func (c *checker) recordUnsettled(took time.Duration, p patience, why *disagreement) (late, stuck bool) {
	if late = took > p.converge; late {
		c.recordViolationf("not settled in time", why.app, why.place, "%s after everything was mended: %s", p.converge, why)
	}
	if stuck = took > p.end; stuck {
		c.recordViolationf(why.kind, why.app, why.place, "%s after everything was mended: %s", p.end, why)
	}
	return late, stuck
}

// agreeRows compares every place of the database with its region.
func (c *checker) agreeRows(b books, s sight) *disagreement {
	running, ready := s.running, s.ready
	known := map[place]bool{}
	for _, r := range b.rows {
		known[r.place] = true
		wants := 0
		switch r.status {
		case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED:
			wants = r.wantedInstances()
		case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED:
		default:
			return &disagreement{"a rollout is stuck", r.app, r.place, r.status.String() + ", " + r.says}
		}
		if isModel(r.app) { // its instances are no instances of the runtime
			if d := r.agreeModel(); d != nil {
				return d
			}
			continue
		}
		switch n := running[r.region][r.deployment]; {
		case n > wants && wants == 0 && b.quarantined[r.place]:
		case n > wants && wants == 0:
			return &disagreement{"an orphan runs", r.app, r.place, fmt.Sprintf("%d instances, and it is stopped", n)}
		case n > wants:
			return &disagreement{"instances run twice", r.app, r.place, fmt.Sprintf("%d run, wanted are %d", n, wants)}
		case n < wants || len(ready[r.region][r.deployment]) < wants:
			return &disagreement{"a change was missed", r.app, r.place, fmt.Sprintf("%d run and %d are ready, wanted are %d", n, len(ready[r.region][r.deployment]), wants)}
		}
		if r.status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED {
			continue
		}
		c.mu.Lock()
		at := c.applied[r.place].generation
		c.mu.Unlock()
		switch {
		case at != r.generation:
			return &disagreement{"a change was missed", r.app, r.place, fmt.Sprintf("the agent applied generation %d, the newest is %d", at, r.generation)}
		case r.appliedGeneration != r.generation || r.readyReplicas != r.replicas || r.count != wants:
			return &disagreement{"a report was missed", r.app, r.place, fmt.Sprintf(
				"applied is %d of %d, ready %d of %d, counted %d of %d", r.appliedGeneration, r.generation, r.readyReplicas, r.replicas, r.count, wants)}
		}
	}
	for region, deployments := range running {
		for id, n := range deployments {
			if p := (place{region, id}); !known[p] && !b.quarantined[p] && n > 0 {
				return &disagreement{"an orphan runs", "", p, fmt.Sprintf("%d instances of a deployment that the database does not know", n)}
			}
		}
	}
	return nil
}

// agreeDecisions compares the replicas of scaled apps, or the instances of each role, with the newest decisions about
// them. Only started rows count, because all other rows are of versions that have ended. After a decision for zero, a
// request may have woken the app.
func agreeDecisions(b books) *disagreement {
	for _, r := range b.rows {
		if r.status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED {
			continue
		}
		if d := r.agreeBounds(); d != nil {
			return d
		}
		for role, want := range r.roles {
			if has := b.roles[r.place][role]; has != pool.Units(r.replicas, want) {
				return &disagreement{roleMissed, r.app, r.place, fmt.Sprintf("%d instances of role %s, wanted are %d at %d %%", has, role, want, r.replicas)}
			}
		}
		for _, d := range b.decisions {
			if r.app != d.app || r.region != d.region {
				continue
			}
			has, woken := r.replicas, r.replicas == wakeTo
			if r.roles != nil {
				has, woken = pool.Units(r.replicas, r.roles[d.role]), r.replicas == pool.Whole
			}
			if has != int(d.to) && (d.to != 0 || !woken) {
				return &disagreement{anotherWriter, r.app, r.place, fmt.Sprintf("%d are wanted, and the last decision was %d: role %q", has, d.to, d.role)}
			}
		}
	}
	return nil
}

// wakeTo is the number of replicas of an app at zero after a request woke it.
const wakeTo = 1

// wronglyAwake returns a disagreement about an app that may go to zero and has not done so, in the database or in its
// region. It returns nil if all of these apps are at zero.
func (b books) wronglyAwake() *disagreement {
	for _, r := range b.rows {
		if r.app != zeroName && r.app != poolName || r.status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED {
			continue
		}
		if r.replicas != 0 || r.count != 0 || r.appliedGeneration != r.generation {
			return &disagreement{staysAwake, r.app, r.place, fmt.Sprintf("%d wanted, %d counted, applied is %d of %d: %s", r.replicas, r.count, r.appliedGeneration, r.generation, r.says)}
		}
	}
	return nil
}

// agreeBounds compares the row of a scaled app with the app's bounds.
func (r row) agreeBounds() *disagreement {
	b, ok := bounds[r.app]
	if !ok {
		return nil
	}
	if r.roles == nil {
		if r.replicas < int(b[0]) || r.replicas > int(b[1]) {
			return &disagreement{outOfBounds, r.app, r.place, fmt.Sprintf("%d replicas", r.replicas)}
		}
		return nil
	}
	if r.replicas != 0 && r.replicas != pool.Whole {
		return &disagreement{notTogether, r.app, r.place, fmt.Sprintf("%d %% of the pool", r.replicas)}
	}
	for role, n := range r.roles {
		if n < int(b[0]) || n > int(b[1]) {
			return &disagreement{outOfBounds, r.app, r.place, fmt.Sprintf("%d instances of role %s", n, role)}
		}
	}
	return nil
}

// agreeInstances compares the rows of instances with the instances that run, one by one.
func (c *checker) agreeInstances(b books, s sight) *disagreement {
	runs := map[string]place{}
	for region, deployments := range s.ready {
		for id, instances := range deployments {
			for _, i := range instances {
				p := place{region, id}
				if other, ok := runs[i]; ok {
					return &disagreement{"instances run twice", "", p, i + " runs in " + other.region + " too"}
				}
				runs[i] = p
			}
		}
	}
	for _, i := range b.instances {
		if p, ok := runs[i.id]; !ok || p != i.place {
			return &disagreement{"a report was missed", "", i.place, "instance " + i.id + " lives in the database and does not run"}
		}
		delete(runs, i.id)
	}
	for id, p := range runs {
		if !b.quarantined[p] {
			return &disagreement{"a report was missed", "", p, "instance " + id + " runs and the database does not know it"}
		}
	}
	return nil
}

// stopUnknown stops workloads that a restored database no longer knows, as its operator would after a review.
func (c *checker) stopUnknown(ctx context.Context) error {
	for _, m := range c.w.Fleet.Members() {
		if err := c.pruneRegion(ctx, m); err != nil {
			return fmt.Errorf("prune region %s: %w", m.Region, err)
		}
	}
	return nil
}

func (c *checker) pruneRegion(ctx context.Context, m *fleet.Member) error {
	list, err := c.w.API.Regions.ListQuarantine(ctx, &windlassv1.ListQuarantineRequest{Region: m.Region, Page: &windlassv1.PageRequest{Size: 500}})
	if err != nil || len(list.Workloads) == 0 {
		return err
	}
	req := &windlassv1.ApprovePruneRequest{Mutation: newMutation(), Region: m.Region}
	for _, q := range list.Workloads {
		req.Keys = append(req.Keys, q.Key)
	}
	_, err = c.w.API.Regions.ApprovePrune(ctx, req)
	c.history.add(event{region: m.Region, part: "operator", text: fmt.Sprintf("approves the removal of %d quarantined workloads: %v", len(req.Keys), err)})
	return err
}

// outOfBounds describes the bound of the app's policy that the decision breaks. It returns "" if the decision breaks
// none. all has the newest decisions. In it, the decisions for all roles of a pool are of the same time.
func (d decision) outOfBounds(all []decision) string {
	b, ok := bounds[d.app]
	if !ok || d.limit == "Quota" || d.limit == "Hold" {
		return ""
	}
	if d.role != "" && d.to == 0 {
		for _, other := range all {
			if other.app == d.app && other.region == d.region && other.to != 0 {
				return fmt.Sprintf("role %s goes to zero, and role %s has %d instances", d.role, other.role, other.to)
			}
		}
		return ""
	}
	if d.to < b[0] || d.to > b[1] {
		return fmt.Sprintf("%d, limit %q, role %q", d.to, d.limit, d.role)
	}
	return ""
}
