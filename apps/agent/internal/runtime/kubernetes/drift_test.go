package kubernetes_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// placed is an applied deployment. Tests change its objects as a person with kubectl does.
type placed struct {
	*harness
	rt        *kubernetes.Runtime
	a         runtime.Assignment
	namespace string
	name      string
}

func place(t *testing.T, replicas int, change ...func(*windlassv1.DeploymentSpec)) *placed {
	t.Helper()
	t.Parallel()
	p := &placed{harness: newHarness(t), a: assignment("dep_chat", replicas, change...)}
	p.rt = p.open(t)
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
	p.name, p.namespace = render.WorkloadName(p.a), p.namespaceOf(t, p.a)
	return p
}

// change applies the next generation, with the changes. It changes a copy, because the runtime
// still reads the previous assignment.
func (p *placed) change(t *testing.T, changes ...func(*runtime.Assignment)) {
	t.Helper()
	p.a.Generation++
	p.a.Deployment = proto.CloneOf(p.a.Deployment)
	for _, c := range changes {
		c(&p.a)
	}
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
}

// namespaceOf returns the namespace of an assignment's objects.
func (h *harness) namespaceOf(t *testing.T, a runtime.Assignment) string {
	t.Helper()
	objects, err := render.Render(render.Config{Region: h.cfg.Region, NamespacePrefix: h.cfg.NamespacePrefix}, a)
	require.NoError(t, err)
	return *objects.Namespace.Name
}

// until waits for a condition of the cluster.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for ; !ok(); time.Sleep(20 * time.Millisecond) {
		require.False(t, time.Now().After(deadline), "waited in vain for %s", what)
	}
}

func (p *placed) workload(t *testing.T) *appsv1.Deployment {
	t.Helper()
	d, err := p.api.AppsV1().Deployments(p.namespace).Get(t.Context(), p.name, metav1.GetOptions{})
	require.NoError(t, err)
	return d
}

