package api

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Only agents that announce FEATURE_UNIT_HOSTS run instances of several hosts, and only agents that announce
// FEATURE_GANG start pods all or nothing. Only agents that announce FEATURE_TOPOLOGY run them in one part of a region, and
// only in parts for which they have the word. Only agents that announce FEATURE_STABLE_SLOTS keep slots stable, and only
// agents that announce FEATURE_PAIRING tell gateways about pairs. Regions that no agent has joined yet are not checked.
// If their agent cannot run the version, it will refuse it.

// spansHosts reports whether the spec is checked here.
func spansHosts(spec *windlassv1.DeploymentSpec) bool {
	return model.HasSeveralHosts(spec) || model.HasGang(spec) || model.HasTopology(spec) || len(model.StableRoles(spec)) > 0 || model.HasPairing(spec)
}

// hostsFit fails if the version has instances of several hosts, gangs, a topology, stable slots or pairs, but one of its
// regions cannot run them or does not know them. progress is the progress of its rollout, nil for none.
func (c versionMutation) hostsFit(spec *windlassv1.DeploymentSpec, progress *model.Progress) error {
	if !spansHosts(spec) {
		return nil
	}
	sizes, err := c.startSizes(spec, progress)
	if err != nil {
		return err
	}
	return hostsFitIn(spec, sizes)
}

// hostsFitPinned is hostsFit for the regions of a pin of the version d.
func (c versionMutation) hostsFitPinned(d model.Deployment, p model.Pin) error {
	if !spansHosts(d.Spec) {
		return nil
	}
	sizes, err := c.pinSizes(p)
	if err != nil {
		return err
	}
	return hostsFitIn(d.Spec, sizes)
}

// hostsFitScaled is hostsFit for regions that get more replicas of the live version or of the version in flight.
func (c versionMutation) hostsFitScaled(r running, asked plan.Asked) error {
	for _, d := range []*model.Deployment{r.live, r.active.deployment} {
		if d == nil || !spansHosts(d.Spec) {
			continue
		}
		sizes, err := c.scaledUpSizes(r, *d, asked)
		if err != nil {
			return err
		}
		if err := hostsFitIn(d.Spec, sizes); err != nil {
			return err
		}
	}
	return nil
}

// hostsFitIn fails if one of the regions cannot run the instances, the gangs or the stable slots of the spec, or does not
// know its topology or its pairs.
func hostsFitIn(spec *windlassv1.DeploymentSpec, sizes []regionSize) error {
	i := model.RoleOfSeveralHosts(spec)
	for _, r := range sizes {
		switch {
		case i >= 0 && !r.RunsSeveralHosts():
			role := spec.GetRoles()[i]
			return apierr.InvalidFix(fmt.Sprintf("spec.roles[%d].hosts", i),
				fmt.Sprintf("instances of role %q have %d hosts, but the agent of region %s (runtime %s) cannot run instances of several hosts", role.GetName(), role.GetHosts(), r.Name, r.AgentRuntime),
				"Use Kubernetes regions with agents of this release, or remove hosts.")
		case len(model.StableRoles(spec)) > 0 && !r.KeepsSlots():
			at := slices.IndexFunc(spec.GetRoles(), func(role *windlassv1.RoleSpec) bool { return role.GetName() == model.StableRoles(spec)[0] })
			return apierr.InvalidFix(fmt.Sprintf("spec.roles[%d].slots", at),
				fmt.Sprintf("the agent of region %s (runtime %s) cannot keep slots stable", r.Name, r.AgentRuntime),
				"Use regions with agents of this release, or remove slots.")
		case model.HasGang(spec) && !r.StartsGangs():
			return apierr.InvalidFix("spec.gang",
				fmt.Sprintf("the agent of region %s (runtime %s) cannot start pods all or nothing", r.Name, r.AgentRuntime),
				"Use Kubernetes regions with agents of this release, or remove gang.")
		case model.HasTopology(spec) && !r.PacksGangs():
			return apierr.InvalidFix("spec.topology",
				fmt.Sprintf("the agent of region %s (runtime %s) cannot run pods together in one part of the region", r.Name, r.AgentRuntime),
				"Use Kubernetes regions with agents of this release, or remove topology.")
		case model.HasPairing(spec) && !r.RoutesPairs():
			return apierr.InvalidFix("spec.pairing",
				fmt.Sprintf("the agent of region %s does not tell gateways which instances are pairs", r.Name),
				"Update the agent of the region, or remove pairing.")
		}
		if err := hasWord(spec, r.Region); err != nil {
			return err
		}
	}
	return nil
}

// hasWord fails if the region has no word for the parts of it that the topology of the spec names. Before the first
// report of a region's capacity, its words are not known.
func hasWord(spec *windlassv1.DeploymentSpec, r model.Region) error {
	word := spec.GetTopology().GetPack()
	if word == "" || len(r.Capacity) == 0 {
		return nil
	}
	capacity, err := rollup.Capacity(r)
	if err != nil {
		return err
	}
	words := capacity.GetTopologyWords()
	if slices.Contains(words, word) {
		return nil
	}
	return apierr.InvalidFix("spec.topology.pack",
		fmt.Sprintf("region %s has no word %q for parts of it, but %s", r.Name, word, cmp.Or(strings.Join(words, ", "), "none")),
		"Use a word that each region has, as `windlass region show` lists them, or remove topology. The agent's flag --topology adds words.")
}
