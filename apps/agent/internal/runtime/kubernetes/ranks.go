package kubernetes

import (
	"context"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// An instance of several hosts is one Deployment of one pod for each rank, and a headless Service, which rank 0 owns.
// Its ranks are ready, routed, replaced and removed together, and when one of them ends, all start anew:
//
//	epoch 1 --all ready--> pods joined --a container ended, or a joined pod is gone--> epoch 2
//
// The epoch is part of each rank's template, so that a restart replaces every pod, without a drain. It is also part of
// the pods' host names, so that a rank only finds the leader of its own epoch and template: pods of the last epoch may
// still be stopping. The epochs and the marks of joined pods are in the cluster, so that an agent that was killed goes
// on from there.

// epochOf reads the epoch from the annotations of a pod or a template. It is 0 for an instance of one host.
func epochOf(annotations map[string]string) int {
	epoch, _ := strconv.Atoi(annotations[render.AnnotationUnitEpoch])
	return epoch
}

// hasEnded reports whether the app's container ended since its pod started.
func hasEnded(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.Name == render.ContainerName {
			return c.RestartCount > 0 || c.State.Terminated != nil
		}
	}
	return false
}

// joinRanks makes what is observed of the ranks of each instance of several hosts the same where it concerns the
// instance as a whole, and finds the ranks that have ended.
func (f *family) joinRanks(all []*unit, seen []groups.Instance) {
	byKey := make(map[string]*unit, len(all))
	for _, u := range all {
		byKey[u.ref.Name] = u
	}
	ranks := map[groups.Unit][]*groups.Instance{}
	for n := range seen {
		if f.hostsOf(seen[n].Role) > 1 {
			ranks[seen[n].Unit()] = append(ranks[seen[n].Unit()], &seen[n])
		}
	}
	for at, of := range ranks {
		whole := groups.Instance{Ready: len(of) == f.hostsOf(at.Role), Unrouted: true}
		var pods []rankPod
		for _, in := range of {
			whole.Ready = whole.Ready && in.Ready
			whole.Old = whole.Old || in.Old
			whole.Started = whole.Started || in.Started
			whole.Leaving = whole.Leaving || in.Leaving
			whole.Unfit = whole.Unfit || in.Unfit
			whole.Unrouted = whole.Unrouted && in.Unrouted
			pods = append(pods, rankPodOf(byKey[in.Key]))
		}
		ended := endedRanks(pods, whole.Ready)
		for n, in := range of {
			in.Ready, in.Old, in.Started, in.Leaving = whole.Ready, whole.Old, whole.Started, whole.Leaving
			in.Unfit, in.Unrouted, in.Ended, in.Joined = whole.Unfit, whole.Unrouted, ended[n], pods[n].joined
		}
	}
}

// hostsOf returns the number of ranks of an instance of the role, 1 for a role that the assignment does not have.
func (f *family) hostsOf(role string) int {
	if n := f.index(role); n >= 0 {
		return f.roles[n].Hosts
	}
	return 1
}

// rankPod is what a rank's workload and its pod say about whether the rank has ended.
type rankPod struct {
	// template and epoch are those of the workload.
	template string
	epoch    int
	// there means that the workload has a pod of that template and epoch. ended means that the pod's container ended
	// at least once, and joined that all ranks were ready while the pod was there.
	there, ended, joined bool
}

func rankPodOf(u *unit) rankPod {
	out := rankPod{template: u.live.Spec.Template.Annotations[render.AnnotationTemplateHash], epoch: u.epoch}
	for _, p := range u.pods {
		if p.Annotations[render.AnnotationTemplateHash] == out.template && epochOf(p.Annotations) == out.epoch {
			out.there = true
			out.ended = out.ended || hasEnded(p)
			out.joined = out.joined || p.Annotations[render.AnnotationJoined] == render.True
		}
	}
	return out
}

// endedRanks returns which ranks of an instance have ended, so that all must start anew. A pod that is not the one that
// joined the others is new, and the others have lost the one before. Ranks whose templates or epochs differ are being
// changed, and none of them counts as ended.
func endedRanks(ranks []rankPod, ready bool) []bool {
	out := make([]bool, len(ranks))
	joined := false
	for _, r := range ranks {
		if r.template != ranks[0].template || r.epoch != ranks[0].epoch {
			return out
		}
		joined = joined || r.joined
	}
	for n, r := range ranks {
		out[n] = r.ended || joined && !r.joined && !ready
	}
	return out
}

// restartsOf returns the epochs of the instances whose ranks start anew now. An instance that ends again soon waits
// longer each time.
func (r families) restartsOf(at render.Ref, f *family, restarts []groups.Restart, all []*unit) map[groups.Unit]int {
	now := time.Now()
	out := map[groups.Unit]int{}
	for _, one := range restarts {
		begun := false
		for _, u := range all {
			begun = begun || u.Unit() == one.Unit && u.epoch >= one.Epoch
		}
		if begun {
			out[one.Unit] = one.Epoch // some ranks have the epoch already
			continue
		}
		key := restartKey(at.Namespace, at.Name, one.Unit)
		if wait := r.restarts.Wait(key, now); wait > 0 {
			r.repairs.queue.AddAfter(at, wait)
			continue
		}
		r.restarts.Done(key, now)
		out[one.Unit] = one.Epoch
		r.cfg.Log.Info("a rank has ended; all ranks of its instance start anew", "deployment", f.a.Deployment.GetId(),
			"role", one.Role, "group", one.Group, "slot", one.Slot, "epoch", one.Epoch)
	}
	return out
}

// restartKey names an instance in the history of restarts.
func restartKey(namespace, family string, u groups.Unit) render.Ref {
	return render.NewRef(render.KindRoles, namespace, render.UnitKey(family, u.Role, u.Group, u.Slot))
}

// markJoined marks the pods of instances of which all ranks are ready.
func (r families) markJoined(ctx context.Context, f *family, all []*unit, seen []groups.Instance) error {
	ready := map[groups.Unit]bool{}
	for n := range seen {
		if in := &seen[n]; in.Ready && f.hostsOf(in.Role) > 1 {
			ready[in.Unit()] = true
		}
	}
	var errs []error
	for _, u := range all {
		if !ready[u.Unit()] {
			continue
		}
		for _, p := range u.pods {
			if observe.IsReady(p) && p.Annotations[render.AnnotationJoined] == "" {
				if err := r.api.Annotate(ctx, p, map[string]any{render.AnnotationJoined: render.True}); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	return worst(errs)
}

// wholeUnits returns the instances of which all ranks are ready.
func (f *family) wholeUnits(units []*unit) map[groups.Unit]bool {
	ready := map[groups.Unit]int{}
	for _, u := range units {
		for _, p := range u.pods {
			if observe.IsReady(p) && epochOf(p.Annotations) == u.epoch {
				ready[u.Unit()]++
				break
			}
		}
	}
	out := map[groups.Unit]bool{}
	for at, n := range ready {
		out[at] = n >= f.hostsOf(at.Role)
	}
	return out
}
