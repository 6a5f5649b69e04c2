// Package nodeagent makes the pods of all nodes of a kubelab real, as one kubelet
// per node would.
//
//	API server ──pods, nodes──> informers ─┐
//	programs ──started, exited─────────────┤            ┌─> start, end, check, hook
//	checks, hooks ──answers────────────────┼──> loop ───┼─> events
//	heap of wake-ups ──time────────────────┘     │      └─> status patch, last deletion
//	                                        one lifecycle.Machine per pod
//
// One goroutine, the loop, owns every pod; what blocks (calls of the API, starts of
// programs, checks) runs outside of it, bounded in number, and answers through its
// inbox. A pod costs no goroutine of its own beyond its program's, and no time
// while nothing about it is due.
//
// The node agent is the only writer of the status of a pod that is bound to a
// node, and the only one that takes such a pod away:
//
//   - A pod gets an address from the CIDR that no pod object has, and keeps it
//     for as long as its object is there.
//   - Its status is a function of the machine's state and is compared with what
//     the API says whenever one of the two changes. So a write that failed, or was
//     overwritten (the node lifecycle controller marks the pods of silent nodes not
//     ready), is made again, and writes that came too close become one.
//   - A deleted pod is taken away, with its uid as the condition, when nothing of
//     it runs any more and its last status was written.
//   - On a lost node nothing of this happens. What came in meanwhile is looked at
//     when the node is back.
//
// Programs live and die with this process. The next node agent finds in the API
// what ran, and runs it again as after a reboot: same addresses, one restart more.
//
// Containers of the image repository HostRepository are processes of this host:
// they see its files and inherit its PATH, HOME, TMPDIR and LANG, and mounts, users
// and resource limits mean nothing to them.
// All others are model servers, of which a setup (init) container has done its
// work at once. Not carried out: postStart hooks, terminationMessagePath.
package nodeagent
