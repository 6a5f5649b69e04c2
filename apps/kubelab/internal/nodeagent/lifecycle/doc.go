// Package lifecycle is the life of one pod on a node, as a kubelet would live it, without a
// clock, a process or a socket: time is an argument, events are inputs, actions are outputs.
//
//	Observe (spec, annotations, deletion) ─┐
//	Started, Exited, Probed, HookDone ─────┤──> Machine ──> Advance: actions
//	time (Advance at NextWake) ────────────┘            └─> Status: what the API is to say
//
// A container goes round one loop, and every run of it has a number of its own:
//
//	waiting ──Start──> starting ──Started──> running ──Exited──> ended
//	   ^  (PodInitializing, ContainerCreating, │ (probed; stopped by
//	   │   ErrImagePull, ImagePullBackOff,     │  a failed probe, deletion,
//	   │   CreateContainerConfigError)         │  eviction: hook, TERM, KILL)
//	   └───────── CrashLoopBackOff <───────────┴── when its policy restarts it
//
// What holds:
//
//   - Inputs carry the run that they are about. One that is late, of a run that is
//     no more, changes nothing; so the one who carries out actions may answer in
//     any order and more than once.
//   - At most one action per run and purpose is open: a probe is not sent while
//     its predecessor has not been answered, a run not started while another is.
//   - Status is a function of the machine alone. Calling it, or Advance, twice at
//     the same time yields the same and no further action.
package lifecycle
