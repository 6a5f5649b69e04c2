package preview

import (
	"cmp"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/forecast"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RoomToBegin fails for a rollout that cannot begin with the free GPUs of its regions, unless its policy lets
// it wait for room. It also fails if a later region has no pool with GPUs of the kind, because waiting does not
// help there.
func (p *Preview) RoomToBegin(at int64) error {
	if p.capacityWait() > 0 {
		return nil
	}
	f := forecast.Begin(p.was, p.in, at, p.target.ID)
	ids := map[string]bool{}
	for _, s := range f.Steps {
		if s.Kind == windlassv1.PlanStep_KIND_MOVE {
			ids[s.RegionID] = true
		}
	}
	var first *windlassv1.PlanFinding
	var short []string
	for _, id := range p.sortByName(ids) {
		v, _, has, err := p.regionView(f, id)
		if err != nil {
			return err
		}
		for _, found := range p.gpuFindings(v, has) {
			if found.GetBlocks() {
				first = cmp.Or(first, found)
				short = append(short, found.GetMessage())
			}
		}
	}
	text := "there is no room to begin: "
	if first == nil {
		text = "it could begin, but not finish: "
	}
	for _, id := range p.sortByName(p.laterRegions(ids)) {
		missing, err := p.missingPools(id)
		if err != nil {
			return err
		}
		for _, found := range missing {
			if found.GetBlocks() {
				first = cmp.Or(first, found)
				short = append(short, found.GetMessage())
			}
		}
	}
	if first == nil {
		return nil
	}
	const shown = 5
	text += strings.Join(short[:min(shown, len(short))], "; ")
	if more := len(short) - shown; more > 0 {
		text += fmt.Sprintf("; and %d more problems", more)
	}
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: first.GetReason(), Field: first.GetField(),
		Fix: first.GetFix() + " `windlass plan` shows what the rollout needs. With rollout.waitForCapacity, such as 6h, it waits for room.",
	}, text)
}

// laterRegions returns the ids of the regions that the rollout reaches after the regions in begun. It returns
// none for a rollout that is not staged.
func (p *Preview) laterRegions(begun map[string]bool) map[string]bool {
	ids, c := map[string]bool{}, p.progressOf()
	if c == nil || p.in.Rollout == nil || p.in.Rollout.DeploymentID != p.target.ID {
		return ids
	}
	for _, name := range p.target.Spec.GetRegions() {
		if id := p.regionIDs[name]; id != "" && !begun[id] && plan.Size(c, id) > 0 {
			ids[id] = true
		}
	}
	return ids
}

// missingPools returns a finding for each kind of GPU that the target asks for in a region and no pool of the region
// has.
func (p *Preview) missingPools(id string) (out []*windlassv1.PlanFinding, err error) {
	region := p.regions[id]
	has, err := capacityOf(region)
	if err != nil || !has.known {
		return nil, err
	}
	for _, k := range kindsOf(override.In(p.target.Spec, id)) {
		v := &windlassv1.PlanRegion{Region: region.Name, Status: region.Status, Gpu: k.gpu, Pools: fittingPools(k.gpu, has.gpus)}
		if found := p.gpuFinding(v, has); found != nil {
			out = append(out, found)
		}
	}
	return out, nil
}
