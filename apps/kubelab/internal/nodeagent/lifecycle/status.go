package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Reasons and messages of conditions, as in the kubelet.
const (
	conditionPodCompleted    = "PodCompleted"
	conditionPodFailed       = "PodFailed"
	conditionNotReady        = "ContainersNotReady"
	conditionNotInitialized  = "ContainersNotInitialized"
	conditionGatesNotReady   = "ReadinessGatesNotReady"
	gateMissing              = "corresponding condition of pod readiness gate %q does not exist."
	gateFalse                = "the status of pod readiness gate %q is not \"True\", but %v"
	unreadyContainers        = "containers with unready status: %s"
	incompleteInitContainers = "containers with incomplete status: %s"
)

// Status returns the pod's status for the API. base is its present status in the API. Conditions of other
// owners in base stay, and unchanged conditions keep their times.
func (m *Machine) Status(now time.Time, base *corev1.PodStatus) corev1.PodStatus {
	s := *base.DeepCopy()
	s.ObservedGeneration = m.pod.Generation
	s.HostIP, s.HostIPs = m.hostIP, []corev1.HostIP{{IP: m.hostIP}}
	s.PodIP, s.PodIPs = m.podIP, []corev1.PodIP{{IP: m.podIP}}
	start := apiTime(m.startTime)
	s.StartTime = &start
	s.InitContainerStatuses, s.ContainerStatuses = nil, nil
	for _, c := range m.containers {
		status := c.apiStatus(m.pod)
		if c.role == regular {
			s.ContainerStatuses = append(s.ContainerStatuses, status)
		} else {
			s.InitContainerStatuses = append(s.InitContainerStatuses, status)
		}
	}
	s.Phase = m.podPhase()
	if m.evicted {
		s.Reason, s.Message = reasonEvicted, evictionMessage
	}
	set := func(c corev1.PodCondition) { setCondition(&s, c, m.pod.Generation, now) }
	if !slices.ContainsFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled }) {
		set(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	}
	set(corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: conditionStatus(m.terminal == "")})
	set(m.initializedCondition())
	ready := m.containersReady()
	set(ready)
	ready.Type = corev1.PodReady
	if ready.Status == corev1.ConditionTrue {
		if missing := missingGates(m.pod, s.Conditions); missing != "" {
			ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, conditionGatesNotReady, missing
		}
	}
	set(ready)
	if m.disruption != nil {
		set(*m.disruption)
	}
	return s
}

// podPhase returns the phase as the kubelet does. A pod is pending until each container has run once.
func (m *Machine) podPhase() corev1.PodPhase {
	if m.terminal != "" {
		return m.terminal
	}
	for _, c := range m.containers {
		switch {
		case c.role == regular && c.end == nil && c.phase != running:
			return corev1.PodPending
		case c.role != regular && !m.initialized && !c.initDone():
			return corev1.PodPending
		}
	}
	return corev1.PodRunning
}

func (m *Machine) initializedCondition() corev1.PodCondition {
	cond := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if m.terminal == corev1.PodSucceeded {
		cond.Reason = conditionPodCompleted
		return cond
	}
	var incomplete []string
	for _, c := range m.containers {
		if c.role != regular && !m.initialized && !c.initDone() {
			incomplete = append(incomplete, c.spec.Name)
		}
	}
	if len(incomplete) > 0 {
		cond.Status, cond.Reason, cond.Message = corev1.ConditionFalse, conditionNotInitialized, fmt.Sprintf(incompleteInitContainers, incomplete)
	}
	return cond
}

func (m *Machine) containersReady() corev1.PodCondition {
	cond := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	switch m.terminal {
	case corev1.PodSucceeded:
		cond.Reason = conditionPodCompleted
		return cond
	case corev1.PodFailed:
		cond.Reason = conditionPodFailed
		return cond
	default:
	}
	var unready []string
	for _, c := range m.containers {
		if c.role != setup && (c.phase != running || !c.ready) {
			unready = append(unready, c.spec.Name)
		}
	}
	if len(unready) > 0 {
		cond.Reason, cond.Message = conditionNotReady, fmt.Sprintf(unreadyContainers, unready)
		return cond
	}
	cond.Status = corev1.ConditionTrue
	return cond
}

func missingGates(pod *corev1.Pod, conditions []corev1.PodCondition) string {
	var missing []string
	for _, gate := range pod.Spec.ReadinessGates {
		at := slices.IndexFunc(conditions, func(c corev1.PodCondition) bool { return c.Type == gate.ConditionType })
		if at < 0 {
			missing = append(missing, fmt.Sprintf(gateMissing, gate.ConditionType))
		} else if status := conditions[at].Status; status != corev1.ConditionTrue {
			missing = append(missing, fmt.Sprintf(gateFalse, gate.ConditionType, status))
		}
	}
	return strings.Join(missing, ", ")
}

func setCondition(s *corev1.PodStatus, c corev1.PodCondition, generation int64, now time.Time) {
	c.ObservedGeneration = generation
	at := slices.IndexFunc(s.Conditions, func(have corev1.PodCondition) bool { return have.Type == c.Type })
	if c.LastTransitionTime.IsZero() {
		c.LastTransitionTime = apiTime(now)
	}
	if at < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if have := s.Conditions[at]; have.Status == c.Status {
		c.LastTransitionTime = have.LastTransitionTime
	}
	s.Conditions[at] = c
}

func conditionStatus(b bool) corev1.ConditionStatus {
	if b {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}
