package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// isPooled reports whether the deployment is a pool, whose roles are counted separately. Its replicas are percent
// of the pool.
func isPooled(d *windlassv1.Deployment) bool {
	return d.GetSpec().GetLayout() == windlassv1.Layout_LAYOUT_POOLED
}

// poolRoles returns the roles that a version has in the region, or in all its regions together if region is empty.
// It is empty for a version that is not a pool.
func poolRoles(r *windlassv1.WatchAppResponse, version int32, region string) []*windlassv1.RoleTopology {
	if !slices.ContainsFunc(r.GetDeployments(), func(d *windlassv1.Deployment) bool { return d.GetVersion() == version && isPooled(d) }) {
		return nil
	}
	return rolesOf(r, version, region)
}

// rolesOf returns the roles that a version has in the region, or in all its regions together if region is empty. It is
// empty for a version with one role.
func rolesOf(r *windlassv1.WatchAppResponse, version int32, region string) []*windlassv1.RoleTopology {
	var out []*windlassv1.RoleTopology
	at := map[string]*windlassv1.RoleTopology{}
	for _, d := range r.GetDeployments() {
		if d.GetVersion() != version {
			continue
		}
		for _, t := range d.GetRegions() {
			if region != "" && t.GetRegion() != region {
				continue
			}
			for _, role := range t.GetRoles() {
				sum := at[role.GetRole()]
				if sum == nil {
					sum = &windlassv1.RoleTopology{Role: role.GetRole()}
					at[role.GetRole()] = sum
					out = append(out, sum)
				}
				sum.Ready += role.GetReady()
				sum.Wanted += role.GetWanted()
			}
		}
	}
	return out
}

// rolesText returns the ready and the wanted instances of roles: "prefill 8/8, decode 1/2".
func rolesText(roles []*windlassv1.RoleTopology) string {
	parts := make([]string, len(roles))
	for i, r := range roles {
		parts[i] = fmt.Sprintf("%s %d/%d", r.GetRole(), r.GetReady(), r.GetWanted())
	}
	return strings.Join(parts, ", ")
}

// readyText returns how much of the app's live version is ready: its replicas, or the instances of each role of a pool.
func readyText(r *windlassv1.WatchAppResponse) string {
	app := r.GetApp()
	if roles := poolRoles(r, app.GetLiveVersion(), ""); len(roles) > 0 {
		return rolesText(roles)
	}
	return fmt.Sprintf("%d of %d replicas", app.GetReadyReplicas(), app.GetReplicas())
}

// replicaHosts returns ", each of 2 hosts" if a replica of the app's live version is one instance of several hosts,
// else "".
func replicaHosts(r *windlassv1.WatchAppResponse) string {
	for _, d := range r.GetDeployments() {
		if roles := d.GetSpec().GetRoles(); d.GetVersion() == r.GetApp().GetLiveVersion() && len(roles) == 1 && roles[0].GetHosts() > 1 {
			return ", each" + hostsText(roles[0].GetHosts())
		}
	}
	return ""
}

// appReady returns the ready and the wanted replicas of an app's live version, and for a pool the ready share of it.
func appReady(x *windlassv1.App) string {
	if x.GetPooled() {
		return fmt.Sprintf("%d%%", int64(x.GetReadyReplicas())*pool.Whole/max(int64(x.GetReplicas()), 1))
	}
	return fmt.Sprintf("%d/%d", x.GetReadyReplicas(), x.GetReplicas())
}

// topologyReady returns the ready and the wanted replicas of a version in a region, with % for a pool.
func topologyReady(d *windlassv1.Deployment, t *windlassv1.RegionTopology) string {
	text := fmt.Sprintf("%d/%d", t.GetReady(), t.GetReplicas())
	if isPooled(d) {
		text += "%"
	}
	return text
}
