package kubernetes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// An instance of several hosts is one Deployment of one pod for each rank, and a headless Service,
// which rank 0 owns. Its ranks are ready, routed, replaced and removed together. When one of them
// ends, all of them restart:
//
//	epoch 1 --all ready--> pods joined --a container ended, or a joined pod is gone--> epoch 2
//
// If a container ends before every other rank has started, the ranks do not all restart, because
// they had not connected yet. Kubernetes restarts the container in its pod. So while one rank waits
// for a node or an image, the other ranks keep theirs.
//
// The epoch is part of each rank's template, so a restart replaces every pod, without a drain. It
// is also part of the pods' host names, because pods of the last epoch may still be stopping: a
// rank finds only the leader of its own epoch and template. The epochs and the marks of joined pods
// are stored in the cluster. So after an agent was killed, the next agent continues from there.
//
// docs/decisions/0012-a-deployment-for-each-rank.md says why an instance is not a StatefulSet.

// epochOf reads the epoch from the annotations of a pod or a template. It is 0 for an instance of one host.
func epochOf(annotations map[string]string) int {
	epoch, _ := strconv.Atoi(annotations[render.AnnotationUnitEpoch])
	return epoch
}

// runs says what the app's container has done since its pod started.
type runs struct {
	// ran means that the container started at least once. ended means that it ended at least once.
	ran, ended bool
	// began is when the container started, or zero if it has ended since. finished is its last end,
	// or zero if there is none.
	began, finished time.Time
}

func runsOf(p *corev1.Pod) (out runs) {
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		if c.Name != render.ContainerName {
			continue
		}
		out.ended = c.RestartCount > 0 || c.State.Terminated != nil
		out.ran = out.ended || c.State.Running != nil
		if last := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated); last != nil {
			out.finished = last.FinishedAt.Time
		}
		if !out.ended && c.State.Running != nil {
			out.began = c.State.Running.StartedAt.Time
		}
	}
	return out
}

// joinRanks gives all ranks of an instance of several hosts the state of the instance. For example,
// all are Ready only if every rank is. It also sets which ranks have ended.
func (f *family) joinRanks(all []*unit, seen []groups.Instance) {
	byKey := make(map[string]*groups.Instance, len(seen))
	for n := range seen {
		byKey[seen[n].Key] = &seen[n]
	}
	for at, ranks := range f.ranksOf(all) {
		whole := groups.Instance{Ready: len(ranks) == f.hostsOf(at.Role), Unrouted: true}
		for _, u := range ranks {
			in := byKey[u.ref.Name]
			whole.Ready = whole.Ready && in.Ready
			whole.Old = whole.Old || in.Old
			whole.Started = whole.Started || in.Started
			whole.Leaving = whole.Leaving || in.Leaving
			whole.Unfit = whole.Unfit || in.Unfit
			whole.Unrouted = whole.Unrouted && in.Unrouted
		}
		ended := endedRanks(rankPodsOf(ranks))
		whole.Ready = whole.Ready && !slices.Contains(ended, true)
		for n, u := range ranks {
			in := byKey[u.ref.Name]
			in.Ready, in.Old, in.Started, in.Leaving = whole.Ready, whole.Old, whole.Started, whole.Leaving
			in.Unfit, in.Unrouted, in.Ended, in.Joined = whole.Unfit, whole.Unrouted, ended[n], u.rank.joined != ""
		}
	}
}

// hostsOf returns the number of ranks of an instance of the role, or 1 if the assignment does not
// have the role.
func (f *family) hostsOf(role string) int {
	if n := f.index(role); n >= 0 {
		return f.roles[n].Hosts
	}
	return 1
}

// rankPod has the facts about a rank's workload and pod from which endedRanks decides.
type rankPod struct {
	// template and epoch are the workload's.
	template string
	epoch    int
	// there means that the workload has a pod of its template and epoch. uid is the UID of that
	// pod.
	there bool
	uid   types.UID
	// joined names the pods that were ready together with this pod. It is empty if they were never
	// all ready.
	joined string
	runs
}

// rankPodOf reads the workload of a rank and its pods. pods may contain pods that do not count as a
// replica.
func rankPodOf(w *appsv1.Deployment, pods []*corev1.Pod) rankPod {
	of := w.Spec.Template.Annotations
	out := rankPod{template: of[render.AnnotationTemplateHash], epoch: epochOf(of)}
	for _, p := range pods {
		if !observe.Holds(p) || p.Annotations[render.AnnotationTemplateHash] != out.template || epochOf(p.Annotations) != out.epoch {
			continue
		}
		if !out.there || p.UID < out.uid {
			out.there, out.uid, out.joined, out.runs = true, p.UID, p.Annotations[render.AnnotationJoined], runsOf(p)
		}
	}
	return out
}

