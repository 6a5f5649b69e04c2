package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/windlass-run/windlass/pkg/backoff"
)

// parallel is the number of concurrent requests of Ensure, few enough for the API server to serve other
// clients.
const parallel = 8

// Ensure creates the nodes of the groups, updates nodes of an earlier run, and removes nodes of an earlier
// run that no group has any more. It sets taints on new nodes only, because Kubernetes and people change them
// later.
func Ensure(ctx context.Context, client kubernetes.Interface, groups []Group, kubeletPort int) error {
	if err := ValidateAll(groups); err != nil {
		return err
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: LabelGroup})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	have := map[string]bool{}
	for _, n := range list.Items {
		have[n.Name] = true
	}
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(parallel)
	for _, g := range groups {
		for _, n := range g.objects(kubeletPort) {
			exists := have[n.Name]
			delete(have, n.Name)
			work.Go(func() error {
				if exists {
					return update(ctx, client, n)
				}
				return create(ctx, client, n)
			})
		}
	}
	for name := range have {
		work.Go(func() error {
			err := client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete node %s: %w", name, err)
			}
			return nil
		})
	}
	return work.Wait()
}

func create(ctx context.Context, client kubernetes.Interface, n *corev1.Node) error {
	_, err := client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return backoff.Permanent(fmt.Errorf("create node %s: a node of that name exists and is not kubelab's; name the group differently", n.Name))
	}
	if apierrors.IsInvalid(err) {
		err = backoff.Permanent(err)
	}
	if err != nil {
		return fmt.Errorf("create node %s: %w", n.Name, err)
	}
	return nil
}

// update leaves the label online to the Keeper, because the node may be lost.
func update(ctx context.Context, client kubernetes.Interface, n *corev1.Node) error {
	labels := maps.Clone(n.Labels)
	delete(labels, LabelOnline)
	meta, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	status, err := json.Marshal(map[string]any{"status": map[string]any{
		"capacity": n.Status.Capacity, "allocatable": n.Status.Allocatable,
		"daemonEndpoints": n.Status.DaemonEndpoints,
	}})
	if err != nil {
		return err
	}
	api := client.CoreV1().Nodes()
	_, metaErr := api.Patch(ctx, n.Name, types.MergePatchType, meta, metav1.PatchOptions{})
	_, statusErr := api.Patch(ctx, n.Name, types.MergePatchType, status, metav1.PatchOptions{}, "status")
	if err := errors.Join(metaErr, statusErr); err != nil {
		return fmt.Errorf("update node %s: %w", n.Name, err)
	}
	return nil
}

// SetLost marks a node as lost, or removes the mark.
func SetLost(ctx context.Context, client kubernetes.Interface, name string, lost bool) error {
	var value any // null removes the annotation
	if lost {
		value = "true"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{AnnotationLost: value}}})
	if err != nil {
		return err
	}
	n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if n.Labels[LabelGroup] == "" {
		return fmt.Errorf("node %s is not one of kubelab's: it has no label %s", name, LabelGroup)
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Ready returns how many of kubelab's nodes are ready, and how many are not lost. A node that was lost in an
// earlier run stays lost.
func Ready(ctx context.Context, client kubernetes.Interface) (ready, online int, err error) {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: LabelGroup})
	if err != nil {
		return 0, 0, fmt.Errorf("list nodes: %w", err)
	}
	for i := range list.Items {
		if IsLost(&list.Items[i]) {
			continue
		}
		online++
		if IsReady(&list.Items[i]) {
			ready++
		}
	}
	return ready, online, nil
}

// IsReady reports whether the node's Ready condition is true.
func IsReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// IsLost reports whether the node is annotated as lost.
func IsLost(n *corev1.Node) bool { return n.Annotations[AnnotationLost] == "true" }
