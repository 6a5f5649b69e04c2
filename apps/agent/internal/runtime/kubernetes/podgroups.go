package kubernetes

import (
	"context"
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"

	"github.com/windlass-run/windlass/apps/agent/internal/gang"
	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

const (
	// podGroupsAgain is the interval at which the agent looks again whether the cluster serves PodGroups.
	podGroupsAgain = time.Minute
	// podGroupAgain is the interval at which the PodGroup of a gang that starts is made again, in case it was removed.
	podGroupAgain = 30 * time.Second
)

// podGroupOf returns the PodGroup of a workload's pods, or "".
func podGroupOf(w *appsv1.Deployment) string {
	if g := w.Spec.Template.Spec.SchedulingGroup; g != nil {
		return ptr.Deref(g.PodGroupName, "")
	}
	return ""
}

// podGroupVersion returns the version of PodGroups with which gangs start, or "" if the agent starts them.
func (r families) podGroupVersion(ctx context.Context) (string, error) {
	if r.cfg.GangsBy == GangsByAgent {
		return "", nil
	}
	r.gangs.mu.Lock()
	version, fresh := r.gangs.podGroups, time.Since(r.gangs.found) < podGroupsAgain
	r.gangs.mu.Unlock()
	if !fresh {
		var err error
		if version, err = r.api.PodGroupVersion(ctx); err != nil {
			return "", err
		}
		r.gangs.mu.Lock()
		r.gangs.podGroups, r.gangs.found = version, time.Now()
		r.gangs.mu.Unlock()
	}
	if version == "" && r.cfg.GangsBy == GangsByScheduler {
		return "", &runtime.Rejection{
			Code: runtime.ReasonUnsupported, Retryable: true,
			Message: "gang: the cluster serves no PodGroups of scheduling.k8s.io, but the region's agent has --gangs=native: turn on the cluster's feature gates GenericWorkload and GangScheduling, or use --gangs=auto",
		}
	}
	return version, nil
}

// makePodGroups makes the PodGroups of gangs that the cluster's scheduler places, and lets these gangs start. A gang
// first gets workloads without pods, which own its PodGroup. So no pod exists without its PodGroup.
func (r families) makePodGroups(ctx context.Context, at render.Ref, f *family, drafts map[groups.Unit]*gangDraft, version string, look *gangLook) error {
	if version == "" {
		return nil
	}
	for key, draft := range drafts {
		name, due := r.podGroupDue(at, f, key, draft)
		if !due {
			continue
		}
		err := r.api.MakePodGroup(ctx, version, &access.PodGroup{
			Name: name, Namespace: at.Namespace, Labels: r.render.PodGroupLabels(f.a, key.Role, key.Group, key.Slot), Owners: draft.owners, MinCount: draft.Pods,
		})
		if err != nil {
			return r.podGroupRefused(err)
		}
		r.letInNatively(at, key, name, look)
	}
	return nil
}

// podGroupDue returns the name of the gang's PodGroup, and whether to make it now.
func (r families) podGroupDue(at render.Ref, f *family, key groups.Unit, draft *gangDraft) (name string, due bool) {
	r.gangs.mu.Lock()
	defer r.gangs.mu.Unlock()
	e := r.gangs.of[at][key]
	if e == nil || len(draft.owners) < draft.Pods {
		return "", false
	}
	switch e.State {
	case gang.Waits:
		return render.PodGroupName(f.a, key.Role, key.Group, key.Slot, draft.Pods), e.native
	case gang.Starts:
		return e.podGroup, e.podGroup != "" && time.Since(e.made) >= podGroupAgain
	default:
		return "", false
	}
}

// letInNatively lets a gang start whose PodGroup was made.
func (r families) letInNatively(at render.Ref, key groups.Unit, name string, look *gangLook) {
	now := time.Now()
	r.gangs.mu.Lock()
	defer r.gangs.mu.Unlock()
	e := r.gangs.of[at][key]
	e.made = now
	if e.State == gang.Waits {
		e.Entry, e.gangPlace = e.LetIn(now), gangPlace{podGroup: name}
		r.metrics.gangStarts.Inc()
	}
	delete(look.held, key)
	look.places[key] = e.gangPlace
}

// podGroupRefused returns the error of a PodGroup that could not be made. If the agent may not make any, it starts gangs
// by itself for a time, unless its operator excludes that.
func (r families) podGroupRefused(err error) error {
	var refused *runtime.Rejection
	if r.cfg.GangsBy == GangsByScheduler || !errors.As(err, &refused) {
		return err
	}
	r.cfg.Log.Warn("cannot make a PodGroup, so the agent starts gangs by itself for now", "error", err)
	r.gangs.mu.Lock()
	defer r.gangs.mu.Unlock()
	r.gangs.podGroups, r.gangs.found = "", time.Now()
	for _, all := range r.gangs.of {
		for _, e := range all {
			e.native = false
		}
	}
	r.repairs.queue.AddAfter(gangsRef, roomDelay)
	return nil
}
