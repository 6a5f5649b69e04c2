package api

import (
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/preview"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/plural"
)

// If a region is one host (model.Region.IsOneHost), it must have room for the instances that a scaling decision adds. A
// host has each fixed port once, and a fixed number of GPUs. A cluster may add nodes for instances that wait, so it is
// not checked.

// growth is a change of the number of an app's replicas in a region, or of the instances of a role of its pool. role is
// empty for replicas.
type growth struct {
	role     string
	from, to int32
}

func (g growth) isGrowth() bool { return g.to > g.from }

// roomFor fails with *model.NoRoomError if the region is one host without enough ports or GPUs for the growth. GPUs are
// assigned in the order of the list. If more instances exist than a growth's from, the others count as room, because
// the growth can use their GPUs: the agent has woken these instances, or they stop and free their GPUs.
func (c versionMutation) roomFor(app model.App, r running, regionID string, all []growth) error {
	all = slices.DeleteFunc(slices.Clone(all), func(g growth) bool { return !g.isGrowth() })
	if len(all) == 0 {
		return nil
	}
	regions, err := c.GetRegions([]string{regionID})
	if err != nil {
		return fmt.Errorf("read region %s: %w", regionID, err)
	}
	if len(regions) == 0 || !regions[0].IsOneHost() {
		return nil
	}
	region := regions[0]
	if err := hostHasPorts(r, region, all); err != nil {
		return err
	}
	spec := override.In(r.live.Spec, regionID)
	for _, t := range r.rows {
		if t.RegionID == regionID && t.DeploymentID == r.live.ID && topology.Active(t) {
			spec = t.In(spec)
		}
	}
	if !preview.HasGPU(spec) {
		return nil
	}
	free, known, err := preview.FreeGPUs(region)
	if err != nil || !known {
		return err
	}
	assigned := all
	if model.IsPooled(spec) {
		assigned = nil
		for _, role := range spec.GetRoles() {
			assigned = append(assigned, growth{role: role.GetName(), from: role.GetInstances()})
		}
	}
	exist, err := c.existingReplicas(app, regionID, assigned)
	if err != nil {
		return err
	}
	// Instances that are assigned but do not exist yet get GPUs first, before the instances that the decision adds.
	excess := map[string]int32{}
	for i, g := range assigned {
		free.Take(spec, g.role, g.from-exist[i])
		excess[g.role] = max(0, exist[i]-g.from)
	}
	fits, short := map[string]int32{}, []string{}
	for _, g := range all {
		fit := min(excess[g.role], g.to-g.from)
		fit += free.Take(spec, g.role, g.to-g.from-fit)
		fits[g.role] = g.from + fit
		if fit < g.to-g.from {
			short = append(short, g.textOf(fit))
		}
	}
	if len(short) == 0 {
		return nil
	}
	return &model.NoRoomError{Fits: fits, Why: fmt.Sprintf("region %s, which is one host, has GPUs for %s", region.Name, strings.Join(short, " and "))}
}

// textOf says how much of the growth fits.
func (g growth) textOf(fit int32) string {
	if g.role == "" {
		return fmt.Sprintf("%d of %d more replicas", fit, g.to-g.from)
	}
	return fmt.Sprintf("%d of %d more instances of role %s", fit, g.to-g.from, g.role)
}

// hostHasPorts fails with *model.NoRoomError if a growth of the live version, or of the version in flight, would need a
// fixed port of the host twice. Existing instances do not matter: one replica fits whether or not it already
// exists, and a second one never fits.
func hostHasPorts(r running, host model.Region, all []growth) error {
	for _, d := range []*model.Deployment{r.live, r.active.deployment} {
		if d == nil || fixedPort(d.Spec) < 0 {
			continue
		}
		fits := map[string]int32{}
		for _, g := range all {
			fit := g.from
			if g.role == "" && fit == 0 && model.InstancesEach(d.Spec) == 1 {
				fit = 1 // nothing else has the port
			}
			if g.to > fit {
				fits[g.role] = fit
			}
		}
		if len(fits) > 0 {
			return &model.NoRoomError{Fits: fits, Why: fmt.Sprintf("port %d is fixed, and region %s is one host, which has it once", d.Spec.GetPorts()[fixedPort(d.Spec)].GetPort(), host.Name)}
		}
	}
	return nil
}

// existingReplicas returns a number for each growth of the list: the replicas of the app, or the instances of the role, in the
// region's last report. If the region has not reported them, it returns the number before the growth (from).
func (c versionMutation) existingReplicas(app model.App, regionID string, all []growth) ([]int32, error) {
	seen, err := c.ListObserved([]string{app.ID})
	if err != nil {
		return nil, fmt.Errorf("list what regions report of app %s: %w", app.ID, err)
	}
	out, reported := make([]int32, len(all)), make([]bool, len(all))
	for _, o := range seen {
		if o.RegionID != regionID {
			continue
		}
		groups, roles := o.Counts()
		for i, g := range all {
			switch {
			case g.role != "":
				for _, role := range roles {
					if role.GetRole() == g.role {
						out[i], reported[i] = out[i]+role.GetInstances(), true
					}
				}
			case len(roles) > 0:
				out[i], reported[i] = out[i]+groups, true
			default:
				out[i], reported[i] = out[i]+o.Instances(), true
			}
		}
	}
	for i, g := range all {
		if !reported[i] {
			out[i] = g.from
		}
	}
	return out, nil
}

// portsFitRole fails if more instances of a role of the pool would need a fixed port of a region twice. regionID is
// empty for all regions.
func (c versionMutation) portsFitRole(r running, regionID, role string, n int32) error {
	i := fixedPort(r.live.Spec)
	if i < 0 {
		return nil
	}
	var grow []string
	for _, t := range r.rows {
		if t.Assigned() && (regionID == "" || t.RegionID == regionID) && n > t.RoleCounts()[role] {
			grow = append(grow, t.RegionID)
		}
	}
	regions, err := c.GetRegions(grow)
	if err != nil {
		return fmt.Errorf("read regions: %w", err)
	}
	for _, region := range regions {
		if region.IsOneHost() {
			return portRefusal(r.live.Spec, i, region.Name, "replicas", fmt.Sprintf("%s of role %s would run there", plural.Count(n, "instance"), role),
				"Set the port to 0, and each instance gets one of its own.")
		}
	}
	return nil
}
