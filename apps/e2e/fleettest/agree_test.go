package fleettest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// healing is how long everything may take to converge. It is longer than the longest backoffs and a deadline
// together.
const healing = 15 * time.Minute

// converge waits until nothing changes any more, and the API, the database and the running instances agree.
func (w *fleet) converge() {
	deadline := time.Now().Add(healing)
	var why disagreement
	for time.Now().Before(deadline) {
		time.Sleep(5 * time.Second)
		if why = w.disagreement(); why.kind == "" {
			return
		}
	}
	w.check.mu.Lock()
	defer w.check.mu.Unlock()
	w.check.violateLockedf(why.kind, why.app, why.place, "%v after everything was mended: %s", healing, why.text)
}

// disagreement is one difference between the wanted state and the actual state.
type disagreement struct {
	kind, app string
	place     place
	text      string
}

// disagreement returns the first disagreement that it finds. Its kind is empty if there is none.
func (w *fleet) disagreement() disagreement {
	if d := w.asked(); d.kind != "" {
		return d
	}
	c := w.check
	kept, err := w.quarantined()
	if err != nil {
		return disagreement{kind: "the API fails", text: err.Error()}
	}
	running, ready := map[string]map[string]int{}, map[string]map[string][]string{}
	for _, r := range w.regions {
		running[r.name], ready[r.name] = r.runtime.Running(), r.runtime.Ready()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.agreePlaces(running, ready, kept); d.kind != "" {
		return d
	}
	if d := c.agreeInstances(ready, kept); d.kind != "" {
		return d
	}
	if d := c.agreeSlots(); d.kind != "" {
		return d
	}
	if d := c.agreeScaled(); d.kind != "" {
		return d
	}
	for _, id := range slices.Sorted(maps.Keys(c.acknowledged)) {
		if _, ok := c.rows.deployments[id]; !ok {
			return disagreement{"an acknowledged deployment is lost", c.acknowledged[id], place{deployment: id}, "no such row"}
		}
	}
	return disagreement{}
}

// asked returns the first disagreement that the API shows.
func (w *fleet) asked() disagreement {
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	list, err := w.apps.ListApps(ctx, &windlassv1.ListAppsRequest{Page: &windlassv1.PageRequest{Size: 500}})
	if err != nil {
		return disagreement{kind: "the API fails", text: err.Error()}
	}
	for _, app := range list.Apps {
		switch {
		case app.RolloutId != "":
			return disagreement{"a rollout is stuck", app.Name, place{}, fmt.Sprintf("%s is in flight: %s", app.RolloutId, app.Message)}
		case app.Status != windlassv1.AppStatus_APP_STATUS_READY && app.Status != windlassv1.AppStatus_APP_STATUS_IDLE && app.Status != windlassv1.AppStatus_APP_STATUS_FAILED:
			return disagreement{"an app is stuck", app.Name, place{}, fmt.Sprintf("it is %s: %s", app.Status, app.Message)}
		}
	}
	regions, err := w.regionAPI.ListRegions(ctx, &windlassv1.ListRegionsRequest{Page: &windlassv1.PageRequest{Size: 500}})
	if err != nil {
		return disagreement{kind: "the API fails", text: err.Error()}
	}
	for _, r := range regions.Regions {
		if r.Status != windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
			return disagreement{"a region is lost", "", place{region: r.Name}, r.Status.String()}
		}
	}
	return disagreement{}
}

// quarantined returns the workloads that may run although they are not wanted, because no person has released
// them for removal.
func (w *fleet) quarantined() (map[place]bool, error) {
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	kept := map[place]bool{}
	for _, r := range w.regions {
		list, err := w.regionAPI.ListQuarantine(ctx, &windlassv1.ListQuarantineRequest{Region: r.name, Page: &windlassv1.PageRequest{Size: 500}})
		if err != nil {
			return nil, err
		}
		for _, q := range list.Workloads {
			kept[place{r.name, q.Key}] = true
		}
	}
	return kept, nil
}

func byPlace(a, b place) int {
	return cmp.Or(cmp.Compare(a.region, b.region), cmp.Compare(a.deployment, b.deployment))
}

