package api

import (
	"cmp"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// In a region that is one host (model.Region.IsOneHost), only one instance of any version can use a fixed port. In
// Kubernetes, each pod has its own address. Regions that no agent has joined yet are not checked.

// portsFit fails if a fixed port of a new version is not free in one of its regions. alike means that the version
// keeps the live version's instances. progress is the progress of its rollout, nil for none.
func (c versionMutation) portsFit(app model.App, was running, spec *windlassv1.DeploymentSpec, progress *model.Progress, alike bool) error {
	if fixedPort(spec) < 0 {
		return nil
	}
	sizes, err := c.startSizes(spec, progress)
	if err != nil {
		return err
	}
	pinned, err := c.pinnedIn(app)
	if err != nil {
		return err
	}
	for _, r := range sizes {
		if !r.IsOneHost() {
			continue
		}
		if err := instancesShare(spec, r, ""); err != nil {
			return err
		}
		for _, d := range pinned[r.ID] {
			if i := fixedPort(spec, d.Spec); i >= 0 {
				return portRefusal(spec, i, r.Name, portField(i), fmt.Sprintf("v%d, which is pinned there, uses it", d.Version),
					fmt.Sprintf("Set the port to 0, so that each instance gets its own port, or unpin v%d.", d.Version))
			}
		}
		if progress == nil || alike || !plan.RunsBeside(progress, r.ID) {
			continue
		}
		if i := fixedPort(spec, was.live.Spec); i >= 0 {
			return portRefusal(spec, i, r.Name, portField(i),
				fmt.Sprintf("with strategy %s the new version starts while v%d uses it", strategy.Name(progress.Policy), was.live.Version),
				fixedPortFix(progress.Policy))
		}
	}
	return nil
}

// instancesShare fails if more than one instance of the spec would have a fixed port in the region.
func instancesShare(spec *windlassv1.DeploymentSpec, region regionSize, field string) error {
	n, _ := admission.Of(spec, region.replicas)
	i := fixedPort(spec)
	if i < 0 || n <= 1 || !region.IsOneHost() {
		return nil
	}
	fix := "Set the port to 0, so that each instance gets its own port, or run 1 replica there."
	if model.InstancesEach(spec) > 1 {
		fix = "Set the port to 0, so that each instance gets its own port."
	}
	return portRefusal(spec, i, region.Name, cmp.Or(field, portField(i)), fmt.Sprintf("%d instances would run there", n), fix)
}

func portField(i int) string { return fmt.Sprintf("spec.ports[%d].port", i) }

// portRefusal returns the error for a fixed port of the spec that is not free in the region.
func portRefusal(spec *windlassv1.DeploymentSpec, i int, region, field, why, fix string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, Field: field, Fix: fix,
	}, fmt.Sprintf("port %d is fixed, and region %s is one host, on which only one instance can use it: %s", spec.GetPorts()[i].GetPort(), region, why))
}

// fixedPort returns the index of the spec's first fixed port that all specs of others also have, -1 for none.
func fixedPort(spec *windlassv1.DeploymentSpec, others ...*windlassv1.DeploymentSpec) int {
ports:
	for i, p := range spec.GetPorts() {
		if p.GetPort() == 0 {
			continue
		}
		for _, other := range others {
			if !hasPort(other, p.GetPort()) {
				continue ports
			}
		}
		return i
	}
	return -1
}

func hasPort(spec *windlassv1.DeploymentSpec, port int32) bool {
	for _, p := range spec.GetPorts() {
		if p.GetPort() == port {
			return true
		}
	}
	return false
}

// fixedPortFix returns the fix for a version that needs the fixed port of the version that it replaces.
func fixedPortFix(policy *windlassv1.RolloutPolicy) string {
	stops := "Use rollout.strategy " + strategy.NamesWithoutOverlap() + ", with which the old instance stops first"
	if slices.Contains(strategy.Of(policy).Fields(), "maxSurge") && plan.Steps(policy) == 0 {
		stops += ", or rollout.maxSurge 0 with maxUnavailable 1"
	}
	return stops + ". Or set the port to 0, so that each instance gets its own port."
}

// pinnedIn returns the app's pinned versions by the id of the regions that run them.
func (c versionMutation) pinnedIn(app model.App) (map[string][]model.Deployment, error) {
	pins, err := c.ListPins([]string{app.ID})
	if err != nil {
		return nil, fmt.Errorf("list pins of app %s: %w", app.ID, err)
	}
	ids := map[string]bool{}
	for _, p := range pins {
		ids[p.DeploymentID] = true
	}
	found, err := c.GetDeployments(keysOf(ids))
	if err != nil {
		return nil, fmt.Errorf("read pinned deployments of app %s: %w", app.ID, err)
	}
	out := map[string][]model.Deployment{}
	for _, p := range pins {
		d := slices.IndexFunc(found, func(d model.Deployment) bool { return d.ID == p.DeploymentID })
		for _, r := range p.Regions {
			if d >= 0 && p.Stays(r) && r.Replicas > 0 {
				out[r.RegionID] = append(out[r.RegionID], found[d])
			}
		}
	}
	return out, nil
}

// portsFitScaled fails if more replicas of the live version, or of the version in flight, would use a fixed port
// twice in a region. The error names field, or the port's field if field is empty.
func (c versionMutation) portsFitScaled(r running, asked plan.Asked, field string) error {
	for _, d := range []*model.Deployment{r.live, r.active.deployment} {
		if d == nil || fixedPort(d.Spec) < 0 {
			continue
		}
		sizes, err := c.scaledUpSizes(r, *d, asked)
		if err != nil {
			return err
		}
		for _, region := range sizes {
			if err := instancesShare(d.Spec, region, field); err != nil {
				return err
			}
		}
	}
	return nil
}

// portsFitPinned fails if a fixed port of the pinned version d would be used twice in a region of the pin. The second
// use may be by another replica of d, by the live version, or by another pinned version.
func (c versionMutation) portsFitPinned(app model.App, r running, d model.Deployment, p model.Pin) error {
	if fixedPort(d.Spec) < 0 {
		return nil
	}
	sizes, err := c.pinSizes(p)
	if err != nil {
		return err
	}
	pinned, err := c.pinnedIn(app)
	if err != nil {
		return err
	}
	have := r.liveSizes()
	for _, region := range sizes {
		if !region.IsOneHost() {
			continue
		}
		if err := instancesShare(d.Spec, region, "replicas"); err != nil {
			return err
		}
		runs := pinned[region.ID]
		if have[region.ID] > 0 {
			runs = append(runs, *r.live)
		}
		for _, other := range runs {
			if i := fixedPort(d.Spec, other.Spec); i >= 0 && other.ID != d.ID {
				return portRefusal(d.Spec, i, region.Name, "version", fmt.Sprintf("v%d uses it there", other.Version),
					"Pin the version in other regions, or deploy versions whose port is 0, so that each instance gets its own port.")
			}
		}
	}
	return nil
}
