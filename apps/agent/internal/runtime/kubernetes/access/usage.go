package access

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// PodUsage is the usage of a pod's main container, from the cluster's metrics API.
type PodUsage struct {
	Name          string
	CPUMillicores float64
	MemoryBytes   int64
}

// podMetricsList has the fields of metrics.k8s.io/v1beta1 that the agent reads.
type podMetricsList struct {
	Items []struct {
		Metadata   metav1.ObjectMeta `json:"metadata"`
		Containers []struct {
			Name  string `json:"name"`
			Usage struct {
				CPU    resource.Quantity `json:"cpu"`
				Memory resource.Quantity `json:"memory"`
			} `json:"usage"`
		} `json:"containers"`
	} `json:"items"`
}

// PodUsages returns the usage of the main containers of the region's pods in a namespace. ok is
// false if the cluster has no metrics API.
func (a *API) PodUsages(ctx context.Context, namespace string) (_ []PodUsage, ok bool, err error) {
	what := "list the metrics of pods in namespace " + namespace
	var body []byte
	var down error
	err = a.Call(ctx, what, func(ctx context.Context) error {
		var err error
		body, err = a.CoreV1().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/"+namespace+"/pods").
			Param("labelSelector", render.LabelRegion+"="+a.cfg.Region).SetHeader("Accept", "application/json").DoRaw(ctx)
		if isServerError(err) {
			// The API server forwards this call to the metrics server. If the metrics server is
			// down, other calls must not wait.
			down = unavailableRejection(what, err)
			return nil
		}
		return foundError(err)
	})
	if IsNotFound(err) {
		return nil, false, nil // the metrics API is missing, because it would return an empty list for a namespace without pods
	}
	if err = cmp.Or(err, down); err != nil {
		return nil, false, err
	}
	usages, err := parsePodUsages(body)
	return usages, err == nil, err
}

func parsePodUsages(body []byte) ([]PodUsage, error) {
	var list podMetricsList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("read the metrics of pods: %w", err)
	}
	out := make([]PodUsage, 0, len(list.Items))
	for _, item := range list.Items {
		for _, c := range item.Containers {
			if c.Name == render.ContainerName {
				out = append(out, PodUsage{
					Name: item.Metadata.Name, CPUMillicores: 1000 * c.Usage.CPU.AsApproximateFloat64(), MemoryBytes: c.Usage.Memory.Value(),
				})
			}
		}
	}
	return out, nil
}
