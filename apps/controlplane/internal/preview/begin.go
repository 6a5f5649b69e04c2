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
// it wait for room. It also fails if a later region has no such GPUs at all: GPUs in use may be free by then,
// but missing ones will not exist.
func (p *Preview) RoomToBegin(at int64) error {
	if p.waitsForRoom() > 0 {
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
	for _, id := range p.byName(ids) {
		v, has, err := p.regionView(f, id)
		if err != nil {
			return err
		}
		for _, found := range p.rooms(v, has) {
			if found.GetBlocks() {
				first = cmp.Or(first, found)
				short = append(short, found.GetMessage())
			}
		}
	}
	text := "there is no room to begin: "
	if first == nil {
		text = "it could begin, and not come to its end: "
	}
	for _, id := range p.byName(p.later(ids)) {
		missing, err := p.lacks(id)
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
		text += fmt.Sprintf("; and so it is in %d regions more", more)
	}
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: first.GetReason(), Field: first.GetField(),
		Fix: first.GetFix() + " `windlass plan` shows what the rollout needs. With rollout.waitForCapacity, such as 6h, it waits for room.",
	}, text)
}

// later returns the ids of the regions that the rollout reaches after those in begun. A rollout that is not
// staged has none.
func (p *Preview) later(begun map[string]bool) map[string]bool {
	ids, c := map[string]bool{}, p.progress()
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

// lacks returns the findings for a region that has no pool for GPUs which the target asks for there.
func (p *Preview) lacks(id string) (out []*windlassv1.PlanFinding, err error) {
	region := p.regions[id]
	has, err := capacityOf(region)
	if err != nil || !has.known {
		return nil, err
	}
	for _, k := range kindsOf(override.In(p.target.Spec, id)) {
		v := &windlassv1.PlanRegion{Region: region.Name, Status: region.Status, Gpu: k.gpu, Pools: fitting(k.gpu, has.gpus)}
		if found := p.room(v, has); found != nil {
			out = append(out, found)
		}
	}
	return out, nil
}
