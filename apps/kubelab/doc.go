// Package kubelab is a real Kubernetes control plane in one program, with nodes
// that are not real and pods that answer.
//
//	kubelab up ── etcd                      children: this binary, re-executed
//	           ├─ kube-apiserver
//	           ├─ kube-controller-manager
//	           ├─ kube-scheduler
//	           ├─ kwok                      nodes: Ready, leases
//	           └─ (in process) node agent   pods: everything below "scheduled"
//
// Who writes what, so that no field has two writers:
//
//   - kubelab creates the Node objects: labels, taints, capacity. It also keeps
//     the label kubelab.windlass.run/online, by which KWOK selects nodes: a node
//     with the annotation kubelab.windlass.run/lost: "true" loses the label, and
//     with it its heartbeats.
//   - KWOK writes the status conditions of nodes and their leases. It has no
//     stages for pods: it would hand an address out twice after its restart
//     (its pool is not rebuilt from the pods that run), and it ends a deleted
//     pod before the containers have ended.
//   - The node agent owns the status of every pod with spec.nodeName, whole: it
//     takes an address from the CIDR that no pod object has, sets hostIP, podIP,
//     phase, conditions and container statuses, and at the end of a deleted pod
//     deletes it with grace 0. It does so for a pod that was deleted before it
//     ever ran, too. What is on a lost node it leaves alone.
package kubelab