func (p *placed) patch(t *testing.T, patch string) {
	t.Helper()
	_, err := p.api.AppsV1().Deployments(p.namespace).Patch(t.Context(), p.name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	require.NoError(t, err)
}

// told waits for an event on an object with a message that contains says, and returns the message.
func (p *placed) told(t *testing.T, kind, reason, says string) string {
	t.Helper()
	var message string
	until(t, reason+" on the "+kind, func() bool {
		events, err := p.api.CoreV1().Events(p.namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == kind && e.Reason == reason && strings.Contains(e.Message, says) {
				message = e.Message
				return true
			}
		}
		return false
	})
	return message
}

// counted returns the value of a counter.
func (p *placed) counted(t *testing.T, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := p.registry.Gather()
	require.NoError(t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			if hasLabels(m, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func hasLabels(m *dto.Metric, labels map[string]string) bool {
	n := 0
	for _, l := range m.Label {
		if v, ok := labels[l.GetName()]; ok && v == l.GetValue() {
			n++
		}
	}
	return n == len(labels)
}

func TestDrift_EditsAreUndoneAndReported(t *testing.T) {
	p := place(t, 1)
	p.patch(t, `{"spec":{"minReadySeconds":7,"template":{"spec":{"containers":[{"name":"main","image":"registry.example/other:v9"}]}}}}`)
	until(t, "our image", func() bool { return p.workload(t).Spec.Template.Spec.Containers[0].Image == image })
	message := p.told(t, "Deployment", "Drift", "image")
	require.Contains(t, message, `want "`+image+`", found "registry.example/other:v9"`)
	require.EqualValues(t, 7, p.workload(t).Spec.MinReadySeconds, "a field that the agent does not set stays")
	require.EqualValues(t, 1, p.counted(t, "windlass_agent_kubernetes_drift_total", map[string]string{"kind": "Deployment"}))

	_, err := p.api.CoreV1().Services(p.namespace).Patch(t.Context(), p.name, types.MergePatchType, []byte(`{"spec":{"selector":{"windlass.run/workload":"another"}}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	require.NoError(t, err)
	require.Contains(t, p.told(t, "Service", "Drift", "spec.selector"), `found "another"`)

	// Owners of the deployment cannot look into the cluster. They get notices.
	noticed := map[string]string{}
	until(t, "notices", func() bool {
		o, err := p.rt.Observe(t.Context())
		require.NoError(t, err)
		for _, n := range o.Notices {
			require.Equal(t, agentv1.Notice_KIND_DRIFT, n.Kind)
			require.Equal(t, p.a.Deployment.Id, n.DeploymentID)
			require.Equal(t, 1, n.Times)
			noticed[n.Object] = n.Message
		}
		return len(noticed) == 2
	})
	require.Equal(t, message, noticed["Deployment "+p.namespace+"/"+p.name])
	require.Contains(t, noticed["Service "+p.namespace+"/"+p.name], `found "another"`)

	// The labels by which the agent recognizes its objects are put back, too.
	_, err = p.api.PolicyV1().PodDisruptionBudgets(p.namespace).Patch(t.Context(), p.name, types.MergePatchType, []byte(`{"metadata":{"labels":{"windlass.run/region":null,"app.kubernetes.io/managed-by":null}}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	require.NoError(t, err)
	until(t, "our labels", func() bool {
		b, err := p.api.PolicyV1().PodDisruptionBudgets(p.namespace).Get(t.Context(), p.name, metav1.GetOptions{})
		require.NoError(t, err)
		return b.Labels[render.LabelRegion] == p.cfg.Region && b.Labels[render.LabelManagedBy] == render.ManagedBy
	})
}

func TestDrift_RemovedObjectsAreMadeAgainAndReported(t *testing.T) {
	p := place(t, 1, func(s *windlassv1.DeploymentSpec) {
		s.ModelCache = &windlassv1.ModelCache{MountPath: "/models", Claim: &windlassv1.VolumeClaim{SizeGib: 1}}
	})
	before := p.workload(t).UID
	require.NoError(t, p.api.CoreV1().Services(p.namespace).Delete(t.Context(), p.name, metav1.DeleteOptions{}))
	p.told(t, "Service", "Drift", "somebody removed it")
	require.NoError(t, p.api.NetworkingV1().NetworkPolicies(p.namespace).Delete(t.Context(), p.name, metav1.DeleteOptions{}))
	p.told(t, "NetworkPolicy", "Drift", "somebody removed it")
	require.NoError(t, p.api.CoreV1().ServiceAccounts(p.namespace).Delete(t.Context(), p.name, metav1.DeleteOptions{}))
	p.told(t, "ServiceAccount", "Drift", "somebody removed it")

	// The workload itself is deleted, with each propagation policy.
	for _, how := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		require.NoError(t, p.api.AppsV1().Deployments(p.namespace).Delete(t.Context(), p.name, metav1.DeleteOptions{PropagationPolicy: &how}))
		var now types.UID
		until(t, "a new workload after "+string(how), func() bool {
			d, err := p.api.AppsV1().Deployments(p.namespace).Get(t.Context(), p.name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return false
			}
			require.NoError(t, err)
			now = d.UID
			return d.UID != before && d.Annotations["windlass.run/hash"] != "" && d.Status.ReadyReplicas == 1 && d.Status.Replicas == 1
		})
		before = now
		until(t, "all objects owned by the new workload", func() bool {
			whole := 0
			for _, o := range p.objects(t) {
				switch o.Kind {
				case "Pod", "ReplicaSet", "Deployment":
					continue
				}
				if len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != now || o.DeletionTimestamp != nil {
					return false
				}
				whole++
			}
			return whole >= 6
		})
	}
	require.NoError(t, p.rt.Remove(t.Context(), "dep_chat"))
	until(t, "the end of the deployment", func() bool { return !p.observes(t, "dep_chat") })
	require.Empty(t, p.leftovers(t))
	until(t, "the end of the namespace", func() bool {
		_, err := p.api.CoreV1().Namespaces().Get(t.Context(), p.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func (p *placed) observes(t *testing.T, id string) bool {
	t.Helper()
	o, err := p.rt.Observe(t.Context())
	require.NoError(t, err)
	for _, d := range o.Deployments {
		if d.DeploymentID == id {
			return true
		}
	}
	return false
}

func TestDrift_RemovedSecretIsPutBackForAPod(t *testing.T) {
	const value = "correct-horse-battery-staple"
	p := place(t, 1, func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"KEY": value} })
	until(t, "a ready pod", func() bool { return p.workload(t).Status.ReadyReplicas == 1 })
	secrets := p.secrets(t)
	require.Len(t, secrets, 2)
	for _, name := range secrets {
		require.NoError(t, p.api.CoreV1().Secrets(p.namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	pods, err := p.api.CoreV1().Pods(p.namespace).List(t.Context(), p.selector())
	require.NoError(t, err)
	require.NoError(t, p.rt.Restart(t.Context(), render.InstanceID(pods.Items[0].UID)))
	until(t, "another ready pod", func() bool {
		now, err := p.api.CoreV1().Pods(p.namespace).List(t.Context(), p.selector())
		require.NoError(t, err)
		return len(now.Items) == 1 && now.Items[0].UID != pods.Items[0].UID && p.workload(t).Status.ReadyReplicas == 1
	})
	require.Equal(t, secrets, p.secrets(t))
	require.NotContains(t, p.stored(t), value)
}

func (p *placed) secrets(t *testing.T) []string {
	t.Helper()
	all, err := p.api.CoreV1().Secrets(p.namespace).List(t.Context(), p.selector())
	require.NoError(t, err)
	var names []string
	for _, s := range all.Items {
		names = append(names, s.Name)
	}
	return names
}

func TestSecret_OfAnOldTemplateIsRemovedWithItsLastPod(t *testing.T) {
	p := place(t, 2, func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"COLOUR": "green"} })
	until(t, "ready pods", func() bool { return p.workload(t).Status.ReadyReplicas == 2 })
	before := p.secrets(t)
	p.replace(t, "template-2", func(a *runtime.Assignment) { a.Deployment.Spec.Env["COLOUR"] = "blue" })
	until(t, "only the new Secrets", func() bool {
		d := p.workload(t)
		now := p.secrets(t)
		if len(now) < 3 {
			require.Equal(t, d.Status.UpdatedReplicas, d.Status.Replicas, "no sooner")
		}
		return len(now) == 2 && d.Status.UpdatedReplicas == 2 && d.Status.ReadyReplicas == 2
	})
	require.NotEqual(t, before, p.secrets(t))
}

func TestDrift_PausedWorkloadIsLeftAloneAndReported(t *testing.T) {
	p := place(t, 1)
	p.patch(t, `{"metadata":{"annotations":{"windlass.run/paused":"true"}}}`)
	p.patch(t, `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"registry.example/debug:v1"}]}}}}`)
	var rej *runtime.Rejection
	until(t, "the rejection of the agent", func() bool {
		err := p.rt.Apply(t.Context(), p.a)
		if err == nil {
			return false // the runtime has not seen the edit yet
		}
		require.ErrorAs(t, err, &rej)
		return true
	})
	require.Equal(t, runtime.ReasonPaused, rej.Code)
	require.True(t, rej.Retryable)
	require.ErrorAs(t, p.rt.Remove(t.Context(), "dep_chat"), &rej)
	require.Equal(t, runtime.ReasonPaused, rej.Code)
	require.Equal(t, "registry.example/debug:v1", p.workload(t).Spec.Template.Spec.Containers[0].Image)

	p.patch(t, `{"metadata":{"annotations":{"windlass.run/paused":null}}}`)
	until(t, "the assignment to be applied", func() bool { return p.rt.Apply(t.Context(), p.a) == nil })
	until(t, "our image", func() bool { return p.workload(t).Spec.Template.Spec.Containers[0].Image == image })
}

func TestDrift_ForeignScalerIsReportedAndNotOverridden(t *testing.T) {
	p := place(t, 1)
	scale := func(n int32) {
		t.Helper()
		_, err := p.api.AppsV1().Deployments(p.namespace).UpdateScale(t.Context(), p.name, &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: p.namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: n},
		}, metav1.UpdateOptions{FieldManager: "autoscaler"})
		require.NoError(t, err)
	}
	scale(3)
	require.Contains(t, p.told(t, "Deployment", "Conflict", "autoscaler"), "Windlass wants 1, autoscaler has set 3")
	until(t, "three", func() bool { return p.workload(t).Status.ReadyReplicas == 3 })
	require.EqualValues(t, 1, p.counted(t, "windlass_agent_kubernetes_conflicts_total", nil))
	require.Zero(t, p.counted(t, "windlass_agent_kubernetes_drift_total", nil))

	// Other changes are still applied.
	p.scale(t, 2)
	d := p.workload(t)
	require.Equal(t, "2", d.Annotations[render.AnnotationGeneration])
	require.EqualValues(t, 3, *d.Spec.Replicas)
	p.told(t, "Deployment", "Conflict", "Windlass wants 2")

	// When both clients want the same number, there is no conflict to report, and the agent owns
	// the field again.
	scale(2)
	until(t, "agreement", func() bool { return ownsReplicas(p.workload(t)) })
}

func ownsReplicas(d *appsv1.Deployment) bool {
	for _, f := range d.ManagedFields {
		if f.Manager == "windlass-agent" && f.Operation == metav1.ManagedFieldsOperationApply {
			var set struct {
				Spec map[string]json.RawMessage `json:"f:spec"`
			}
			if json.Unmarshal(f.FieldsV1.GetRawBytes(), &set) == nil {
				_, ok := set.Spec["f:replicas"]
				return ok
			}
		}
	}
	return false
}

func TestDrift_ForeignObjectsAreNotTouched(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	rt := h.open(t)
	a := assignment("dep_chat", 1)
	namespace := h.namespaceOf(t, a)
	_, err := h.api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	require.NoError(t, err)
	var rej *runtime.Rejection
	require.ErrorAs(t, rt.Apply(t.Context(), a), &rej)
	require.Equal(t, runtime.ReasonConflict, rej.Code)
	require.Contains(t, rej.Message, "Namespace "+namespace)

	// The agent uses a namespace that gets the agent's labels. The namespace stays when all objects
	// of the agent are gone.
	ns, err := h.api.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, ns.Annotations)
	ns.Labels = map[string]string{"kubernetes.io/metadata.name": namespace, render.LabelManagedBy: render.ManagedBy, render.LabelRegion: h.cfg.Region}
	_, err = h.api.CoreV1().Namespaces().Update(t.Context(), ns, metav1.UpdateOptions{})
	require.NoError(t, err)
	theirs := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: render.WorkloadName(a), Labels: map[string]string{"team": "theirs"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}},
	}
	_, err = h.api.CoreV1().Services(namespace).Create(t.Context(), theirs, metav1.CreateOptions{})
	require.NoError(t, err)
	until(t, "the conflict about the service", func() bool {
		err := rt.Apply(t.Context(), a)
		require.ErrorAs(t, err, &rej)
		return strings.Contains(rej.Message, "Service "+namespace)
	})
	require.Equal(t, runtime.ReasonConflict, rej.Code)
	now, err := h.api.CoreV1().Services(namespace).Get(t.Context(), theirs.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"team": "theirs"}, now.Labels)

	require.NoError(t, rt.Remove(t.Context(), "dep_chat"))
	require.Empty(t, h.leftovers(t))
	_, err = h.api.CoreV1().Services(namespace).Get(t.Context(), theirs.Name, metav1.GetOptions{})
	require.NoError(t, err)
	_ = h.api.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), namespace, metav1.DeleteOptions{})
}

func TestObjects_HaveNamesAndLabelsForPeople(t *testing.T) {
	p := place(t, 1)
	until(t, "a ready pod", func() bool { return p.workload(t).Status.ReadyReplicas == 1 })
	for _, o := range p.objects(t) {
		require.Equal(t, "windlass", o.Labels[render.LabelManagedBy], o)
		require.Equal(t, p.a.Deployment.AppName, o.Labels[render.LabelName], o)
		if o.Kind != "PersistentVolumeClaim" {
			require.Equal(t, p.name, o.Labels[render.LabelInstance], o)
			require.Equal(t, "main", o.Labels[render.LabelComponent], o)
			require.True(t, strings.HasPrefix(o.Name, p.name), o)
		}
		if o.Kind != "Pod" && o.Kind != "ReplicaSet" {
			require.Equal(t, "v1", o.Labels[render.LabelVersion], o)
			require.Equal(t, "shop", o.Labels[render.LabelPartOf], o)
		}
	}
	require.Contains(t, p.namespace, "shop-staging-")
	require.Equal(t, "generation 1 of deployment dep_chat: version 1, 1 replica", p.told(t, "Deployment", "Applied", "generation 1"))
}
