// Package lifecycle is the lifecycle of one pod on a node, as in a kubelet. It uses no clock, process or
// socket: time is an argument, events are inputs, actions are outputs.
//
//	Observe (spec, annotations, deletion) ─┐
//	Started, Exited, Probed, HookDone ─────┤──> Machine ──> Advance: actions
//	time (Advance at NextWake) ────────────┘            └─> Status: the pod's status
//
// A container goes through one loop, and each of its runs has a number:
//
//	waiting ──Start──> starting ──Started──> running ──Exited──> ended
//	   ^  (PodInitializing, ContainerCreating, │ (probed; stopped by
//	   │   ErrImagePull, ImagePullBackOff,     │  a failed probe, deletion,
//	   │   CreateContainerConfigError)         │  eviction: hook, TERM, KILL)
//	   └───────── CrashLoopBackOff <───────────┴── when its policy restarts it
//
// Invariants:
//
//   - An input names its run. A late input of a run that is gone changes nothing.
//     So the caller may answer actions in any order, and more than once.
//   - Each run has at most one open action for a purpose. A probe waits for the answer to its previous check.
//     A run does not start during another run of its container.
//   - Status depends only on the machine and base. A second call of Status or Advance at the same time
//     returns the same status and no further action.
package lifecycle
