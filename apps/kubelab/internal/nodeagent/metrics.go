package nodeagent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/workload"
)

// metricsService is the name of the Service by which the API server finds the metrics API.
const metricsService = "metrics-server"

// runsOfPod has the runs of a pod that have not ended.
type runsOfPod struct {
	object *corev1.Pod
	runs   map[string]*workload.Run // by container
}

// podRuns implements podSource, from any goroutine. Pods on lost nodes are left out, because a metrics server could not
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

// handleMetrics serves the metrics of pods in metrics.k8s.io/v1beta1. Nodes have none.
func handleMetrics(mux *http.ServeMux, source podSource) {
	base := "GET /apis/" + metricsv1beta1.SchemeGroupVersion.String()
	mux.HandleFunc(base, func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: metricsv1beta1.SchemeGroupVersion.String(),
			APIResources: []metav1.APIResource{{Name: "pods", Namespaced: true, Kind: "PodMetrics", Verbs: metav1.Verbs{"get", "list"}}},
		})
	})
	list := func(w http.ResponseWriter, r *http.Request) {
		selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
		if err != nil {
			writeFailure(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "labelSelector: "+err.Error())
			return
		}
		items, err := podMetrics(r.Context(), source, func(object *corev1.Pod) bool {
			namespace := r.PathValue("namespace")
			return (namespace == "" || namespace == object.Namespace) && selector.Matches(labels.Set(object.Labels))
		})
		if err != nil {
			writeFailure(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err.Error())
			return
		}
		writeJSON(w, http.StatusOK, metricsv1beta1.PodMetricsList{TypeMeta: metricsType("PodMetricsList"), Items: items})
	}
	mux.HandleFunc(base+"/pods", list)
	mux.HandleFunc(base+"/namespaces/{namespace}/pods", list)
	mux.HandleFunc(base+"/namespaces/{namespace}/pods/{pod}", func(w http.ResponseWriter, r *http.Request) {
		items, err := podMetrics(r.Context(), source, func(object *corev1.Pod) bool {
			return object.Namespace == r.PathValue("namespace") && object.Name == r.PathValue("pod")
		})
		switch {
		case err != nil:
			writeFailure(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err.Error())
		case len(items) == 0:
			writeFailure(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("no metrics of pod %q", r.PathValue("pod")))
		default:
			items[0].TypeMeta = metricsType("PodMetrics")
			writeJSON(w, http.StatusOK, items[0])
		}
	})
}

func metricsType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: kind, APIVersion: metricsv1beta1.SchemeGroupVersion.String()}
}

// podMetrics returns the metrics of the wanted pods, sorted by namespace and name.
func podMetrics(ctx context.Context, source podSource, wanted func(*corev1.Pod) bool) ([]metricsv1beta1.PodMetrics, error) {
	pods, err := source.podRuns(ctx)
	if err != nil {
		return nil, err
	}
	groups, err := workload.ReadGroups()
	if err != nil {
		return nil, err
	}
	out := []metricsv1beta1.PodMetrics{}
	for _, p := range pods {
		if !wanted(p.object) {
			continue
		}
		m := metricsv1beta1.PodMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: p.object.Name, Namespace: p.object.Namespace, Labels: p.object.Labels, CreationTimestamp: p.object.CreationTimestamp},
			Timestamp:  metav1.Now(),
		}
		for name, run := range p.runs {
			u, ok := run.Usage(groups)
			if !ok {
				continue
			}
			m.Window.Duration = max(m.Window.Duration, u.Window, time.Second)
			m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: name, Usage: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(1000*u.Cores), resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(u.MemoryBytes, resource.BinarySI),
			}})
		}
		if len(m.Containers) > 0 {
			slices.SortFunc(m.Containers, func(a, b metricsv1beta1.ContainerMetrics) int { return cmp.Compare(a.Name, b.Name) })
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b metricsv1beta1.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

func writeJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value) // the client is gone
}

func writeFailure(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	writeJSON(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message,
	})
}

// RegisterMetrics makes the API server forward the metrics API to this agent. Of several agents of a cluster, the last
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
		// An API server reaches the agent at its host's address. The address of another Service would need kube-proxy.
		"spec": map[string]any{"type": string(corev1.ServiceTypeExternalName), "externalName": a.cfg.NodeAddress},
	}}
	api := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": version.Version + "." + version.Group},
		"spec": map[string]any{
			"group": version.Group, "version": version.Version, "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"insecureSkipTLSVerify": true, // the certificate is new in each run
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
