// Package rollup computes the progress of apps from what regions report. It is pure code.
//
// Everything is judged per place, which is a deployment in one region. A place's facts count only if they are
// of the region's current epoch (a restored backup begins a new one) and the row's current generation. Facts
// about an older one do not make the place ready, failed or gone.
package rollup

import (
	"fmt"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/plural"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// These are the reasons that the control plane itself gives.
const (
	ReasonRegionUnreachable = "RegionUnreachable" // the lease of the region's agent expired
	ReasonDeadlineExceeded  = "DeadlineExceeded"  // the region made no progress within the progress deadline
	ReasonRegionClosed      = "RegionClosed"      // the workspace may no longer use the region: no replicas are added there until its grant is back
	ReasonDeploymentLost    = "DeploymentMissing" // the database has no row of the deployment that the rollout goes to
	ReasonInstancesFailed   = "InstancesFailed"   // instances fail, and the agent gave no reason
)

const (
	phaseApplied  = int32(agentv1.AppliedState_PHASE_APPLIED)
	phaseRejected = int32(agentv1.AppliedState_PHASE_REJECTED)
)

// Place is a deployment in one region: its row, and what the region reports of it.
type Place struct {
	Row      model.Topology
	Observed model.Observed // zero if the region reported nothing of it
	Region   model.Region
	// MinReady is the MinReady of the deployment's spec. 0 means every replica.
	MinReady int32
	// Spec has the deployment's roles, with the instances that they have in the region. See model.Topology.In.
	Spec *windlassv1.DeploymentSpec
}

// Need returns how many ready replicas make the place ready: MinReady if it is set and smaller, else all
// replicas.
func (p Place) Need() int32 {
	if p.MinReady > 0 && p.MinReady < p.Row.Replicas {
		return p.MinReady
	}
	return p.Row.Replicas
}

// Unreachable reports whether the region has no connected agent.
func (p Place) Unreachable() bool {
	return p.Region.Status != windlassv1.RegionStatus_REGION_STATUS_CONNECTED
}

// Heard reports whether the agent has reported about the current generation.
func (p Place) Heard() bool {
	return p.Observed.AppliedEpoch == p.Region.SessionEpoch &&
		p.Observed.AppliedGeneration >= p.Row.Generation
}

// Applied reports whether the region applied the current generation.
func (p Place) Applied() bool { return p.Heard() && p.Observed.Phase == phaseApplied }

// Resyncing reports whether the region's history forked and its agent has not yet applied this deployment in
// the new epoch.
func (p Place) Resyncing() bool {
	return p.Observed.AppliedEpoch != 0 && p.Observed.AppliedEpoch < p.Region.SessionEpoch
}

// isCounted reports whether the counts are of the current generation.
func (p Place) isCounted() bool { return p.Observed.CountsGeneration >= p.Row.Generation }

// Ready reports whether enough replicas of the current generation are ready.
func (p Place) Ready() bool {
	if p.Row.Transferred {
		return p.Gone()
	}
	if !p.Applied() || p.Observed.Deleted {
		return false
	}
	return p.Need() == 0 || (p.isCounted() && p.Observed.ReadyReplicas >= p.Need())
}

// Settled reports whether exactly the wanted replicas exist and are ready.
func (p Place) Settled() bool {
	if p.Row.Transferred {
		return p.Gone()
	}
	if !p.Applied() || p.Observed.Deleted {
		return false
	}
	return (p.Row.Replicas == 0 && p.Observed.Instances() == 0) ||
		(p.Row.Replicas > 0 && p.isCounted() && p.Observed.ReadyReplicas >= p.Row.Replicas)
}

// Gone reports whether the region confirmed that nothing is left.
func (p Place) Gone() bool {
	return p.Applied() && p.Observed.Deleted && p.Observed.Instances() == 0
}

// Doomed returns why waiting for the place is pointless. The reason is a final rejection, or a doomed
// instance while the place is not ready. An agent calls an instance doomed only after it ended three times in
// a row, or for a cause that no retry fixes.
func (p Place) Doomed() (reason, message string, doomed bool) {
	o := p.Observed
	switch {
	case p.Ready():
		return "", "", false
	case p.Heard() && o.Phase == phaseRejected && !o.Retryable:
		return o.Code, o.Message, true
	case p.isCounted() && !p.Resyncing() && o.Doomed > 0:
		return o.Reason, p.ofRole(), true
	}
	return "", "", false
}

// Failing reports whether the place has a failure, and is not only starting: instances failed, were restarted or are
// doomed, or the region rejected the deployment.
func (p Place) Failing() bool {
	o := p.Observed
	return o.Fail > 0 || o.Doomed > 0 || o.Restarts > 0 || (p.Heard() && o.Phase == phaseRejected)
}

// Why returns the most informative reason that the place is not as wanted.
func (p Place) Why() (reason, message string) {
	o := p.Observed
	switch {
	case p.Row.Reason != "":
		return p.Row.Reason, ""
	case o.Phase != phaseApplied && o.Code != "":
		return o.Code, o.Message
	case o.Reason != "":
		return o.Reason, p.ofRole()
	case p.Unreachable():
		return ReasonRegionUnreachable, p.Region.Message
	}
	return "", ""
}

// ofRole returns the message of the reported reason. If there are several roles, the name of the reporting role precedes
// it.
func (p Place) ofRole() string {
	message := p.Observed.ReasonMessage
	_, roles := p.Observed.Counts()
	for _, r := range roles {
		if r.GetReason() == p.Observed.Reason && strings.HasPrefix(message, r.GetMessage()) {
			return strings.TrimSuffix("role "+r.GetRole()+": "+message, ": ")
		}
	}
	return message
}

// LacksCapacity reports whether the region has no room for the replicas that would make the place ready.
func (p Place) LacksCapacity() bool {
	return !p.Ready() && !p.Unreachable() && p.Row.Reason == "" && reportsNoCapacity(p.Observed)
}

// reportsNoCapacity reports whether the region gives lack of room as its reason.
func reportsNoCapacity(o model.Observed) bool {
	reason, _ := Place{Observed: o}.Why()
	return MeaningOf(reason).Condition == unschedulable
}

// codeWoken is an agent's code for a generation without replicas that a request woke.
const codeWoken = "Woken"

// Woken reports whether the region runs replicas that the current generation does not have, because a request
// came for an app at zero.
func (p Place) Woken() bool {
	return p.Row.Replicas == 0 && p.Applied() && p.Observed.AppliedGeneration == p.Row.Generation && p.Observed.Code == codeWoken
}

// Name returns the region's name for people.
func (p Place) Name() string { return p.Region.ShownName() }

// String describes the place in one line: "us-east-1: 1 of 2 replicas ready (CrashLoop: exit code 1)".
func (p Place) String() string {
	ready := min(p.Observed.ReadyReplicas, p.Row.Replicas)
	s := p.Name() + ": " + model.ReadyText(p.Row.Roles != "", ready, p.Row.Replicas)
	switch p.Row.Status {
	case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING:
		s = fmt.Sprintf("%s: stopping, %s left", p.Name(), plural.Count(p.Observed.Instances(), "instance"))
	case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED:
		return p.Name() + ": stopped"
	default:
	}
	if p.Unreachable() {
		return s + " when last heard of, region is out of reach"
	}
	return s + withReason(p.Why())
}

func withReason(reason, message string) string {
	switch {
	case reason == "":
		return ""
	case message == "":
		return " (" + reason + ")"
	}
	return " (" + reason + ": " + message + ")"
}

// Proto returns the place as the API shows it.
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
	t.Roles = p.roleViews()
	return t
}

// roleViews returns each of several roles as the API shows it.
func (p Place) roleViews() (out []*windlassv1.RoleTopology) {
	if len(p.Spec.GetRoles()) < 2 {
		return nil
	}
	_, counts := p.Observed.Counts()
	for _, r := range p.Spec.GetRoles() {
		one := &windlassv1.RoleTopology{Role: r.GetName(), Entry: r.GetEntry(), Wanted: model.InstancesOf(p.Spec, r, p.Row.Replicas), Hosts: model.HostsOf(r)}
		for _, c := range counts {
			if c.GetRole() == r.GetName() {
				one.Ready, one.Instances, one.Reason, one.Message = c.GetReady(), c.GetInstances(), c.GetReason(), c.GetMessage()
			}
		}
		out = append(out, one)
	}
	return out
}
