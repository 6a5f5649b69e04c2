package nodeagent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
)

// recorders writes events in the name of each node's kubelet. Each node has a queue, so that a busy node
// delays and drops only its own events, as in a cluster. Only the loop uses it, except stopAll.
type recorders struct {
	client kubernetes.Interface
	byNode map[string]*recorder
}

type recorder struct {
	record.EventRecorder
	broadcaster record.EventBroadcaster
}

func newRecorders(client kubernetes.Interface) *recorders {
	return &recorders{client: client, byNode: map[string]*recorder{}}
}

// stopAll stops all recorders. It is called when the loop has ended.
func (r *recorders) stopAll() {
	for _, one := range r.byNode {
		one.broadcaster.Shutdown()
	}
}

func (r *recorders) recorderOf(node string) *recorder {
	one := r.byNode[node]
	if one == nil {
		b := record.NewBroadcaster(record.WithContext(context.Background()))
		b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.client.CoreV1().Events("")})
		one = &recorder{broadcaster: b, EventRecorder: b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: node})}
		r.byNode[node] = one
	}
	return one
}

func (r *recorders) recordEvent(pod *corev1.Pod, e lifecycle.Record) {
	r.recorderOf(pod.Spec.NodeName).Event(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, FieldPath: fieldPath(pod, e.Container),
	}, e.Type, e.Reason, e.Message)
}

func fieldPath(pod *corev1.Pod, container string) string {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == container {
			return "spec.initContainers{" + container + "}"
		}
	}
	if container == "" {
		return ""
	}
	return "spec.containers{" + container + "}"
}
