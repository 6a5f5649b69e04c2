package desired

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

func TestDiff_ComparesTheMeaningOfOurFieldsOnly(t *testing.T) {
	want := appsac.Deployment("chat", "ns").WithLabels(map[string]string{"a": "1"}).WithSpec(appsac.DeploymentSpec().
		WithReplicas(2).
		WithStrategy(appsac.DeploymentStrategy().WithRollingUpdate(appsac.RollingUpdateDeployment().WithMaxSurge(intstr.FromInt32(0)))).
		WithTemplate(coreac.PodTemplateSpec().WithSpec(coreac.PodSpec().WithHostIPC(false).
			WithContainers(coreac.Container().WithName("main").WithImage("x:1").
				WithEnv(coreac.EnvVar().WithName("A").WithValue("1")).
				WithResources(coreac.ResourceRequirements().WithRequests(corev1.ResourceList{"cpu": quantity.MustParse("1000m")}))).
			WithVolumes(coreac.Volume().WithName("shm").WithEmptyDir(coreac.EmptyDirVolumeSource())))))
	live := func() *appsv1.Deployment {
		replicas, surge := int32(2), intstr.FromInt32(0)
		return &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "chat", Namespace: "ns", Labels: map[string]string{"a": "1", "theirs": "x"}},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, MinReadySeconds: 5,
				Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge}},
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					Containers: []corev1.Container{
						{Name: "sidecar", Image: "theirs"},
						{Name: "main", Image: "x:1", Env: []corev1.EnvVar{{Name: "B", Value: "2"}, {Name: "A", Value: "1"}}, Resources: corev1.ResourceRequirements{
							Requests: corev1.ResourceList{"cpu": quantity.MustParse("1"), "memory": quantity.MustParse("1Gi")},
						}},
					},
					Volumes: []corev1.Volume{{Name: "shm", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
				}},
			},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*appsv1.Deployment)
		diff   string
	}{
		{"fields of other clients, and other spellings", func(*appsv1.Deployment) {}, ""},
		{"a label", func(d *appsv1.Deployment) { delete(d.Labels, "a") }, `metadata.labels.a: want "1", found nothing`},
		{"an image", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[1].Image = "y" }, `spec.template.spec.containers[main].image: want "x:1", found "y"`},
		{"a quantity", func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[1].Resources.Requests["cpu"] = quantity.MustParse("2")
		}, `spec.template.spec.containers[main].resources.requests.cpu: want "1", found "2"`},
		{"a number", func(d *appsv1.Deployment) { *d.Spec.Replicas = 9 }, "spec.replicas: want 2, found 9"},
		{"a list that is gone", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Volumes = nil }, `spec.template.spec.volumes: want [{"emptyDir":{},"name":"shm"}], found nothing`},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := live()
			c.change(d)
			diffs, err := differencesOf(want, d)
			require.NoError(t, err)
			require.Equal(t, c.diff, Summary(render.KindWorkload, diffs))
		})
	}
}

func TestSummary_HidesSecretsAndFitsIntoAnEvent(t *testing.T) {
	secret := []difference{{"data.KEY", `"hunter2"`, "nothing"}}
	require.Equal(t, "data.KEY", Summary(render.KindSecret, secret))
	var many []difference
	for range 9 {
		many = append(many, difference{strings.Repeat("p", 300), "1", "2"})
	}
	require.LessOrEqual(t, len(Summary(render.KindService, many)), 1024)
	require.Contains(t, Summary(render.KindService, []difference{{"a", "1", "2"}, {"b", "1", "2"}, {"c", "1", "2"}, {"d", "1", "2"}, {"e", "1", "2"}, {"f", "1", "2"}}), "and 1 more")
}
