// Package nodeagent runs the pods of all nodes of a kubelab, like one kubelet for each node.
//
//	API server ──pods, nodes──> informers ─┐
//	programs ──started, exited─────────────┤            ┌─> start, end, check, hook
//	checks, hooks ──answers────────────────┼──> loop ───┼─> events
//	heap of wake-ups ──time────────────────┘     │      └─> status patch, last deletion
//	                                        one lifecycle.Machine per pod
//
// One goroutine, the loop, owns every pod. Blocking work (API calls, starts of programs, checks) runs in a
// limited number of other goroutines, which send their answers to the loop's inbox. A pod needs no goroutine
// except its program's, and no processor time while nothing is due.
//
// For pods that are bound to a node, only the node agent writes the status and removes the pod object:
//
//   - A pod gets an address from the CIDR that no other pod object has, and keeps it as long as its object
//     exists.
//   - Its status is a function of the machine's state. The agent compares it with the status in the API
//     whenever one of the two changes. So the agent repeats a failed write and restores an overwritten
//     status, and several quick changes become one write. The node lifecycle controller, for example,
//     overwrites the status of pods on silent nodes.
//   - The agent removes the object of a deleted pod, by its uid, when none of its containers runs and its
//     last status is written.
//   - On a lost node none of this happens. The agent handles inputs that arrive meanwhile when the node is
//     back.
//
// Programs end with this process. The next node agent reads from the API which pods ran. It runs them again
// as after a reboot, with the same addresses and one more restart.
//
// Containers of the image repository HostRepository are processes of this host. They see its files and
// inherit its PATH, HOME, TMPDIR and LANG. Mounts, users and resource limits are ignored. All other
// containers are model servers. As setup (init) containers they end at once with success. postStart hooks and
// terminationMessagePath are not supported.
package nodeagent