// ranksOf returns the workloads of each instance of several hosts, in the order of the ranks, without empty ones.
func (f *family) ranksOf(all []*unit) map[groups.Unit][]*unit {
	out := map[groups.Unit][]*unit{}
	for _, u := range all {
		if f.hostsOf(u.Role) > 1 && !u.empty {
			out[u.Unit()] = append(out[u.Unit()], u)
		}
	}
	for _, ranks := range out {
		slices.SortFunc(ranks, func(a, b *unit) int { return cmp.Compare(a.Rank, b.Rank) })
	}
	return out
}

func rankPodsOf(ranks []*unit) (out []rankPod) {
	for _, u := range ranks {
		out = append(out, u.rank)
	}
	return out
}

// setOf returns a name for the pods of all ranks, which are in the order of the ranks. Other pods,
// or another order, have another name.
func setOf(ranks []rankPod) string {
	h := sha256.New()
	for _, r := range ranks {
		_, _ = fmt.Fprintln(h, r.uid)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// areAlike reports whether all ranks have the same template and epoch.
func areAlike(ranks []rankPod) bool {
	return !slices.ContainsFunc(ranks, func(r rankPod) bool { return r.template != ranks[0].template || r.epoch != ranks[0].epoch })
}

// endedRanks returns which ranks of an instance have ended, so that all must restart. A rank has
// also ended if its pod is not the pod that had joined the other ranks, because the other ranks
// have lost that pod. While templates or epochs of the ranks differ, a change is under way, and no
// rank counts as ended. The ranks are in their order.
func endedRanks(ranks []rankPod) []bool {
	out := make([]bool, len(ranks))
	if !areAlike(ranks) {
		return out
	}
	set := setOf(ranks)
	lost := slices.ContainsFunc(ranks, func(r rankPod) bool { return r.joined != "" && r.joined != set })
	for n, r := range ranks {
		out[n] = r.ended && !endedAlone(ranks, r) || lost && r.joined == ""
	}
	return out
}

// endedAlone reports whether another rank had not started yet when the rank last ended.
func endedAlone(ranks []rankPod, r rankPod) bool {
	return slices.ContainsFunc(ranks, func(o rankPod) bool {
		return !o.ran || !r.finished.IsZero() && o.began.After(r.finished)
	})
}

// restartsOf returns the epochs of the instances whose ranks restart now. An instance that ends
// again soon waits longer each time.
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
		r.metrics.restarts.Inc()
		out[one.Unit] = one.Epoch
		r.cfg.Log.Info("a rank has ended; all ranks of its instance restart", "deployment", f.a.Deployment.GetId(),
			"role", one.Role, "group", one.Group, "slot", one.Slot, "epoch", one.Epoch)
	}
	return out
}

// restartKey names an instance in the history of restarts.
func restartKey(namespace, family string, u groups.Unit) render.Ref {
	return render.NewRef(render.KindRoles, namespace, render.UnitKey(family, u.Role, u.Group, u.Slot))
}

// markJoined marks the pods of each instance whose ranks are all ready. The mark names all these
// pods.
func (r families) markJoined(ctx context.Context, f *family, all []*unit, seen []groups.Instance) error {
	ready := map[groups.Unit]bool{}
	for n := range seen {
		ready[seen[n].Unit()] = seen[n].Ready
	}
	var errs []error
	for at, ranks := range f.ranksOf(all) {
		pods := rankPodsOf(ranks)
		if !ready[at] || !areAlike(pods) {
			continue
		}
		set := setOf(pods)
		for n, u := range ranks {
			for _, p := range u.pods {
				if p.UID == pods[n].uid && observe.IsReady(p) && p.Annotations[render.AnnotationJoined] != set {
					if err := r.api.Annotate(ctx, p, map[string]any{render.AnnotationJoined: set}); err != nil {
						errs = append(errs, err)
					}
				}
			}
		}
	}
	return worstOf(errs)
}

// wholeUnits returns the instances whose ranks are all ready, none of them ended.
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
	for at, ranks := range f.ranksOf(units) {
		out[at] = out[at] && !slices.Contains(endedRanks(rankPodsOf(ranks)), true)
	}
	return out
}
