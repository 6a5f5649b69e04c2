package preview

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/forecast"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Deploy is the result of a deploy that was carried out, but not stored.
type Deploy struct {
	// Preview is the input of the rollout's forecast, or nil without Answer.
	*Preview
	// At is when the deploy was carried out, in Unix ms.
	At int64
	// Refusals are the errors with which the deploy would fail, in the order in which they were found.
	Refusals []error
	// Warnings are from the preset that the spec's field serve names.
	Warnings []*windlassv1.PlanFinding
	// Answer is the response of the call, or nil if the call would be refused before it has one.
	Answer *windlassv1.DeployResponse
	// App is the app after the deploy. WasApp is the app before it, or nil if it did not exist.
	App, WasApp *model.App
	// Policy is the app's rollout policy after the deploy, and WasPolicy before it.
	Policy, WasPolicy *windlassv1.RolloutPolicy
	// Scaling is the app's scaling policy after the deploy, and WasScaling before it. Nil means that replicas do
	// not follow the load.
	Scaling, WasScaling *windlassv1.ScalingPolicy
	// Features are the features that the app uses after the deploy.
	Features []*windlassv1.PlanFeature
	// Live is the deployment that is live before the deploy, or nil.
	Live *model.Deployment
	// Sizes are the known replicas by region id after the deploy, and WasSizes before it.
	Sizes, WasSizes map[string]int32
	// Supersedes is the version of the rollout in flight that the deploy would replace, or 0.
	Supersedes int32
	// Woken means that the app's workflow has something to do after the deploy.
	Woken bool
	// Quota is the workspace's quota. UsageAfter is the workspace's usage after the deploy.
	Quota      *windlassv1.Quota
	UsageAfter *windlassv1.Usage
}

// outcomeOf returns what the deploy would do: a rollout, scaling, nothing, or to keep the live version.
func (d *Deploy) outcomeOf() windlassv1.PlanDeployResponse_Outcome {
	switch {
	case d.Answer == nil:
		return windlassv1.PlanDeployResponse_OUTCOME_UNSPECIFIED
	case d.Answer.GetScaled():
		return windlassv1.PlanDeployResponse_OUTCOME_SCALED
	case !d.Answer.GetUnchanged():
		return windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT
	case d.Woken:
		return windlassv1.PlanDeployResponse_OUTCOME_TAKEN_BACK
	}
	return windlassv1.PlanDeployResponse_OUTCOME_UNCHANGED
}

// maxPlanSteps is the maximum number of steps in a response, because a response has a maximum size.
const maxPlanSteps = 500

