package observe

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	pending    = windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING
	creating   = windlassv1.InstanceStatus_INSTANCE_STATUS_CREATING
	running    = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
	serving    = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	draining   = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	failed     = windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED
	terminated = windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED
)

// verdict is the status of a pod, with its reason.
type verdict struct {
	status  windlassv1.InstanceStatus
	reason  string
	message string
	doomed  bool
}

// subject has everything on which the verdict on one pod depends.
type subject struct {
	pod   *corev1.Pod
	now   time.Time
	notes []note
	past  *past

	nodesKnown bool
	node       *corev1.Node

	// replaced means that the pod has an older template than the newest one.
	replaced bool
	secrets  *redact.Values
}

func (s *subject) verdictOf() verdict {
	v := s.judgePod()
	v.message = clipText(strings.ToValidUTF8(v.message, ""), maxMessage)
	return v
}

func (s *subject) judgePod() verdict {
	if s.pod.DeletionTimestamp != nil {
		return s.judgeLeaving()
	}
	if !holdsGPUs(s.pod) {
		return s.leftBehind()
	}
	if s.pod.Spec.NodeName == "" {
		return s.judgeUnscheduled()
	}
	v := s.judgeContainers()
	if render.Drains(s.pod) && (v.status == serving || v.status == running) {
		v = verdict{status: draining, reason: runtime.ReasonStopped, message: "will be stopped after gateways have released it"}
	}
	if why := s.nodeLost(); why != "" {
		if v.status == serving {
			v.status = running
		}
		v.reason, v.message = runtime.ReasonNodeLost, why
	}
	return v
}

// judgeLeaving judges a pod that is being deleted.
func (s *subject) judgeLeaving() verdict {
	v := verdict{status: draining, reason: runtime.ReasonStopped}
	if s.replaced {
		v.reason, v.message = runtime.ReasonReplaced, "makes room for a newer template"
	}
	if reason, message := s.disruptionOf(); reason != "" {
		v.reason, v.message = reason, message
	}
	if why := s.nodeLost(); why != "" {
		v.reason = runtime.ReasonNodeLost
		v.message = why + "; it is unknown whether it ended"
	}
	return v
}

// leftBehind judges a pod that has ended and still exists. Its controller has created another pod.
func (s *subject) leftBehind() verdict {
	v := verdict{status: terminated}
	if v.reason, v.message = s.disruptionOf(); v.reason != "" {
		return v
	}
	st := &s.pod.Status
	switch reason := st.Reason; {
	case strings.HasPrefix(reason, "OutOf"), reason == "UnexpectedAdmissionError", reason == "NodeAffinity",
		reason == "NodePorts", reason == "TopologyAffinityError", reason == "SMTAlignmentError", reason == "Taint":
		v.reason = runtime.ReasonUnschedulable
		v.message = fmt.Sprintf("node %s refused it (%s)%s", s.pod.Spec.NodeName, reason, withColon(st.Message))
		return v
	case reason != "":
		v.reason, v.message = runtime.ReasonExited, reason+withColon(st.Message)
		return v
	}
	v.reason, v.message = runtime.ReasonExited, "it ended"
	if cs := statusOf(st.ContainerStatuses, main(s.pod).Name); cs != nil {
		if t := lastEnd(cs); t != nil {
			e := s.judgeEnding(main(s.pod), t, s.past.served > 0)
			v.reason, v.message = e.reason, e.message
		}
	}
	return v
}

