// Package nodeagent runs the pods of all nodes of a kubelab, like one kubelet for each node.
//
//	API server ──pods, nodes──> informers ─┐
//	programs ──started, exited─────────────┤            ┌─> start, end, check, hook
//	checks, hooks ──answers────────────────┼──> loop ───┼─> events
//	heap of wake-ups ──time────────────────┘     │      └─> status patch, last deletion
//	                                        one lifecycle.Machine per pod
//
// One goroutine, the loop, owns every pod. Blocking work (API calls, starts of programs, checks) runs outside
// of it, limited in number, and answers through its inbox. A pod needs no goroutine except its program's, and
// no time while nothing is due.
//
// For pods that are bound to a node, only the node agent writes the status and takes the pod away:
//
//   - A pod gets an address from the CIDR that no pod object has, and keeps it
//     for as long as its object is there.
//   - Its status is a function of the machine's state. It is compared with the
//     API's whenever one of the two changes. So a failed or overwritten write is
//     made again, and quick changes become one write. The node lifecycle
//     controller, for example, overwrites the status of pods on silent nodes.
//   - A deleted pod is taken away, by its uid, when none of its containers runs
//     any more and its last status was written.
//   - On a lost node nothing of this happens. Inputs that came meanwhile are
//     handled when the node is back.
//
// Programs end with this process. The next node agent reads from the API what ran, and runs it again as after
// a reboot, with the same addresses and one more restart.
//
// Containers of the image repository HostRepository are processes of this host. They see its files and
// inherit its PATH, HOME, TMPDIR and LANG. Mounts, users and resource limits are ignored. All other
// containers are model servers. As setup (init) containers they end at once with success. postStart hooks and
// terminationMessagePath are not supported.
package nodeagent
