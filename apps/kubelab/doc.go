// Package kubelab runs a real Kubernetes control plane in one program. Its nodes are simulated. Its pods
// answer requests.
//
//	kubelab up ── etcd                      children: this binary, re-executed
//	           ├─ kube-apiserver
//	           ├─ kube-controller-manager
//	           ├─ kube-scheduler
//	           ├─ kwok                      nodes: Ready, leases
//	           └─ (in process) node agent   pods: everything below "scheduled"
//
// Each field has one writer:
//
//   - kubelab creates the Node objects: labels, taints, capacity. It also keeps
//     the label kubelab.windlass.run/online, by which KWOK selects nodes: a node
//     with the annotation kubelab.windlass.run/lost: "true" loses the label, and
//     with it its heartbeats.
//   - KWOK writes the status conditions of nodes and their leases. It has no
//     stages for pods: after a restart it would give an address to two pods,
//     because it does not rebuild its pool from running pods. It also ends a
//     deleted pod before the containers have ended.
//   - The node agent owns the whole status of every pod with spec.nodeName. It gives the pod an address from
//     the CIDR that no other pod object has, and sets hostIP, podIP, phase, conditions and container
//     statuses. When a deleted pod has ended, or never ran, the agent deletes the pod object with grace
//     period 0. It does not touch pods on a lost node.
//
// The node agent also serves the metrics API, metrics.k8s.io, as metrics-server does in other clusters. The API server
// forwards calls to it. The usage of a process is measured, over at least two seconds. The usage of a model server is
// computed from its requests, models and cached tokens. The usage of a node is that of its pods.
package kubelab
