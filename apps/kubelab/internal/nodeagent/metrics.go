package nodeagent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/workload"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodes"
)

const (
	// metricsService is the name of the Service by which the API server finds the metrics API.
	metricsService = "metrics-server"
	metricsPath    = "/apis/" + metricsv1beta1.GroupName + "/v1beta1"
)

// runsOfPod has the runs of a pod that have not ended.
type runsOfPod struct {
	object *corev1.Pod
	runs   map[string]*workload.Run // by container
}

// podRuns implements podSource, from any goroutine. It leaves out pods on lost nodes, because a metrics server cannot
// reach them.
func (l *loop) podRuns(ctx context.Context) ([]runsOfPod, error) {
	return ask(ctx, l, func() ([]runsOfPod, error) {
		var out []runsOfPod
		for _, p := range l.pods {
			if p.lost || p.gone {
				continue
			}
			one := runsOfPod{object: p.object, runs: map[string]*workload.Run{}}
			for name, r := range p.runs {
				if r.run != nil {
					one.runs[name] = r.run
				}
			}
			if len(one.runs) > 0 {
				out = append(out, one)
			}
		}
		return out, nil
	})
}

// metricsAPI serves metrics.k8s.io/v1beta1: the usage of pods, and of nodes, whose usage is that of their pods.
type metricsAPI struct {
	source podSource
	client kubernetes.Interface
}

// handle adds the API to mux. It ignores field selectors.
func (m metricsAPI) handle(mux *http.ServeMux) {
	get := func(path string, answer func(*http.Request) (any, error)) {
		mux.HandleFunc("GET "+metricsPath+path, func(w http.ResponseWriter, r *http.Request) { writeAnswer(w, r, answer) })
	}
	get("", func(*http.Request) (any, error) {
		verbs := metav1.Verbs{"get", "list"}
		return metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: metricsv1beta1.SchemeGroupVersion.String(),
			APIResources: []metav1.APIResource{{Name: "nodes", Kind: "NodeMetrics", Verbs: verbs}, {Name: "pods", Namespaced: true, Kind: "PodMetrics", Verbs: verbs}},
		}, nil
	})
	get("/pods", m.listPods)
	get("/namespaces/{namespace}/pods", m.listPods)
	get("/namespaces/{namespace}/pods/{name}", m.getPod)
	get("/nodes", m.listNodes)
	get("/nodes/{name}", m.getNode)
}

func (m metricsAPI) listPods(r *http.Request) (any, error) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest("labelSelector: " + err.Error())
	}
	namespace := r.PathValue("namespace")
	items, err := m.measurePods(r.Context(), func(object *corev1.Pod) bool {
		return (namespace == "" || namespace == object.Namespace) && selector.Matches(labels.Set(object.Labels))
	})
	return metricsv1beta1.PodMetricsList{TypeMeta: metricsType("PodMetricsList"), Items: items}, err
}

func (m metricsAPI) getPod(r *http.Request) (any, error) {
	items, err := m.measurePods(r.Context(), func(object *corev1.Pod) bool {
		return object.Namespace == r.PathValue("namespace") && object.Name == r.PathValue("name")
	})
	if err == nil && len(items) == 0 {
		err = apierrors.NewNotFound(metricsv1beta1.Resource("pods"), r.PathValue("name"))
	}
	if err != nil {
		return nil, err
	}
	items[0].TypeMeta = metricsType("PodMetrics")
	return items[0], nil
}

func (m metricsAPI) listNodes(r *http.Request) (any, error) {
	list, err := m.client.CoreV1().Nodes().List(r.Context(), metav1.ListOptions{LabelSelector: r.URL.Query().Get("labelSelector")})
	if err != nil {
		return nil, err
	}
	items, err := m.measureNodes(r.Context(), list.Items)
	return metricsv1beta1.NodeMetricsList{TypeMeta: metricsType("NodeMetricsList"), Items: items}, err
}

func (m metricsAPI) getNode(r *http.Request) (any, error) {
	node, err := m.client.CoreV1().Nodes().Get(r.Context(), r.PathValue("name"), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	items, err := m.measureNodes(r.Context(), []corev1.Node{*node})
	if err == nil && len(items) == 0 {
		err = apierrors.NewNotFound(metricsv1beta1.Resource("nodes"), node.Name)
	}
	if err != nil {
		return nil, err
	}
	items[0].TypeMeta = metricsType("NodeMetrics")
	return items[0], nil
}

func metricsType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: kind, APIVersion: metricsv1beta1.SchemeGroupVersion.String()}
}

// eachUsage calls f with the usage of every container that is measured.
func (m metricsAPI) eachUsage(ctx context.Context, f func(pod *corev1.Pod, container string, u workload.Usage)) error {
	pods, err := m.source.podRuns(ctx)
	if err != nil {
		return err
	}
	groups, err := workload.ReadGroups()
	if err != nil {
		return err
	}
	for _, p := range pods {
		for name, run := range p.runs {
			if u, ok := run.Usage(groups); ok {
				u.Window = max(u.Window, time.Second)
				f(p.object, name, u)
			}
		}
	}
	return nil
}

