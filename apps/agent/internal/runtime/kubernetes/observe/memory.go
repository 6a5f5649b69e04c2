package observe

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

const (
	templateHash = render.AnnotationTemplateHash
	roleLabel    = render.LabelComponent
	defaultRole  = "main"
	// maxLeftBehind is how many ended pods of a workload are reported. Controllers keep all evicted
	// pods, and the agent removes most of them some time later.
	maxLeftBehind = 5
)

// Memory holds facts about one workload that its pods do not contain. It is not safe for concurrent
// use. The zero value is ready to use.
type Memory struct {
	pods map[types.UID]*past
	// last is the result of the last call of Instances. The fields before it are the inputs of that
	// call, except the pods.
	workload     *appsv1.Deployment
	templateHash string
	secrets      *redact.Values
	waits        string
	edits        uint64
	last         []runtime.Instance
	// moving means that the result may change with time, without a change of the input.
	moving bool
}

// past has the facts that Memory holds about one pod.
type past struct {
	group int
	// settled means that the group is final.
	settled bool
	// served is the number of the last run that was ready, counted from 1, or 0 if none was ready.
	served int
	// readyAt is when the run with the number served became ready. It is zero if that run is no longer ready.
	readyAt time.Time
	// forgiven is how many runs streak leaves out: the runs before the last one that was ready for
	// runtime.StableAfter.
	forgiven int

	// instance is the result of the last call. The fields from pod to secrets are its inputs. If
	// they are equal again, the same instance is returned.
	pod        *corev1.Pod
	node       *corev1.Node
	nodesKnown bool
	edit       uint64
	notes      []note
	replaced   bool
	secrets    *redact.Values
	// timed means that the instance changes with time.
	timed    bool
	instance runtime.Instance
}

// Input has the objects of one workload at one moment. Pods are all pods with its label, in any
// order and state. Instances does not change them.
type Input struct {
	Now time.Time
	// TemplateHash is the template hash of the newest assignment.
	TemplateHash string
	Pods         []*corev1.Pod
	// Workload is nil if the workload does not exist.
	Workload *appsv1.Deployment
	Nodes    Nodes
	Journal  *Journal
	// Secrets has the values to blank in the output of programs. While they are not known, no
	// output is reported.
	Secrets *redact.Values
	// Waits says why the workload has no pod yet. If it is empty, the workload says so itself.
	Waits string
}

// Instances returns an instance for each pod, and for each replica whose pod the API server refuses
// to create. The instances are sorted by group, and then by creation. Ended pods that still exist
// are TERMINATED. Only the newest maxLeftBehind of them are returned.
func (m *Memory) Instances(in Input) []runtime.Instance {
	edits := in.Journal.count()
	if m.isUnchanged(&in, edits) {
		return m.last
	}
	m.workload, m.templateHash, m.secrets, m.waits, m.edits, m.moving = in.Workload, in.TemplateHash, in.Secrets, in.Waits, edits, false
	pods := slices.Clone(in.Pods)
	slices.SortFunc(pods, compareAge)
	now := make(map[types.UID]*past, len(pods))
	for _, p := range pods {
		was := m.pods[p.UID]
		if was == nil {
			was = &past{group: -1}
			was.recallPod(p)
		}
		was.rememberPod(p)
		now[p.UID] = was
	}
	m.pods = now
	m.assignGroups(in.Now, pods)

	out := make([]runtime.Instance, 0, len(pods))
	leftBehind, live := 0, 0
	for _, p := range slices.Backward(pods) {
		i := m.instanceOf(&in, p)
		if i.Status == terminated {
			if leftBehind++; leftBehind > maxLeftBehind {
				continue
			}
		}
		if holdsGPUs(p) {
			live++
		}
		out = append(out, i)
	}
	slices.Reverse(out)
	explainSuccessors(out)
	out = append(out, m.refusedInstances(in.Workload, live)...)
	out = append(out, waitingUnit(in.Workload, in.Waits, live)...)
	slices.SortStableFunc(out, func(a, b runtime.Instance) int { return cmp.Compare(a.Group, b.Group) })
	m.last = slices.Clip(out)
	return m.last
}

// Settled returns the last result of Instances. ok is false if the result may have changed without
// a change of a pod, its node or its events.
func (m *Memory) Settled(workload *appsv1.Deployment, templateHash string, secrets *redact.Values) ([]runtime.Instance, bool) {
	return m.last, m.pods != nil && !m.moving && workload == m.workload && templateHash == m.templateHash && secrets == m.secrets
}

