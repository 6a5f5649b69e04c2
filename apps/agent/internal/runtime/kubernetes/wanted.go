package kubernetes

import (
	"maps"
	"slices"
	"sync"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

// want is the wanted state of a workload.
type want struct {
	assignment runtime.Assignment
	// secrets has all values that the workload's pods have received since the agent started,
	// because pods of an older template keep their values.
	secrets *redact.Values
	// hash is the workload's hash from the last time that everything was as wanted. It is empty
	// before that.
	hash string
	// drains is Drain.Waits of the latest decision.
	drains bool
	// contested is the last report about fields that other clients own.
	contested string
}

// wanted has the wanted state of each workload, as Apply set it. It is safe for concurrent use.
type wanted struct {
	mu        sync.Mutex
	workloads map[render.Ref]*want
	// families has the assignments with several roles.
	families map[render.Ref]runtime.Assignment
	// removals has the deployments that are being removed while some of their workloads still have
	// to stay.
	removals map[render.Ref]string
	// noPeers has the deployments with several roles whose peers file was removed.
	noPeers map[render.Ref]bool
	// pruned has the Secrets that were removed but may still be listed by their workload.
	pruned map[render.Ref]bool
}

func newWanted() *wanted {
	return &wanted{workloads: map[render.Ref]*want{}, families: map[render.Ref]runtime.Assignment{}, removals: map[render.Ref]string{}, noPeers: map[render.Ref]bool{}, pruned: map[render.Ref]bool{}}
}

// recordWanted records the wanted state of a workload.
func (w *wanted) recordWanted(at render.Ref, a runtime.Assignment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteWanted(at, a)
}

func (w *wanted) noteWanted(at render.Ref, a runtime.Assignment) *want {
	known := w.workloads[at]
	if known == nil {
		known = &want{}
		w.workloads[at] = known
	}
	known.assignment = a
	known.secrets = known.secrets.With(slices.Collect(maps.Values(a.Secrets))...)
	return known
}

// settleWorkload records that a workload is as the assignment a wants it, with this hash. began reports
// whether it starts to drain now. said is the value of contested before this call.
func (w *wanted) settleWorkload(at render.Ref, a runtime.Assignment, hash string, drains bool, contested string) (began bool, said string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.noteWanted(at, a)
	began, said = drains && !known.drains, known.contested
	known.hash, known.drains, known.contested = hash, drains, contested
	return began, said
}

// get returns a copy of the wanted state of a workload, or nil if it is not wanted.
func (w *wanted) get(at render.Ref) *want {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.workloads[at]; known != nil {
		c := *known
		return &c
	}
	return nil
}

// forgetWorkload drops a workload if it is wanted for this deployment, and reports whether it did so.
func (w *wanted) forgetWorkload(at render.Ref, deploymentID string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.workloads[at]
	if known == nil || known.assignment.Deployment.GetId() != deploymentID {
		return false
	}
	delete(w.workloads, at)
	return true
}

// secretsOf returns the secrets of a workload's pods, or nil while they are not known.
func (w *wanted) secretsOf(at render.Ref) *redact.Values {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.workloads[at]; known != nil {
		return known.secrets
	}
	return nil
}

// hasDrains reports whether the drain of a workload's pods must continue later.
func (w *wanted) hasDrains(at render.Ref) bool {
	known := w.get(at)
	return known != nil && known.drains
}

// drainingWorkloads returns the workloads for which drains is true.
func (w *wanted) drainingWorkloads() []render.Ref {
	return w.workloadsWhere(func(_ render.Ref, known *want) bool { return known.drains })
}

// workloadsIn returns the workloads that are wanted in a namespace, and the deployments with several roles.
func (w *wanted) workloadsIn(namespace string) []render.Ref {
	out := w.workloadsWhere(func(at render.Ref, _ *want) bool { return at.Namespace == namespace })
	w.mu.Lock()
	defer w.mu.Unlock()
	for at := range w.families {
		if at.Namespace == namespace {
			out = append(out, at)
		}
	}
	return out
}

// wantRoles records the wanted state of the instances of a deployment with several roles.
func (w *wanted) wantRoles(at render.Ref, a runtime.Assignment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.families[at] = a
	delete(w.removals, at)
}

// noteRemoval records that the remaining workloads of a deployment with several roles must be
// removed later.
func (w *wanted) noteRemoval(at render.Ref, deploymentID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, wanted := w.families[at]; !wanted {
		w.removals[at] = deploymentID
	}
}

// takeRemoval returns the deployment that noteRemoval recorded, and forgets it. It returns "" if
// there is none.
func (w *wanted) takeRemoval(at render.Ref) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := w.removals[at]
	delete(w.removals, at)
	return id
}