// disruptionOf returns why the pod was ended from outside, or "" if it was not.
func (s *subject) disruptionOf() (reason, message string) {
	st := &s.pod.Status
	switch st.Reason {
	case "Evicted", "Terminated", "NodeShutdown", "Shutdown":
		return runtime.ReasonEvicted, s.evictionText()
	case "Preempting":
		return runtime.ReasonPreempted, st.Message
	case "NodeLost":
		return runtime.ReasonNodeLost, st.Message
	}
	c := conditionOf(s.pod, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue {
		return "", ""
	}
	switch c.Reason {
	case corev1.PodReasonPreemptionByScheduler:
		return runtime.ReasonPreempted, c.Message
	case "DeletionByPodGC":
		return runtime.ReasonNodeLost, fmt.Sprintf("node %s is gone", s.pod.Spec.NodeName)
	case corev1.PodReasonTerminationByKubelet:
		if strings.Contains(c.Message, "preempted") {
			return runtime.ReasonPreempted, c.Message
		}
		return runtime.ReasonEvicted, s.evictionText()
	case "EvictionByEvictionAPI":
		return runtime.ReasonEvicted, fmt.Sprintf("node %s is being drained, or somebody evicted the pod", s.pod.Spec.NodeName)
	}
	return runtime.ReasonEvicted, c.Message
}

// evictionText returns the message of the pod's status, which names the resource. If there is none,
// it returns the message of an event or of the pod's condition.
func (s *subject) evictionText() string {
	if m := strings.TrimSpace(s.pod.Status.Message); m != "" {
		return m
	}
	if n := s.noteSince(topicEvicted, time.Time{}); n != nil {
		return n.text
	}
	if c := conditionOf(s.pod, corev1.DisruptionTarget); c != nil {
		return strings.TrimSpace(c.Message)
	}
	return ""
}

func (s *subject) judgeUnscheduled() verdict {
	v := verdict{status: pending}
	c := conditionOf(s.pod, corev1.PodScheduled)
	if c == nil || c.Status == corev1.ConditionTrue {
		return v
	}
	if c.Reason == corev1.PodReasonSchedulingGated {
		v.reason, v.message = runtime.ReasonUnschedulable, "held by a scheduling gate"
		for i, g := range s.pod.Spec.SchedulingGates {
			v.message += []string{" ", ", "}[min(i, 1)] + g.Name
		}
		return v
	}
	v.reason, v.message = runtime.ReasonUnschedulable, schedulerText(c.Message, requestsOf(s.pod))
	if on := s.pod.Status.NominatedNodeName; on != "" {
		v.message += fmt.Sprintf("; pods of lower priority are making room on %s", on)
	}
	return v
}

// nodeLost returns why the pod's node does not answer, or "" if it does.
func (s *subject) nodeLost() string {
	name := s.pod.Spec.NodeName
	switch {
	case name == "":
		return ""
	case s.pod.Status.Reason == "NodeLost":
		return fmt.Sprintf("node %s does not answer", name)
	case !s.nodesKnown:
		return ""
	case s.node != nil:
		return lostReason(s.node)
	}
	since := s.pod.CreationTimestamp.Time
	if c := conditionOf(s.pod, corev1.PodScheduled); c != nil && c.LastTransitionTime.After(since) {
		since = c.LastTransitionTime.Time
	}
	if s.now.Sub(since) < unknownNodeAfter {
		return ""
	}
	return fmt.Sprintf("node %s is gone", name)
}

// noteSince returns the note on a topic since the given time, or nil if there is none. Times of events
// and of runs are whole seconds.
func (s *subject) noteSince(t topic, since time.Time) *note {
	for i := range s.notes {
		if n := &s.notes[i]; n.topic == t && !n.at.Before(since.Truncate(time.Second)) {
			return n
		}
	}
	return nil
}

func conditionOf(pod *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == t {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// defaultContainer is the annotation with the name of the pod's main container, for pods to which
// other containers were added.
const defaultContainer = "kubectl.kubernetes.io/default-container"

var nothing corev1.Container

// main returns the container that serves the app.
func main(pod *corev1.Pod) *corev1.Container {
	if len(pod.Spec.Containers) == 0 {
		return &nothing
	}
	for _, name := range []string{render.ContainerName, pod.Annotations[defaultContainer]} {
		for i := range pod.Spec.Containers {
			if pod.Spec.Containers[i].Name == name {
				return &pod.Spec.Containers[i]
			}
		}
	}
	return &pod.Spec.Containers[0]
}

func statusOf(all []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}
