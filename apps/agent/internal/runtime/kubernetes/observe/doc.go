// Package observe turns the objects in the informers into what the agent reports: pods
// into instances, nodes into capacity. It is pure: it makes no calls and reads no clock.
//
//	pods of one workload --.
//	its Deployment --------+--> Memory.Instances --> []runtime.Instance
//	Warning events (Journal)|
//	nodes -----------------'
//	all nodes, all pods --------> Fleet -----------> *agentv1.Capacity
//
// The verdict on a pod comes from the first of these that applies, because each makes
// the ones below it outdated:
//
//	deletion        DRAINING, and why: replaced, preempted, evicted, on a lost node
//	a final phase   TERMINATED: the pod is left behind, another takes its place
//	the scheduler   PENDING until it has a node
//	its mark        DRAINING once it runs: it will be stopped, and gateways drain it
//	the node        NodeLost: the status of the pod is outdated
//	init containers in their order
//	the container   waiting, ended or running; its last end while it is not ready
//
// An instance is identified by its pod's UID, because a later pod may get the same address,
// name or ordinal. An instance is READY exactly if its pod has the Ready condition, is not
// being deleted, has no mark, and its node answers.
//
// No status depends on events, because API servers delay and merge them, and drop them after an
// hour. Without events, a verdict has the same status, and a less exact reason and message. An
// event explains only the run in which it was sent.
//
// Memory holds what is not in the pods: the ordinal of each, and which of its runs was
// ready. After a restart of the agent it is rebuilt from conditions and from the order of
// the pods. Pods that were never replaced get the same ordinals.
package observe