// rolesOf returns what wantRoles recorded.
func (w *wanted) rolesOf(at render.Ref) (a runtime.Assignment, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok = w.families[at]
	return a, ok
}

// familiesOf returns the references that wantRoles recorded for a deployment.
func (w *wanted) familiesOf(deploymentID string) (out []render.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, a := range w.families {
		if a.Deployment.GetId() == deploymentID {
			out = append(out, at)
		}
	}
	return out
}

// forgetRoles drops what wantRoles recorded for the deployment.
func (w *wanted) forgetRoles(at render.Ref, deploymentID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.families[at].Deployment.GetId() == deploymentID {
		delete(w.families, at)
		delete(w.noPeers, at)
	}
}

// notePeers records whether a peers file may exist.
func (w *wanted) notePeers(at render.Ref, may bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.noPeers, at)
	if !may {
		w.noPeers[at] = true
	}
}

func (w *wanted) mayHavePeers(at render.Ref) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.noPeers[at]
}

// hasUnit reports whether the workload of an instance was completely made as the assignment a wants
// it.
func (w *wanted) hasUnit(at render.Ref, a runtime.Assignment) bool {
	known := w.get(at)
	if known == nil || known.hash == "" || known.assignment.Unit == nil {
		return false
	}
	was := known.assignment
	return was.Deployment.GetId() == a.Deployment.GetId() && was.Epoch == a.Epoch && was.Generation == a.Generation && was.TemplateHash == a.TemplateHash &&
		was.Deployment.GetReplicas() == a.Deployment.GetReplicas() && was.Unit.Waits == a.Unit.Waits && was.Unit.WaitsReason == a.Unit.WaitsReason && was.Unit.Holds == a.Unit.Holds &&
		was.Unit.Leaves == a.Unit.Leaves && was.Unit.Epoch == a.Unit.Epoch && was.Unit.Replicas == a.Unit.Replicas && was.Unit.Domain.Equal(a.Unit.Domain) && was.Unit.PodGroup == a.Unit.PodGroup &&
		maps.Equal(was.Secrets, a.Secrets) && maps.Equal(was.PullSecrets, a.PullSecrets)
}

// workloadsOf returns the workloads that are wanted for a deployment.
func (w *wanted) workloadsOf(deploymentID string) []render.Ref {
	return w.workloadsWhere(func(_ render.Ref, known *want) bool { return known.assignment.Deployment.GetId() == deploymentID })
}

// isAdopted reports whether another deployment has taken over the workload that this deployment made.
func (w *wanted) isAdopted(deploymentID string) bool {
	return len(w.workloadsWhere(func(_ render.Ref, known *want) bool {
		a := known.assignment
		return a.WorkloadKey == deploymentID && a.Deployment.GetId() != deploymentID
	})) > 0
}

func (w *wanted) workloadsWhere(is func(at render.Ref, known *want) bool) (out []render.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, known := range w.workloads {
		if is(at, known) {
			out = append(out, at)
		}
	}
	return out
}

// forgetSecret records that a Secret was removed.
func (w *wanted) forgetSecret(secret render.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pruned[secret] = true
}

// isPruned reports whether a Secret need not be listed any more.
func (w *wanted) isPruned(secret render.Ref) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pruned[secret]
}