// isUnchanged reports whether the last result is still valid. Informers replace objects and never
// change them, so an equal pointer means an equal state.
func (m *Memory) isUnchanged(in *Input, edits uint64) bool {
	if m.moving || len(in.Pods) != len(m.pods) || in.Workload != m.workload || in.TemplateHash != m.templateHash || in.Secrets != m.secrets || in.Waits != m.waits {
		return false
	}
	for _, p := range in.Pods {
		was := m.pods[p.UID]
		if was == nil || was.pod != p || was.nodesKnown != (in.Nodes != nil) || was.node != in.nodeOf(p) {
			return false
		}
		if edits != m.edits && in.Journal.lastEdit(p.UID) != was.edit {
			return false
		}
	}
	m.edits = edits
	return true
}

func (in *Input) nodeOf(p *corev1.Pod) *corev1.Node {
	if in.Nodes == nil || p.Spec.NodeName == "" {
		return nil
	}
	return in.Nodes(p.Spec.NodeName)
}

// explainSuccessors adds a message to each new instance without one. The message says which ended instance it
// replaces, and why that instance ended. So people see why a replica is missing.
func explainSuccessors(all []runtime.Instance) {
	for n := range all {
		i := &all[n]
		if i.Reason != "" || i.Status != pending && i.Status != creating {
			continue
		}
		for _, gone := range slices.Backward(all[:n]) {
			if gone.Group != i.Group || gone.Status != terminated && gone.Status != draining {
				continue
			}
			switch gone.Reason {
			case runtime.ReasonEvicted, runtime.ReasonPreempted, runtime.ReasonNodeLost, runtime.ReasonUnschedulable:
				i.Reason = gone.Reason
				i.Message = clipText("replaces "+gone.RuntimeName+withColon(gone.Message), maxMessage)
			}
			break
		}
	}
}