// measurePods returns the metrics of the wanted pods, sorted by namespace and name.
func (m metricsAPI) measurePods(ctx context.Context, wanted func(*corev1.Pod) bool) ([]metricsv1beta1.PodMetrics, error) {
	pods := map[*corev1.Pod]*metricsv1beta1.PodMetrics{}
	err := m.eachUsage(ctx, func(pod *corev1.Pod, container string, u workload.Usage) {
		if !wanted(pod) {
			return
		}
		one := pods[pod]
		if one == nil {
			one = &metricsv1beta1.PodMetrics{
				ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels, CreationTimestamp: metav1.Now()},
				Timestamp:  metav1.Now(),
			}
			pods[pod] = one
		}
		one.Window.Duration = max(one.Window.Duration, u.Window)
		one.Containers = append(one.Containers, metricsv1beta1.ContainerMetrics{Name: container, Usage: resourceList(u)})
	})
	out := make([]metricsv1beta1.PodMetrics, 0, len(pods))
	for _, one := range pods {
		slices.SortFunc(one.Containers, func(a, b metricsv1beta1.ContainerMetrics) int { return cmp.Compare(a.Name, b.Name) })
		out = append(out, *one)
	}
	slices.SortFunc(out, func(a, b metricsv1beta1.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, err
}

// measureNodes returns the metrics of those nodes that are not lost, in their order.
func (m metricsAPI) measureNodes(ctx context.Context, list []corev1.Node) ([]metricsv1beta1.NodeMetrics, error) {
	sums := map[string]workload.Usage{}
	err := m.eachUsage(ctx, func(pod *corev1.Pod, _ string, u workload.Usage) {
		sum := sums[pod.Spec.NodeName]
		sums[pod.Spec.NodeName] = workload.Usage{
			Cores: sum.Cores + u.Cores, MemoryBytes: sum.MemoryBytes + u.MemoryBytes, Window: max(sum.Window, u.Window),
		}
	})
	out := make([]metricsv1beta1.NodeMetrics, 0, len(list))
	for _, n := range list {
		if n.Annotations[nodes.AnnotationLost] == "true" {
			continue
		}
		sum := sums[n.Name]
		out = append(out, metricsv1beta1.NodeMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: metav1.Now()},
			Timestamp:  metav1.Now(), Window: metav1.Duration{Duration: max(sum.Window, time.Second)}, Usage: resourceList(sum),
		})
	}
	return out, err
}

func resourceList(u workload.Usage) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(1000*u.Cores), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(u.MemoryBytes, resource.BinarySI),
	}
}

// writeAnswer writes the answer to r, or its error as a Status.
func writeAnswer(w http.ResponseWriter, r *http.Request, answer func(*http.Request) (any, error)) {
	code := http.StatusOK
	value, err := answer(r)
	if err != nil {
		var failed apierrors.APIStatus
		if !errors.As(err, &failed) {
			failed = apierrors.NewServiceUnavailable(err.Error())
		}
		status := failed.Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		code, value = int(status.Code), status
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value) // it fails if the client is gone
}

// RegisterMetrics makes the API server forward the metrics API to this agent. If a cluster has several agents, the last
// one gets the calls.
func (a *Agent) RegisterMetrics(ctx context.Context) error {
	client, err := dynamic.NewForConfig(a.cfg.Kubeconfig)
	if err != nil {
		return fmt.Errorf("register the metrics API: %w", err)
	}
	version := metricsv1beta1.SchemeGroupVersion
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Service",
		"metadata": map[string]any{"name": metricsService, "namespace": metav1.NamespaceSystem},
		// The agent listens on the API server's own host. A Service with a cluster address would need kube-proxy.
		"spec": map[string]any{"type": string(corev1.ServiceTypeExternalName), "externalName": a.cfg.NodeAddress},
	}}
	api := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": version.Version + "." + version.Group},
		"spec": map[string]any{
			"group": version.Group, "version": version.Version, "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"insecureSkipTLSVerify": true, // each run has a new certificate
			"service":               map[string]any{"name": metricsService, "namespace": metav1.NamespaceSystem, "port": int64(a.KubeletPort())},
		},
	}}
	how := metav1.ApplyOptions{FieldManager: "kubelab", Force: true}
	services := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Namespace(metav1.NamespaceSystem)
	if _, err := services.Apply(ctx, metricsService, service, how); err != nil {
		return fmt.Errorf("register the metrics API: service: %w", err)
	}
	apis := client.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	if _, err := apis.Apply(ctx, api.GetName(), api, how); err != nil {
		return fmt.Errorf("register the metrics API: %w", err)
	}
	return nil
}

// CheckMetrics returns an error while the API server does not forward the metrics API.
func (a *Agent) CheckMetrics(ctx context.Context) error {
	if err := a.client.Discovery().RESTClient().Get().AbsPath(metricsPath).Do(ctx).Error(); err != nil {
		return fmt.Errorf("read the metrics API: %w", err)
	}
	return nil
}
