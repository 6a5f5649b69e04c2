// Package rollup turns what regions report into what people and the planner
// call progress. It is pure: facts in, verdicts out.
//
// Everything is judged per place, a deployment in one region. A place's facts
// count only when they speak of the present: the region's present epoch (a
// restored backup starts a new one) and the row's present generation. What was
// said of an older one is neither ready, nor failed, nor gone.
package rollup

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Reasons that the control plane itself gives.
const (
	ReasonRegionUnreachable = "RegionUnreachable" // the lease of the region's agent ran out
	ReasonDeadlineExceeded  = "DeadlineExceeded"  // the region made no progress for as long as the progress deadline
	ReasonRegionClosed      = "RegionClosed"      // the workspace may use the region no longer: nothing grows there until its grant is back
	ReasonDeploymentLost    = "DeploymentMissing" // the database has no row of the deployment that the rollout goes to
	ReasonInstancesFailed   = "InstancesFailed"   // instances fail, and the agent gave no reason
)

// Reasons of agents for which instances have no room.
const (
	reasonUnschedulable = "Unschedulable"
	reasonQuotaExceeded = "QuotaExceeded"
)

const (
	phaseApplied  = int32(agentv1.AppliedState_PHASE_APPLIED)
	phaseRejected = int32(agentv1.AppliedState_PHASE_REJECTED)
)

// Place is what is wanted of a deployment in one region, and what is.
type Place struct {
	Row      model.Topology
	Observed model.Observed // zero when the region said nothing of it
	Region   model.Region
	// MinReady of the deployment's spec; 0 means every replica.
	MinReady int32
}

// Need is the number of ready replicas that make the place ready: MinReady,
// else all, never below 1 unless none is wanted.
func (p Place) Need() int32 {
	if p.MinReady > 0 && p.MinReady < p.Row.Replicas {
		return p.MinReady
	}
	return p.Row.Replicas
}

// Unreachable reports whether the region has no agent that can be told anything.
func (p Place) Unreachable() bool {
	return p.Region.Status != windlassv1.RegionStatus_REGION_STATUS_CONNECTED
}

// Heard reports whether the agent has said anything of the present generation.
func (p Place) Heard() bool {
	return p.Observed.AppliedEpoch == p.Region.SessionEpoch &&
		p.Observed.AppliedGeneration >= p.Row.Generation
}

// Applied reports whether the region took the present generation.
func (p Place) Applied() bool { return p.Heard() && p.Observed.Phase == phaseApplied }

// Resyncing reports whether the region's history forked and its agent has not yet come to this
// deployment in the new epoch.
func (p Place) Resyncing() bool {
	return p.Observed.AppliedEpoch != 0 && p.Observed.AppliedEpoch < p.Region.SessionEpoch
}

// counted reports whether the counts are of the present generation.
func (p Place) counted() bool { return p.Observed.CountsGeneration >= p.Row.Generation }

// Ready reports whether enough replicas of the present generation are ready.
func (p Place) Ready() bool {
	if p.Row.Transferred {
		return p.Gone()
	}
	if !p.Applied() || p.Observed.Deleted {
		return false
	}
	return p.Need() == 0 || (p.counted() && p.Observed.ReadyReplicas >= p.Need())
}

// Settled reports whether exactly what is wanted is there, and ready.
func (p Place) Settled() bool {
	if p.Row.Transferred {
		return p.Gone()
	}
	if !p.Applied() || p.Observed.Deleted {
		return false
	}
	return (p.Row.Replicas == 0 && p.Observed.Instances() == 0) ||
		(p.Row.Replicas > 0 && p.counted() && p.Observed.ReadyReplicas >= p.Row.Replicas)
}

// Gone reports whether the region confirmed that nothing is left.
func (p Place) Gone() bool {
	return p.Applied() && p.Observed.Deleted && p.Observed.Instances() == 0
}