func compareAge(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// Holds reports whether the pod counts as a replica.
func Holds(p *corev1.Pod) bool { return holdsGPUs(p) }

// IsReady reports whether the pod has the Ready condition and counts as a replica.
func IsReady(p *corev1.Pod) bool { return holdsGPUs(p) && podReady(p) }

func holdsGPUs(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded
}

// settledAfter is the time after the creation of a pod by which all earlier pods are known.
const settledAfter = 10 * time.Second

// assignGroups gives each pod its group: the lowest number that no other pod holds. Once a pod was ready
// or is some seconds old, it keeps its group until it is gone. Before that, each call assigns
// groups again, by creation and name. So the order in which pods are reported does not matter, and
// a restarted agent assigns the same groups. A pod that is being deleted keeps its group, and its
// successor may get the same group.
func (m *Memory) assignGroups(now time.Time, pods []*corev1.Pod) {
	taken := map[int]bool{}
	for _, p := range pods {
		if was := m.pods[p.UID]; holdsGPUs(p) && was.settled {
			taken[was.group] = true
		}
	}
	next := 0
	lowest := func() int {
		for taken[next] {
			next++
		}
		taken[next] = true
		return next
	}
	for _, p := range pods {
		was := m.pods[p.UID]
		if holdsGPUs(p) && !was.settled {
			was.group = lowest()
			was.settled = was.served > 0 || now.Sub(p.CreationTimestamp.Time) > settledAfter
		}
	}
	for _, p := range pods {
		if was := m.pods[p.UID]; !holdsGPUs(p) {
			if was.group < 0 {
				was.group = lowest()
			}
			was.settled = true
		}
	}
}

// rememberPod records which run of the pod is ready, and since when.
func (w *past) rememberPod(p *corev1.Pod) {
	c, cs, run := conditionOf(p, corev1.PodReady), statusOf(p.Status.ContainerStatuses, main(p).Name), 1
	if cs != nil {
		run = endedRuns(cs) + 1
	}
	ready := podReady(p)
	if c != nil && !w.readyAt.IsZero() && (!ready || run != w.served) {
		end := c.LastTransitionTime.Time
		if ready && cs != nil && lastEnd(cs) != nil {
			// Between two calls, that run ended and the next run became ready.
			end = lastEnd(cs).FinishedAt.Time
		}
		if end.Sub(w.readyAt) >= runtime.StableAfter {
			w.forgiven = w.served - 1
		}
		w.readyAt = time.Time{}
	}
	if ready {
		w.served = run
		if w.readyAt.IsZero() {
			w.readyAt = c.LastTransitionTime.Time
		}
	}
}

// recallSlack is a tolerance. A node sets a pod's Ready condition to False when it accepts the pod.
// If the condition changed later than that, the pod was ready in between.
const recallSlack = 2 * time.Second

// recallPod decides whether a pod that is new to Memory was ready before. It is not known how long a
// run was ready, so recall uses how long the run lasted.
func (w *past) recallPod(p *corev1.Pod) {
	c, cs := conditionOf(p, corev1.PodReady), statusOf(p.Status.ContainerStatuses, main(p).Name)
	if c == nil || cs == nil {
		return
	}
	ready := podReady(p)
	if !ready && (p.Status.StartTime == nil || c.LastTransitionTime.Sub(p.Status.StartTime.Time) <= recallSlack) {
		return
	}
	if t := lastEnd(cs); t != nil && t.FinishedAt.Sub(t.StartedAt.Time) >= runtime.StableAfter {
		w.forgiven = endedRuns(cs) - 1
	}
	if ready {
		return
	}
	w.served = endedRuns(cs)
	if r := cs.State.Running; r != nil && c.LastTransitionTime.Sub(r.StartedAt.Time) > time.Second {
		w.served++
	}
}

func podReady(p *corev1.Pod) bool {
	c := conditionOf(p, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// instanceOf returns the instance of one pod. If nothing changed, it is the same instance as before.
func (m *Memory) instanceOf(in *Input, p *corev1.Pod) runtime.Instance {
	was := m.pods[p.UID]
	template := p.Annotations[templateHash]
	replaced := in.TemplateHash != "" && template != in.TemplateHash
	node := in.nodeOf(p)
	notes, edit, changed := in.Journal.read(p.UID, was.edit)
	if changed {
		was.notes, was.edit = notes, edit
	}
	nodesKnown := in.Nodes != nil
	m.moving = m.moving || was.timed || !was.settled
	if was.pod == p && was.node == node && was.nodesKnown == nodesKnown && was.replaced == replaced && was.secrets == in.Secrets && !changed && !was.timed {
		was.instance.Group, _ = groupAndSlot(p.Labels, was.group)
		return was.instance
	}
	s := subject{
		pod: p, now: in.Now, notes: was.notes, past: was,
		nodesKnown: nodesKnown, node: node, replaced: replaced, secrets: in.Secrets,
	}
	was.pod, was.node, was.nodesKnown, was.replaced, was.secrets = p, node, nodesKnown, replaced, in.Secrets
	was.timed = nodesKnown && node == nil && p.Spec.NodeName != ""
	m.moving = m.moving || was.timed
	was.instance = s.describeInstance(template)
	return was.instance
}

func (s *subject) describeInstance(template string) runtime.Instance {
	v, p, c := s.verdictOf(), s.pod, main(s.pod)
	group, slot := groupAndSlot(p.Labels, s.past.group)
	i := runtime.Instance{
		ID: render.InstanceID(p.UID), Role: roleOf(p), Group: group, Slot: slot, TemplateHash: template,
		Status: v.status, Reason: v.reason, Message: v.message, Doomed: v.doomed,
		RuntimeName: p.Namespace + "/" + p.Name,
	}
	if p.Spec.NodeName != "" && v.status != terminated {
		i.GPUs = podDevices(p, s.node)
	}
	for j := range p.Status.ContainerStatuses {
		if cs := &p.Status.ContainerStatuses[j]; cs.Name != render.HealthContainerName {
			i.Restarts += int(cs.RestartCount)
		}
	}
	if cs := statusOf(p.Status.ContainerStatuses, c.Name); cs != nil {
		if r := cs.State.Running; r != nil {
			i.StartedAt = reportedTime(r.StartedAt.Time)
		} else if t := lastEnd(cs); t != nil {
			i.StartedAt = reportedTime(t.StartedAt.Time)
		}
	}
	if v.status == serving {
		// The API rounds times down to whole seconds.
		i.ReadyAt = reportedTime(conditionOf(p, corev1.PodReady).LastTransitionTime.Time)
		if i.ReadyAt.Before(i.StartedAt) {
			i.ReadyAt = i.StartedAt
		}
	}
	up := v.status == running || v.status == serving || v.status == draining
	if up {
		i.Address, i.BootstrapPort = AddressOf(p), bootstrapPort(p)
	}
	return i
}

// bootstrapPort returns the number of the pod's port named runtime.BootstrapPort, or 0 if there is none.
func bootstrapPort(p *corev1.Pod) int {
	for _, port := range main(p).Ports {
		if port.Name == runtime.BootstrapPort {
			return int(port.ContainerPort)
		}
	}
	return 0
}

// AddressOf returns the host:port of the first port of a pod, or "" while there is none.
func AddressOf(p *corev1.Pod) string {
	c := main(p)
	if p.Status.PodIP == "" || len(c.Ports) == 0 {
		return ""
	}
	return net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(c.Ports[0].ContainerPort)))
}

// groupAndSlot returns the group and the slot of an instance. If the deployment has several roles, they
// come from the labels. Otherwise, the group is byOrder.
func groupAndSlot(labels map[string]string, byOrder int) (group, slot int) {
	group, err := strconv.Atoi(labels[render.LabelGroup])
	if labels[render.LabelUnitOf] == "" || err != nil {
		return byOrder, 0
	}
	slot, _ = strconv.Atoi(labels[render.LabelSlot])
	return group, slot
}

// waitingUnit returns the instance of a workload that has no pod yet. The pod starts after other
// roles, or together with other pods for which there is no room. waits says why, or is empty.
func waitingUnit(w *appsv1.Deployment, waits string, live int) []runtime.Instance {
	if w == nil || w.DeletionTimestamp != nil || live > 0 || w.Annotations[render.AnnotationWaits] == "" {
		return nil
	}
	group, slot := groupAndSlot(w.Labels, 0)
	return []runtime.Instance{{
		// This id cannot be the UID of a pod.
		ID: render.InstanceID(w.UID + "-0"), Role: w.Labels[roleLabel], Group: group, Slot: slot,
		TemplateHash: w.Spec.Template.Annotations[templateHash],
		Status:       pending, Reason: cmp.Or(w.Annotations[render.AnnotationWaitsReason], runtime.ReasonWaitsForRole),
		Message:     cmp.Or(waits, w.Annotations[render.AnnotationWaits]),
		RuntimeName: w.Namespace + "/" + w.Name,
	}}
}

// reportedTime converts a time for reports. Kubernetes returns 1970 for a container that never ran.
// This becomes the zero time.
func reportedTime(t time.Time) time.Time {
	if t.Unix() <= 0 {
		return time.Time{}
	}
	return t.UTC()
}

func roleOf(p *corev1.Pod) string {
	if r := p.Labels[roleLabel]; r != "" {
		return r
	}
	return defaultRole
}

// refusedInstances returns instances for replicas whose pods the API server refuses to create, because of a
// quota, a policy or a webhook. Without these instances, people could not see why a deployment
// waits.
func (m *Memory) refusedInstances(w *appsv1.Deployment, live int) []runtime.Instance {
	if w == nil || w.DeletionTimestamp != nil || w.Spec.Replicas == nil {
		return nil
	}
	at := slices.IndexFunc(w.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue
	})
	if at < 0 || w.Status.ObservedGeneration < w.Generation {
		return nil
	}
	v := refusalVerdict(w.Status.Conditions[at].Message)
	var out []runtime.Instance
	taken := map[int]bool{}
	for _, p := range m.pods {
		if p.pod != nil && holdsGPUs(p.pod) {
			taken[p.group] = true
		}
	}
	group := 0
	for range int(*w.Spec.Replicas) - live {
		for taken[group] {
			group++
		}
		role := w.Spec.Template.Labels[roleLabel]
		if role == "" {
			role = defaultRole
		}
		g, slot := groupAndSlot(w.Labels, group)
		out = append(out, runtime.Instance{
			// This id cannot be the UID of a pod.
			ID: render.InstanceID(w.UID + "-" + types.UID(strconv.Itoa(group))), Role: role, Group: g, Slot: slot,
			TemplateHash: w.Spec.Template.Annotations[templateHash],
			Status:       v.status, Reason: v.reason, Message: v.message, Doomed: v.doomed,
			RuntimeName: w.Namespace + "/" + w.Name,
		})
		group++
	}
	return out
}

