package api

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/plural"
	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The counts of a pool's roles belong to a region, not to a version. All rows of the app in a region have the same
// counts, and a new row copies them from the other rows.

// askedCounts returns the instances by role that the spec sets in a region. It is empty for a spec without counts,
// and for a spec that is not a pool.
func askedCounts(spec *windlassv1.DeploymentSpec, regionID string) model.RoleCounts {
	counts := model.RoleCounts{}
	if model.IsPooled(spec) {
		for _, r := range override.In(spec, regionID).GetRoles() {
			if r.GetInstances() > 0 {
				counts[r.GetName()] = r.GetInstances()
			}
		}
	}
	return counts
}

// setCounts sets the instances by role of the app's pool in each region, and writes the changed rows. asked returns
// the new counts for a region. Roles that asked does not return keep their counts, and roles that a row does not have
// are left out. text describes the changes.
func (c versionMutation) setCounts(app model.App, r *running, asked func(regionID string) model.RoleCounts) (text string, err error) {
	var changed []model.Topology
	changes := map[string]bool{}
	for _, t := range r.rows {
		if !t.Assigned() || t.Roles == "" {
			continue
		}
		counts := t.RoleCounts()
		for name, n := range asked(t.RegionID) {
			if had, there := counts[name]; there && had != n {
				counts[name] = n
				changes[fmt.Sprintf("%s %d -> %d", name, had, n)] = true
			}
		}
		if roles := counts.Encode(); roles != t.Roles {
			t.Roles, t.Generation, t.Traceparent, t.UpdatedAt = roles, t.Generation+1, c.traceparent, c.at
			changed = append(changed, t)
		}
	}
	if len(changed) == 0 {
		return "", nil
	}
	if err := c.mayGrow(grownRows(r.rows, changed), plan.Asked{}); err != nil {
		return "", err
	}
	if err := topology.Write(c.mutation, topology.State{Rows: r.rows}, topology.State{Rows: changed}); err != nil {
		return "", fmt.Errorf("scale roles of app %s: %w", app.ID, err)
	}
	r.rows = withReplaced(r.rows, changed)
	c.claimUsage(app, r.live, r.active.deployment, quotaRows(r.rolloutState, app, r.live, r.active.deployment, r.rows))
	return strings.Join(slices.Sorted(maps.Keys(changes)), ", "), c.wake(app.ID)
}

// rolesIn returns the counts of the pool in the region, in the format of Topology.Roles.
func rolesIn(rows []model.Topology, regionID string) (roles string) {
	for _, t := range rows {
		if t.RegionID == regionID && t.Assigned() {
			roles = cmp.Or(t.Roles, roles)
		}
	}
	return roles
}

// liveCounts returns the instances by role of the live version in its region. If another version has taken over the
// instances of the row, that version's row has the counts.
func liveCounts(rows []model.Topology, live model.Topology) model.RoleCounts {
	counts := live.RoleCounts()
	if !live.Transferred {
		return counts
	}
	for _, t := range rows {
		if t.RegionID != live.RegionID || !t.Assigned() {
			continue
		}
		for name, n := range t.RoleCounts() {
			if _, has := counts[name]; has {
				counts[name] = n
			}
		}
	}
	return counts
}

// wholePoolText describes the pool of the spec: "8 prefill and 2 decode". If the spec sets no instances of a role,
// the text has the numbers of the rows. If regions differ, it has the smallest and the largest number: "4 to 8
// prefill and 2 decode".
func wholePoolText(spec *windlassv1.DeploymentSpec, rows []model.Topology) string {
	least, most := model.RoleCounts{}, model.RoleCounts{}
	for _, t := range rows {
		if !topology.Active(t) {
			continue
		}
		for name, n := range t.RoleCounts() {
			least[name], most[name] = min(cmp.Or(least[name], n), n), max(most[name], n)
		}
	}
	var parts []string
	for _, r := range spec.GetRoles() {
		name, n := r.GetName(), max(r.GetInstances(), 1)
		text := fmt.Sprintf("%d %s", cmp.Or(most[name], n), name)
		if least[name] < most[name] {
			text = fmt.Sprintf("%d to %s", least[name], text)
		}
		parts = append(parts, text)
	}
	return appspec.ListText(parts)
}

// growsRole reports whether a role of the row gets more instances than it had.
func growsRole(was, now model.Topology) bool {
	had := was.RoleCounts()
	for name, n := range now.RoleCounts() {
		if n > had[name] {
			return true
		}
	}
	return false
}

