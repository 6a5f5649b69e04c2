package kubelab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	metrics "k8s.io/metrics/pkg/client/clientset/versioned"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent"
)

// serve returns a Deployment of model servers.
func serve(name string, replicas int32, change func(*corev1.PodSpec)) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "server", Image: "vllm/vllm-openai:latest",
					Ports: []corev1.ContainerPort{{ContainerPort: 8000}},
					ReadinessProbe: &corev1.Probe{
						PeriodSeconds: 1,
						ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromInt32(8000)}},
					},
				}}},
			},
		},
	}
	if change != nil {
		change(&d.Spec.Template.Spec)
	}
	return d
}

func gpus(count string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(count)}
	}
}

func (l *cluster) create(t *testing.T, namespace string, d *appsv1.Deployment) {
	t.Helper()
	_, err := l.client.AppsV1().Deployments(namespace).Create(t.Context(), d, metav1.CreateOptions{})
	require.NoError(t, err)
}

// ready waits until the Deployment has exactly want ready pods.
func (l *cluster) ready(t *testing.T, namespace, name string, want int32) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		d, err := l.client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && d.Status.ReadyReplicas != want {
			err = fmt.Errorf("%d of %d replicas are ready", d.Status.ReadyReplicas, want)
		}
		return err
	})
}

func (l *cluster) pods(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	list, err := l.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

func TestScheduler_CountsGPUsAndScheduledPodsAnswer(t *testing.T) {
	l := sharedCluster(t)
	ns := l.namespace(t, nil)
	// Each of the three nodes with 8 GPUs fits two pods of 4 GPUs. The pods do not tolerate the taint of the
	// fourth node.
	l.create(t, ns, serve("model", 7, gpus("4")))
	l.ready(t, ns, "model", 6)

	nodes := map[string]int{}
	for _, p := range l.pods(t, ns) {
		if p.Spec.NodeName == "" {
			eventually(t, func(ctx context.Context) error {
				waiting, err := l.client.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				for _, c := range waiting.Status.Conditions {
					if c.Type == corev1.PodScheduled && strings.Contains(c.Message, "3 Insufficient nvidia.com/gpu") {
						return nil
					}
				}
				return fmt.Errorf("the scheduler's reason is missing: %v", waiting.Status.Conditions)
			})
			continue
		}
		nodes[p.Spec.NodeName]++
		require.True(t, strings.HasPrefix(p.Status.PodIP, "127.91."), p.Status.PodIP)
		status, err := httpGet(t.Context(), "http://"+p.Status.PodIP+":8000/health")
		require.NoError(t, err)
		require.Equal(t, 200, status)
	}
	require.Equal(t, map[string]int{"h100-0": 2, "h100-1": 2, "h100-2": 2}, nodes)
}

func TestNode_HasLabelsOfGPUFeatureDiscovery(t *testing.T) {
	l := sharedCluster(t)
	n, err := l.client.CoreV1().Nodes().Get(t.Context(), "l4-0", metav1.GetOptions{})
	require.NoError(t, err)
	for key, want := range map[string]string{
		"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034",
		"nvidia.com/gpu.count": "2", "nvidia.com/gpu.present": "true",
		"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "lab",
		"windlass.run/spot": "true", "team": "search",
	} {
		require.Equal(t, want, n.Labels[key], key)
	}
	require.Equal(t, []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}}, n.Spec.Taints)
	require.Equal(t, "2", n.Status.Allocatable.Name("nvidia.com/gpu", resource.DecimalSI).String())
}

func TestService_HasEndpointsAndItsPodsHaveLogs(t *testing.T) {
	l := sharedCluster(t)
	ns := l.namespace(t, nil)
	l.create(t, ns, serve("model", 2, nil))
	_, err := l.client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "model"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "model"},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8000)}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	l.ready(t, ns, "model", 2)
	eventually(t, func(ctx context.Context) error {
		slices, err := l.client.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for _, s := range slices.Items {
			for _, e := range s.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready && strings.HasPrefix(e.Addresses[0], "127.91.") {
					ready++
				}
			}
		}
		if ready != 2 {
			return fmt.Errorf("%d endpoints are ready", ready)
		}
		return nil
	})
	log, err := l.client.CoreV1().Pods(ns).GetLogs(l.pods(t, ns)[0].Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
	require.NoError(t, err)
	require.Contains(t, string(log), "model loaded")
}

func TestClaim_HasAVolumeUntilItIsDeleted(t *testing.T) {
	l := sharedCluster(t)
	ns := l.namespace(t, nil)
	claims := l.client.CoreV1().PersistentVolumeClaims(ns)
	_, err := claims.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "cache"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	l.create(t, ns, serve("model", 1, func(spec *corev1.PodSpec) {
		spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "cache"},
		}}}
	}))
	l.ready(t, ns, "model", 1)
	claim, err := claims.Get(t.Context(), "cache", metav1.GetOptions{})
	require.NoError(t, err)
	folder := filepath.Join(l.dir, "volumes", claim.Spec.VolumeName)
	require.DirExists(t, folder)

	require.NoError(t, l.client.AppsV1().Deployments(ns).Delete(t.Context(), "model", metav1.DeleteOptions{}))
	require.NoError(t, claims.Delete(t.Context(), "cache", metav1.DeleteOptions{}))
	eventually(t, func(ctx context.Context) error {
		_, err := l.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the volume is still there: %w", err)
	})
	require.NoDirExists(t, folder)
}

