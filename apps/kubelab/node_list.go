package kubelab

import (
	"context"
	"fmt"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodes"
)

type nodeListCommand struct {
	where `embed:""`
}

// Run the command.
func (c *nodeListCommand) Run(ctx context.Context, s streams) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tSTATUS\tGROUP\tZONE\tGPU")
	for i := range list.Items {
		n := &list.Items[i]
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", n.Name, nodeStatus(n),
			n.Labels[nodes.LabelGroup], n.Labels[corev1.LabelTopologyZone], gpuText(n))
	}
	return w.Flush()
}

func nodeStatus(n *corev1.Node) string {
	switch {
	case nodes.IsLost(n) && nodes.IsReady(n):
		return "Ready (lost)"
	case nodes.IsLost(n):
		return "NotReady (lost)"
	case nodes.IsReady(n):
		return "Ready"
	}
	return "NotReady"
}

// gpuText returns the count and product of a node's GPUs.
func gpuText(n *corev1.Node) string {
	count, product := nodes.GPUs(n)
	if count == 0 {
		return "-"
	}
	return fmt.Sprintf("%d %s", count, product)
}