// agreePlaces compares every place of the database with its region.
func (c *checker) agreePlaces(running map[string]map[string]int, ready map[string]map[string][]string, kept map[place]bool) disagreement {
	known := map[place]bool{}
	for _, p := range slices.SortedFunc(maps.Keys(c.rows.topology), byPlace) {
		t := c.rows.topology[p]
		spot, app := place{c.rows.names[p.region], p.deployment}, c.rows.apps[t.app].name
		known[spot] = true
		wants, replicas := 0, 0
		switch t.status {
		case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED:
			replicas = int(t.replicas)
			wants = int(t.instances(c.rows.deployments[p.deployment]))
		case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED:
		default:
			return disagreement{"a place is stuck", app, spot, t.status.String()}
		}
		n, r, o := running[spot.region][spot.deployment], len(ready[spot.region][spot.deployment]), c.rows.observed[p]
		switch {
		case n > wants && wants == 0 && !kept[spot]:
			return disagreement{"an orphan runs", app, spot, fmt.Sprintf("%d instances, and none are wanted", n)}
		case n > wants && wants > 0:
			return disagreement{"instances run twice", app, spot, fmt.Sprintf("%d run, wanted are %d", n, wants)}
		case n < wants || r < wants:
			return disagreement{"a change was missed", app, spot, fmt.Sprintf("%d run and %d are ready, wanted are %d", n, r, wants)}
		case t.status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED:
		case !c.wasRestored && c.applied[spot] != t.generation:
			return disagreement{"a change was missed", app, spot, fmt.Sprintf("the agent applied generation %d, the newest is %d", c.applied[spot], t.generation)}
		case o.generation != t.generation || o.epoch != c.rows.heads[p.region].epoch || int(o.ready) != replicas:
			return disagreement{"a report was missed", app, spot, fmt.Sprintf("applied is %d of %d, ready %d of %d", o.generation, t.generation, o.ready, replicas)}
		}
	}
	for _, region := range slices.Sorted(maps.Keys(running)) {
		for _, id := range slices.Sorted(maps.Keys(running[region])) {
			if p := (place{region, id}); !known[p] && !kept[p] && running[region][id] > 0 {
				return disagreement{"an orphan runs", "", p, fmt.Sprintf("%d instances of a deployment that the database does not know", running[region][id])}
			}
		}
	}
	return disagreement{}
}

// agreeInstances compares the rows of instances with the running instances, one by one.
func (c *checker) agreeInstances(ready map[string]map[string][]string, kept map[place]bool) disagreement {
	runs := map[string]place{}
	for _, region := range slices.Sorted(maps.Keys(ready)) {
		for id, instances := range ready[region] {
			for _, i := range instances {
				runs[i] = place{region, id}
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.rows.instances)) {
		i := c.rows.instances[id]
		if i.status == windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED {
			continue
		}
		spot := place{c.rows.names[i.place.region], i.place.deployment}
		if runs[id] != spot {
			return disagreement{"a report was missed", "", spot, fmt.Sprintf("instance %s is %s in the database and does not run", id, i.status)}
		}
		delete(runs, id)
	}
	for _, id := range slices.Sorted(maps.Keys(runs)) {
		if !kept[runs[id]] {
			return disagreement{"a report was missed", "", runs[id], "instance " + id + " runs and the database does not know it"}
		}
	}
	return disagreement{}
}

// agreeSlots checks that the stable slots of each role count from 0 without gaps in each group, as do the groups, and that
// no slot has two instances.
func (c *checker) agreeSlots() disagreement {
	type roleAt struct {
		place place
		role  string
	}
	taken := map[roleAt]map[slot]bool{}
	for _, id := range slices.Sorted(maps.Keys(c.rows.instances)) {
		i := c.rows.instances[id]
		if i.status == windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED || !slices.Contains(c.rows.deployments[i.place.deployment].stable, i.at.role) {
			continue
		}
		at := roleAt{i.place, i.at.role}
		if taken[at] == nil {
			taken[at] = map[slot]bool{}
		}
		if taken[at][i.at] {
			return disagreement{"a slot has two instances", "", place{c.rows.names[i.place.region], i.place.deployment}, fmt.Sprintf("%+v", i.at)}
		}
		taken[at][i.at] = true
	}
	for at, slots := range taken {
		for s := range slots {
			below := s
			if below.index--; s.index == 0 {
				if below = s; s.group == 0 {
					continue
				}
				below.group--
			}
			if !slots[below] {
				return disagreement{"a stable slot is missing", "", place{c.rows.names[at.place.region], at.place.deployment}, fmt.Sprintf("%+v is there without %+v", s, below)}
			}
		}
	}
	return disagreement{}
}