// Doomed returns why waiting for the place is pointless. A final rejection is,
// and so is one doomed instance while the place is not ready: the agent says
// doomed only after three ends in a row or for a cause that no retry mends.
func (p Place) Doomed() (reason, message string, doomed bool) {
	o := p.Observed
	switch {
	case p.Ready():
		return "", "", false
	case p.Heard() && o.Phase == phaseRejected && !o.Retryable:
		return o.Code, o.Message, true
	case p.counted() && !p.Resyncing() && o.Doomed > 0:
		return o.Reason, o.ReasonMessage, true
	}
	return "", "", false
}

// Failing reports whether something is wrong there, as opposed to being on its way: instances
// that failed, were restarted or are doomed, or a rejection.
func (p Place) Failing() bool {
	o := p.Observed
	return o.Fail > 0 || o.Doomed > 0 || o.Restarts > 0 || (p.Heard() && o.Phase == phaseRejected)
}

// Why returns the most telling reason that the place is not as wanted.
func (p Place) Why() (reason, message string) {
	o := p.Observed
	switch {
	case p.Row.Reason != "":
		return p.Row.Reason, ""
	case o.Phase != phaseApplied && o.Code != "":
		return o.Code, o.Message
	case o.Reason != "":
		return o.Reason, o.ReasonMessage
	case p.Unreachable():
		return ReasonRegionUnreachable, p.Region.Message
	}
	return "", ""
}

// LacksRoom reports whether the region has no room for what it takes to be ready.
func (p Place) LacksRoom() bool {
	return !p.Ready() && !p.Unreachable() && p.Row.Reason == "" && noRoom(p.Observed)
}

// noRoom reports whether the region names that as its reason.
func noRoom(o model.Observed) bool {
	reason, _ := Place{Observed: o}.Why()
	return reason == reasonUnschedulable || reason == reasonQuotaExceeded
}

// codeWoken is what an agent says of a generation without replicas that a request woke.
const codeWoken = "Woken"

// Woken reports whether the region runs replicas that the present generation does not have, because a
// request came for an app at zero.
func (p Place) Woken() bool {
	return p.Row.Replicas == 0 && p.Applied() && p.Observed.AppliedGeneration == p.Row.Generation && p.Observed.Code == codeWoken
}

// Name of the region, for people.
func (p Place) Name() string { return p.Region.ShownName() }

// String is the place in one line: "us-east-1: 1 of 2 replicas ready (CrashLoop:
// exit code 1)".
func (p Place) String() string {
	ready := min(p.Observed.ReadyReplicas, p.Row.Replicas)
	s := fmt.Sprintf("%s: %d of %d replicas ready", p.Name(), ready, p.Row.Replicas)
	switch p.Row.Status {
	case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING:
		s = fmt.Sprintf("%s: stopping, %d instances left", p.Name(), p.Observed.Instances())
	case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED:
		return p.Name() + ": stopped"
	default:
	}
	if p.Unreachable() {
		return s + " when last heard of, region is out of reach"
	}
	return s + because(p.Why())
}

func because(reason, message string) string {
	switch {
	case reason == "":
		return ""
	case message == "":
		return " (" + reason + ")"
	}
	return " (" + reason + ": " + message + ")"
}

// Proto is the place as the API shows it.
func (p Place) Proto() *windlassv1.RegionTopology {
	o := p.Observed
	t := &windlassv1.RegionTopology{
		Region:            p.Name(),
		Status:            p.Row.Status,
		Replicas:          p.Row.Replicas,
		Weight:            p.Row.Weight,
		Generation:        p.Row.Generation,
		Ready:             o.ReadyReplicas,
		Running:           o.Running,
		Failed:            o.Fail,
		Instances:         o.Instances(),
		RegionUnreachable: p.Unreachable(),
	}
	if o.AppliedEpoch == p.Region.SessionEpoch && o.Phase == phaseApplied {
		t.AppliedGeneration = o.AppliedGeneration
	}
	if p.Row.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED && !p.Settled() || p.Row.Reason != "" {
		t.Reason, t.Message = p.Why()
	}
	return t
}
