package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
)

// writeTimeout limits one call of the API server.
const writeTimeout = 30 * time.Second

// syncPod writes a pod's state to the API if they differ. Each pod has at most one write in flight. The next
// write includes the changes that come meanwhile.
func (l *loop) syncPod(p *pod, now time.Time) {
	if p.writing || p.gone || p.removed || now.Before(p.writeAfter) {
		return
	}
	if l.dueWrite(p, now) == nil {
		p.writeAfter = time.Time{}
		return
	}
	// The time of this try is cleared. A past time would wake the pod again and again.
	p.writing, p.writeAfter = true, time.Time{}
	l.writes.addJob(func() func() {
		w := l.dueWrite(p, time.Now())
		if w == nil {
			p.writing = false
			return nil
		}
		return func() {
			ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
			defer cancel()
			written, err := w.send(ctx, l.client)
			l.post(func(now time.Time) {
				l.writes.jobDone()
				l.handleWritten(p, w, written, err, now)
			})
		}
	})
}

// write is a change of a pod to send to the API.
type write struct {
	base    *corev1.Pod
	status  *corev1.PodStatus // nil if it needs no change
	remove  bool              // deletion of a pod that has ended
	preempt bool              // deletion with grace
}

// dueWrite returns the write that the pod needs now, or nil.
func (l *loop) dueWrite(p *pod, now time.Time) *write {
	if p.gone || p.lost || p.removed {
		return nil
	}
	w := &write{base: p.object, remove: p.machine.Removable(), preempt: p.preempt && p.object.DeletionTimestamp == nil}
	// The status of a pod without an address, or that had ended before, is left alone.
	if p.addr.IsValid() && !p.foreign {
		status := p.machine.Status(now, &p.object.Status)
		if !equality.Semantic.DeepEqual(status, p.object.Status) {
			w.status = &status
		}
	}
	if w.status == nil && !w.remove && !w.preempt {
		return nil
	}
	return w
}

func (w *write) send(ctx context.Context, client kubernetes.Interface) (*corev1.Pod, error) {
	pods := client.CoreV1().Pods(w.base.Namespace)
	object := w.base
	if w.status != nil {
		patch, err := statusPatch(w.base, w.status)
		if err != nil {
			return nil, err
		}
		if object, err = pods.Patch(ctx, w.base.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return nil, fmt.Errorf("write status of pod %s: %w", nameOf(w.base), err)
		}
	}
	if !w.remove && !w.preempt {
		return object, nil
	}
	// Another pod may have the same name now.
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(w.base.UID))}
	if w.remove {
		options.GracePeriodSeconds = new(int64)
	}
	if err := pods.Delete(ctx, w.base.Name, options); err != nil && !isGone(err) {
		return object, fmt.Errorf("delete pod %s: %w", nameOf(w.base), err)
	}
	return object, nil
}

// statusPatch returns a patch with the changed fields, which applies only to the pod with this uid.
func statusPatch(base *corev1.Pod, status *corev1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(corev1.Pod{Status: base.Status})
	if err != nil {
		return nil, fmt.Errorf("status of pod %s: %w", nameOf(base), err)
	}
	after, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: base.UID}, Status: *status})
	if err != nil {
		return nil, fmt.Errorf("status of pod %s: %w", nameOf(base), err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("status of pod %s: %w", nameOf(base), err)
	}
	return patch, nil
}

// handleWritten handles the result of a write.
func (l *loop) handleWritten(p *pod, w *write, written *corev1.Pod, err error, now time.Time) {
	p.writing = false
	if written != nil && !p.gone && l.isNewer(written, p.object) {
		// The answer may show more than what was written, such as a deletion meanwhile. The watch's event for
		// that is ignored later, because it is not newer.
		if p.object = written; !p.lost {
			p.machine.Observe(now, written)
		}
	}
	switch {
	case err == nil:
		p.failures, p.writeAfter = 0, time.Time{}
		p.removed = p.removed || w.remove
		if w.preempt {
			p.preempt = false
		}
	case isGone(err):
		// The watch will report the deletion. If it does not, the next try asks again.
		p.writeAfter = now.Add(l.retry.Delay(p.failures, l.cfg.Random))
		p.failures++
	default:
		p.writeAfter = now.Add(l.retry.Delay(p.failures, l.cfg.Random))
		p.failures++
		l.log.Warn("a write to the API failed; trying again", "error", err, "failures", p.failures)
	}
	if !p.gone && !p.lost {
		l.advancePod(p, now)
	}
}

// isGone reports whether err means that the pod with this uid is gone.
func isGone(err error) bool {
	if apierrors.IsNotFound(err) {
		return true
	}
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && apierrors.IsConflict(err)
}

// isNewer reports whether a is a later state of the same pod than b.
func (l *loop) isNewer(a, b *corev1.Pod) bool {
	if a.UID != b.UID {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	if err != nil {
		// The API server guarantees that resource versions can be compared.
		l.log.Error("resource versions cannot be compared", "error", err, "pod", nameOf(a).String())
		return true
	}
	return order > 0
}