// Response returns what the deploy would do.
func (d *Deploy) Response() (*windlassv1.PlanDeployResponse, error) {
	out := &windlassv1.PlanDeployResponse{Outcome: d.outcomeOf(), NewApp: d.App != nil && d.WasApp == nil, Features: d.Features}
	for _, err := range d.Refusals {
		out.Findings = append(out.Findings, findingOf(err))
	}
	out.Findings = append(out.Findings, d.Warnings...)
	if d.Answer != nil {
		d.neededWhen = " at its peak"
		if err := d.fillPlan(out); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(out.Findings, func(a, b *windlassv1.PlanFinding) int {
		switch {
		case a.GetBlocks() == b.GetBlocks():
			return 0
		case a.GetBlocks():
			return -1
		}
		return 1
	})
	out.WouldRun = len(out.GetFindings()) == 0 || !out.GetFindings()[0].GetBlocks()
	return out, nil
}

// findingOf returns the finding for an error that would refuse the deploy.
func findingOf(err error) *windlassv1.PlanFinding {
	detail := rpc.DetailOf(err)
	return &windlassv1.PlanFinding{
		Reason: detail.GetReason(), Blocks: true, Field: detail.GetField(), Message: apierr.Message(err), Fix: detail.GetFix(), Limit: detail.GetLimit(),
	}
}

// fillPlan fills the response of a deploy that would not be refused at once.
func (d *Deploy) fillPlan(out *windlassv1.PlanDeployResponse) error {
	out.Version, out.Quota, out.UsageAfter = d.target.Version, d.Quota, d.UsageAfter
	if d.Live != nil {
		out.LiveVersion = d.Live.Version
	}
	out.SupersedesVersion = d.Supersedes
	if h := d.Answer.GetHold(); h != nil {
		out.Findings = append(out.Findings, &windlassv1.PlanFinding{
			Reason:  windlassv1.ErrorReason_ERROR_REASON_FROZEN,
			Message: "it would be held by " + plan.FreezeText(h.GetFreeze(), h.GetScope(), h.GetUntil(), h.GetReason()),
			Fix:     `It starts by itself when the freeze ends. An owner can start it at once: --override-freeze "why".`,
		})
	}
	for _, text := range d.Answer.GetWarnings() {
		out.Findings = append(out.Findings, &windlassv1.PlanFinding{
			Reason: windlassv1.ErrorReason_ERROR_REASON_APPROVAL_NEEDED, Message: text, Fix: "`windlass protection list` shows the protections. A file only tightens them.",
		})
	}
	if out.GetOutcome() == windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT {
		out.Findings = append(out.Findings, d.slotFindings()...)
	}
	var err error
	if out.Changes, err = d.fieldChanges(); err != nil {
		return err
	}
	f := forecast.Forecast{Complete: true}
	if d.Woken && !d.unknownRegion {
		f = forecast.Run(d.was, d.in, d.At)
	}
	out.Lasts, out.Loads = durationpb.New(time.Duration(f.Lasts)*time.Millisecond), int32(f.Loads)
	for _, s := range f.Steps[:min(len(f.Steps), maxPlanSteps)] {
		out.Steps = append(out.Steps, d.stepProto(s))
	}
	out.StepsLeftOut = int32(len(f.Steps) - len(out.Steps))
	if !f.Complete {
		out.Findings = append(out.Findings, &windlassv1.PlanFinding{
			Reason:  windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
			Message: fmt.Sprintf("the rollout is too long to preview: the needs of regions are from its first %d steps", len(f.Steps)),
			Fix:     "A larger rollout.maxSurge makes it shorter.",
		})
	}
	if end := f.Rollout; out.GetOutcome() == windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT && f.Complete && end != nil &&
		end.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED {
		out.Findings = append(out.Findings, &windlassv1.PlanFinding{
			Reason: windlassv1.ErrorReason_ERROR_REASON_INTERNAL, Blocks: true,
			Message: fmt.Sprintf("even without failures the rollout would not succeed: %s %s", end.Reason, end.Message),
		})
	}
	if c := d.progressOf(); c != nil && f.Progress != nil && f.Progress.RolloutID == c.RolloutID {
		empty := plan.EmptyGates(f.Progress)
		for _, i := range slices.Sorted(maps.Keys(empty)) {
			out.Findings = append(out.Findings, &windlassv1.PlanFinding{
				Reason: windlassv1.ErrorReason_ERROR_REASON_APPROVAL_NEEDED, Field: fmt.Sprintf("rollout.waves[%d].approval", i), Message: empty[i],
				Fix: "Set the approval on a wave that has regions, or name regions in the last wave.",
			})
		}
	}
	return d.addRegions(f, out)
}

// slotFindings returns a warning for each role that loses its stable slots, because the data of these slots is then deleted.
func (d *Deploy) slotFindings() (out []*windlassv1.PlanFinding) {
	if d.Live == nil {
		return nil
	}
	for _, name := range model.StableRoles(d.Live.Spec) {
		if slices.Contains(model.StableRoles(d.target.Spec), name) {
			continue
		}
		field := "spec.roles"
		if i := slices.IndexFunc(d.target.Spec.GetRoles(), func(r *windlassv1.RoleSpec) bool { return r.GetName() == name }); i >= 0 {
			field = fmt.Sprintf("spec.roles[%d].slots", i)
		}
		out = append(out, &windlassv1.PlanFinding{
			Reason: windlassv1.ErrorReason_ERROR_REASON_IN_USE, Field: field,
			Message: fmt.Sprintf("role %q of v%d has stable slots, and role %q of v%d has none: what the slots store is deleted", name, d.Live.Version, name, d.target.Version),
			Fix:     "Set slots: stable to keep it, or copy what you need first.",
		})
	}
	return out
}

func (d *Deploy) stepProto(s forecast.Step) *windlassv1.PlanStep {
	out := &windlassv1.PlanStep{
		At: durationpb.New(time.Duration(s.At) * time.Millisecond), Kind: s.Kind, Wave: s.Wave, Region: d.regions[s.RegionID].Name,
		Step: int32(s.Step), Steps: int32(s.Steps), Checks: s.Checks, Approval: s.Approval, InPlace: s.InPlace, KeepsInstances: s.Keeps,
		Loads: int32(s.Loads),
	}
	if s.Wait > 0 {
		out.Wait = durationpb.New(s.Wait)
	}
	for _, side := range s.Sides {
		out.Versions = append(out.Versions, &windlassv1.PlanVersion{Version: side.Version, Replicas: side.Replicas, Weight: side.Weight})
	}
	return out
}

// addRegions adds to out the needs of the deploy in each region, the region's capacity, and the findings.
func (d *Deploy) addRegions(f forecast.Forecast, out *windlassv1.PlanDeployResponse) error {
	ids := map[string]bool{}
	for _, id := range d.regionIDs {
		ids[id] = true
	}
	for _, t := range d.was {
		if topology.Active(t) {
			ids[t.RegionID] = true
		}
	}
	for _, id := range d.sortByName(ids) {
		v, e, reported, err := d.regionView(f, id)
		if err != nil {
			return err
		}
		wave, waits, skips := d.waveOf(f, id)
		v.Wave = wave
		out.Regions = append(out.Regions, v)
		if d.Woken {
			out.Findings = append(out.Findings, d.unreachableFinding(v, id, waits, skips, out.GetOutcome())...)
			for _, found := range d.gpuFindings(v, reported) {
				out.Findings = append(out.Findings, d.unblockIfWaits(found))
			}
			out.Findings = append(out.Findings, d.hostFindings(v, reported, id)...)
			if found := d.pairFinding(e, id); found != nil {
				out.Findings = append(out.Findings, found)
			}
		}
	}
	return nil
}

// unreachableFinding returns a finding for a region that is not connected, and nil for a connected region.
func (d *Deploy) unreachableFinding(v *windlassv1.PlanRegion, id string, waits, skips bool, outcome windlassv1.PlanDeployResponse_Outcome) []*windlassv1.PlanFinding {
	if v.GetStatus() == windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
		return nil
	}
	f := &windlassv1.PlanFinding{
		Reason: windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, Region: v.GetRegion(),
		Fix: fmt.Sprintf("`windlass region show %s` shows its state.", v.GetRegion()),
	}
	why, when := fmt.Sprintf("region %s is out of reach", v.GetRegion()), "when it returns"
	if v.GetStatus() == windlassv1.RegionStatus_REGION_STATUS_PENDING {
		why, when = fmt.Sprintf("no agent has joined region %s yet", v.GetRegion()), "when an agent has joined"
	}
	i := slices.IndexFunc(d.target.Spec.GetRegions(), func(name string) bool { return d.regionIDs[name] == id })
	switch {
	case i < 0:
		f.Message = why + ": its replicas stay until it returns"
	case outcome != windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT:
		f.Message = why + ": the change takes effect there " + when
	case skips:
		f.Message = why + ": the rollout would leave it out for now, and it would catch up " + when
	case waits:
		f.Message = why + ": the rollout would wait for it when its turn comes, and later regions would wait, too"
	default:
		f.Message, f.Blocks = why+": the rollout would fail there", true
	}
	if i >= 0 {
		f.Field = fmt.Sprintf("spec.regions[%d]", i)
	}
	return []*windlassv1.PlanFinding{f}
}