// LacksQuota reports whether the API server refuses to create pods of the workload because a quota
// has no room for them.
func LacksQuota(w *appsv1.Deployment) bool {
	return w.Status.ObservedGeneration >= w.Generation && slices.ContainsFunc(w.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue && refusalVerdict(c.Message).reason == runtime.ReasonQuotaExceeded
	})
}

// refusalVerdict returns the verdict for a pod that the API server refuses to create.
func refusalVerdict(message string) verdict {
	// In `pods "chat-v1-x" is forbidden: exceeded quota: ...`, the name differs with each attempt.
	text := message
	if _, rest, ok := strings.Cut(message, " is forbidden: "); ok {
		text = rest
	}
	text = clipText(text, tailBytes)
	v := verdict{status: failed, reason: runtime.ReasonUnavailable, message: "cannot create a pod: " + text}
	switch {
	case strings.Contains(message, "exceeded quota"):
		v.status, v.reason = pending, runtime.ReasonQuotaExceeded
	case strings.Contains(message, "violates PodSecurity"):
		v.reason, v.doomed = runtime.ReasonInvalidSpec, true
		v.message += "; allow it in kubernetes.security, with a reason, or lower the namespace's level"
	case strings.Contains(message, "failed calling webhook"):
	case strings.Contains(message, "denied the request"):
		v.reason, v.doomed = runtime.ReasonForbidden, true
	case strings.Contains(message, " is invalid: "):
		v.reason, v.doomed = runtime.ReasonInvalidSpec, true
	case strings.Contains(message, "forbidden"):
		v.reason = runtime.ReasonForbidden
	}
	return v
}