func TestServiceAccount_MayDoWhatItsRoleSays(t *testing.T) {
	l := sharedCluster(t)
	ns := l.namespace(t, nil)
	_, err := l.client.RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = l.client.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "default", Namespace: ns}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	token, err := l.client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)

	cfg := rest.AnonymousClientConfig(l.rest)
	cfg.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	eventually(t, func(ctx context.Context) error { // RBAC reads roles from a cache
		_, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		return err
	})
	_, err = client.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}

func TestPodSecurity_IsEnforced(t *testing.T) {
	l := sharedCluster(t)
	ns := l.namespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	_, err := l.client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bad"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	require.ErrorContains(t, err, `violates PodSecurity "restricted:latest"`)
}

func TestNamespace_IsDeletedWithItsObjects(t *testing.T) {
	l := sharedCluster(t)
	ns := l.namespace(t, nil)
	l.create(t, ns, serve("model", 1, nil))
	l.ready(t, ns, "model", 1)
	require.NoError(t, l.client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}))
	eventually(t, func(ctx context.Context) error {
		_, err := l.client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the namespace is still there: %w", err)
	})
}

// TestMetrics reads the metrics API as kubectl top and the HorizontalPodAutoscaler do, through the API server.
func TestMetrics(t *testing.T) {
	l := sharedCluster(t)
	api, err := metrics.NewForConfig(l.rest)
	require.NoError(t, err)
	ns := l.namespace(t, nil)
	pods := api.MetricsV1beta1().PodMetricses(ns)
	usage := func(t *testing.T, list corev1.ResourceList) (cores float64, mib int64) {
		t.Helper()
		require.Len(t, list, 2)
		return list.Cpu().AsApproximateFloat64(), list.Memory().Value() >> 20
	}

	l.create(t, ns, serve("burner", 1, func(spec *corev1.PodSpec) {
		c := &spec.Containers[0]
		c.Image, c.Ports, c.ReadinessProbe = nodeagent.HostRepository+":v1", nil, nil
		// Nearly all of its processor time is that of children, which have ended.
		c.Command = []string{"sh", "-c", `while :; do sh -c 'i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done'; done`}
	}))
	l.create(t, ns, serve("model", 1, func(spec *corev1.PodSpec) {
		spec.Containers[0].Image, spec.Containers[0].Args = "modelserver:v1", []string{"--model", "echo", "--time-to-first-token", "10m"}
	}))
	l.create(t, ns, serve("waiting", 1, gpus("9")))
	l.ready(t, ns, "burner", 1)
	l.ready(t, ns, "model", 1)
	var server corev1.Pod
	for _, p := range l.pods(t, ns) {
		if p.Labels["app"] == "model" {
			server = p
		}
	}
	asked, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(asked, http.MethodPost, "http://"+server.Status.PodIP+":8000/v1/completions",
		strings.NewReader(`{"model": "echo", "prompt": "`+strings.Repeat("word ", 100)+`"}`))
	require.NoError(t, err)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()

	t.Run("a model server has the usage of its requests", func(t *testing.T) {
		eventually(t, func(ctx context.Context) error {
			m, err := pods.Get(ctx, server.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			require.Len(t, m.Containers, 1)
			require.Equal(t, "server", m.Containers[0].Name)
			if cores, mib := usage(t, m.Containers[0].Usage); cores != 1 || mib < 10 {
				return fmt.Errorf("it uses %g cores and %d MiB", cores, mib)
			}
			return nil
		})
		cancel()
		<-answered
		eventually(t, func(ctx context.Context) error {
			m, err := pods.Get(ctx, server.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if cores, mib := usage(t, m.Containers[0].Usage); cores != 0 || mib != 0 {
				return fmt.Errorf("it uses %g cores and %d MiB", cores, mib)
			}
			return nil
		})
	})
	t.Run("a process is measured with its children", func(t *testing.T) {
		eventually(t, func(ctx context.Context) error {
			list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=burner"})
			if err == nil && len(list.Items) == 0 {
				err = errors.New("no metrics yet")
			}
			if err != nil {
				return err
			}
			require.Len(t, list.Items, 1)
			m := list.Items[0]
			require.Equal(t, "burner", m.Labels["app"])
			require.GreaterOrEqual(t, m.Window.Duration, 2*time.Second)
			cores, mib := usage(t, m.Containers[0].Usage)
			require.Positive(t, cores)
			require.LessOrEqual(t, cores, 1.1)
			require.Positive(t, mib)
			return nil
		})
	})
	t.Run("nodes have the usage of their pods", func(t *testing.T) {
		list, err := api.MetricsV1beta1().NodeMetricses().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, 6)
		used := 0.0
		for _, n := range list.Items {
			cores, _ := usage(t, n.Usage)
			used += cores
		}
		require.Positive(t, used)
		list, err = api.MetricsV1beta1().NodeMetricses().List(t.Context(), metav1.ListOptions{LabelSelector: "team=search"})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		n, err := api.MetricsV1beta1().NodeMetricses().Get(t.Context(), "l4-0", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "l4-0", n.Name)
	})
	t.Run("pods that do not run have no metrics", func(t *testing.T) {
		list, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "app=waiting"})
		require.NoError(t, err)
		require.Empty(t, list.Items)
		_, err = pods.Get(t.Context(), "gone", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		_, err = api.MetricsV1beta1().NodeMetricses().Get(t.Context(), "gone", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		_, err = pods.List(t.Context(), metav1.ListOptions{LabelSelector: "a in"})
		require.ErrorContains(t, err, "unable to parse")
	})
}