// scaleRole sets the instances of a role in the region, or in all regions if regionID is empty.
func (c *mutation) scaleRole(app *model.App, r *running, regionID, where string, req *windlassv1.ScaleRequest) (scaled bool, err error) {
	spec := r.live.Spec
	var names []string
	for _, role := range spec.GetRoles() {
		names = append(names, role.GetName())
	}
	switch {
	case !model.IsPooled(spec):
		return false, apierr.InvalidFix("role", fmt.Sprintf("v%d of app %s is not a pool: the version sets the instances of a role in each replica", r.live.Version, app.Name),
			"Scale replicas, change instances of the role in the file, or deploy an app with another name and layout pooled.")
	case !slices.Contains(names, req.GetRole()):
		return false, apierr.InvalidFix("role", fmt.Sprintf("app %s has no role %q", app.Name, req.GetRole()), "Its roles are "+strings.Join(names, ", ")+".")
	case req.GetReplicas() == 0 && !req.GetEndHold():
		return false, apierr.InvalidFix("replicas", fmt.Sprintf("without role %s the pool would serve nothing", req.GetRole()), "Stop the whole pool with replicas 0 and no role, or keep 1 instance of the role.")
	case req.GetReplicas() > maxRoleInstances:
		return false, apierr.InvalidFix("replicas", fmt.Sprintf("%d instances of one role", req.GetReplicas()), fmt.Sprintf("A role has at most %d in a region.", maxRoleInstances))
	}
	if req.CurrentReplicas != nil {
		if err := c.compareCounts(*app, *r, regionID, req.GetRole(), req.GetCurrentReplicas()); err != nil {
			return false, err
		}
	}
	held, done, err := c.holdScaling(*app, *r, regionID, where, req)
	if err != nil || done {
		return held, err
	}
	if err := c.versions().portsFitRole(*r, regionID, req.GetRole(), req.GetReplicas()); err != nil {
		return false, err
	}
	text, err := c.versions().setCounts(*app, r, func(id string) model.RoleCounts {
		if regionID != "" && id != regionID {
			return nil
		}
		return model.RoleCounts{req.GetRole(): req.GetReplicas()}
	})
	if err != nil || text == "" {
		return held, err
	}
	c.log(*app, model.History{
		What: "Scaled", Why: fmt.Sprintf("role %s in %s", text, where),
		RolloutID: app.RolloutID, DeploymentID: r.live.ID, Version: r.live.Version, RegionID: regionID,
	})
	return true, nil
}

// compareCounts fails unless the region has want instances of the role. For regionID "", all regions must have them.
func (c *mutation) compareCounts(app model.App, r running, regionID, role string, want int32) error {
	counts := map[string]int32{}
	for _, t := range r.rows {
		if t.DeploymentID == r.live.ID && topology.Active(t) && (regionID == "" || t.RegionID == regionID) {
			if n := liveCounts(r.rows, t)[role]; n != want {
				counts[t.RegionID] = n
			}
		}
	}
	return c.sizeConflict(app, plural.Count(want, "instance")+" of role "+role, counts)
}

// maxRoleInstances is the limit of RoleSpec.instances.
const maxRoleInstances = 256

// checkPoolSize fails if replicas is neither a whole pool nor 0.
func checkPoolSize(spec *windlassv1.DeploymentSpec, replicas int32) error {
	if !model.IsPooled(spec) || replicas == 0 || replicas == pool.Whole {
		return nil
	}
	return apierr.InvalidFix("replicas", fmt.Sprintf("a pooled app has either 0 replicas (stopped) or 100 (running), not %d", replicas),
		"Scale a role: `windlass scale APP --role NAME=N`. Use 0 to stop the pool, or 100 to start it.")
}

// keepLayout fails if the version has another layout than the running versions, because replicas have another meaning
// in each layout.
func (d *deployment) keepLayout() error {
	for _, have := range []*model.Deployment{d.was.live, d.was.active.deployment} {
		if have != nil && model.IsPooled(have.Spec) != model.IsPooled(d.want.Spec) {
			return apierr.InvalidFix("spec.layout", fmt.Sprintf("v%d has another layout, and a rollout cannot change the layout", have.Version),
				"Deploy it as an app with another name, or delete the app first.")
		}
	}
	return nil
}

// keepSlots fails if the version would lose stable slots of the live version. A region keeps slots only if groups of both
// versions are alike, because one then takes over the instances of the other.
func (d *deployment) keepSlots() error {
	if d.was.live == nil || model.SameGroups(d.was.live.Spec, d.want.Spec) {
		return nil
	}
	for _, name := range model.StableRoles(d.was.live.Spec) {
		if slices.Contains(model.StableRoles(d.want.Spec), name) {
			return apierr.InvalidFix("spec.roles", fmt.Sprintf("role %q of v%d has stable slots, and a version with other roles, or with other instances or hosts of a role, would lose them", name, d.was.live.Version),
				"Keep the roles, their instances, hosts and slots. Or deploy an app with another name. The roles of a pool can be scaled.")
		}
	}
	return nil
}

// scaleRoles sets the instances of roles of a deployed file in all rows of the app, so that the rollout begins with
// them.
func (d *deployment) scaleRoles() error {
	if d.want.Source != "deploy" {
		return nil // other changes keep the scaled counts
	}
	before := d.was.rows
	text, err := d.setCounts(d.app, &d.was, func(id string) model.RoleCounts { return askedCounts(d.want.Spec, id) })
	if err != nil || text == "" {
		return err
	}
	d.rolesScaled, d.unscaled = true, before
	have := cmp.Or(d.was.live, d.was.active.deployment)
	if have == nil {
		return nil // there is nothing to report: only rows of failed versions had other counts
	}
	d.log(d.app, model.History{
		What: "Scaled", Why: "role " + text + ", set by a deploy",
		RolloutID: d.app.RolloutID, DeploymentID: have.ID, Version: have.Version,
	})
	return nil
}
