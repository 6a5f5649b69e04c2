package report

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// picture is everything that can be reported, at one moment. It shares unchanged parts with the
// previous picture. So two pictures can be compared by pointers, and take little more memory than
// one. Its instances are the runtime's own lists. An InstanceState is made only when it is sent.
type picture struct {
	applied     map[key]*agentv1.AppliedState
	deployments map[string]*deployment
	// rollups has the counts of each deployment, including applied ones without instances.
	rollups     map[string]*agentv1.DeploymentRollup
	capacity    *agentv1.Capacity
	quarantined []*agentv1.QuarantinedKey
	// quarantineKnown means that quarantined is known.
	quarantineKnown bool
	// notices has the newest notices at that moment, in order.
	notices []runtime.Notice
}

// key names the object of an AppliedState.
type key struct {
	kind agentv1.ItemKind
	name string
}

// deployment is an observed deployment. It is never changed.
type deployment struct {
	seen   runtime.ObservedDeployment
	rollup *agentv1.DeploymentRollup
	// held and heldSince are the results of Source.HeldSince.
	held      bool
	heldSince int64
}

func emptyPicture() picture {
	return picture{
		applied:     map[key]*agentv1.AppliedState{},
		deployments: map[string]*deployment{},
		rollups:     map[string]*agentv1.DeploymentRollup{},
	}
}

// takePicture makes a picture of what the source returns. before is the previous picture. A
// deployment that is applied or being removed has counts even if no instance of it exists, because
// a removal waits for zero counts. States are read before the observation, so counts are never
// older than the state with which they are sent.
func takePicture(src Source, before picture) (picture, bool) {
	applied := src.Applied()
	seen, ok := src.Observation()
	if !ok {
		return picture{}, false
	}
	p := picture{
		applied:     make(map[key]*agentv1.AppliedState, len(applied)),
		deployments: make(map[string]*deployment, len(seen.Deployments)),
		rollups:     make(map[string]*agentv1.DeploymentRollup, len(applied)),
	}
	for _, d := range seen.Deployments {
		since, held := src.HeldSince(d.DeploymentID)
		now := before.deployments[d.DeploymentID].nextSeen(d, held, since)
		p.deployments[d.DeploymentID], p.rollups[d.DeploymentID] = now, now.rollup
	}
	for _, a := range applied {
		if message := boundText(a.Message); message != a.Message {
			a = proto.CloneOf(a)
			a.Message = message
		}
		p.applied[key{a.Kind, a.Key}] = a
		if a.Kind == agentv1.ItemKind_ITEM_KIND_DEPLOYMENT && p.deployments[a.Key] == nil {
			p.rollups[a.Key] = before.zeroCounts(a.Key, a.Generation)
		}
	}
	p.capacity, p.notices = seen.Capacity, seen.Notices
	p.quarantined, p.quarantineKnown = src.Quarantined()
	return p, true
}

// zeroCounts returns the counts of a deployment without instances.
func (p picture) zeroCounts(id string, generation int64) *agentv1.DeploymentRollup {
	if was := p.rollups[id]; was != nil && p.deployments[id] == nil && was.Generation == generation {
		return was
	}
	return &agentv1.DeploymentRollup{DeploymentId: id, Generation: generation}
}

// wantsAgain reports whether the control plane assigned a deployment that ran before without this
// assignment: the inbox did not hold it, or dropped it meanwhile and received it again.
func (p picture) wantsAgain(before picture) bool {
	for id, d := range p.deployments {
		if was := before.deployments[id]; was != nil && was != d && d.held && (!was.held || was.heldSince != d.heldSince) {
			return true
		}
	}
	return false
}

// nextSeen returns the deployment for a new observation: d itself if nothing changed. d may be nil.
func (d *deployment) nextSeen(seen runtime.ObservedDeployment, held bool, since int64) *deployment {
	if d != nil && d.held == held && d.heldSince == since && d.seen.Generation == seen.Generation && d.seen.TemplateHash == seen.TemplateHash &&
		slices.Equal(d.seen.Roles, seen.Roles) && d.seen.Unsettled == seen.Unsettled && sameList(d.seen.Instances, seen.Instances) {
		return d
	}
	rollup := Rollup(seen)
	if seen.Unsettled {
		// The instances may still belong to an earlier generation, so the counts keep that
		// generation. A higher generation belongs to another epoch, and would look like a later one
		// of this epoch.
		rollup.Generation = 0
		if d != nil && d.rollup.Generation <= seen.Generation {
			rollup.Generation = d.rollup.Generation
		}
	}
	return &deployment{seen: seen, rollup: rollup, held: held, heldSince: since}
}

// sameList reports whether the instances of two lists are identical. If both are the same list, it
// does not compare the instances.
func sameList(a, b []runtime.Instance) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] {
		return true
	}
	for n := range a {
		if !isIdentical(&a[n], &b[n]) {
			return false
		}
	}
	return true
}

func isIdentical(a, b *runtime.Instance) bool {
	return a.TemplateHash == b.TemplateHash && a.Doomed == b.Doomed &&
		a.StartedAt.Equal(b.StartedAt) && a.ReadyAt.Equal(b.ReadyAt) &&
		a.Reason == b.Reason && a.Message == b.Message && sameFacts(a, b)
}

// sameFacts compares the fields that a report copies unchanged.
func sameFacts(a, b *runtime.Instance) bool {
	return a.ID == b.ID && a.Role == b.Role && a.Group == b.Group && a.Slot == b.Slot && a.Status == b.Status &&
		a.Address == b.Address && a.RuntimeName == b.RuntimeName && a.Restarts == b.Restarts && slices.Equal(a.GPUs, b.GPUs)
}

// reportsTheSame reports whether a and b, which belong to one deployment, give the same
// InstanceState.
func reportsTheSame(a, b *runtime.Instance) bool {
	return sameFacts(a, b) && unixMillis(a.StartedAt) == unixMillis(b.StartedAt) && unixMillis(a.ReadyAt) == unixMillis(b.ReadyAt) &&
		sameText(a.Reason, b.Reason) && sameText(a.Message, b.Message)
}

func instanceState(deployment string, i *runtime.Instance) *agentv1.InstanceState {
	return &agentv1.InstanceState{
		Id: i.ID, DeploymentId: deployment, Role: i.Role, Group: int32(i.Group), Slot: int32(i.Slot),
		Status: i.Status, Reason: boundText(i.Reason), Message: boundText(i.Message), Address: i.Address,
		RuntimeName: i.RuntimeName, Restarts: int32(i.Restarts), Gpus: i.GPUs,
		StartedAt: unixMillis(i.StartedAt), ReadyAt: unixMillis(i.ReadyAt),
	}
}

// unixMillis returns a time in unix ms, or 0 for the zero time.
func unixMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// maxText is the number of bytes that the control plane stores of a message. It stores fewer bytes
// of a reason.
const maxText = 1024

// boundText cuts a text from a runtime or an instance to maxText bytes. It removes bytes that are
// not UTF-8, because a report with such bytes cannot be sent.
func boundText(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "")
}

func sameText(a, b string) bool { return a == b || boundText(a) == boundText(b) }
