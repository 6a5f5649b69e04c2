package appspec

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// gangsOf returns what a gang of the spec is, and false if each pod starts by itself.
func gangsOf(s *windlassv1.DeploymentSpec) (windlassv1.Topology_Of, bool) {
	switch of := s.GetGang().GetOf(); {
	case of == windlassv1.Gang_OF_GROUP:
		return windlassv1.Topology_OF_GROUP, true
	case of != windlassv1.Gang_OF_NONE && model.HasSeveralHosts(s):
		return windlassv1.Topology_OF_UNIT, true
	}
	return windlassv1.Topology_OF_UNSPECIFIED, false
}

// fillTopology removes default values, so that the spec has the same hash as a spec without them.
func fillTopology(s *windlassv1.DeploymentSpec) {
	t := s.GetTopology()
	if t == nil {
		return
	}
	if of, ok := gangsOf(s); ok && t.Of == of {
		t.Of = windlassv1.Topology_OF_UNSPECIFIED
	}
	if t.Mode == windlassv1.Topology_MODE_PREFERRED {
		t.Mode = windlassv1.Topology_MODE_UNSPECIFIED
	}
	if t.Pack == "" && t.Of == windlassv1.Topology_OF_UNSPECIFIED && t.Mode == windlassv1.Topology_MODE_UNSPECIFIED {
		s.Topology = nil
	}
}

// TopologyText says in which part of a region the pods of a gang run: "an instance is in one rack", with ", if one has
// room" unless it must be. It is empty if they run anywhere.
func TopologyText(s *windlassv1.DeploymentSpec) string {
	of, ok := gangsOf(s)
	t := s.GetTopology()
	if !ok || t.GetPack() == "" {
		return ""
	}
	text := map[bool]string{true: "a replica", false: "an instance"}[of == windlassv1.Topology_OF_GROUP] + " is in one " + t.GetPack()
	if t.GetMode() != windlassv1.Topology_MODE_REQUIRED {
		text += ", if one has room"
	}
	return text
}

// checkTopology validates in which part of a region the pods of a gang run.
func checkTopology(s *windlassv1.DeploymentSpec, field string) error {
	t := s.GetTopology()
	if t == nil {
		return nil
	}
	of, ok := gangsOf(s)
	switch {
	case t.GetPack() == "":
		return apierr.InvalidFix(field+".pack", "topology does not say in which part of a region pods run together", "Set pack to a word of the regions, such as zone or rack, or leave topology out.")
	case !ok:
		return apierr.InvalidFix(field, "the app has no gangs, because each pod starts by itself", "Set hosts of a role or gang, or leave topology out.")
	case t.GetOf() == windlassv1.Topology_OF_UNIT && of != t.GetOf():
		return apierr.InvalidFix(field+".of", "a gang is all pods of a replica, which run together", "Leave of out, or use gang.of: unit.")
	case t.GetOf() == windlassv1.Topology_OF_GROUP && of != t.GetOf():
		return apierr.InvalidFix(field+".of", "a gang is the pods of one instance, so those of a replica do not start together", "Leave of out, or use gang.of: group.")
	case s.GetKubernetes().GetZoneSpread() == windlassv1.KubernetesOptions_ZONE_SPREAD_REQUIRED:
		return apierr.InvalidFix(field, "kubernetes.zoneSpread: required keeps pods apart that topology keeps together", "Leave one of them out.")
	}
	return nil
}
